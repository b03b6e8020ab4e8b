"""Asks the scheduler's own code for the decisions of the model: `core.settle` and `core.copied` get facts
that represent a state, and `runner.ending` decides how a runner handles its signals.

States have no times. For every deadline both cases are tried, passed and not passed, and the model follows
each answer.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from gpu_scheduler.core import actions as act
from gpu_scheduler.core.copied import leave
from gpu_scheduler.core.facts import Attempt, Cancel, Settings
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.settle import needs_scan, release, settle
from gpu_scheduler.core.sighting import ClaimState, ResultNote, Sighting, StopNote
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.runner.ending import Ending
from tests.protocol import state as st

_NOW = Now(1e9, 1000.0, "boot")
_SETTINGS = Settings(max_assign_attempts=2, launches=2)
_JOBS = (
    JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.HELD, JobState.FINISHED,
)  # fmt: skip
_CLAIMS: dict[int, ClaimState] = {
    st.CLAIM_NONE: "none", st.CLAIM_VOID: "void", st.CLAIM_LIVE: "live", st.CLAIM_UNLOCKED: "unlocked",
    st.CLAIM_UNCLAIMED: "unclaimed", st.CLAIM_DEAD: "dead",
}  # fmt: skip
_STOPS = {
    0: None,
    st.STOP_CANCEL: StopNote("cancelled", 10.0),
    st.STOP_PREEMPT: StopNote("preempted", 10.0, "withdraw"),
}
_ENDED = ResultNote(None, 0, None, True, None, (), 1.0, 2.0)
_RESULTS = {
    st.NONE: None,
    st.COMPLETED: _ENDED,
    st.FAILED: replace(_ENDED, exit_code=7),
    st.CANCELLED: replace(_ENDED, cause="cancelled"),
    st.INTERRUPTED: replace(_ENDED, cause="machine", exit_code=None, signal=15),
    st.NOT_STARTED: replace(_ENDED, began=False, exit_code=1),
    st.PREEMPTED: replace(_ENDED, cause="preempted"),
}
_WORDS: dict[type[act.Action], str] = {
    act.Relaunch: "will launch again",
    act.ForgetLaunches: "resets its launches because of a shortage",
    act.TakeClaim: "will void the claim",
    act.Nudge: "will signal the runner",
    act.KillRunner: "will kill the runner",
    act.NoteDead: "records that the runner is dead",
    act.Release: "releases its GPUs",
    act.Cooled: "records that its memory is released",
}


class View(NamedTuple):
    """The facts that a round has about an attempt.

    process_found: a scan finds a process of it; swept: 0, 1 (SIGTERM), 2 (SIGKILL).
    """

    number: int
    job: int
    claim: int
    result: int = st.NONE
    stop: int = 0
    cancel: bool = False
    old_boot: bool = False
    there: bool = True
    made: bool = True
    launches: int = 1
    found: bool = False
    swept: int = 0


@cache
def settled(view: View) -> tuple[tuple[act.Action, ...], ...]:
    """Returns every answer of `settle` for an open attempt: deadlines passed or not, jobs startable or
    not."""
    answers: dict[tuple[act.Action, ...], None] = {}
    for over, late, held in product((False, True), repeat=3):
        fact = _attempt(view, over, late)
        if needs_scan(fact, _NOW):
            fact = replace(fact, survivors=(77,) if view.found else ())
        answers[tuple(settle(fact, _NOW, _SETTINGS, held=held))] = None
    return tuple(answers)


def _attempt(view: View, over: bool, late: bool) -> Attempt:
    """Returns the facts of an attempt. deadline_passed: a deadline or grace period has passed; late: also 60
    s."""
    long_ago, just_now = 0.0, 1000.0
    return Attempt(
        1,
        1,
        "t" * 32,
        "another boot" if view.old_boot else "boot",
        _JOBS[view.job],
        sighting=Sighting(
            claim=_CLAIMS[view.claim],
            stop=_STOPS[view.stop],
            result=_RESULTS[view.result],
            is_there=view.there,
        ),
        cancel=Cancel("cancelled", 10.0) if view.cancel else None,
        made=view.made,
        launches=view.launches,
        launch_deadline=long_ago if over else 2000.0,
        launch_failures=view.number - 1,
        number=view.number,
        stopping_at=long_ago if over else just_now,
        swept_at=None if not view.swept else long_ago if over or late else just_now,
        signalled_at=None if not view.swept else long_ago + (view.swept == 2) if over or late else just_now,
        dead_at=None if not view.swept else long_ago if late else just_now,
    )


@cache
def released(found: bool, swept: int) -> tuple[tuple[act.Action, ...], ...]:
    """Returns every answer of `release` for an ended attempt whose GPUs are not released."""
    answers: dict[tuple[act.Action, ...], None] = {}
    for over in (False, True):
        fact = _attempt(View(1, st.QUEUED, st.CLAIM_NONE, swept=swept), over, late=False)
        fact = replace(fact, outcome=Outcome.FAILED, survivors=(77,) if found else ())
        answers[tuple(release(fact, _NOW, _SETTINGS))] = None
    return tuple(answers)


@cache
def left_to_the_original(view: View) -> tuple[act.Action, ...]:
    """Returns the actions of `start --as-copy` for an attempt that was open when the store was copied."""
    return tuple(leave(_attempt(view, over=True, late=False), _NOW, _SETTINGS, "/original"))


def described(actions: tuple[act.Action, ...]) -> str:
    """Returns a short description of the actions."""
    return ", ".join(map(_word, actions)) or "nothing to do"


def _word(action: act.Action) -> str:
    if isinstance(action, act.Close):
        return f"commits {action.outcome.value}"
    if isinstance(action, act.Move):
        return f"commits {action.state.value}"
    if isinstance(action, act.Sweep):
        return f"will send {'SIGKILL' if action.kill else 'SIGTERM'} to its processes"
    if isinstance(action, act.WriteStop):
        return "will write stop"
    return _WORDS.get(type(action), type(action).__name__)


# The requests to end that a runner has received, as a number for each state of an `Ending`; 0: none.

_endings: list[Ending] = [Ending()]
_numbers: dict[tuple[object, ...], int] = {tuple(vars(_endings[0]).values()): 0}
_CAUSES = {"cancelled": st.CANCELLED, "preempted": st.PREEMPTED, "machine": st.INTERRUPTED, None: st.NONE}


def _number(ending: Ending) -> int:
    key = tuple(vars(ending).values())
    if key not in _numbers:
        _numbers[key] = len(_endings)
        _endings.append(ending)
    return _numbers[key]


@cache
def tell(told: int, cause: int) -> tuple[int, bool]:
    """Requests the runner to end its command; returns the new state and whether the command gets SIGTERM."""
    ending = copy.copy(_endings[told])
    name = {st.CANCELLED: "cancelled", st.PREEMPTED: "preempted", st.INTERRUPTED: "machine"}[cause]
    first = ending.tell(name, 0.0, "withdraw" if cause == st.PREEMPTED else "kill", 0.0)
    return _number(ending), first


@cache
def due(told: int) -> str | None:
    """Returns the step that follows when the grace period is over."""
    return copy.copy(_endings[told]).due(1.0)


@cache
def withdrawn(told: int) -> int:
    """Returns the state after the request was withdrawn."""
    ending = copy.copy(_endings[told])
    ending.withdrawn()
    return _number(ending)


def cause(told: int) -> int:
    """Returns why the command is to end, as an outcome; NONE: no end was requested."""
    return _CAUSES[_endings[told].cause]
