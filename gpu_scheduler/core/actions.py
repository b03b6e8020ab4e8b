"""What a round decides. Each value is recorded first, in one transaction with the rest of its round, then
performed; an action without anything to perform is a change of the record only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.states import JobState, Outcome

if TYPE_CHECKING:
    from gpu_scheduler.core.needs import Need


@dataclass(frozen=True)
class Start:
    """Open an attempt of a queued job on these GPUs and launch it.

    share (thousandths, 0 = none declared), vram (MiB): on each of them; whole: no other job of ours with it;
    learned: vram is no declaration, but what its kind was seen to use; assumed: share and vram are none
    either, for nobody said them; baseline_mib: (UUID, MiB in use there that nobody accounts for).
    """

    job_id: int
    gpus: tuple[str, ...]
    share: int
    baseline_mib: tuple[tuple[str, int], ...] = ()
    vram: int | None = None
    whole: bool = False
    learned: bool = False
    assumed: bool = False


@dataclass(frozen=True)
class Relaunch:
    """Launch the same attempt again: nobody has claimed it by its deadline."""

    attempt_id: int


@dataclass(frozen=True)
class TakeClaim:
    """Link a `void` claim, so that the attempt can never run; the next look tells who won.

    gives_up: because none of its launches was claimed.
    """

    attempt_id: int
    gives_up: bool = False


@dataclass(frozen=True)
class ForgetLaunches:
    """None of the attempt's launches was claimed, for a shortage: they do not count."""

    attempt_id: int


@dataclass(frozen=True)
class Move:
    """Change the state of a job whose attempt is open: running, or stopping."""

    job_id: int
    attempt_id: int
    state: JobState


@dataclass(frozen=True)
class WriteStop:
    """Write `stop` and wake the runner. grace_s: seconds between TERM and KILL."""

    attempt_id: int
    cause: str
    grace_s: float


@dataclass(frozen=True)
class Nudge:
    """Signal the runner again: `stop` is there and it has not ended."""

    attempt_id: int


@dataclass(frozen=True)
class KillRunner:
    """The runner did not end by grace + 10 s."""

    attempt_id: int


@dataclass(frozen=True)
class NoteRunner:
    """Record the process that runs this attempt, as its claim tells it. ticks: its start, since boot."""

    attempt_id: int
    pid: int
    ticks: int


@dataclass(frozen=True)
class NoteDead:
    """The runner was found dead without a result; the 60 s for its processes to go begin."""

    attempt_id: int


@dataclass(frozen=True)
class NoteStray:
    """A process of this attempt is on a GPU (UUID) that it was not given; said once per attempt and GPU."""

    job_id: int
    attempt_id: int
    uuid: str
    pid: int


@dataclass(frozen=True)
class NoteWindowClosed:
    """The Screen window of this attempt was closed, and its job goes on; said once per attempt."""

    job_id: int
    attempt_id: int


@dataclass(frozen=True)
class NoteUse:
    """What a sample taken at `at` (boot seconds) shows of a running attempt.

    seen: of each of its GPUs (UUID, MiB of its processes, load of the card in percent); None = not known.
    """

    job_id: int
    attempt_id: int
    at: float
    seen: tuple[tuple[str, int | None, float | None], ...]


@dataclass(frozen=True)
class NoteExceeded:
    """An attempt uses more memory on a GPU (UUID) than it declared; said once per attempt and GPU. MiB.

    share: thousandths, where it declared that part of the GPU, which is declared_mib; None: it declared vram.
    """

    job_id: int
    attempt_id: int
    uuid: str
    seen_mib: int
    declared_mib: int
    share: int | None = None


@dataclass(frozen=True)
class NoteForeignLoad:
    """The load that foreign processes made in the last samples, percent, the newest last (None = not known);
    at: when the newest of them was taken, boot seconds."""

    uuid: str
    loads: tuple[float | None, ...]
    at: float | None


@dataclass(frozen=True)
class NoteHeld:
    """The foreign processes of a GPU (UUID) that live, each at the most that it was seen to use: (pid, start,
    MiB)."""

    uuid: str
    held: tuple[tuple[int, float, int], ...]


@dataclass(frozen=True)
class Sweep:
    """Signal every process that still carries the attempt's token. kill: SIGKILL, else SIGTERM."""

    attempt_id: int
    kill: bool


@dataclass(frozen=True)
class Close:
    """Record the end of an attempt and what it means for its job, which goes to `state`.

    not_before: boot seconds before which a re-queued job is not started; launch_failures, oom_used and
    fail_used: the new counts; raised_mib: the memory that its job needs from now on, None = as before;
    shortage: errno of the shortage for which it did not begin.
    """

    job_id: int
    attempt_id: int
    outcome: Outcome
    state: JobState
    job_outcome: Outcome | None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    survivors: tuple[int, ...] = ()
    launch_failures: int = 0
    not_before: float | None = None
    oom_used: int = 0
    fail_used: int = 0
    raised_mib: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    shortage: int | None = None


@dataclass(frozen=True)
class Release:
    """No process of the ended attempt is left: its allocation is given back."""

    attempt_id: int


@dataclass(frozen=True)
class Cooled:
    """The memory of the attempt's GPUs is back, or 60 s are over."""

    attempt_id: int


@dataclass(frozen=True)
class Finish:
    """End a waiting job without an attempt."""

    job_id: int
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Hold:
    """Hold a queued job. by: "user" or "line"."""

    job_id: int
    by: str
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Queue a held or finished job again, with a clean count of failed launches."""

    job_id: int
    reason: str


@dataclass(frozen=True)
class OpenCancel:
    """Put an open cancel on a job whose attempt is open; it lasts until the attempt's end is recorded."""

    job_id: int
    cause: str
    grace_s: float


@dataclass(frozen=True)
class SetAttribute:
    """Change one attribute of a waiting or finished job (a name of jobspec.ATTRIBUTES)."""

    job_id: int
    name: str
    value: Any


@dataclass(frozen=True)
class SetPlaces:
    """Give waiting jobs their places in the queue: (job id, place)."""

    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SetPaused:
    """Pause or resume a GPU. reason: what asked for it, where that was no command."""

    uuid: str
    paused: bool
    reason: str | None = None


@dataclass(frozen=True)
class Wait:
    """Say why the jobs of one Ask wait. need: what each of them needs, None = not said."""

    ask: str
    reason: str
    infeasible: bool
    need: Need | None = None


@dataclass(frozen=True)
class PassedOver:
    """A job behind this one was started before it."""

    job_id: int


@dataclass(frozen=True)
class WishDone:
    """A wish has been carried out, or why it was not."""

    wish_id: int
    answer: str


@dataclass(frozen=True)
class EndScheduler:
    """The scheduler was asked to end."""


Action = (
    Start
    | Relaunch
    | TakeClaim
    | ForgetLaunches
    | Move
    | WriteStop
    | Nudge
    | KillRunner
    | NoteRunner
    | NoteDead
    | NoteStray
    | NoteWindowClosed
    | NoteUse
    | NoteExceeded
    | NoteForeignLoad
    | NoteHeld
    | Sweep
    | Close
    | Release
    | Cooled
    | Finish
    | Hold
    | Requeue
    | OpenCancel
    | SetAttribute
    | SetPlaces
    | SetPaused
    | Wait
    | PassedOver
    | WishDone
    | EndScheduler
)
