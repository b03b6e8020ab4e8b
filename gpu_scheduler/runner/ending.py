"""Why the command is to end, and what is due when: the causes, their order, the grace, the withdrawal.

Pure: `now` is an argument (monotonic seconds), and nothing is signalled here.
"""

from __future__ import annotations

#: Of several causes the greater one is told. An unknown cause counts as a cancel.
_RANK = {"machine": 1, "preempted": 2, "timed_out": 3, "cancelled": 4}
#: SIGKILL is repeated this often until the command is gone, in seconds.
_AGAIN_S = 1.0


class Ending:
    """What one command was told about its end.

    cause is None until it is told to end, and again after a withdrawal.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        self.deadline: float | None = None
        self._follow = "kill"
        self._machine_at: float | None = None

    def tell(self, cause: str, grace_s: float, follow: str, now: float) -> bool:
        """Take note of a cause. True: it is the first, so the command shall get SIGTERM."""
        first = self.cause is None
        until = now + max(0.0, grace_s)
        if cause == "machine":
            self._machine_at = until
        if first or _rank(cause) >= _rank(self.cause):
            forced = cause == self.cause and self._follow == "kill"
            self.cause, self._follow = cause, "kill" if forced else follow
            # The grace of an earlier cause is never made longer: the command knows already.
            self.deadline = until if first or self.deadline is None else min(self.deadline, until)
        return first

    def due(self, now: float) -> str | None:
        """ "kill" or "withdraw" once the grace is over, else None."""
        if self.deadline is None or now < self.deadline:
            return None
        if self._follow == "withdraw":
            return "withdraw"
        self.deadline = now + _AGAIN_S
        return "kill"

    def withdrawn(self) -> None:
        """The wish was taken back: the command runs on, unless the machine is ending."""
        self.cause = "machine" if self._machine_at is not None else None
        self.deadline = self._machine_at
        self._follow = "kill"


def _rank(cause: str | None) -> int:
    return 0 if cause is None else _RANK.get(cause, 4)


def describe(cause: str | None, began: bool, exit_code: int | None, signal: int | None) -> str:
    """The outcome in words, for the end of the log."""
    how = f"signal {signal}" if signal is not None else f"exit code {exit_code}"
    if exit_code is None and signal is None:
        how = "nothing was started"
    if cause is not None:
        return f"{'interrupted' if cause == 'machine' else cause}: {how}"
    if not began:
        return f"not_started: {how}"
    return f"{'completed' if exit_code == 0 else 'failed'}: {how}"
