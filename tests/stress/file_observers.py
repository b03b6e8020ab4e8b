"""Two readers of a real jobs file: the scheduler's, with a simulated clock, and a negative control."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from gpu_scheduler.core.jobsfile.reading import Line
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.intake.jobs_file_watcher import JobsFileReader
from tests.core.jobs_file_world import JobsFileWorld


class JobsFileObserver(JobsFileWorld):
    """Reads the file as the scheduler does.

    started: how often each job was started, by text; problem: why the whole file cannot be read, or None.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._reader = JobsFileReader(path, "/w", "/home/u", frozenset(range(8)))
        self.malformed: tuple[Line, ...] = ()
        self.problem: str | None = None
        self.started: Counter[str] = Counter()

    def wait(self, seconds: float) -> None:
        """Polls the file, then advances the clock."""
        self.check()
        super().wait(seconds)

    def check(self) -> None:
        """Polls the file until a poll accepts nothing new."""
        while True:
            poll = self._reader.poll(self.reading, self.facts(), self.now)
            self.waits, self.next_check, self.malformed = poll.waits, poll.recheck_at, poll.malformed
            self.problem = poll.problem
            if poll.accepted is None:
                return
            self.accept(poll.accepted)

    def ready(self) -> set[int]:
        """Returns the jobs that are running or could start if a GPU were free."""
        return {
            number
            for number, job in self.jobs.items()
            if job.state is JobState.RUNNING
            or (job.state is JobState.QUEUED and number not in self.waiting_for_lines)
        }

    def open_texts(self) -> list[str]:
        """Returns the texts of the jobs that `ready` returns."""
        return [self.jobs[number].spec.text for number in self.ready()]

    def start_and_end_some(self, dice: random.Random, chance: float) -> None:
        """Starts some of the jobs that can start, and ends some of the running jobs."""
        for number, job in self.jobs.items():
            if job.state is JobState.RUNNING and dice.random() < chance:
                self.end(number, Outcome.COMPLETED)
            elif (
                job.state is JobState.QUEUED
                and number not in self.waiting_for_lines
                and dice.random() < chance
            ):
                self.start(number)
                self.started[job.spec.text] += 1


class CredulousObserver:
    """Negative control, which immediately starts a job for every line that it has not read before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.started: Counter[str] = Counter()

    def wait(self, seconds: float) -> None:
        """Reads the file. The simulated time does not matter."""
        if self._path.exists():
            for text in self._path.read_text("utf-8", "replace").splitlines():
                if text.strip() and text not in self.started:
                    self.started[text] = 1

    def start_and_end_some(self, dice: random.Random, chance: float) -> None:
        """Does nothing, because all jobs have already been started."""

    def open_texts(self) -> list[str]:
        """Returns the lines of the file."""
        return self._path.read_text().splitlines()
