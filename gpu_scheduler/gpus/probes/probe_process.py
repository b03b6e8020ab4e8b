"""Reads the GPUs in a separate process, so that a hanging driver never blocks the caller, and selects GPUs.

`ProbeClient` sends one query at a time to `main`, which runs in that process. If the process has not answered
by the deadline, the client kills it without waiting for its end; the next query goes to a new process. The
caller decides how often to query.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import get_args

from msgspec import Struct, ValidationError, convert, to_builtins

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import GpuSample, Snapshot, parse_gpu_list
from gpu_scheduler.errors import GpuStateError, UsageError
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, Probe, ProbeError, as_probe_error
from gpu_scheduler.runner.folder import TOKEN, living_fields

#: Loads our package from its own location. Then removes that folder and the current folder from the path, so
#: that a `queue.py` there cannot shadow the module of the standard library.
_START = """
import sys
root = sys.argv.pop(1)
sys.path[:] = [root] + [p for p in sys.path if p]
import gpu_scheduler
sys.path.remove(root)
from gpu_scheduler.gpus.probes.probe_process import main
main()
"""
#: The signal that ends a process and all processes that it started.
_KILL = signal.SIGKILL
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class ProbeProcess:
    """A probe process, which has its own session. Never blocks. Raises OSError if it cannot be started.

    Because of the session, Ctrl-C in the scheduler's terminal does not reach the process, and the process can
    be killed together with all processes that it started.
    """

    def __init__(self, interpreter: str, arguments: Sequence[str]) -> None:
        self._stderr = os.memfd_create("probe-stderr", os.MFD_CLOEXEC)
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [interpreter, "-c", _START, _ROOT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                cwd="/",
                # If a job started this scheduler, a sweep of that job must not end the probe.
                env={name: value for name, value in os.environ.items() if name != TOKEN},
                start_new_session=True,
            )
        except OSError:
            os.close(self._stderr)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The pid of the probe process."""
        return self._process.pid

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when a line has arrived or the process has ended."""
        return self._stdout.fileno()

    def send(self, line: bytes) -> None:
        """Writes one query. If this fails, the query is not answered, and the caller's deadline passes."""
        os.ftruncate(self._stderr, 0)
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._stdin.fileno(), line)

    def lines(self) -> tuple[list[bytes], bool]:
        """Returns the complete lines received since the last call, and whether the output has ended."""
        ended = False
        while True:
            try:
                data = os.read(self._stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return lines, ended

    def last_error_line(self) -> str:
        """Returns the last line that the process wrote to stderr since the newest query; "" if none."""
        size = os.fstat(self._stderr).st_size
        tail = os.pread(self._stderr, 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(tail) if line.strip()), "")

    def kill(self) -> None:
        """Kills the process and all processes that it started, without waiting, and closes the pipes."""
        with suppress(ProcessLookupError, PermissionError):
            # The pid of the process, and thus its group id, cannot be reused before `has_ended` collects it.
            if self._process.returncode is None:
                os.killpg(self._process.pid, _KILL)
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        os.close(self._stderr)

    def abandon(self) -> None:
        """Leaves a killed process that is blocked in the kernel to init, which collects it later."""
        if self._process.returncode is None:
            self._process.returncode = -_KILL  # otherwise Python warns about the process

    def has_ended(self) -> bool:
        """Collects the process; returns whether it and all processes that it started have ended.

        A killed process that is blocked in the kernel, such as an `nvidia-smi` waiting for the driver, has
        not ended.
        """
        return self._process.poll() is not None and not _group_lives(self._process.pid)


def _group_lives(group: int) -> bool:
    """Returns whether any process in this group is alive. Zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        tables = [living_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True  # out of file descriptors; the caller will check again
    return any(fields is not None and int(fields[2]) == group for fields in tables)


#: Seconds that an answer may take, including the first one. Waking four sleeping GPUs takes about 2 s; waking
#: eight large GPUs without persistence mode can take over 10 s. When a hanging driver responds again, it
#: answers the open query at once; with a shorter deadline, the process would often be killed before that.
DEADLINE_S = 20.0


class UnreadableError(GpuStateError):
    """No GPU can be read. why: the reason, without the remedy."""

    def __init__(self, failure: ProbeFailure) -> None:
        super().__init__("\n".join(filter(None, (f"cannot read the GPUs: {failure.text}", failure.remedy))))
        self.why = failure.text


class LateAnswerError(UnreadableError):
    """The probe did not answer in the time that the caller gave, which was shorter than the deadline."""


class ProbeClient:
    """Sends queries to a probe process and reads its answers.

    Call `query`, wait until `fileno` is readable, then call `read`. Call `expire` when `deadline` has passed.
    The descriptor stays the same until `close`, even if the process is replaced.
    """

    def __init__(
        self,
        kind: ProbeKind,
        simulate: str | None = None,
        sim_dir: str | None = None,
        interpreter: str = sys.executable,
        deadline_s: float | None = None,
    ) -> None:
        self._arguments = ["--kind", kind]
        if simulate is not None:
            self._arguments += ["--simulate", simulate]
        if sim_dir is not None:
            self._arguments += ["--sim-dir", os.path.abspath(sim_dir)]
        self._interpreter = interpreter
        self._deadline_s = DEADLINE_S if deadline_s is None else deadline_s
        self._ready = select.epoll()
        self._child: ProbeProcess | None = None
        self._killed: list[ProbeProcess] = []
        self._query_number = 0
        self._start_failure: str | None = None
        #: The note of the newest answer to `sample`.
        self.note = ""
        #: The time of the open query in seconds since boot; None if no query is open.
        self.queried_at: float | None = None

    def __enter__(self) -> ProbeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The pid of the probe process; None if there is none at present."""
        return None if self._child is None else self._child.pid

    @property
    def deadline(self) -> float | None:
        """The time at which to call `expire`, in seconds since boot; None if no query is open."""
        return None if self.queried_at is None else self.queried_at + self._deadline_s

    def start(self) -> None:
        """Starts the process unless it is running. Call this early, so that the first answer comes sooner."""
        self._killed = [child for child in self._killed if not child.has_ended()]
        if self._child is not None:
            return
        if len(self._killed) >= _MAX_HANGING:
            # A process that is blocked in the kernel does not end when it is killed. More of them would only
            # accumulate.
            self._start_failure = f"{_MAX_HANGING} earlier queries still hang in the driver"
            return
        self._start_failure = None
        try:
            self._child = ProbeProcess(self._interpreter, self._arguments)
        except OSError as error:
            self._start_failure = f"the probe cannot be started: {error}"
            return
        self._ready.register(self._child.fileno(), select.EPOLLIN)

    def query(self, now: float | None = None) -> None:
        """Requests a sample unless a query is open. now: seconds since boot; reads the clock if None."""
        if self.queried_at is not None:
            return
        self.start()
        self.queried_at = _boot_time() if now is None else now
        self._query_number += 1
        if self._child is not None:
            self._child.send(b"%d\n" % self._query_number)

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when there is an answer for `read`."""
        return self._ready.fileno()

    def read(self) -> Snapshot | ProbeFailure | None:
        """Returns the answer to the open query, or its failure; None if there is none yet. Never blocks."""
        if self._start_failure is not None:
            return self._fail(self._start_failure)
        if self._child is None:
            return None
        lines, ended = self._child.lines()
        for line in lines:
            try:
                number, answer = decode(line)
            except ValueError as error:
                return self._fail(str(error))
            if number == self._query_number and self.queried_at is not None:
                self.queried_at = None
                return answer
        if not ended:
            return None
        error_line = self._child.last_error_line()
        return self._fail("the probe process ended" + (f": {error_line}" if error_line else ""))

    def expire(self, now: float) -> ProbeFailure | None:
        """If the deadline has passed, kills the process and returns the failure of the query; otherwise None.

        now: seconds since boot.
        """
        if self.deadline is None or now < self.deadline:
            return None
        late = _timed_out(self._deadline_s)
        return self._fail(late.text, late.remedy)

    def sample(self, timeout_s: float | None = None) -> Snapshot:
        """Queries the probe, waits for the answer and returns it.

        timeout_s: the maximum time to wait; None waits until the deadline. A query that is not answered in
        this time stays open until its deadline. Raises UnreadableError if no GPU can be read, and
        LateAnswerError if there is no answer in this time.
        """
        ready = select.poll()
        ready.register(self.fileno(), select.POLLIN)
        self.query()
        wait_s = self._deadline_s if timeout_s is None else min(timeout_s, self._deadline_s)
        end = _boot_time() + wait_s
        answer = self.read()
        while answer is None and (left := end - _boot_time()) > 0:
            ready.poll(left * 1000)
            answer = self.read()
        if answer is None:
            answer = self.expire(_boot_time())
        if answer is None:
            raise LateAnswerError(_timed_out(wait_s))
        if isinstance(answer, Snapshot) and not answer.gpus:
            answer = ProbeFailure("no GPU found", DRIVER_REMEDY)
        if isinstance(answer, ProbeFailure):
            raise UnreadableError(answer)
        self.note = answer.note
        return answer

    def close(self) -> None:
        """Ends the process. Do not query the probe after this."""
        self._drop()
        if not self._ready.closed:
            self._ready.close()
        # A killed process ends within about a millisecond, unless it is blocked in the kernel. In that case,
        # init collects it later.
        end = _boot_time() + 0.2
        while any(not child.has_ended() for child in self._killed) and _boot_time() < end:
            time.sleep(0.001)
        for child in self._killed:
            child.abandon()

    def _fail(self, text: str, remedy: str = "") -> ProbeFailure:
        self._drop()
        self._start_failure = None
        self.queried_at = None
        return ProbeFailure(text, remedy)

    def _drop(self) -> None:
        if self._child is not None:
            self._ready.unregister(self._child.fileno())
            self._child.kill()
            self._killed.append(self._child)
            self._child = None


#: If this many killed processes have not ended, no new process is started.
_MAX_HANGING = 3
_HANG_REMEDY = (
    "check that `nvidia-smi` responds; if it is slow, `sudo nvidia-smi -pm 1` (persistence mode) keeps the"
    " driver loaded"
)


def _timed_out(waited_s: float) -> ProbeFailure:
    return ProbeFailure(f"no answer from the GPU driver within {waited_s:g} s", _HANG_REMEDY)


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# The probe process. It answers each query line on stdin with one line of JSON on stdout. A thread reads
# stdin. When the scheduler ends, stdin is closed, and the thread ends this process together with any
# `nvidia-smi` that it is waiting for, even if a query hangs.


def main() -> None:
    """Answers queries until stdin is closed. Arguments: --kind KIND [--simulate TEXT] [--sim-dir FOLDER]."""
    parser = argparse.ArgumentParser(prog="gpu_scheduler.gpus.probes.probe_process")
    parser.add_argument("--kind", choices=get_args(ProbeKind), required=True)
    parser.add_argument("--simulate")
    parser.add_argument("--sim-dir")
    options = parser.parse_args()
    # Redirect stdout to stderr, so that anything a driver's library prints cannot mix with the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    questions: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    probe = make_probe(options.kind, options.simulate, options.sim_dir)
    while True:
        number = questions.get()
        os.write(answers, encode(number, take_sample(probe)))


def make_probe(kind: ProbeKind, simulate: str | None = None, sim_dir: str | None = None) -> Probe:
    """Returns a probe of this kind. Does not read any GPU yet, and imports only what the kind needs.

    simulate  the text of `--simulate`, such as "4" or "2:24G,2:80G". It overrides `kind`.
    sim_dir   the folder in which simulated jobs write their usage, or None if there is no usage.

    Raises ValueError, with the accepted forms, for an invalid `simulate`.
    """
    if simulate is not None or kind == "simulated":
        from gpu_scheduler.gpus.probes.simulated import SimulatedProbe, parse_simulate

        return SimulatedProbe(parse_simulate(simulate if simulate is not None else "4"), sim_dir)
    if kind == "nvml":
        from gpu_scheduler.gpus.probes.nvml import NvmlProbe

        return NvmlProbe()
    if kind == "gputil":
        from gpu_scheduler.gpus.probes.gputil import GputilProbe

        return GputilProbe()
    return AutoProbe()


class AutoProbe:
    """A probe that uses NVML if it works, otherwise GPUtil. Tries both in this order at each sample.

    note: why NVML was not used for the newest sample; "" if it was.
    """

    def __init__(self) -> None:
        self._probes = make_probe("nvml"), make_probe("gputil")
        self.note = ""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        errors: list[ProbeError] = []
        samples: tuple[GpuSample, ...] | None = None
        for probe in self._probes:
            try:
                samples = probe.sample()
            except Exception as error:  # noqa: BLE001 - a library that fails in any way must not hide the GPUs
                errors.append(as_probe_error(error))
                continue
            if samples:
                instead = "the GPUs are read with nvidia-smi instead of NVML, so their processes are unknown"
                self.note = f"{errors[0]}; {instead}" if errors else ""
                return samples
        if samples is not None:
            return samples
        # Installing the driver is the general remedy, so a specific one comes first.
        remedies = [error.remedy for error in errors if error.remedy != DRIVER_REMEDY]
        raise ProbeError("; ".join(map(str, errors)), (*remedies, DRIVER_REMEDY)[0])


def take_sample(probe: Probe) -> Snapshot | ProbeFailure:
    """Takes a sample and returns it, or the reason why it failed.

    The time of the sample is the time before the first value was read, so that no value is older.
    """
    taken_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        gpus = probe.sample()
    except Exception as error:  # noqa: BLE001 - any error of a driver's library must not end this process
        failure = as_probe_error(error)
        return ProbeFailure(str(failure), failure.remedy)
    return Snapshot(taken_at, gpus, getattr(probe, "note", ""))


def _listen(questions: SimpleQueue[int]) -> None:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            questions.put(int(line))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class ProbeFailure(Struct, frozen=True):
    """The reason why a query failed. remedy: advice for the user; "" if there is none."""

    text: str
    remedy: str = ""


def encode(number: int, answer: Snapshot | ProbeFailure) -> bytes:
    """Returns the answer to query `number` as one line that ends with a newline."""
    return json.dumps({"number": number, **to_builtins(answer)}).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Snapshot | ProbeFailure]:
    """Decodes a line that `encode` wrote. Raises ValueError for any other line."""
    try:
        # The decoder of msgspec would reject texts from bytes that are not UTF-8.
        raw = json.loads(line)
        is_failure, number = "text" in raw, int(raw["number"])
        return number, convert(raw, ProbeFailure) if is_failure else convert(raw, Snapshot)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise ValueError(f"invalid answer from the probe: {line[:200]!r}") from error


# The GPUs that a program may use, according to `--gpus` and its own CUDA_VISIBLE_DEVICES.


def restrict_to_visible(
    samples: Sequence[GpuSample], cuda_visible_devices: str | None
) -> tuple[tuple[GpuSample, ...], str | None]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES allows, in PCI order, and a note for the user or None.

    The items of the variable are indices in PCI order or prefixes of UUIDs. If an item does not match exactly
    one GPU, no GPU is returned, because the program must not use a GPU that the user excluded; the note
    gives the reason. An empty value or -1 hides every GPU, as in CUDA.
    """
    everything = tuple(samples)
    if cuda_visible_devices is None:
        return everything, None
    text = cuda_visible_devices.strip()
    setting = f"CUDA_VISIBLE_DEVICES={text}"
    if text in ("", "-1", "NoDevFiles"):
        return (), f"{setting} hides every GPU; unset it, or list the GPUs to use"
    chosen: set[str] = set()
    for item in (part.strip() for part in text.split(",")):
        matches = [gpu.uuid for gpu in everything if _is_meant(item, gpu)]
        if len(matches) != 1:
            found = "no GPU" if not matches else f"{len(matches)} GPUs"
            return (), f"{setting}: {item!r} matches {found}; correct it, or unset it to use every GPU"
        chosen.add(matches[0])
    kept = tuple(gpu for gpu in everything if gpu.uuid in chosen)
    if len(kept) == len(everything):
        return kept, None
    numbers = ", ".join(str(gpu.index) for gpu in kept)
    plural = "s" if len(kept) > 1 else ""
    return kept, f"{setting} allows only GPU{plural} {numbers} of {len(everything)}"


def _is_meant(item: str, gpu: GpuSample) -> bool:
    if item.isascii() and item.isdigit():
        return int(item) == gpu.index
    return item != "" and gpu.uuid.startswith(item)


def select_gpus(samples: Sequence[GpuSample], option: str | None) -> list[GpuSample]:
    """Returns the GPUs that `--gpus` selects.

    option: a count such as "4", a list such as "0,2,3" or "3,", or None for all GPUs. Raises UsageError with
    the number of GPUs found if the option is invalid.
    """
    found = f"{len(samples)} GPU{'' if len(samples) == 1 else 's'} found"
    if option is None:
        return list(samples)
    count = _count_of(option)
    if count is not None:
        if not 1 <= count <= len(samples):
            raise UsageError(
                f"--gpus {option}: {found}; give a count from 1 to {len(samples)}, or leave it out"
            )
        return list(samples[:count])
    try:
        indices = parse_gpu_list(option.strip().removesuffix(","), frozenset(s.index for s in samples))
    except ValueError as error:
        raise UsageError(f"--gpus {option}: {error}; {found}") from None
    return list(samples) if indices is None else [s for s in samples if s.index in indices]


def count_note(samples: Sequence[GpuSample], option: str | None) -> str | None:
    """Explains a count in `--gpus` that could be mistaken for a GPU index; returns None if all GPUs are used.

    samples: all GPUs; `select_gpus` selects the first ones.
    """
    count = None if option is None else _count_of(option)
    if count is None or count >= len(samples):
        return None
    chosen = [str(sample.index) for sample in samples[:count]]
    note = f"--gpus {count} is a count: GPU{'s' * (count > 1)} {', '.join(chosen)}"
    if count in [sample.index for sample in samples]:
        note += f"; for GPU {count} alone write --gpus {count},"
    return note


def _count_of(option: str) -> int | None:
    """Returns the number if the text of `--gpus` is a count; None if it is a list."""
    return int(option) if re.fullmatch(r"[0-9]+", option.strip()) else None
