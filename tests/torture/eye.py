"""The watcher of a jobs file on a real file with a driven clock, and a twin that believes its eyes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.intake.jobsfile import JobsFileReader, MalformedLine
from tests.core.jobsworld import World


class Eye(World):
    """Reads the file as the scheduler does. started: how often a job of each text was started; problem: why
    the file cannot be read as a whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._reader = JobsFileReader(path, "/w", "/home/u", frozenset(range(8)))
        self.malformed: tuple[MalformedLine, ...] = ()
        self.problem: str | None = None
        self.started: Counter[str] = Counter()

    def wait(self, seconds: float) -> None:
        """Look, and let time pass."""
        self.poll()
        super().wait(seconds)

    def poll(self) -> None:
        """One look, and another one after whatever counted."""
        while True:
            poll = self._reader.poll(self.reading, self.facts(), self.now)
            self.waits, self.next_look, self.malformed = poll.waits, poll.next_look, poll.malformed
            self.problem = poll.problem
            if poll.accepted is None:
                return
            self.take(poll.accepted)

    def ready(self) -> set[int]:
        """The jobs that run, or would be started if there were room."""
        return {
            number
            for number, job in self.jobs.items()
            if job.state is JobState.RUNNING or (job.state is JobState.QUEUED and number not in self.gone)
        }

    def open_texts(self) -> list[str]:
        """Their texts."""
        return [self.jobs[number].spec.text for number in self.ready()]

    def run_some(self, dice: random.Random, chance: float) -> None:
        """Start some of the jobs that may start, and end some that run."""
        for number, job in self.jobs.items():
            if job.state is JobState.RUNNING and dice.random() < chance:
                self.end(number, Outcome.COMPLETED)
            elif job.state is JobState.QUEUED and number not in self.gone and dice.random() < chance:
                self.start(number)
                self.started[job.spec.text] += 1


class BelievingEye:
    """One who is wrong on purpose: takes every line that it has not seen for a job, the moment it sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.started: Counter[str] = Counter()

    def wait(self, seconds: float) -> None:
        """Look; time means nothing to it."""
        if self._path.exists():
            for text in self._path.read_text("utf-8", "replace").splitlines():
                if text.strip() and text not in self.started:
                    self.started[text] = 1

    def run_some(self, dice: random.Random, chance: float) -> None:
        """All of them have been started already."""

    def open_texts(self) -> list[str]:
        """What it would have the user believe."""
        return self._path.read_text().splitlines()
