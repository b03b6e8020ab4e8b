"""Lets the scheduler's own code make the decisions in the model.

The functions of `core.scheduling.reconcile_attempt` get facts that represent a state.

States of the model have no times. For every deadline the model tries both cases, passed and not passed, and
follows each answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptResult, AttemptStatus, ClaimState, SavedWork
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.reconcile_attempt import (
    has_ended,
    needs_process_scan,
    reconcile,
    release_allocation,
)
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.protocol import state as st
from tests.protocol.stops import REQUESTS

_NOW = Now(1e9, 1000.0, "boot")
_SETTINGS = Settings(max_assign_attempts=2, max_launches=2)
#: The state of a job's newest attempt, for each job state of the model.
_STATES = (
    AttemptState.ENDED, AttemptState.STARTING, AttemptState.RUNNING,
    AttemptState.STOPPING, AttemptState.ENDED, AttemptState.ENDED,
)  # fmt: skip
_CLAIMS: dict[int, ClaimState] = {
    st.CLAIM_NONE: "none", st.CLAIM_VOID: "void", st.CLAIM_LIVE: "live", st.CLAIM_UNLOCKED: "unlocked",
    st.CLAIM_UNCLAIMED: "unclaimed", st.CLAIM_DEAD: "dead",
}  # fmt: skip
_COMPLETED = AttemptResult(None, 0, None, True, None, (), 1.0, 2.0)
_RESULTS = {
    st.NONE: None,
    st.COMPLETED: _COMPLETED,
    st.FAILED: replace(_COMPLETED, exit_code=7),
    st.CANCELLED: replace(_COMPLETED, cause="cancelled"),
    st.INTERRUPTED: replace(_COMPLETED, cause="machine", exit_code=None, signal=15),
    st.NOT_STARTED: replace(_COMPLETED, began=False, exit_code=1),
    st.PREEMPTED: replace(_COMPLETED, cause="preempted"),
    st.ENDED: replace(_COMPLETED, exit_code=None),
    st.KILLED: replace(_COMPLETED, exit_code=None, signal=15),
    st.GPU_LOST: replace(_COMPLETED, began=False, exit_code=None, claimed_gpu="GPU-1", claimed_by=77),
}
#: The actions that end an attempt. All others are records and launches.
ACTS = (act.RequestStop, act.WakeRunner, act.KillRunner, act.Sweep, act.VoidClaim)
_DESCRIPTIONS: dict[type[act.Action], str] = {
    act.Relaunch: "will launch again",
    act.VoidClaim: "will void the claim",
    act.WakeRunner: "will signal the runner",
    act.KillRunner: "will kill the runner",
}
_DESCRIPTIONS_OF_STATES = {
    AttemptState.ORPHANED: "records that the runner is dead",
    AttemptState.RELEASED: "releases its GPUs",
    AttemptState.CLOSED: "records that its memory is released",
}


class Decided(act.Action, frozen=True):
    """The parts of a change of an attempt that the model knows, so that it follows equal changes only once.

    state: the new state of the attempt; None if it stays the same. job_state, job_outcome: those of its job.
    """

    state: AttemptState | None
    job_state: JobState
    outcome: Outcome | None
    job_outcome: Outcome | None
    launch_failures: int
    is_still_adopted: bool
    keeps_stop: bool
    clears_stop: bool
    resets_launches: bool


def decided(actions: Iterable[act.Action]) -> tuple[act.Action, ...]:
    """Returns the actions as the model knows them."""
    return tuple(_decided(one) if isinstance(one, act.AttemptChanged) else one for one in actions)


def _decided(change: act.AttemptChanged) -> Decided:
    old, new = change.old, change.new
    return Decided(
        None if new.state is old.state else new.state,
        new.job.state,
        new.outcome,
        new.job.outcome,
        new.job.launch_failures,
        new.job.adopted is not None,
        new.job.stop is not None,
        clears_stop=not change.is_end and old.job.stop is not None and new.job.stop is None,
        resets_launches=new.launch_count != old.launch_count,
    )


class ObservedAttempt(NamedTuple):
    """The facts that a round has about an attempt.

    process_found: a scan finds a process of the attempt; swept: 0 (no sweep), 1 (SIGTERM) or 2 (SIGKILL).
    watches: its runner watches an adopted process.
    complete: whether the last progress of the command was N of N; None if it reports none.
    """

    number: int
    job: int
    claim: int
    result: int = st.NONE
    stop: int = 0
    withdrawn: int = 0
    stop_request: int = 0
    old_boot: bool = False
    folder_exists: bool = True
    folder_complete: bool = True
    launches: int = 1
    process_found: bool = False
    swept: int = 0
    watches: bool = False
    complete: bool | None = None


@cache
def reconcile_answers(view: ObservedAttempt) -> tuple[tuple[act.Action, ...], ...]:
    """Returns every answer of `reconcile` for an open attempt.

    The answers cover passed and pending deadlines, and blocked and unblocked starts.
    """
    answers: dict[tuple[act.Action, ...], None] = {}
    for over, late, held in product((False, True), repeat=3):
        fact = _attempt(view, over, late)
        if needs_process_scan(fact, _NOW):
            fact = replace(fact, survivors=(77,) if view.process_found else ())
        answers[decided(reconcile(fact, _NOW, _SETTINGS, starts_blocked=held))] = None
    return tuple(answers)


@cache
def command_round_answers(
    view: ObservedAttempt, is_asked_to_stop: bool
) -> tuple[tuple[act.Action, ...], ...]:
    """Returns every answer of `reconcile` in a command's round, which records the same but acts less.

    It never launches a runner, and acts on an attempt only if it was asked to stop.
    """
    left_out = (act.Relaunch, *(() if is_asked_to_stop else ACTS))

    def is_left_out(action: act.Action) -> bool:
        return isinstance(action, left_out) or (isinstance(action, Decided) and action.resets_launches)

    return tuple(
        dict.fromkeys(
            tuple(action for action in actions if not is_left_out(action))
            for actions in reconcile_answers(view)
        )
    )


@cache
def is_over(view: ObservedAttempt) -> bool:
    """Returns whether a round observes that an open attempt is over, so that requests wait for its end."""
    return has_ended(_attempt(view, deadline_passed=False, late=False), _NOW)


def _attempt(view: ObservedAttempt, deadline_passed: bool, late: bool) -> ActiveAttempt:
    """Returns the facts of an attempt.

    deadline_passed: a deadline or grace period has passed; late: it passed at least 60 s ago.
    """
    long_ago, just_now = 0.0, 1000.0
    return make_attempt(
        1,
        1,
        "t" * 32,
        "another boot" if view.old_boot else "boot",
        AttemptState.ORPHANED if view.swept and view.claim == st.CLAIM_DEAD else _STATES[view.job],
        status=AttemptStatus(
            claim=_CLAIMS[view.claim],
            stop=REQUESTS[view.stop],
            withdrawn=REQUESTS[view.withdrawn],
            result=_RESULTS[view.result],
            folder_exists=view.folder_exists,
            folder_complete=view.folder_complete,
        ),
        stop_request=REQUESTS[view.stop_request],
        saved_work=None if view.complete is None else SavedWork(is_complete=view.complete),
        launch_count=view.launches,
        launch_deadline_boot=long_ago if deadline_passed else 2000.0,
        launch_failures=view.number - 1,
        number=view.number,
        watched_pid=77 if view.watches else None,
        watched_ticks=7 if view.watches else None,
        stopping_boot=long_ago if deadline_passed else just_now,
        swept_boot=None if not view.swept else long_ago if deadline_passed or late else just_now,
        signalled_boot=None
        if not view.swept
        else long_ago + (view.swept == 2)
        if deadline_passed or late
        else just_now,
        runner_died_boot=None if not view.swept else long_ago if late else just_now,
    )


@cache
def release_answers(found: bool, swept: int) -> tuple[tuple[act.Action, ...], ...]:
    """Returns every answer of `release_allocation` for an ended attempt whose GPUs are not released yet."""
    answers: dict[tuple[act.Action, ...], None] = {}
    for over in (False, True):
        fact = _attempt(ObservedAttempt(1, st.QUEUED, st.CLAIM_NONE, swept=swept), over, late=False)
        fact = replace(fact, state=AttemptState.ENDED, survivors=(77,) if found else ())
        answers[decided(release_allocation(fact, _NOW, _SETTINGS))] = None
    return tuple(answers)


def describe(actions: tuple[act.Action, ...]) -> str:
    """Returns a short description of the actions."""
    return ", ".join(map(_describe_action, actions)) or "nothing to do"


def _describe_action(action: act.Action) -> str:
    if isinstance(action, Decided):
        return ", ".join(_describe_change(action))
    if isinstance(action, act.Sweep):
        return f"will send {'SIGKILL' if action.kill else 'SIGTERM'} to its processes"
    if isinstance(action, act.RequestStop):
        return "will write stop"
    return _DESCRIPTIONS.get(type(action), type(action).__name__)


def _describe_change(change: Decided) -> Iterator[str]:
    if change.clears_stop:
        yield "closes the withdrawn preemption"
    if change.resets_launches:
        yield "resets its launches because of a shortage"
    if change.state is AttemptState.ENDED:
        assert change.outcome is not None
        yield f"commits {change.outcome.value}"
    elif change.state in (AttemptState.RUNNING, AttemptState.STOPPING):
        yield f"commits {change.job_state.value}"
    elif change.state is not None:
        yield _DESCRIPTIONS_OF_STATES[change.state]
