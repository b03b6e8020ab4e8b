"""Waits until GPUs meet the criteria of a command, and claims them for this process, without a scheduler.

While it waits, the command takes turns with the other programs that could take the same GPU. Inside a job, or
below a process that claims whole GPUs, it uses GPUs of that job or process, and takes no claim of its own.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import ClaimedGpu, GpuClaim, GpuCriteria, GpuSample, format_gpu_list
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.scheduling.gpu_choice import (
    Impossibility,
    ImpossibilityKind,
    choose,
    impossibility,
    in_line,
)
from gpu_scheduler.core.text.formatting import count_noun, safe_text
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_process import LateAnswerError, restrict_to_visible
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.runner.locks import Refusal, Wanted, claim_gpus
from gpu_scheduler.show.gpu_text import claims_text
from gpu_scheduler.show.machine_gpus import GpuSource, claim_folder, surrounding_claims, uuids_of, with_claims
from gpu_scheduler.system.gpu_claims import (
    MOVE_EVERY_S,
    TURN_EVERY_S,
    LockReading,
    Turns,
    boot_s,
    is_below_runner,
    lock_problem,
    own_claims,
    read_locks_of,
    turn_claim,
)
from gpu_scheduler.system.shortages import reraise_shortage
from gpu_scheduler.system.simulated_usage import FOLDER_VARIABLE

# Waits until claims on GPUs or turns change, by watching the processes that hold them.


#: Seconds between two readings of the locks. They show changes that are not the end of a process.
_READ_EVERY_S = MOVE_EVERY_S


class ClaimWatch:
    """Notices changes of the locks on GPUs, and at once the end of a process that holds one.

    since: when this program began to wait, in seconds since boot. ahead: the process whose turn it is before
    this one, by the GPU's UUID.
    """

    def __init__(self, folder: Path) -> None:
        self.turns, self.since = Turns(folder), boot_s()
        self.ahead: dict[str, int] = {}
        self._folder = folder
        self._uuids: tuple[str, ...] = ()
        self._reading = LockReading({}, {})
        #: The processes that have ended. They are not watched again, even if they seem to hold a lock.
        self._ended: set[int] = set()

    def read(self, uuids: Iterable[str]) -> LockReading:
        """Reads the locks on these GPUs, and returns them. `wait` waits until they change."""
        self._uuids = tuple(uuids)
        self._reading = read_locks_of(self._folder, self._uuids)
        return self._reading

    def read_turns(self) -> dict[str, int]:
        """Reads and returns `ahead`."""
        ahead = {uuid: self.turns.ahead(uuid, self.since) for uuid in self._uuids}
        self.ahead = {uuid: pid for uuid, pid in ahead.items() if pid is not None}
        return self.ahead

    def wait(self, timeout_s: float) -> bool:
        """Waits until locks or turns change, at most for `timeout_s`, and moves on in line.

        Returns whether they have changed.
        """
        end = time.monotonic() + timeout_s
        before, turns = self._reading, self.ahead
        watched = self._open_pidfds()
        try:
            ready = select.poll()
            for fd in watched:
                ready.register(fd, select.POLLIN)
            # The first reading shows changes before the descriptors were open.
            while self.read(self._uuids) == before and (not turns or self.read_turns() == turns):
                self.turns.move()
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return False
                every_s = TURN_EVERY_S if turns.keys() - before.locks.keys() else _READ_EVERY_S
                ended = ready.poll(min(left_s, every_s) * 1000)
                self._ended.update(watched[fd] for fd, _ in ended)
                if ended:
                    return True
            return True
        finally:
            for fd in watched:
                os.close(fd)

    def _open_pidfds(self) -> dict[int, int]:
        """Returns a descriptor for each process that holds a lock, with its pid."""
        holders = {pid for pid in self.ahead.values() if pid} | {
            lock.pid for locks in self._reading.locks.values() for lock in locks if lock.pid
        }
        watched = {}
        for pid in holders - self._ended:
            try:
                watched[os.pidfd_open(pid)] = pid
            except OSError:
                continue  # it has ended or no descriptor is free; the locks also show its end
        return watched


#: Number of times that a claim is tried at once if other programs, which do not take turns, are faster.
_MAX_CLAIMS = 20
#: For this many seconds after claims have changed, the GPUs are sampled at this interval in seconds, because
#: drivers free the memory of an ended process with a delay.
_FREQUENT_S, _FREQUENT_EVERY_S = 10.0, 1.0
#: The least number of seconds that each sample may take, whatever the time limit.
_LEAST_SAMPLE_S = 2.0


class GpuRequest(Struct, frozen=True):
    """The GPUs that a command needs, and how to wait for them.

    poll_s: seconds between two samples of the GPUs; timeout_s: seconds after which to give up, None means
    never; claim: whether this process claims the GPUs.
    """

    criteria: GpuCriteria
    poll_s: float = 5.0
    timeout_s: float | None = None
    claim: bool = True


class FoundGpus(Struct, frozen=True):
    """GPUs that meet the criteria, by index.

    is_inside: whether they belong to the job or process that started this process, so no claim was taken.
    surrounding: the claims of that job or process on these GPUs, by UUID.
    """

    gpus: tuple[ClaimedGpu, ...]
    criteria: GpuCriteria
    is_inside: bool = False
    surrounding: Mapping[str, GpuClaim] = field(default_factory=dict)


class Impossible(Struct, frozen=True):
    """The reason why a request can never be met.

    reason: None if CUDA_VISIBLE_DEVICES allows no GPU. visible_note: which GPUs CUDA_VISIBLE_DEVICES allows;
    None if it allows all.
    """

    reason: Impossibility | None
    visible_note: str | None = None


class Shortfall(Struct, frozen=True):
    """The reasons why too few GPUs are eligible now. visible_note: as in Impossible.

    turn_problem: why there are no turns on some GPU, as a sentence about its turn file; "" if there are.
    """

    reasons: tuple[GpuObstacle, ...]
    visible_note: str | None = None
    turn_problem: str = ""


#: The reasons why GPUs are not eligible, or why they cannot be read.
WaitReasons = Shortfall | GpuStateError
OnWait = Callable[[WaitReasons], None]


def find_gpus(source: GpuSource, request: GpuRequest, on_wait: OnWait) -> FoundGpus | Impossible | None:
    """Waits for GPUs that meet the criteria, and claims them if the request says so; None after the timeout.

    This process then holds the claims until it ends, also if it executes another program; it must not open a
    lock file again. Raises GpuStateError if the first sample fails, and UsageError if the lock folder cannot
    be used.
    """
    end = None if request.timeout_s is None else time.monotonic() + request.timeout_s
    search = _GpuSearch(source, request, on_wait)
    try:
        first = search.begin()
    except LateAnswerError as error:
        on_wait(error)
        return None
    never = search.impossibility(first)
    if never is not None:
        return never
    samples: Sequence[GpuSample] | None = first
    while True:
        found = None if samples is None else search.choose_and_claim(samples)
        if found is not None:
            return found
        if end is not None and time.monotonic() >= end:
            return None
        samples = search.wait_and_sample(end)


class _GpuSearch:
    """The search for GPUs of one command."""

    def __init__(self, source: GpuSource, request: GpuRequest, on_wait: OnWait) -> None:
        self._probe, self._request, self._on_wait = source.probe, request, on_wait
        folder = claim_folder(source)
        if request.claim:
            folder.prepare()
        else:
            folder.check()
        self._folder = folder.path
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._visible_note: str | None = None
        self._watch = ClaimWatch(self._folder)
        self._frequent_until = 0.0
        #: The GPUs, by UUID, that another `run` above this process has claimed entirely.
        self._own: set[str] = set()
        self._is_inside = False

    def begin(self) -> tuple[GpuSample, ...]:
        """Takes the first sample and determines the GPUs that this process may use. Returns the sample."""
        timeout_s = self._request.timeout_s
        samples = self._probe.sample(None if timeout_s is None else max(_LEAST_SAMPLE_S, timeout_s)).gpus
        # The variable alone proves nothing: somebody may have copied the environment of a job.
        is_in_job = TOKEN in os.environ and is_below_runner()
        # A job uses all GPUs that are visible to it, whatever its runner claims.
        self._own = set() if is_in_job else own_claims(self._watch.read(uuids_of(samples)).locks)
        self._is_inside = is_in_job or bool(self._own)
        return samples

    def in_scope(self, samples: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
        """Returns the GPUs that this process may use."""
        visible, self._visible_note = restrict_to_visible(samples, self._visible)
        return tuple(sample for sample in visible if sample.uuid in self._own) if self._own else visible

    def impossibility(self, samples: Sequence[GpuSample]) -> Impossible | None:
        """Returns why the request can never be met; None if it can."""
        scope = self.in_scope(samples)
        if not scope and self._visible_note is not None:
            return Impossible(None, self._visible_note)
        reason = impossibility(scope, self._request.criteria)
        return None if reason is None else Impossible(reason, self._visible_note)

    def choose_and_claim(self, samples: Sequence[GpuSample]) -> FoundGpus | None:
        """Chooses GPUs and claims them; if they are refused, tries the next best ones.

        Returns None, after reporting the reasons, if too few GPUs are eligible.
        """
        samples, criteria = self.in_scope(samples), self._request.criteria
        own = {sample.uuid for sample in samples} if self._is_inside else ()
        unusable: dict[str, str] = {}
        for _ in range(_MAX_CLAIMS):
            reading = self._watch.read(uuids_of(samples))
            reading = LockReading(reading.locks, {**reading.problems, **unusable})
            gpus = with_claims(samples, reading, own)
            choice = choose(gpus if self._is_inside else self._in_turn(gpus), criteria)
            if len(choice.eligible) < criteria.count:
                break
            chosen = sorted(choice.eligible[: criteria.count], key=lambda gpu: gpu.sample.index)
            if self._is_inside:
                surrounding = surrounding_claims([gpu.sample for gpu in chosen], reading)
                return FoundGpus(tuple(chosen), criteria, is_inside=True, surrounding=surrounding)
            if not self._request.claim or self._claim(chosen, unusable):
                self._watch.turns.close()
                return FoundGpus(tuple(chosen), criteria)
        problem = self._watch.turns.problem
        turn_problem = "" if problem is None else lock_problem(problem)
        self._on_wait(Shortfall(choice.ineligible, self._visible_note, turn_problem))
        return None

    def _in_turn(self, gpus: Sequence[ClaimedGpu]) -> list[ClaimedGpu]:
        """Takes the places of this command in line; returns the GPUs with the turns of others as claims."""
        watch = self._watch
        if self._request.claim:
            held = [_kept_for(gpu, watch.turns.ahead(gpu.sample.uuid)) for gpu in gpus]
            line = {gpu.sample.uuid: gpu for gpu in in_line(held, self._request.criteria)}
            moving = {uuid for uuid, gpu in line.items() if gpu.claims or uuid in watch.ahead}
            # Once a GPU is free, the command keeps its place for a moment, until its memory is free, too.
            kept = watch.turns.places.keys() if self._request.criteria.count == 1 else ()
            watch.turns.wait_in_line(dict.fromkeys({*line, *kept}, watch.since), moving)
        ahead = watch.read_turns()
        return [_kept_for(gpu, ahead.get(gpu.sample.uuid)) for gpu in gpus]

    def _claim(self, chosen: Sequence[ClaimedGpu], unusable: dict[str, str]) -> bool:
        """Claims the GPUs if it is the turn of this process, which alone claims them at this moment.

        Returns whether it now holds them. Records unusable lock files.
        """
        turns = self._watch.turns
        uuids = sorted(gpu.sample.uuid for gpu in chosen)
        try:
            is_turn = all(turns.take(uuid, self._watch.since) is None for uuid in uuids)
            return is_turn and self._claim_memory(chosen, unusable)
        finally:
            turns.keep(())

    def _claim_memory(self, chosen: Sequence[ClaimedGpu], unusable: dict[str, str]) -> bool:
        mib = self._request.criteria.claim_mib
        samples = [gpu.sample for gpu in chosen]
        wanted = [Wanted(one.uuid, None if one.exclusive else mib, one.total_mib) for one in samples]
        try:
            return not isinstance(claim_gpus(str(self._folder), wanted, inheritable=True), Refusal)
        except OSError as error:
            reraise_shortage(error)
            name = os.path.basename(error.filename or "")
            if name not in {one.name for one in wanted}:
                raise
            unusable[name] = lock_problem(error)
            return False

    def wait_and_sample(self, end: float | None) -> tuple[GpuSample, ...] | None:
        """Waits until a sample is due or the claims have changed, and takes a sample.

        end: the time of the last sample; None means that there is no last one. Returns None, after reporting
        the reason, if the sample fails.
        """
        now = time.monotonic()
        wait_s = self._request.poll_s
        if now < self._frequent_until:
            wait_s = min(wait_s, _FREQUENT_EVERY_S)
        if self._watch.wait(wait_s if end is None else min(wait_s, end - now)):
            self._frequent_until = time.monotonic() + _FREQUENT_S
        try:
            left_s = None if end is None else max(_LEAST_SAMPLE_S, end - time.monotonic())
            return self._probe.sample(left_s).gpus
        except GpuStateError as error:
            self._on_wait(error)
            return None


def _kept_for(gpu: ClaimedGpu, pid: int | None) -> ClaimedGpu:
    """Returns a GPU with the turn of this process, unless there is none or the whole GPU is claimed."""
    is_claimed = any(claim.mib is None for claim in gpu.claims)
    return gpu if pid is None or is_claimed else replace(gpu, claims=(*gpu.claims, turn_claim(pid)))


# Executes the command of `run` in this process.


#: The signals that Python ignores. The command gets the default actions, as from any shell.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


class NotExecuted(Struct, frozen=True):
    """The reason why a command cannot be executed, as text. is_missing: whether there is no such program."""

    text: str
    is_missing: bool = False


def missing_program(program: str) -> NotExecuted | None:
    """Returns why a program cannot be executed, as far as this can be known before; None if it may work."""
    if shutil.which(program) is not None:
        return None
    if os.path.isdir(program):
        return _refused(program, os.strerror(errno.EISDIR))
    exists = shutil.which(program, os.F_OK) is not None
    return _refused(program, os.strerror(errno.EACCES)) if exists else _missing(program)


def command_environment(found: FoundGpus, source: GpuSource, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of a command that uses these GPUs. base: those of this process."""
    simulation = {} if source.simulation is None else {FOLDER_VARIABLE: os.path.abspath(source.simulation)}
    return {
        **base,
        **simulation,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.sample.index) for gpu in found.gpus),
    }


def execute(words: Sequence[str], env: Mapping[str, str]) -> NotExecuted:
    """Executes a command in this process. Returns only if that fails."""
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(words[0], list(words), env)
    except (FileNotFoundError, NotADirectoryError):
        if shutil.which(words[0]) is None:
            return _missing(words[0])
        return NotExecuted(f"{shlex.quote(words[0])}: cannot be executed (its interpreter does not exist)")
    except (OSError, ValueError) as error:
        number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        hint = "; does the script begin with #!?" if number == errno.ENOEXEC else ""
        return _refused(words[0], f"{reason or error}{hint}")


def _refused(program: str, reason: str) -> NotExecuted:
    return NotExecuted(f"{shlex.quote(program)}: cannot be executed ({reason})")


def _missing(program: str) -> NotExecuted:
    """Returns that there is no such program; says what to do if the text is probably meant for a shell."""
    from gpu_scheduler.core.jobsfile.job_line import BUILTINS, RESERVED

    is_for_shell = " " in program or "=" in program or program in (*BUILTINS, *RESERVED)
    hint = " (for a shell command, use `run -- bash -c '…'`)" if is_for_shell else ""
    return NotExecuted(f"{shlex.quote(program)}: command not found{hint}", is_missing=True)


# Formats which GPUs `run` and `wait` chose, what they wait for, and why a request can never be met.


def wait_text(count: int) -> str:
    """Returns the line that announces the wait."""
    return "waiting for a free GPU ..." if count == 1 else f"waiting for {count} free GPUs ..."


def ineligibility_text(found: GpuObstacle) -> str:
    """Formats why a GPU is not eligible, as a sentence such as "GPU 1 has 812 MiB free"."""
    return f"GPU {found.gpu} {_predicate(found)}"


def _predicate(found: GpuObstacle) -> str:
    if found.kind is ObstacleKind.FAULT:
        return f"has a fault: {safe_text(str(found.fault))}"
    if found.kind is ObstacleKind.CLAIMED:
        whole = all(claim.mib is None for claim in found.claims)
        return f"{'is' if whole else 'has'} {claims_text(found.claims)}"
    if found.kind is ObstacleKind.CLAIMS_UNKNOWN:
        return f"cannot be claimed: {safe_text(found.detail or '')}"
    if found.kind is ObstacleKind.MEMORY:
        claimed = f"; {claims_text(found.claims)}" if found.claims else ""
        return f"has {found.free} MiB free{claimed}"
    if found.kind is ObstacleKind.FOREIGN_LOAD:
        return f"has a utilization of {found.foreign_load}%"
    return _PREDICATES[found.kind]


_PREDICATES = {
    ObstacleKind.EXCLUSIVE: "is in compute mode Exclusive_Process, and a process uses it",
    ObstacleKind.MEMORY_UNKNOWN: "does not report its free memory",
    ObstacleKind.LOAD_UNKNOWN: "does not report its utilization",
}


def taken_text(found: FoundGpus) -> str:
    """Returns the line that names the GPUs that `run` uses."""
    mib = found.criteria.claim_mib
    gpus = _gpus_text(found)
    if found.is_inside:
        return f"using {gpus} of the surrounding job or command, without another claim"
    each = "each of " if len(found.gpus) > 1 else ""
    return f"took {gpus}" if mib is None else f"took {mib} MiB of {each}{gpus}"


def unclaimed_text(found: FoundGpus) -> str:
    """Returns the line with which `wait` says that it holds no claim."""
    if found.is_inside:
        return f"found {_gpus_text(found)} of the surrounding job or command"
    verb, which = ("is", "it") if len(found.gpus) == 1 else ("are", "them")
    return f"{_gpus_text(found)} {verb} free but not claimed, so another program may take {which} first"


def _gpus_text(found: FoundGpus) -> str:
    *others, last = [_gpu_text(gpu, found.surrounding.get(gpu.sample.uuid)) for gpu in found.gpus]
    return f"{', '.join(others)} and {last}" if others else last


def _gpu_text(gpu: ClaimedGpu, surrounding: GpuClaim | None) -> str:
    free = "free memory unknown" if gpu.available_mib is None else f"{gpu.available_mib} MiB free"
    claimed = ""
    if surrounding is not None:
        amount = "the whole GPU" if surrounding.mib is None else f"{surrounding.mib} MiB"
        claimed = f", surrounding claim: {amount}"
    return f"GPU {gpu.sample.index} ({safe_text(gpu.sample.name)}, {free}{claimed})"


def timeout_text(seconds: float, count: int) -> str:
    """Formats the end of an unsuccessful wait."""
    what = "no GPU was" if count == 1 else f"fewer than {count} GPUs were"
    return f"timed out: {what} free within {seconds:g} s"


def impossible_text(found: Impossible) -> str:
    """Formats why a request can never be met, in one or two lines."""
    reason = None if found.reason is None else _impossibility_text(found.reason)
    return "\n".join(line for line in (reason, found.visible_note) if line)


def _impossibility_text(found: Impossibility) -> str:
    criteria, kind = found.criteria, found.kind
    which = format_gpu_list(found.gpus)
    if kind is ImpossibilityKind.NO_SUCH_GPU:
        missing = format_gpu_list(found.missing)
        subject = f"GPU {missing} is" if len(found.missing) == 1 else f"GPUs {missing} are"
        return f"{subject} not among the GPUs to choose from ({which})"
    wanted = f"{count_noun(criteria.count, 'GPU')} wanted"
    if kind is ImpossibilityKind.TOO_FEW_GPUS and not found.gpus:
        lists = "--exclude leaves" if criteria.only is None else "--allowed and --exclude leave"
        return f"{wanted}, but {lists} none"
    if kind is ImpossibilityKind.TOO_FEW_GPUS:
        return f"{wanted}, but only {len(found.gpus)} to choose from ({which})"
    mib = f"{criteria.needed_mib} MiB"
    if not found.suitable_count:
        return f"no GPU to choose from ({which}) has {mib}; the largest has {found.largest_mib} MiB"
    return (
        f"{wanted} with {mib} of memory, but only {found.suitable_count} of the"
        f" {len(found.gpus)} GPUs to choose from ({which}) can have so much"
    )
