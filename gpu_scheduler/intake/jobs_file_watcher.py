"""Watches one jobs file and turns its changes into jobs and requests.

The jobs and requests are stored in the same transaction as the reading, so a crash neither loses nor repeats
a change.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.jobsfile import debounce, diff
from gpu_scheduler.core.jobsfile.diff import AcceptedLines
from gpu_scheduler.core.jobsfile.reading import Line, Reading, line_warnings, malformed_names, uncounted_names
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, resolve
from gpu_scheduler.core.text.formatting import limit_length, safe_text
from gpu_scheduler.intake.jobs_file_text import (
    JobsFile,
    ParsedText,
    TextParser,
    is_open_for_writing,
    job_shell,
)
from gpu_scheduler.intake.line_dependencies import LineDependencies
from gpu_scheduler.store import jobs_files
from gpu_scheduler.store.job_lists import job_exists, newest_jobs
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind
from gpu_scheduler.system.shortages import describe_shortage, shortage_of

# Polls one jobs file to find the lines that count now and the malformed lines.
#
# The reader never writes the file, and it holds no state that must survive a restart: the caller supplies the
# last reading, and the reader remembers only the file's content and the time of the last change.


class Poll(Struct, frozen=True):
    """The result of one poll of the file.

    accepted   the lines that count now, for `ReadingDiff`; None if nothing changes.
    waits      the jobs that must not start because of the state of their lines, with the reasons.
    recheck_at the monotonic time in seconds at which a pending line may count even if the file does not
               change again; None if no line is pending.
    malformed  the malformed lines of the current reading.
    problem    why the file cannot be read; None if it can be read.
    uncounted  the names of lines that are malformed or do not count yet, with the reasons for which the jobs
               that refer to them must not start.
    names      the names of all well-formed lines in the file, including those that do not count yet.
    missing    whether the problem is that the file does not exist.
    has_more   whether further lines count already, but are left to the next poll.
    """

    accepted: AcceptedLines | None
    waits: Mapping[int, WaitReason]
    recheck_at: float | None
    malformed: tuple[Line, ...]
    problem: str | None = None
    missing: bool = False
    has_more: bool = False
    uncounted: Mapping[str, WaitReason] = field(default_factory=dict)
    names: Collection[str] = ()


class JobsFileReader:
    """Polls one jobs file.

    cwd: the working folder of the file's lines; home: the folder that `~` stands for; known_gpus: the indices
    of the existing GPUs, or None to accept any index; batch_lines: the maximum number of lines at the end of
    the file that begin to count in one poll, or None for all of them; trust: accept the file regardless of
    its owner and mode; exists: returns whether a reference is the id or the name of a job, or None to accept
    any reference.
    """

    def __init__(
        self,
        path: Path,
        cwd: str,
        home: str,
        known_gpus: frozenset[int] | None = None,
        batch_lines: int | None = None,
        *,
        trust: bool = False,
        exists: Callable[[str], bool] | None = None,
    ) -> None:
        self.path = path
        self._file = JobsFile(path, trust=trust)
        self._parser = TextParser(cwd, home, known_gpus, exists)
        self._batch_lines = batch_lines
        self._content: bytes | FileProblem | None = None
        self._unchanged_since = 0.0
        self._text = ParsedText()
        #: The last reading, with the result of polling it if that stays the same until the file changes.
        self._settled: tuple[Reading, Poll] | None = None

    def poll(self, previous: Reading, jobs: Mapping[int, Job], now_s: float) -> Poll:
        """Reads the file if it has changed.

        previous: the last reading; jobs: the jobs of that reading, by id; now_s: monotonic time in seconds.
        An unchanged file whose lines all count costs one stat call as long as the same object `previous` is
        passed. Raises OSError if memory, processes or open files run out.
        """
        content = self._file.read()
        if content is not self._content:
            self._content, self._unchanged_since = content, now_s
        if isinstance(content, FileProblem):
            missing = content.kind is ProblemKind.MISSING
            return Poll(None, {}, None, _malformed(previous), str(content), missing)
        if content != self._text.content or self._parser.has_found(self._text.missing):
            self._text = self._parser.parse(content, (*self._text.lines, *previous), previous)
        elif self._settled is not None and self._settled[0] is previous:
            return self._settled[1]
        # Drop the specs of the new jobs, because these jobs are now in the store.
        self._text = replace(self._text, lines=_as_in_reading(self._text.lines, previous))
        poll, is_settled = self._compare(previous, jobs, now_s)
        self._settled = (previous, poll) if is_settled else None
        return poll

    def spec_of(self, line: Line) -> JobSpec:
        """Returns the job specification of a well-formed line from the last poll."""
        return self._parser.spec_of(line)

    def _compare(self, previous: Reading, jobs: Mapping[int, Job], now_s: float) -> tuple[Poll, bool]:
        """Compares the text with the last reading.

        Returns the result and whether it stays the same until the file changes.
        """
        text = self._text
        decision = self._decide(previous, text.lines, jobs, now_s)
        accepted = decision.accepted
        if accepted is not None and self._batch_lines is not None:
            accepted = accepted.first_batch(self._batch_lines)
        has_more = accepted is not decision.accepted
        reading = previous if accepted is None else accepted.lines
        recheck_at = now_s if has_more else decision.recheck_at
        # No job starts before all batches have been read, so no name needs to wait for them.
        uncounted = {} if has_more else uncounted_names(text.lines, reading, recheck_at)
        poll = Poll(
            accepted, decision.waits, recheck_at, _malformed(reading), has_more=has_more,
            uncounted={**uncounted, **malformed_names(text.references)}, names=text.references.names,
        )  # fmt: skip
        return poll, accepted is None and recheck_at is None and decision.none_missing

    def _decide(
        self, previous: Reading, lines: tuple[Line, ...], jobs: Mapping[int, Job], now_s: float
    ) -> debounce.AcceptDecision:
        current = debounce.CurrentLines(lines, self._unchanged_since)
        decision = debounce.decide_accepted(previous, current, jobs, now_s)
        late = now_s >= self._unchanged_since + debounce.LAST_LINE_DELAY_S
        if late and decision.accepted is not None and is_open_for_writing(self.path):
            return debounce.decide_accepted(previous, replace(current, open_for_writing=True), jobs, now_s)
        return decision


def _malformed(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple([line for line in lines if line.identity is None])


def _as_in_reading(lines: Sequence[Line], reading: Reading) -> tuple[Line, ...]:
    """Returns the lines, with each line that is identical in the reading as the reading has it."""
    pairs = zip(lines, reading, strict=False)
    same = [old if old is line or old.is_identical_to(line) else line for line, old in pairs]
    return (*same, *lines[len(same) :])


log = logging.getLogger(__name__)

#: Maximum number of messages logged for one change to the file.
MAX_LOGGED = 100
#: Number of new lines to turn into jobs in one batch. Between batches, the scheduler does other work.
BATCH_LINES = 5_000
#: Seconds after which lines that could not be checked are checked again.
SHORTAGE_RETRY_S = 1.0


class JobsFileWatcher:
    """Reads one jobs file on demand and stores its changes. Times are in seconds since boot.

    config: returns the current content of llm_config.json; trust: accept the file regardless of its owner and
    mode; wait_text: returns a wait reason in words, for the log.

    recheck_at the time to read the file again if no event comes first; None if every line in the file counts.
    loading    whether further lines are about to be read. They may change the order of the jobs before them,
               so no job should start until they have been read.
    waits      the jobs that must not start because of the state of their lines, with the reasons.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        known_gpus: frozenset[int] | None,
        config: Callable[[], LlmConfig] = LlmConfig,
        *,
        trust: bool = False,
        wait_text: Callable[[WaitReason], str] = lambda reason: reason.kind.value,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.recheck_at: float | None = None
        self.loading = False
        self._store = store
        self._key = str(self.path)
        self.waits: Mapping[int, WaitReason] = _lasting_waits(
            jobs_files.line_waits(store, self._key), math.inf
        )
        self._config = config
        self._wait_text = wait_text
        here = os.getcwd()
        cwd = jobs_files.working_folder(store, self._key, here)
        if cwd != here:
            log.info(
                "lines of %s run in %s, where the scheduler first read the file, and not in %s",
                path,
                cwd,
                here,
            )
        self._reader = JobsFileReader(
            self.path, cwd, os.path.expanduser("~"), known_gpus, BATCH_LINES, trust=trust,
            exists=partial(job_exists, store),
        )  # fmt: skip
        self._dependencies = LineDependencies(store, self._key)
        self._reading = jobs_files.load_reading(store, self._key)
        self._logged = 0
        #: The number, text and problem of each malformed line that was logged.
        self._reported: set[tuple[int, str, str | None]] = set()
        self._set_problem(None)  # unknown until the next read

    def check(self, now: float) -> None:
        """Reads the file and applies its changes."""
        jobs = jobs_files.JobsOfReading(self._store, self._reading)
        while True:
            try:
                poll = self._reader.poll(self._reading, jobs, now)
            except OSError as error:
                self._postpone(error, now)
                return
            if poll.accepted is not None:
                self._apply(poll.accepted, jobs, poll.names)
            if poll.accepted is None or poll.has_more:
                break
            jobs = jobs_files.JobsOfReading(self._store, self._reading)
        if poll.problem is None and not poll.has_more:
            self._log_mistakes(self._dependencies.resolve_again(self._reading, poll.names))
        self._report(poll)
        # An editor may move the file away for a moment. This does not correct a malformed line, so the line's
        # job keeps waiting.
        if poll.problem is None:
            self.waits = {**self._dependencies.waits_for(self._reading, poll.uncounted), **poll.waits}
        else:
            self.waits = _lasting_waits(self.waits, now)
        dues = [wait.due_at for wait in self.waits.values() if wait.due_at is not None]
        self.recheck_at = poll.recheck_at if poll.problem is None else min(dues, default=None)
        self.loading = poll.has_more
        if not poll.has_more:
            self._log_remainder()

    def _postpone(self, error: OSError, now: float) -> None:
        """Postpones the check of the lines after a shortage, which does not make a line malformed."""
        number = shortage_of(error)
        if number is None:
            raise error
        problem = f"cannot be checked now: {describe_shortage(number)}"
        if problem != self._problem:
            log.warning("%s %s; its jobs continue", self.path, problem)
            self._set_problem(problem)
        self.recheck_at = now + SHORTAGE_RETRY_S

    def _apply(
        self, accepted: diff.AcceptedLines, jobs: jobs_files.JobsOfReading, names: Collection[str]
    ) -> None:
        """Stores the accepted lines with their jobs and requests. names: the names in the whole file."""
        before = self._reading
        newest = newest_jobs(self._store, accepted.new_identities())
        result = diff.ReadingDiff(before, accepted, jobs, newest)
        new: dict[int, int] = {}
        messages: list[tuple[str, Event | None]] = [(text, None) for text in result.messages]
        warnings = list[str]()
        shell, config, on = job_shell(os.environ), self._config(), self._store.recorded_options().on
        with self._store.db.transaction():
            for action in result.actions:
                if not isinstance(action, diff.InsertJob):
                    self._request(action, result.lines)
                    continue
                spec = self._reader.spec_of(result.lines[action.index])
                job_id = new[action.index] = self._store.insert_job(spec, f"file:{self._key}")
                text = f"{action.log_message(job_id)}: {spec.text}"
                messages.append((text, self._new_job_event(action, job_id, spec)))
                need = ResourceSpec.of(spec)
                here = shell if need.engine(on) is None else None
                found = line_warnings(spec, resolve(need, config).count, here)
                warnings += [f"line {action.number}: {warning}" for warning in found]
            reading = result.to_reading(new)
            jobs_files.save_reading(self._store, self._key, before, reading)
            only_new = len(new) == len(result.actions) and not result.binds_lines
            mistakes = self._dependencies.store_changes(
                before, reading, new.values(), names, only_new=only_new
            )
            messages += [(text, None) for text in self._infeasible_messages(new.values())]
            if not only_new or not _is_append_only(before, reading):
                self._update_positions(reading)
        self._reading = reading
        self._log_messages(messages, warnings)
        self._log_mistakes(mistakes)

    def _new_job_event(self, action: diff.InsertJob, job_id: int, spec: JobSpec) -> Event:
        """Returns the event that the terminal shows for a new job, with its name and its line in the file."""
        where = f"{self.path.name}, line {action.number}"
        where += f", same text as {action.duplicate_of}" if action.duplicate_of else ""
        state = JobState.HELD if spec.hold else JobState.QUEUED
        return Event(0, 0.0, state.value, job_id, where, {}, spec.text, spec.name, spec.to_json())

    def _log_messages(self, messages: Sequence[tuple[str, Event | None]], warnings: Sequence[str]) -> None:
        room = max(0, MAX_LOGGED - self._logged)
        for text, event in messages[:room]:
            log.info("%s, %s", self.path.name, text, extra={"event": event})
        for text in warnings[:room]:
            log.warning("%s, %s", self.path.name, text)
        self._logged += len(messages)

    def _log_mistakes(self, mistakes: Sequence[str]) -> None:
        for text in mistakes[:MAX_LOGGED]:
            log.error("%s, %s", self.path.name, text)

    def _log_remainder(self) -> None:
        if self._logged > MAX_LOGGED:
            more = self._logged - MAX_LOGGED
            text = "%s: did not log %d more of these messages; `status --all` lists every job"
            log.info(text, self.path.name, more)
        self._logged = 0

    def _request(self, action: diff.DiffAction, lines: Sequence[Line]) -> None:
        by = self._key
        if isinstance(action, diff.LineRemoved):
            add_request(self._store, "line_removed", str(action.job_id), by)
        elif isinstance(action, diff.AttributeChanged):
            self._request_attribute(action.job_id, action.name, action.value)
        elif isinstance(action, diff.CancelRunning):
            add_request(self._store, "cancel", str(action.job_id), by, line=True)
        elif isinstance(action, diff.RequeueFinished):
            self._requeue(action.job.id, self._reader.spec_of(lines[action.index]))

    def _requeue(self, job_id: int, spec: JobSpec) -> None:
        """Requests another run of a finished job, with the attributes of `spec`."""
        job = self._store.job(job_id)
        assert job is not None
        add_request(self._store, "requeue", str(job_id), self._key, added_to=self.path.name)
        for name in COMPARED_ATTRIBUTES:
            value = getattr(spec, name)
            if value != getattr(job.spec, name):
                self._request_attribute(job_id, name, value)

    def _request_attribute(self, job_id: int, name: str, value: object) -> None:
        add_request(self._store, "set", str(job_id), self._key, name=name, value=value, line=True)

    def _infeasible_messages(self, new: Iterable[int]) -> list[str]:
        """Returns a message for each new job that can never fit on the GPUs."""
        reasons = {key: why for key, why in wait_reasons(self._store).items() if why.is_infeasible}
        if not reasons:
            return []
        jobs = (job for job_id in new if (job := self._store.job(job_id)) is not None)
        found = ((job.id, reasons.get(job.spec_key)) for job in jobs)
        return [f"job {job_id} waits, {self._wait_text(why)}" for job_id, why in found if why is not None]

    def _update_positions(self, reading: Reading) -> None:
        order = diff.job_order(reading)
        moved = diff.redistribute_positions(order, jobs_files.queue_positions(self._store, order))
        if moved:
            add_request(self._store, "places", "", self._key, places=moved)

    def _report(self, poll: Poll) -> None:
        forms: set[str | None] = set()
        new = [
            line for line in poll.malformed if (line.number, line.text, line.problem) not in self._reported
        ]
        for line in sorted(new, key=lambda line: line.number)[:MAX_LOGGED]:
            log.error("%s", malformed_message(self.path, line, line.accepted_form not in forms))
            forms.add(line.accepted_form)
        if len(new) > MAX_LOGGED:
            log.error("%s: %d more lines are malformed; `lint` lists them", self.path, len(new) - MAX_LOGGED)
        self._reported = {(line.number, line.text, line.problem) for line in poll.malformed}
        if poll.problem != self._problem:
            if poll.problem is None:
                log.info("%s can be read again", self.path)
            elif poll.missing and not self._reading:
                log.info("%s does not exist yet; waiting for it", self.path)
            else:
                log.warning("%s %s; its jobs continue", self.path, poll.problem)
            self._set_problem(poll.problem)

    def _set_problem(self, problem: str | None) -> None:
        jobs_files.set_problem(self._store, self._key, problem)
        self._problem = problem


def malformed_message(path: Path, line: Line, with_accepted_form: bool) -> str:
    """Returns the log message for a malformed line."""
    accepted = f"\n  accepted: {line.accepted_form}" if with_accepted_form else ""
    return f"{path}:{line.number}: `{safe_text(limit_length(line.text, 120))}`: {line.problem}{accepted}"


def _lasting_waits(waits: Mapping[int, WaitReason], now: float) -> dict[int, WaitReason]:
    """Returns the waits that remain while the file cannot be read.

    These are the waits for malformed lines and the waits that end at a later time.
    """
    return {
        job_id: wait
        for job_id, wait in waits.items()
        if wait.kind is WaitKind.LINE_MALFORMED or (wait.due_at is not None and wait.due_at > now)
    }


def _is_append_only(old: Reading, new: Reading) -> bool:
    return len(new) >= len(old) and all(a.job_id == b.job_id for a, b in zip(old, new, strict=False))
