"""Every code of a message is rendered, with the values that its constructors give, into one golden page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from enum import Enum
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.control.line_note import LineNote, Note, NoteKind, line_note_text
from gpu_scheduler.control.requests import Answer, AnswerKind, answer_text
from gpu_scheduler.core.model.event import Event, EventKind
from gpu_scheduler.core.model.gpu import FaultKind, GpuClaim, GpuFault, Suspicion
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import (
    FailureKind,
    GpuObstacle,
    NextKind,
    NextStep,
    ObstacleKind,
    ReasonKind,
    StateReason,
    WaitKind,
    WaitReason,
)
from gpu_scheduler.core.model.request import ACCEPTED_STATES, AnswerCode, RequestAnswer, wrong_state
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.show.events import detail, message_of
from gpu_scheduler.show.gpu_text import obstacle_remedy, obstacle_text
from gpu_scheduler.show.job_text import reason_text
from gpu_scheduler.show.wait_text import job_reason_text, wait_text
from gpu_scheduler.show.why_text import failure_remedy, timeout_remedy
from tests.records import job_view

GOLDEN = Path(__file__).with_name("golden") / "sentences.txt"
#: A noon, in local time.
NOON = time.mktime((2027, 6, 1, 12, 0, 0, 0, 0, -1))
NEED, MEMORY = Need(1, 500), Need(2, vram=20_000)
FOREIGN = (
    {"foreign_mib": 900, "foreign_pid": 77},
    {"foreign_mib": 900, "processes_listed": True},
    {"foreign_mib": 17_000, "processes_listed": False},
)
CLAIMS = (
    GpuClaim(None, 8), GpuClaim(500, 9, "ann", job=3, folder="/q.d"), GpuClaim(None, 7, by_scheduler=True),
    GpuClaim(1, 0), GpuClaim(None, 6, is_turn=True),
)  # fmt: skip
OBSTACLES = [
    GpuObstacle(3, ObstacleKind.PAUSED),
    GpuObstacle(3, ObstacleKind.NOT_SAMPLED),
    *(GpuObstacle(3, ObstacleKind.FAULT, fault=GpuFault(kind, "x", 2)) for kind in FaultKind),
    GpuObstacle(3, ObstacleKind.SUSPECT, suspicion=Suspicion((1, 2), NOON, "ECC error")),
    GpuObstacle(3, ObstacleKind.SUSPECT, suspicion=Suspicion((1,), NOON - 700)),
    GpuObstacle(3, ObstacleKind.SUSPECT, suspicion=Suspicion((1,), NOON, awaits=4)),
    GpuObstacle(3, ObstacleKind.SUSPECT),
    GpuObstacle(3, ObstacleKind.FAILED_HERE, 7),
    GpuObstacle(3, ObstacleKind.QUARANTINED, 7, (8,)),
    GpuObstacle(3, ObstacleKind.QUARANTINED, 7, (8, 9)),
    GpuObstacle(3, ObstacleKind.RELEASING),
    GpuObstacle(3, ObstacleKind.AWAITING_MEMORY),
    GpuObstacle(3, ObstacleKind.BUSY),
    GpuObstacle(3, ObstacleKind.EXCLUSIVE),
    GpuObstacle(3, ObstacleKind.EXCLUSIVE, foreign_pid=77),
    GpuObstacle(3, ObstacleKind.RESERVED, 7),
    GpuObstacle(3, ObstacleKind.RESERVED, 7, reserved_from=NOON + 60, overtakes=9),
    GpuObstacle(3, ObstacleKind.RESERVED, 7, reserved_from=NOON + 60),
    GpuObstacle(3, ObstacleKind.SHARE, free=250),
    GpuObstacle(3, ObstacleKind.MEMORY, free=0),
    GpuObstacle(3, ObstacleKind.MEMORY, free=9000),
    GpuObstacle(3, ObstacleKind.MEMORY, free=9000, foreign_peak_mib=4000),
    *(GpuObstacle(3, ObstacleKind.MEMORY, free=10, **values) for values in FOREIGN),  # type: ignore[arg-type]
    GpuObstacle(3, ObstacleKind.MEMORY_UNKNOWN),
    GpuObstacle(3, ObstacleKind.LOAD_UNKNOWN),
    *(GpuObstacle(3, ObstacleKind.FOREIGN_MEMORY, **values) for values in FOREIGN),  # type: ignore[arg-type]
    *(GpuObstacle(3, ObstacleKind.FOREIGN_PROCESS, **values) for values in FOREIGN),  # type: ignore[arg-type]
    GpuObstacle(3, ObstacleKind.FOREIGN_LOAD, foreign_load=80),
    GpuObstacle(3, ObstacleKind.FOREIGN_LOAD, foreign_load=80, foreign_pid=77),
    GpuObstacle(3, ObstacleKind.CLAIMED, claims=CLAIMS),
    GpuObstacle(3, ObstacleKind.CLAIMS_UNKNOWN, detail="its lock file is a folder"),
]
WAITS = [
    WaitReason(WaitKind.STORAGE, "the disk is full"),
    WaitReason(WaitKind.GPUS_UNREADABLE, "no driver"),
    WaitReason(WaitKind.START_INTERVAL, "2.5"),
    WaitReason(WaitKind.NO_FREE_GPU, need=MEMORY, gpus=1),
    WaitReason(WaitKind.NO_FREE_GPU, need=NEED, obstacles=tuple(OBSTACLES[:1])),
    WaitReason(WaitKind.NO_FREE_GPU, need=NEED, obstacles=tuple(OBSTACLES[16:24])),
    WaitReason(
        WaitKind.NO_FREE_GPU,
        need=NEED,
        obstacles=tuple(one for one in OBSTACLES if one.kind in (ObstacleKind.RESERVED, ObstacleKind.BUSY)),
    ),
    WaitReason(
        WaitKind.NO_FREE_GPU,
        need=NEED,
        obstacles=tuple(one for one in OBSTACLES if one.kind is ObstacleKind.RESERVED and one.reserved_from),
    ),
    *(
        WaitReason(WaitKind.TOO_FEW_GPUS, need=MEMORY, gpus=gpus, managed=managed, allowed=allowed)
        for gpus, managed, allowed in (
            (0, 0, None),
            (1, 1, None),
            (2, 2, None),
            (1, 4, 2),
            (0, 4, 1),
            (1, 4, 1),
        )
    ),
    WaitReason(WaitKind.GPUS_TOO_SMALL, need=NEED, size_mib=900, largest_mib=900, margin_mib=64),
    WaitReason(WaitKind.GPUS_TOO_SMALL, need=MEMORY, size_mib=20_100, largest_mib=20_100, margin_mib=101),
    WaitReason(WaitKind.GPUS_TOO_SMALL, need=MEMORY, allowed=2, size_mib=900, largest_mib=9000, margin_mib=9),
    WaitReason(WaitKind.GROUP_FULL, "eval", running=2, max_running=2),
    WaitReason(WaitKind.CPU_JOBS_FULL, running=4, max_running=4),
    WaitReason(WaitKind.NO_ENGINE, "slurm"),
    WaitReason(WaitKind.ENGINE_UNUSABLE, "Slurm: Unable to contact slurm controller (connect failure)"),
    WaitReason(WaitKind.ENGINE_REFUSES, "Slurm: Requested node configuration is not available"),
    WaitReason(WaitKind.ENGINE_SILENT, "slurm"),
    WaitReason(WaitKind.ENGINE_ASKED, "slurm"),
    WaitReason(WaitKind.ENGINE_FULL, "slurm", running=20),
    WaitReason(WaitKind.ENGINE_FULL, "slurm", running=1),
    WaitReason(WaitKind.IN_ENGINE, "Slurm (job 17): Resources"),
    WaitReason(WaitKind.LINE_MALFORMED, line_number=4),
    WaitReason(WaitKind.LINE_REMOVED, due_at=100.0),
    WaitReason(WaitKind.LINE_CHANGED, line_number=4, due_at=100.0),
    WaitReason(WaitKind.NOT_CONFIRMED),
    WaitReason(WaitKind.HELD, "user"),
    WaitReason(WaitKind.PREEMPTING),
    WaitReason(WaitKind.PREEMPTING, victims=(5,)),
    WaitReason(WaitKind.PREEMPTING, victims=(5, 6)),
    WaitReason(WaitKind.RESERVED, reserved=(1, 2), reserved_from=NOON + 60, overtakes=1),
    WaitReason(WaitKind.RESERVED, need=NEED, gpus=1, reserved=(1,), reserved_from=NOON + 60, overtakes=3),
    WaitReason(WaitKind.PARENTS),
    WaitReason(WaitKind.RETRY_DELAY, due_at=100.0),
    WaitReason(WaitKind.PROCESSES_LEFT),
    WaitReason(WaitKind.SHORTAGE),
    WaitReason(WaitKind.RELAUNCHED, launches=2),
    WaitReason(WaitKind.REQUEST, "release"),
    WaitReason(WaitKind.REQUEST, "resume_job"),
    WaitReason(WaitKind.NOT_WATCHED, "4711"),
    WaitReason(WaitKind.NOT_TRIED),
    WaitReason(WaitKind.NO_SCHEDULER),
    WaitReason(WaitKind.UNKNOWN, "a reason of another version"),
]
#: The kinds of waits whose sentence needs the job that waits.
OF_JOB = (
    WaitKind.LINE_MALFORMED, WaitKind.LINE_REMOVED, WaitKind.LINE_CHANGED, WaitKind.NOT_CONFIRMED,
    WaitKind.PARENTS,
)  # fmt: skip
_FAILED = StateReason(ReasonKind.COMMAND_FAILED, exit_code=1)
REASONS = [
    _FAILED,
    replace(_FAILED, error="E: x", message="log lost"),
    *(replace(_FAILED, exit_code=code) for code in (126, 127, 137, 200)),
    *(replace(_FAILED, exit_code=None, signal=signal) for signal in (9, 11, 40)),
    *(replace(_FAILED, exit_code=127, error=error) for error in ("no", "bash: line 1: x: command not found")),
    replace(_FAILED, exit_code=None, signal=15, error="E: x"),
    replace(_FAILED, message="log lost"),
    replace(_FAILED, exit_code=137, oom_kill="command"),
    replace(_FAILED, oom_kill="child", error="killed"),
    replace(_FAILED, gpu_ids=(4, 5)),
    replace(_FAILED, gpu_used_twice=True),
    replace(_FAILED, left=("sleep 9",), left_count=1),
    replace(_FAILED, failure=FailureKind.BACKGROUND_WORK),
    replace(_FAILED, failure=FailureKind.BROKEN_PIPE),
    replace(_FAILED, failure=FailureKind.GREP_IN_PIPE),
    StateReason(ReasonKind.LAUNCH_FAILED, message="no script"),
    StateReason(ReasonKind.LAUNCH_FAILED),
    StateReason(ReasonKind.RUNNER_NEVER_STARTED, launches=3),
    StateReason(ReasonKind.GPU_CLAIMED, gpu=1, pid=9),
    StateReason(ReasonKind.GPU_CLAIMED),
    StateReason(ReasonKind.RUNNER_REPORT, message="its log could not be written"),
    StateReason(ReasonKind.RUNNER_REPORT),
    StateReason(ReasonKind.COMPLETED, exit_code=141),
    StateReason(ReasonKind.COMPLETED, left=("sleep 9", "cat"), left_count=3),
    StateReason(ReasonKind.PREEMPTED),
    StateReason(ReasonKind.PREEMPTED, preemptor=8),
    StateReason(ReasonKind.INTERRUPTED),
    StateReason(ReasonKind.RUNNER_DIED, survivors=(7,)),
    StateReason(ReasonKind.RUNNER_DIED, survivors=(7, 8), message="its folder is damaged"),
    StateReason(ReasonKind.FOLDER_REMOVED),
    StateReason(ReasonKind.MACHINE_ENDED),
    StateReason(ReasonKind.MACHINE_RESTARTED),
    StateReason(ReasonKind.STORE_LOST),
    StateReason(ReasonKind.SUPERSEDED),
    StateReason(ReasonKind.CANCELLED_BY_USER),
    StateReason(ReasonKind.CANCELLED_BY_LINE),
    StateReason(ReasonKind.GIVEN_BACK),
    StateReason(ReasonKind.LINE_REMOVED),
    StateReason(ReasonKind.LINE_ADDED_AGAIN, subject="jobs.txt"),
    StateReason(ReasonKind.HELD_BY_USER),
    StateReason(ReasonKind.HELD_BY_LINE),
    StateReason(ReasonKind.PARENT_NOT_IMPORTED, subject="job 2 (eval)"),
    StateReason(ReasonKind.RELEASED_BY_USER),
    StateReason(ReasonKind.RELEASED_BY_LINE),
    StateReason(ReasonKind.RETRIED_BY_USER),
    StateReason(ReasonKind.RESUMED_BY_USER, subject="out/step-9"),
    StateReason(ReasonKind.RECOVERED),
    *(StateReason(ReasonKind.PARENT_FAILED, parent=2, parent_outcome=outcome) for outcome in Outcome),
    StateReason(ReasonKind.PARENT_RETRIED),
    StateReason(ReasonKind.UNKNOWN, message="a reason of another version"),
]
STEPS = [
    NextStep(NextKind.OOM_RETRY, 1, 2, vram_mib=20_000),
    NextStep(NextKind.OOM_RETRY, 1, 2),
    NextStep(NextKind.OOM_RETRIES_USED_UP, of=2),
    NextStep(NextKind.NO_LARGER_GPU, vram_mib=20_000),
    NextStep(NextKind.RETRY, 1, 2, 10.0),
    NextStep(NextKind.LAUNCH_RETRY, 2, 5, 2.5),
    NextStep(NextKind.LAUNCH_RETRY_UNCOUNTED, wait_s=5.0),
    NextStep(NextKind.LAUNCH_ABANDONED, 1),
    NextStep(NextKind.LAUNCH_ABANDONED, 5),
    NextStep(NextKind.HELD, job_id=7),
    NextStep(NextKind.HELD, job_id=7, checkpoint="/out/last"),
    NextStep(NextKind.WATCHED_AGAIN, wait_s=5.0),
    NextStep(NextKind.RECOVERY, 1, 3),
    NextStep(NextKind.RECOVERIES_USED_UP, of=3, job_id=7),
    NextStep(NextKind.RESUME, checkpoint="/out/last", step=150.0),
    NextStep(NextKind.START_OVER, checkpoint="/out/last"),
]
ANSWERS = [
    *(RequestAnswer(code) for code in (
        AnswerCode.CANCELLED, AnswerCode.STOPPING, AnswerCode.QUEUED, AnswerCode.HELD, AnswerCode.RELEASED,
        AnswerCode.CLEARED, AnswerCode.CONFIRMED, AnswerCode.UNCONFIRMED, AnswerCode.POSITIONS_SET,
        AnswerCode.PAUSED, AnswerCode.RESUMED, AnswerCode.NOT_PAUSED, AnswerCode.ENDING, AnswerCode.WITHDRAWN,
        AnswerCode.BEING_CANCELLED, AnswerCode.NO_SUCH_JOB, AnswerCode.ALREADY_COMPLETED,
        AnswerCode.NO_COMMAND, AnswerCode.CYCLE, AnswerCode.GPU_NOT_MANAGED, AnswerCode.SCHEDULER_ENDED,
        AnswerCode.UNKNOWN,
    )),
    RequestAnswer(AnswerCode.QUEUED, attribute="priority=5, name=\x1b"),
    RequestAnswer(AnswerCode.RECOVERED, jobs=()),
    *(RequestAnswer(AnswerCode.CLEARED, count=count) for count in range(3)),
    RequestAnswer(AnswerCode.ATTRIBUTE_SET, attribute="name=\x1b"),
    RequestAnswer(AnswerCode.ATTRIBUTE_REMOVED, attribute="vram"),
    RequestAnswer(AnswerCode.NOT_WATCHED, verb="hold"),
    RequestAnswer(AnswerCode.NOT_WATCHED, verb="set"),
    *(wrong_state(verb, state) for verb in ACCEPTED_STATES for state in JobState),
    RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=Outcome.TIMED_OUT),
    RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=Outcome.FAILED, exit_code=7),
    RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=Outcome.FAILED, signal=9),
    *(RequestAnswer(AnswerCode.NOT_INTERRUPTED, state=state) for state in JobState),
    RequestAnswer(AnswerCode.UNFINISHED_WORK, outcome=Outcome.PREEMPTED),
    RequestAnswer(AnswerCode.PARENT_FAILED, parent=2),
]  # fmt: skip
OTHER_ANSWERS = [
    Answer(3, AnswerKind.CARRIED_OUT),
    *(Answer(3, kind, RequestAnswer(AnswerCode.STOPPING)) for kind in AnswerKind),
    Answer(3, AnswerKind.UNANSWERED, scheduler_pid=99),
    *(
        Answer(
            3, AnswerKind.REFUSED, RequestAnswer(AnswerCode.PARENT_FAILED, parent=2), None, (1, 2), skipped
        )
        for skipped in (True, False)
    ),
]
NOTES: list[LineNote] = [
    Note(NoteKind.MODEL_UNKNOWN, {"model": "m"}),
    Note(NoteKind.SCRIPT_RELATIVE, {"script": "a.sh", "cwd": "/w"}),
    Note(NoteKind.CWD_MISSING, {"cwd": "/w"}),
    Note(NoteKind.OOM_RETRIES_ON_ENGINE, {"engine": "Slurm"}),
    Note(NoteKind.NOT_ON_ENGINE, {"engine": "Slurm", "attributes": "allowed and preempt"}),
    Note(NoteKind.CONDA_MISSING, {"name": "c"}),
    Note(NoteKind.CONDA_ENVIRONMENT_MISSING, {"name": "c", "environments": ("base", "d")}),
    Note(NoteKind.CONDA_ENVIRONMENT_MISSING, {"name": "c", "environments": ()}),
    Note(NoteKind.VENV_MISSING, {"path": "/v"}),
    Note(NoteKind.SCRIPT_MISSING, {"script": "a.sh"}),
    Note(NoteKind.JOB_EXISTS, {"job": 3, "state": "held"}),
    Note(NoteKind.JOB_COMPLETED, {"job": 3}),
    Note(NoteKind.VENV_OF_OTHER_USER, {"path": "/v"}),
    Note(NoteKind.SBATCH_READ, {"script": "a.sh", "options": ("name", "cwd")}),
    Note(NoteKind.SBATCH_NOT_READ, {"script": "a.sh", "options": ("--qos",)}),
    Note(NoteKind.PARENT_FAILED, {"job": 3, "outcome": Outcome.TIMED_OUT, "retried": ("2", "3")}),
    Note(NoteKind.PARENT_NOT_IMPORTED, {"parent": "job 2 (eval)", "status": "failed"}),
    Note(NoteKind.VARIABLE_IGNORED, {"name": "CUDA_VISIBLE_DEVICES", "value": "1"}),
    Note(NoteKind.GPU_NUMBER, {"gpu": "2"}),
    Note(NoteKind.MEMORY_ON_ENGINE, {"engine": "Slurm"}),
    *(
        Note(NoteKind.ENVIRONMENT, {"conda": conda, "venv": venv})
        for conda, venv in product((None, "base"), (None, "/a b/.venv"))
    ),
    *(
        Note(NoteKind.NOT_WATCHED, {"path": "/a", "scheduler_pid": pid, "watched": watched})
        for pid, watched in ((99, "/b"), (0, ""))
    ),
    Note(NoteKind.GPUS_TOO_SMALL, {"need": NEED, "margin_mib": 512}),
    Note(NoteKind.TOO_FEW_GPUS, {"need": MEMORY, "usable": 1}),
    "a message of the parser",
]

#: The values of all kinds of events.
DETAILS = {
    "attempt": 2, "gpus": [1, 2], "share": 500, "vram": None, "exclusive": False, "gpu": 1, "observed": 900,
    "declared": 800, "pid": 77, "cause": "state_file_edited", "grace_s": 30.0, "victims": [5, 6], "jobs": 4,
    "suspicion": {"jobs": [1], "since": NOON},
}  # fmt: skip


def page() -> Iterator[str]:
    """Yields the sections of the golden page."""
    yield "# Why a job waits"
    for wait, due_in_s in product(WAITS, (None, 4.2)):
        if wait.kind not in OF_JOB and due_in_s is None:
            yield f"{wait.kind.value}: {wait_text(wait, NOON)}"
        elif wait.kind in OF_JOB:
            for source in ("file:/w/jobs.txt", "redis:item"):
                job = job_view(1, "queued", wait=wait, due_in_s=due_in_s, source=source)
                yield f"{wait.kind.value}: {job_reason_text(job)}"
    yield "# Why a GPU does not accept a job"
    for obstacle in OBSTACLES:
        yield f"{obstacle.kind.value}: {obstacle_text(obstacle, NOON)} => {obstacle_remedy(obstacle)}"
    yield "# Why a job is in its state"
    for reason in REASONS:
        yield f"{reason.kind.value}: {reason_text(reason)} | {reason_text(reason, without_exit=True)}"
    yield "# What follows"
    for step, kind in product(STEPS, (ReasonKind.INTERRUPTED, ReasonKind.STORE_LOST)):
        yield f"{step.kind.value}: {reason_text(StateReason(kind, next_steps=(step,)))}"
    yield "# What remedies a failure"
    for failure in FailureKind:
        ways = (
            failure_remedy(failure),
            failure_remedy(failure, 3),
            failure_remedy(failure, 3, is_script=True),
        )
        yield from (f"{failure.value}: {way}" for way in dict.fromkeys(ways))
    yield from (f"timeout: {timeout_remedy(limit, job)}" for limit, job in product((None, 90.0), (None, 3)))
    yield "# Answers"
    for answer in ANSWERS:
        yield f"{answer.code.value}: {answer_text(Answer(3, AnswerKind.CARRIED_OUT, answer), '/s.d')}"
    for other in OTHER_ANSWERS:
        yield f"{other.kind.value}: {answer_text(other, '/s.d')}"
    yield "# Events"
    for event in (Event(1, NOON, kind, 3, None, DETAILS, "python train.py") for kind in EventKind):
        yield f"{event.kind}: {message_of(event).full_text} | {detail(event)}"
    yield "# Notes about a line"
    for note in NOTES:
        yield f"{note.kind.value if isinstance(note, Note) else '-'}: {line_note_text(note)}"


def test_every_sentence_matches_the_golden_page() -> None:
    text = "".join(f"{line}\n" for line in page())
    if "UPDATE_GOLDEN" in os.environ:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_golden_page_shows_every_code() -> None:
    shown: set[Enum] = {one.kind for one in WAITS}
    shown |= {one.kind for one in OBSTACLES}
    shown |= {one.kind for one in REASONS}
    shown |= {one.kind for one in STEPS}
    shown |= {one.kind for one in OTHER_ANSWERS}
    shown |= {one.code for one in ANSWERS}
    shown |= {one.kind for one in NOTES if isinstance(one, Note)}
    for codes in (WaitKind, ObstacleKind, ReasonKind, NextKind, AnswerKind, AnswerCode, NoteKind):
        assert {*codes} <= shown
