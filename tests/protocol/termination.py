"""Lets the runner's own code decide how the runner handles requests to end its command.

Each state of a `Termination` that a runner can reach has a number, its index; 0: no request to end.
"""

from __future__ import annotations

import copy
from functools import cache

from gpu_scheduler.runner.termination import Termination
from tests.protocol import state as st
from tests.protocol.stops import IDS, REQUESTS

_endings: list[Termination] = [Termination()]
_numbers: dict[str, int] = {}
_CAUSES = {"cancelled": st.CANCELLED, "preempted": st.PREEMPTED, "machine": st.INTERRUPTED, None: st.NONE}


def _number_of(ending: Termination) -> int:
    key = repr([sorted(set(one)) if isinstance(one, tuple) else one for one in vars(ending).values()])
    if key not in _numbers:
        _numbers[key] = len(_endings) if _numbers else 0
        if _numbers[key]:
            _endings.append(ending)
    return _numbers[key]


_number_of(_endings[0])


@cache
def request_end(termination: int, stop: int) -> tuple[int, bool]:
    """Asks the runner to end its command; returns the new state and whether the command gets a signal.

    stop: the request in its folder; 0: the machine is shutting down.
    """
    ending, request = copy.deepcopy(_endings[termination]), REQUESTS[stop]
    if request is None:
        signalled = ending.request("machine", 0.0, "kill", 0.0)
    else:
        signalled = ending.request(
            request.cause, 0.0, request.on_timeout, 0.0, request.stop_id, request.signal
        )
    return _number_of(ending), signalled


@cache
def has_withdrawn(termination: int, stop: int) -> bool:
    """Returns whether the runner ignores a `stop`, because it has withdrawn the request before."""
    request = REQUESTS[stop]
    if request is None or request.on_timeout == "kill":
        return False
    return _endings[termination].has_withdrawn(request.stop_id)


@cache
def after_grace(termination: int) -> str | None:
    """Returns the runner's next step ("kill" or "withdraw") once the grace period is over, if any."""
    return copy.deepcopy(_endings[termination]).due(1.0)


@cache
def withdraw(termination: int, taken: int) -> tuple[int, int]:
    """Withdraws the request to end the command; returns the new state.

    taken: the `stop` that the runner has taken out of the folder. The second value has a bit for each
    preemption that is now withdrawn.
    """
    ending, request = copy.deepcopy(_endings[termination]), REQUESTS[taken]
    ending.withdraw(request.stop_id if request is not None and request.on_timeout == "withdraw" else "")
    return _number_of(ending), _withdrawn_ids(ending)


def _withdrawn_ids(ending: Termination) -> int:
    return sum(1 << number for number, name in enumerate(IDS) if ending.has_withdrawn(name))


@cache
def ids_in_effect(termination: int) -> int:
    """Returns bits for the ids of the preemptions that the runner will withdraw unless the command ends."""
    if after_grace(termination) != "withdraw":
        return 0
    ending, before = copy.deepcopy(_endings[termination]), _withdrawn_ids(_endings[termination])
    ending.withdraw()
    return _withdrawn_ids(ending) & ~before


def end_cause(termination: int) -> int:
    """Returns the outcome that corresponds to the cause of termination; NONE if no end was requested."""
    return _CAUSES[_endings[termination].cause]
