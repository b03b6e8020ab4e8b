"""Parses the files of an attempt folder strictly. Each parser returns either a value or a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.model.attempt_status import AttemptResult, RunnerIdentity, StopRequest
from gpu_scheduler.core.model.state_reason import FailureKind
from gpu_scheduler.runner.folder import FileProblem
from gpu_scheduler.runner.spec import (
    OLDER_STOP,
    STOP_FIELDS,
    invalid_field,
    is_optional_text,
    is_seconds,
    is_text,
)


@dataclass(frozen=True)
class ClaimFile:
    """The contents of the file `claim`. void: whether no runner has run the attempt and none ever will."""

    void: bool
    runner: RunnerIdentity | None = None
    session: str | None = None
    log: str | None = None


def parse_claim(value: dict[str, Any], token: str) -> ClaimFile | FileProblem:
    """Parses the contents of the file `claim`."""
    if value.get("void") is True:
        return _problem(value, token, {}) or ClaimFile(void=True)
    problem = _problem({"session": None, "log": None, **value}, token, _CLAIM)
    if problem is not None:
        return problem
    runner = RunnerIdentity(value["pid"], value["start_ticks"], value["boot_id"])
    return ClaimFile(False, runner, value.get("session"), value.get("log"))


def parse_stop(value: dict[str, Any], token: str) -> StopRequest | FileProblem:
    """Parses the contents of the file `stop` or `withdrawn`."""
    value = {**OLDER_STOP, **value}
    problem = _problem(value, token, STOP_FIELDS)
    return problem or StopRequest(
        value["cause"], value["grace_s"], value["follow"], value["id"], value["signal"]
    )


def parse_result(value: dict[str, Any], token: str) -> AttemptResult | FileProblem:
    """Parses the contents of the file `result`."""
    problem = _problem({**_OLDER_RESULT, **value}, token, _RESULT)
    if problem is not None:
        return problem
    ends = (value["exit_code"] is not None) + (value["signal"] is not None)
    # The kernel does not always tell how a process ended that the runner did not start.
    if ends > 1 or (value["began"] and ends == 0 and not value.get("watched")):
        return FileProblem("does not contain exactly one of 'exit_code' and 'signal'")
    message = value["message"]
    return AttemptResult(
        cause=value["cause"],
        exit_code=value["exit_code"],
        signal=value["signal"],
        began=value["began"],
        # The store accepts only valid UTF-8.
        message=None if message is None else message.encode("utf-8", "replace").decode("utf-8"),
        survivors=tuple(value["survivors"]),
        started_at=value["started_at"],
        ended_at=value["ended_at"],
        oom_kills=value.get("oom_kills"),
        shortage=value.get("shortage"),
        failure=_FAILURES.get(value.get("failure")),
        claimed_gpu=value.get("claimed_gpu"),
        claimed_by=value.get("claimed_by"),
        left=tuple(value.get("left") or ()),
        left_count=value.get("left_count"),
        verdict=value.get("verdict"),
    )


def _problem(
    value: dict[str, Any], token: str, fields: Mapping[str, Callable[[Any], bool]]
) -> FileProblem | None:
    if value.get("token") != token:
        return FileProblem(f"has the wrong token ({str(value.get('token'))[:8]}…)")
    return invalid_field(value, fields)


def _within(first: int, last: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and first <= value <= last


def _or_null(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_is_pid = _within(1, 2**31 - 1)

#: The known failure codes. Any other code comes from a command.sh that another version wrote.
_FAILURES: Mapping[str | None, FailureKind] = {kind.value: kind for kind in FailureKind}
_CLAIM = {
    "pid": _is_pid,
    "start_ticks": _within(0, 2**63 - 1),
    "boot_id": is_text,
    "session": is_optional_text,
    "log": is_optional_text,
}
_RESULT = {
    "cause": is_optional_text,
    "exit_code": _or_null(_within(0, 255)),
    "signal": _or_null(_within(1, 127)),
    "began": lambda value: isinstance(value, bool),
    "message": is_optional_text,
    "survivors": lambda value: isinstance(value, list) and all(map(_is_pid, value)),
    "started_at": _or_null(is_seconds),
    "ended_at": is_seconds,
    "oom_kills": _or_null(_within(0, 2**63 - 1)),
    "shortage": _or_null(_within(1, 4095)),
    "failure": is_optional_text,
    "claimed_gpu": is_optional_text,
    "claimed_by": _or_null(_is_pid),
    "watched": lambda value: value is None or isinstance(value, bool),
    "left": lambda value: value is None or (isinstance(value, list) and all(map(is_text, value))),
    "left_count": _or_null(_within(1, 2**31 - 1)),
    "verdict": is_optional_text,
}
#: The fields that a runner of an earlier version does not write. The last three are written only if set.
_OLDER_RESULT = dict.fromkeys((
    "oom_kills", "shortage", "failure", "claimed_gpu", "claimed_by", "watched", "left",
    "left_count", "verdict",
))  # fmt: skip
