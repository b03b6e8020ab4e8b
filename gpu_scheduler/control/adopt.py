"""Adopts a running process: makes it a job. The process itself is neither changed nor signalled."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.core.jobsfile.attributes import parse_item
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job import ADOPT, AdoptedProcess
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.text.formatting import format_gpus, pid_text, safe_text
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError, UsageError
from gpu_scheduler.runner.process_scan import environment, token_in
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.machine_gpus import open_source
from gpu_scheduler.show.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.store.job_lists import adopted_job_of
from gpu_scheduler.store.requests import add_environment
from gpu_scheduler.system.procfs import Proc, ProcessProblem, RunningProcess, read_running_process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_scheduler.config import ProbeKind
    from gpu_scheduler.store.store import Store


# Finds the GPUs that a process uses, from the samples of a scheduler or of a probe.


def find_gpus(
    location: Location, store: Store | None, process: RunningProcess, wanted: Adoption
) -> tuple[GpuSample, ...]:
    """Returns the GPUs that the user named or, if none, those on which the process or a descendant is listed.

    store: None if no scheduler has run yet. Raises UsageError for a GPU that does not exist, SchedulerError
    if the GPUs cannot be found, and GpuStateError if they cannot be read.
    """
    managed = () if store is None else tuple(gpu.last for gpu in store.gpus())
    if wanted.gpus is not None:
        return _named(wanted.gpus, managed or _probed(location, None, wanted))
    if store is not None and scheduler_pid_of(store) is not None:
        found = _used(managed, process)
        if found:
            return found
    # The newest sample of the scheduler may be older than the process.
    samples = _probed(location, store if managed else None, wanted)
    used = _used(samples, process)
    if not used:
        if any(gpu.processes is None for gpu in samples):
            raise SchedulerError(
                "the driver does not list the processes on each GPU: name the GPUs of PID"
                f" {process.pid} with --gpus"
            )
        raise SchedulerError(
            f"PID {process.pid} does not use a GPU yet: try again later, or name its GPUs with --gpus"
        )
    unmanaged = [str(gpu.index) for gpu in used if managed and gpu.uuid not in {one.uuid for one in managed}]
    if unmanaged:
        raise SchedulerError(
            f"PID {process.pid} uses GPU {', '.join(unmanaged)}, which this scheduler does not manage\n"
            "start the scheduler with these GPUs (--gpus), or name only the others with `adopt --gpus`"
        )
    return used


def _probed(location: Location, store: Store | None, wanted: Adoption) -> tuple[GpuSample, ...]:
    """Reads the GPUs, like the scheduler of the store if there is one."""
    options = None if store is None or wanted.simulate is not None else store.recorded_options()
    source = open_source(
        wanted.probe if options is None else options.gpu_probe,
        wanted.simulate if options is None else options.simulate,
        location,
    )
    try:
        return tuple(source.probe.sample().gpus)
    finally:
        source.probe.close()


def _named(indices: tuple[int, ...], samples: Iterable[GpuSample]) -> tuple[GpuSample, ...]:
    by_index = {gpu.index: gpu for gpu in samples}
    unknown = [index for index in indices if index not in by_index]
    if unknown:
        there = ", ".join(map(str, sorted(by_index)))
        raise UsageError(f"--gpus: there is no GPU {unknown[0]}; the GPUs are {there}")
    return tuple(by_index[index] for index in indices)


def _used(samples: Iterable[GpuSample], process: RunningProcess) -> tuple[GpuSample, ...]:
    """Returns the GPUs on which the process or a descendant is listed."""
    proc = Proc()
    mine: dict[int, bool] = {}

    def is_mine(pid: int) -> bool:
        if pid not in mine:
            found = proc.process(pid)
            line = proc.ancestry(found) if found is not None else ()
            mine[pid] = any((link.pid, link.start) == (process.pid, process.start_ticks) for link in line)
        return mine[pid]

    return tuple(gpu for gpu in samples if any(is_mine(one.pid) for one in gpu.processes or ()))


#: Programs that do nothing without arguments, so that a single word of theirs is a title.
_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z|k)?sh")
_PROBLEMS = {
    ProcessProblem.GONE: "there is no such process",
    ProcessProblem.ENDED: "it has ended and waits for its parent to collect it",
    ProcessProblem.KERNEL_THREAD: "it is a thread of the kernel",
    ProcessProblem.OTHER_USER: "it belongs to another user; only its owner can adopt it",
    ProcessProblem.UNREADABLE: "the kernel does not let you read it",
}


class Adoption(Struct, frozen=True):
    """The process to adopt, and the attributes of its job.

    attributes: texts by attribute, such as the name of the job. vram: the memory that it needs on each GPU,
    in MiB; None means that it has its GPUs to itself. gpus: the indices of its GPUs; None means those on
    which the driver lists it. probe, simulate: how to read the GPUs if no scheduler has run yet.
    """

    pid: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    vram: int | None = None
    gpus: tuple[int, ...] | None = None
    probe: ProbeKind = "auto"
    simulate: str | None = None


class AdoptedJob(Struct, frozen=True):
    """A job that is an adopted process.

    gpus: the indices of its GPUs.
    """

    id: int
    process: RunningProcess
    spec: JobSpec
    gpus: tuple[int, ...]
    is_scheduler_up: bool


def adopt(location: Location, wanted: Adoption) -> AdoptedJob:
    """Makes a process a job and wakes the scheduler, which watches it.

    Raises UsageError if the process cannot be adopted or a value is wrong, SchedulerError if it belongs to a
    job, and GpuStateError if the GPUs cannot be read. Nothing is recorded then.
    """
    attributes = _parsed(wanted.attributes)
    process = _read(wanted.pid)
    _refuse_own(process)
    try:
        with open_store(location, read_only=True) as store:
            _refuse_known(store, process)
            gpus = find_gpus(location, store, process, wanted)
    except StoreNotFoundError:
        gpus = find_gpus(location, None, process, wanted)
    spec = replace(_spec(process, len(gpus), wanted.vram), **attributes)
    create_missing_store(location)
    return _insert(location, process, spec, gpus)


def _parsed(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of JobSpec that these attributes set. Raises UsageError for a wrong value."""
    try:
        return dict(parse_item(f"--{key} {text}", key, text, None) for key, text in attributes.items())
    except ValueError as error:
        raise UsageError(f"{error}; nothing was adopted") from None


def _read(pid: int) -> RunningProcess:
    found = read_running_process(pid)
    if isinstance(found, ProcessProblem):
        raise UsageError(f"PID {pid} cannot be adopted: {_PROBLEMS[found]}")
    texts = {
        "command line": " ".join(found.arguments),
        "working folder": found.cwd,
        "program": found.executable,
    }
    for what, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"PID {pid} cannot be adopted: its {what} is not valid UTF-8, so the store cannot record it"
            ) from None
    return found


def _refuse_own(process: RunningProcess) -> None:
    proc, pid = Proc(), process.pid
    own = proc.own_process
    if own is not None and pid in (link.pid for link in proc.ancestry(own)):
        raise UsageError(
            f"PID {pid} cannot be adopted: this command runs in it; give the PID of a training run"
        )
    if token_in(environment(pid)):
        raise SchedulerError(f"PID {pid} cannot be adopted: it already belongs to a job of a scheduler")


def _refuse_known(store: Store, process: RunningProcess) -> None:
    """Raises SchedulerError for a process of this scheduler or of one of its jobs."""
    proc, pid = Proc(), process.pid
    scheduler = scheduler_pid_of(store)
    running = proc.process(scheduler) if scheduler else None
    if running is not None and pid in (link.pid for link in proc.ancestry(running)):
        raise UsageError(f"PID {pid} cannot be adopted: the scheduler ({pid_text(running.pid)}) runs in it")
    found = proc.process(pid)
    for link in proc.ancestry(found) if found is not None else ():
        job_id = adopted_job_of(store, link.pid, link.start, process.boot_id)
        if job_id is not None:
            what = "it is already" if link.pid == pid else f"its ancestor {link.pid} is already"
            raise SchedulerError(f"PID {pid} cannot be adopted: {what} job {job_id}")
    attempts = {one.token: one for one in store.active_attempts() if one.state.holds_gpus}
    folders = {token: store.data_dir.attempt_folder(one) for token, one in attempts.items()}
    for token, pids in processes_of(folders).items() if folders else ():
        if pid in pids:
            raise SchedulerError(f"PID {pid} cannot be adopted: it belongs to job {attempts[token].job_id}")


def _spec(process: RunningProcess, gpu_count: int, vram: int | None) -> JobSpec:
    """Returns what the process is, so that a retry starts the same again, unless it has changed its title."""
    first, *others = process.arguments
    program = _program(process)
    is_interpreter = _INTERPRETER.fullmatch(os.path.basename(process.executable))
    if any(others) or not (others or program != first or is_interpreter):
        text = command = shlex.join((program, *others))
    else:
        text, command = first.strip() or process.executable, None
    # With a number of GPUs and no memory, the job has its GPUs to itself.
    return JobSpec("command", text, process.cwd, command=command, gpus=gpu_count, vram=vram)


def _program(process: RunningProcess) -> str:
    """Returns the first word of the command: that of the process, if it names a program, or its file."""
    word = process.arguments[0]
    if "/" in word:
        path = os.path.join(process.cwd, word)
        return word if os.path.isfile(path) and os.access(path, os.X_OK) else process.executable
    found = shutil.which(word, path=process.environment.get("PATH", os.defpath)) if word else None
    return process.executable if found is None else word


def _insert(
    location: Location, process: RunningProcess, spec: JobSpec, gpus: tuple[GpuSample, ...]
) -> AdoptedJob:
    adopted = AdoptedProcess(
        process.pid, process.start_ticks, process.boot_id, process.started_at,
        tuple(gpu.uuid for gpu in gpus), process.log,
    )  # fmt: skip
    with open_store(location) as store:
        with store.db.transaction():
            _refuse_known(store, process)  # again, because another `adopt` may have been faster
            key = add_environment(store, process.environment)
            job_id = store.insert_job(spec, ADOPT, environment=key, adopted=adopted)
        store.data_dir.ring_doorbell()
        indices = tuple(gpu.index for gpu in gpus)
        return AdoptedJob(job_id, process, spec, indices, scheduler_pid_of(store) is not None)


def adopt_text(job: AdoptedJob) -> str:
    """Formats an adopted job as three lines: its id and name, its command and its folder."""
    name = "" if job.spec.name is None else f": {safe_text(job.spec.name)}"
    return (
        f"Adopted PID {job.process.pid} as job {job.id}{name}\n"
        f"    cmd: {safe_text(job.spec.text)}\n"
        f"    cwd: {safe_text(job.spec.cwd)}\n"
    )


def note_text(job: AdoptedJob) -> Iterator[str]:
    """Yields notes on the GPUs and the log of an adopted job, and on a scheduler that is not running."""
    alone = "; no other job starts there, because --vram was not given" if job.spec.vram is None else ""
    yield f"it uses {format_gpus(job.gpus)}{alone}"
    if not job.spec.can_start:
        yield (
            "it has replaced its command line by a title, so it cannot be started again unless"
            f" `set {job.id} command='…'` names its command after its end"
        )
    if job.process.log is None:
        yield "its output does not go to a file, so `logs` cannot show it"
    if not job.is_scheduler_up:
        yield "no scheduler is running; the next one watches the process (`start`)"
