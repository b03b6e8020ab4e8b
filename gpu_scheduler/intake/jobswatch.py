"""The watcher of one jobs file: what a reading says becomes job rows and wishes, in one transaction with the
reading itself, so that no crash makes it be said twice or not at all."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.core import reading as said
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

#: What one save says is logged up to this many lines.
TOLD = 100
#: Appended lines that become jobs at a time, between which the scheduler does what else there is to do.
AT_A_TIME = 5_000
#: Seconds after which lines that could not be checked are looked at again.
SHORTAGE_RETRY_S = 1.0


class JobsWatch:
    """Looks at the file when told to. Times: boot seconds. config: what models need now; trust: whoever owns
    the file or may write it.

    again_at   when to look again without an event; None = nothing waits.
    pending    something in the file waits to count.
    loading    the next lines are only waiting for their turn, and may say something about the order of those
               before them: no job should be started until they are in.
    waits      jobs that must not be started because of how their line stands in the file, and why.
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
        readings.set_problem(store, self._key, None)  # that of an earlier scheduler; the next look tells

    def look(self, now: float) -> None:
        """Take in what the file says now."""
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
        # An editor may move the file away for a moment: no line is mended, or comes back, by that.
        self.waits = poll.waits if poll.problem is None else _kept(self.waits, now)
        dues = [wait.due for wait in self.waits.values() if wait.due is not None]
        self.again_at = poll.next_look if poll.problem is None else min(dues, default=None)
        self.pending = self.again_at is not None
        self.loading = poll.more
        if not poll.more:
            self._tell_rest()

    def _postpone(self, error: OSError, now: float) -> None:
        """Lines cannot be checked for a shortage, which makes no line malformed: they are looked at later."""
        number = shortage_of(error)
        if number is None:
            raise error
        problem = f"cannot be checked now: {described(number)}"
        if problem != self._problem:
            log.warning("%s %s; its jobs go on", self.path, problem)
            readings.set_problem(self._store, self._key, problem)
            self._problem = problem
        self.again_at = now + SHORTAGE_RETRY_S
        self.pending = True

    def _take(self, accepted: said.Accepted, jobs: readings.JobFacts) -> None:
        before = self._reading
        newest = readings.newest_facts(self._store, accepted.new_identities())
        accepted = accepted.whole(before, newest)
        result = said.diff(before, accepted, jobs, newest)
        new: dict[int, int] = {}
        told: list[tuple[str, Event | None]] = [(text, None) for text in result.said]
        warned = list[str]()
        shell, config = job_shell(os.environ), self._config()
        with self._store.db.transaction():
            for action in result.actions:
                if isinstance(action, said.NewJob):
                    spec = self._reader.spec_of(accepted.lines[action.index])
                    job_id = new[action.index] = self._store.insert_job(spec, f"file:{self._key}")
                    told.append((f"{action.say(job_id)}: {spec.text}", self._came_in(action, job_id, spec)))
                    count = resolve(Ask.of(spec), config).count
                    warned += [f"line {action.number}: {text}" for text in line_warnings(spec, count, shell)]
                else:
                    self._wish(action, accepted.lines)
            reading = result.bound(new)
            readings.save(self._store, self._key, before, reading, len(result.before))
            told += [(text, None) for text in self._infeasible(new.values())]
            if len(new) < len(result.actions) or not (accepted.appended or _appended(before, reading)):
                self._order(reading)
        self._reading = reading
        self._log(told, warned)

    def _came_in(self, action: said.NewJob, job_id: int, spec: JobSpec) -> Event:
        """How a terminal is told of a new job: by what it is called, and where it stands."""
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

    def _wish(self, action: said.ReadingAction, lines: Sequence[Line]) -> None:
        by = self._key
        if isinstance(action, said.Requeue):
            spec = self._reader.spec_of(lines[action.index])
            row = self._store.job(action.job_id)
            assert row is not None
            self._store.wish("requeue", str(action.job_id), by, reason=f"in {self.path.name} once more")
            old = JobSpec.from_json(row["spec"])
            for name in ATTRIBUTES:
                if getattr(spec, name) != getattr(old, name):
                    self._set(action.job_id, name, getattr(spec, name))
        elif isinstance(action, said.LineRemoved):
            self._store.wish("line_removed", str(action.job_id), by)
        elif isinstance(action, said.AttributeChanged):
            value = False if action.new is None and action.name in ("hold", "cancel") else action.new
            self._set(action.job_id, action.name, value)
        elif isinstance(action, said.CancelRunning):
            self._store.wish("cancel", str(action.job_id), by, reason="cancelled by its line")

    def _set(self, job_id: int, name: str, value: object) -> None:
        self._store.wish("set", str(job_id), self._key, name=name, value=value, line=True)

    def _infeasible(self, new: Iterable[int]) -> list[str]:
        """Of new jobs, those of which it is known that they can never fit."""
        reasons = self._store.waiting()
        never = self._store.infeasible()
        if not never:
            return []
        rows = (row for job in new if (row := self._store.job(job)) is not None)
        return [f"job {row['id']} waits, {reasons[row['ask']]}" for row in rows if row["ask"] in never]

    def _order(self, reading: Reading) -> None:
        order = said.job_order(reading)
        moved = said.share_out(order, readings.queued_places(self._store, order))
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
                log.info("%s is read again", self.path)
            else:
                self._tell_problem(poll)
            readings.set_problem(self._store, self._key, poll.problem)
            self._problem = poll.problem

    def _tell_problem(self, poll: Poll) -> None:
        if poll.missing and not self._reading:
            log.info("%s: there is no such file yet; it is waited for", self.path)
        else:
            log.warning("%s: %s; its jobs go on", self.path, poll.problem)


def _kept(waits: Mapping[int, LineWait], now: float) -> dict[int, LineWait]:
    """Those that last while the file is away: until the line is mended, or what was seen was to count."""
    return {
        job_id: wait
        for job_id, wait in waits.items()
        if wait.kind == "malformed" or (wait.due is not None and wait.due > now)
    }


def _appended(old: Reading, new: Reading) -> bool:
    return len(new) >= len(old) and all(a.job_id == b.job_id for a, b in zip(old, new, strict=False))
