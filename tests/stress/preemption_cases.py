"""The cases of the stress test of preemptions: what each job does, and how it must end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.control.preempt import PreemptEnd, PreemptReport
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import JobState, Outcome

#: Run as `sh job.sh TRACE N GATE ON_TERM`. Runs until the file GATE exists or the script itself is removed.
JOB = """\
trap 'echo "$2 term" >> "$1"; eval "$4"' TERM
echo "Step 50/100"
echo "$2 start $$" >> "$1"
while [ ! -e "$3" ] && [ -e "$0" ]; do sleep 0.02; done
exit 7
"""
_IGNORE = ":"
_SAVE_S = 0.4
#: A timeout that is long enough for every job that wants to end, and one that is too short for all others.
_LONG_S, _SHORT_S = 30.0, 0.15


@dataclass
class Case:
    """One job and what happens to it. faults: how its end differs from the right one.

    preempt, cancel: act on the job. signals: how often it got SIGTERM. has_saved: whether it saved its state.
    """

    number: int
    kind: str
    folder: Path
    dice: random.Random
    preempt: Callable[[str, float, bool], PreemptReport]
    cancel: Callable[[str, float], None]
    reports: list[PreemptReport] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the job."""
        return f"job{self.number}"

    @property
    def gate(self) -> Path:
        """The file that lets the job end by itself."""
        return self.folder / f"gate{self.number}"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint that the job saves when it gets SIGTERM."""
        return self.folder / f"out{self.number}" / "checkpoint-50"

    @property
    def on_term(self) -> str:
        """The shell command that the job runs when it gets SIGTERM."""
        if self.kind == "saves":
            saved = f"mkdir -p {self.checkpoint}; echo {{}} > {self.checkpoint}/trainer_state.json"
            return f"sleep {_SAVE_S}; {saved}; exit 0"
        return "exit 3" if self.kind == "ends" else _IGNORE

    def act(self) -> None:
        """Does to the job what the case demands; fills `reports`."""
        {
            "ignores": self._preempt_once,
            "saves": self._preempt_once,
            "ends": self._preempt_while_it_ends,
            "cancelled": self._preempt_and_cancel,
            "twice": self._preempt_twice,
        }[self.kind]()

    def _preempt(self, timeout_s: float, *, force: bool) -> None:
        self.reports.append(self.preempt(self.name, timeout_s, force))

    def _preempt_once(self) -> None:
        waits_long = self.kind == "saves" and self.dice.random() < 0.6
        self._preempt(_LONG_S if waits_long else _SHORT_S, force=self.dice.random() < 0.4)

    def _preempt_while_it_ends(self) -> None:
        with _later(self.dice.uniform(0.0, 0.2), self.gate.touch):
            self._preempt(_LONG_S, force=False)

    def _preempt_and_cancel(self) -> None:
        with _later(self.dice.uniform(0.0, 0.5), lambda: self.cancel(self.name, 0.1)):
            self._preempt(self.dice.uniform(0.1, 0.5), force=self.dice.random() < 0.5)

    def _preempt_twice(self) -> None:
        with _later(self.dice.uniform(0.0, 0.5), lambda: self._preempt(_SHORT_S, force=True)):
            self._preempt(_SHORT_S, force=False)

    def judge(self, job: Job, signals: int) -> None:
        """Compares the recorded end with the right one. signals: how often the job got SIGTERM."""
        found = (job.state, job.outcome or job.held_by)
        wanted = self._right_ends(job, signals)
        if found not in wanted:
            self.faults.append(f"is {found}, not {wanted}")
        if signals > (2 if self.kind in ("twice", "cancelled") else 1):
            self.faults.append(f"got SIGTERM {signals} times")
        if self.kind == "saves" and self.checkpoint.exists() and self._ends() == [PreemptEnd.ENDED]:
            reported = self.reports[0].checkpoint
            if reported is None or reported.path != str(self.checkpoint):
                self.faults.append(f"its checkpoint was reported as {reported}")

    def _ends(self) -> list[PreemptEnd]:
        return [report.end for report in self.reports]

    def _right_ends(self, job: Job, signals: int) -> list[tuple[JobState, str]]:
        preempted = (JobState.HELD, Outcome.PREEMPTED.value)
        failed = (JobState.FINISHED, Outcome.FAILED.value)
        if self.kind == "cancelled":
            return [(JobState.FINISHED, Outcome.CANCELLED.value)]
        if self.kind == "ignores":
            return [failed] if self._ends() == [PreemptEnd.WITHDRAWN] else [preempted]
        if self.kind == "ends":
            # The signal may reach the job when it has already ended.
            return [preempted] if signals or job.outcome is None else [failed]
        return [preempted]


class _later:
    """Runs a function in a thread, some seconds after the block has begun; waits for its end.

    Raises its exception at the end of the block.
    """

    def __init__(self, delay_s: float, function: Callable[[], object]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._timer = threading.Timer(delay_s, self._run)

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *details: object) -> None:
        self._timer.join()
        if self._error is not None:
            raise self._error
