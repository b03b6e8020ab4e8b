"""Watches one jobs file and turns its changes into jobs and requests.

They are stored in one transaction with the reading itself, so that a crash neither loses nor repeats a
change.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.core import reading as diff
from gpu_scheduler.core.event import Event
from gpu_scheduler.core.jobspec import ATTRIBUTES, JobSpec
from gpu_scheduler.core.lines import Line, Reading
from gpu_scheduler.core.linewait import LineWait
from gpu_scheduler.core.linewarnings import line_warnings
from gpu_scheduler.core.needs import Ask, LlmConfig, resolve
from gpu_scheduler.core.states import JobState
from gpu_scheduler.intake.jobsfile import JobsFileReader, MalformedLine, Poll
from gpu_scheduler.intake.jobshell import job_shell
from gpu_scheduler.shortages import described, shortage_of
from gpu_scheduler.store import readings
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Maximum number of messages logged for one change of the file.
TOLD = 100
#: Number of appended lines that become jobs at a time; the scheduler does its other work in between.
AT_A_TIME = 5_000
#: Seconds after which lines that could not be checked are checked again.
SHORTAGE_RETRY_S = 1.0


class JobsWatch:
    """Reads the file on demand. Times are boot seconds.

    config: returns the present needs of models; trust: accept the file whoever owns it or may write it.

    again_at   when to read the file again without an event; None if nothing is pending.
    pending    something in the file does not count yet.
    loading    further lines are about to be read and may change the order of those before them: no job should
               start until then.
    waits      jobs that must not start because of the state of their line, and why.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        known_gpus: frozenset[int] | None,
        config: Callable[[], LlmConfig] = LlmConfig,
        *,
        trust: bool = False,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.again_at: float | None = None
        self.pending = False
        self.loading = False
        self._store = store
        self._key = str(self.path)
        self.waits: Mapping[int, LineWait] = _kept(readings.line_waits(store, self._key), math.inf)
        self._config = config
        here = os.getcwd()
        cwd = readings.working_folder(store, self._key, here)
        if cwd != here:
            log.info("lines of %s run in %s, where it was first read, not in %s", path, cwd, here)
        self._reader = JobsFileReader(
            self.path, cwd, os.path.expanduser("~"), known_gpus, AT_A_TIME, trust=trust
        )
        self._reading = readings.load(store, self._key)
        self._told = 0
        self._reported: frozenset[MalformedLine] = frozenset()
        self._problem: str | None = None
        readings.set_problem(store, self._key, None)  # an earlier scheduler's; the next read sets it

    def look(self, now: float) -> None:
        """Reads the file and applies its changes."""
        jobs = readings.JobFacts(self._store, self._reading)
        while True:
            try:
                poll = self._reader.poll(self._reading, jobs, now)
            except OSError as error:
                self._postpone(error, now)
                return
            if poll.accepted is not None:
                self._take(poll.accepted, jobs)
            if poll.accepted is None or poll.more:
                break
            jobs = readings.JobFacts(self._store, self._reading)
        self._tell(poll)
        # An editor may move the file away for a moment: that neither fixes nor restores a line.
        self.waits = poll.waits if poll.problem is None else _kept(self.waits, now)
        dues = [wait.due for wait in self.waits.values() if wait.due is not None]
        self.again_at = poll.next_look if poll.problem is None else min(dues, default=None)
        self.pending = self.again_at is not None
        self.loading = poll.more
        if not poll.more:
            self._tell_rest()

    def _postpone(self, error: OSError, now: float) -> None:
        """Postpones the check of lines after a shortage, which makes no line malformed."""
        number = shortage_of(error)
        if number is None:
            raise error
        problem = f"cannot be checked now: {described(number)}"
        if problem != self._problem:
            log.warning("%s %s; its jobs continue", self.path, problem)
            readings.set_problem(self._store, self._key, problem)
            self._problem = problem
        self.again_at = now + SHORTAGE_RETRY_S
        self.pending = True

    def _take(self, accepted: diff.Accepted, jobs: readings.JobFacts) -> None:
        before = self._reading
        newest = readings.newest_facts(self._store, accepted.new_identities())
        accepted = accepted.whole(before, newest)
        result = diff.diff(before, accepted, jobs, newest)
        new: dict[int, int] = {}
        messages: list[tuple[str, Event | None]] = [(text, None) for text in result.said]
        warnings = list[str]()
        shell, config = job_shell(os.environ), self._config()
        with self._store.db.transaction():
            for action in result.actions:
                if isinstance(action, diff.NewJob):
                    spec = self._reader.spec_of(accepted.lines[action.index])
                    job_id = new[action.index] = self._store.insert_job(spec, f"file:{self._key}")
                    messages.append(
                        (f"{action.say(job_id)}: {spec.text}", self._came_in(action, job_id, spec))
                    )
                    count = resolve(Ask.of(spec), config).count
                    warnings += [
                        f"line {action.number}: {text}" for text in line_warnings(spec, count, shell)
                    ]
                else:
                    self._wish(action, accepted.lines)
            reading = result.bound(new)
            readings.save(self._store, self._key, before, reading, len(result.before))
            messages += [(text, None) for text in self._infeasible(new.values())]
            if len(new) < len(result.actions) or not (accepted.appended or _appended(before, reading)):
                self._order(reading)
        self._reading = reading
        self._log(messages, warnings)

    def _came_in(self, action: diff.NewJob, job_id: int, spec: JobSpec) -> Event:
        """Returns the event of a new job, for the terminal: its name and its position in the file."""
        where = f"{self.path.name}, line {action.number}"
        where += f", same text as {action.same_as}" if action.same_as else ""
        state = JobState.HELD if spec.hold else JobState.QUEUED
        return Event(0, 0.0, state.value, job_id, where, {}, spec.text, spec.name, spec.to_json())

    def _log(self, told: Sequence[tuple[str, Event | None]], warned: Sequence[str]) -> None:
        room = max(0, TOLD - self._told)
        for text, event in told[:room]:
            log.info("%s, %s", self.path.name, text, extra={"event": event})
        for text in warned[:room]:
            log.warning("%s, %s", self.path.name, text)
        self._told += len(told)

    def _tell_rest(self) -> None:
        if self._told > TOLD:
            more = self._told - TOLD
            log.info("%s: and %d more such lines; `status --all` lists every job", self.path.name, more)
        self._told = 0

    def _wish(self, action: diff.ReadingAction, lines: Sequence[Line]) -> None:
        by = self._key
        if isinstance(action, diff.Requeue):
            spec = self._reader.spec_of(lines[action.index])
            row = self._store.job(action.job_id)
            assert row is not None
            self._store.wish("requeue", str(action.job_id), by, reason=f"added to {self.path.name} again")
            old = JobSpec.from_json(row["spec"])
            for name in ATTRIBUTES:
                if getattr(spec, name) != getattr(old, name):
                    self._set(action.job_id, name, getattr(spec, name))
        elif isinstance(action, diff.LineRemoved):
            self._store.wish("line_removed", str(action.job_id), by)
        elif isinstance(action, diff.AttributeChanged):
            value = False if action.new is None and action.name in ("hold", "cancel") else action.new
            self._set(action.job_id, action.name, value)
        elif isinstance(action, diff.CancelRunning):
            self._store.wish("cancel", str(action.job_id), by, reason="cancelled by its line")

    def _set(self, job_id: int, name: str, value: object) -> None:
        self._store.wish("set", str(job_id), self._key, name=name, value=value, line=True)

    def _infeasible(self, new: Iterable[int]) -> list[str]:
        """Returns the messages about new jobs that can never fit."""
        reasons = self._store.waiting()
        never = self._store.infeasible()
        if not never:
            return []
        rows = (row for job in new if (row := self._store.job(job)) is not None)
        return [f"job {row['id']} waits, {reasons[row['ask']]}" for row in rows if row["ask"] in never]

    def _order(self, reading: Reading) -> None:
        order = diff.job_order(reading)
        moved = diff.share_out(order, readings.queued_places(self._store, order))
        if moved:
            self._store.wish("places", "", self._key, places=moved)

    def _tell(self, poll: Poll) -> None:
        mistakes = frozenset(poll.malformed)
        forms: set[str] = set()
        for mistake in sorted(mistakes - self._reported, key=lambda m: m.number):
            log.error("%s", mistake.told(mistake.accepted not in forms))
            forms.add(mistake.accepted)
        self._reported = mistakes
        if poll.problem != self._problem:
            if poll.problem is None:
                log.info("%s can be read again", self.path)
            else:
                self._tell_problem(poll)
            readings.set_problem(self._store, self._key, poll.problem)
            self._problem = poll.problem

    def _tell_problem(self, poll: Poll) -> None:
        if poll.missing and not self._reading:
            log.info("%s does not exist yet; waiting for it", self.path)
        else:
            log.warning("%s %s; its jobs continue", self.path, poll.problem)


def _kept(waits: Mapping[int, LineWait], now: float) -> dict[int, LineWait]:
    """Returns the waits that persist while the file is missing: for a malformed line, or not due yet."""
    return {
        job_id: wait
        for job_id, wait in waits.items()
        if wait.kind == "malformed" or (wait.due is not None and wait.due > now)
    }


def _appended(old: Reading, new: Reading) -> bool:
    return len(new) >= len(old) and all(a.job_id == b.job_id for a, b in zip(old, new, strict=False))
