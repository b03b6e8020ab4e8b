"""P7: the jobs file is saved as six different editors save it, while the scheduler reads it.

Every line of a completed save must run once, and a truncated line must never run.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from tests.stress.editors import STYLES
from tests.stress.file_observers import CredulousObserver, JobsFileObserver
from tests.stress.harness import Stage, pause
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

_LINES = ("0,/w/job{n}.py,,--name run-{n}", "python job{n}.py --name run-{n}")
#: Number of saves before a new file is begun.
_EPISODE = 50
#: Possible intervals between two steps of a save, in seconds.
_STEPS_S = (0.0, 0.0, 0.05, 0.3, 1.0, 2.5, 6.0, 11.0)


class User:
    """A user who edits a file of unique lines. ever: every line that the user ever put into the file."""

    def __init__(self, dice: random.Random, command: str) -> None:
        self._dice, self._command = dice, command
        self._serial = 0
        self.lines: list[str] = []
        self.ever: set[str] = set()

    def edit(self, removing: bool = True) -> bytes:
        """Makes one to three changes; returns the content to be saved."""
        for _ in range(self._dice.randint(1, 3)):
            kinds = ["append", "append", "insert"]
            if removing and self.lines:
                kinds += ["delete", "move", "retype"]
            self._change(self._dice.choice(kinds))
        return "".join(f"{line}\n" for line in self.lines).encode()

    def _change(self, kind: str) -> None:
        at = self._dice.randrange(len(self.lines) + 1)
        if kind == "append":
            self.lines.append(self._new())
        elif kind == "insert":
            self.lines.insert(at, self._new())
        else:
            line = self.lines.pop(at % len(self.lines))
            if kind == "move":
                self.lines.insert(self._dice.randrange(len(self.lines) + 1), line)
            elif kind == "retype":
                self.lines.insert(at % (len(self.lines) + 1), self._new())

    def _new(self) -> str:
        self._serial += 1
        # The number appears twice, and the two numbers differ if the line was truncated.
        line = self._command.format(n=self._serial)
        self.ever.add(line)
        return line


def steps(order: Order) -> Findings:
    """Makes 5,000 saves and reads the file between all steps of each save, with a simulated clock."""
    found, dice, count = Findings(), order.rng("saves"), order.scaled(5000, 20)
    path = order.folder / "jobs.txt"
    styles: Counter[str] = Counter()
    looks = done = 0
    while done < count:
        path.unlink(missing_ok=True)
        user = User(dice, dice.choice(_LINES))
        eye = CredulousObserver(path) if order.is_control else JobsFileObserver(path)
        for _ in range(min(_EPISODE, count - done)):
            done += 1
            style = dice.choice(STYLES)
            styles[f"{style.__name__} saves"] += 1
            for _ in style(path, user.edit(), dice):
                looks += 1
                eye.wait(dice.choice(_STEPS_S))
                eye.start_and_end_some(dice, 0.1)
            eye.wait(dice.choice(_STEPS_S))
            if dice.random() < 0.2:
                _check_open_jobs(eye, user, found)
            eye.start_and_end_some(dice, 0.1)
        _check_open_jobs(eye, user, found)
        eye.start_and_end_some(dice, 1.0)
        _judge(eye.started, set(user.lines), user.ever, found)
    found.figures = {"saves": done, "reads in between": looks, **dict(sorted(styles.items()))}
    return found


def _check_open_jobs(eye: JobsFileObserver | CredulousObserver, user: User, found: Findings) -> None:
    """Leaves the file unchanged, and checks that each line has its job and that no other job waits."""
    eye.wait(30)
    waiting = Counter(eye.open_texts())
    for line in user.lines:
        if waiting[line] + eye.started[line] == 0:
            found.fault("lost", line)
    for text in waiting:
        if text not in user.lines and not eye.started[text]:
            found.fault("wrong jobs", f"{text!r} waits and is not in the file")


def _judge(started: Counter[str], must: set[str], may: set[str], found: Findings) -> None:
    for text, times in started.items():
        if text not in may:
            found.fault("wrong jobs", f"{text!r} was started")
        elif times > 1:
            found.fault("run twice", text)
    for text in must - set(started):
        found.fault("lost", text)


def live(order: Order) -> Findings:
    """Makes 500 saves in real time, of a file that a real scheduler watches and runs."""
    found, dice, count = Findings(), order.rng("live"), order.scaled(500, 10)
    script = order.folder / "note.sh"
    script.write_text('echo "$2 $3" >> "$1"\nsleep "$4"\n')
    stage = Stage(order.folder)
    user = User(dice, f"[share=0.25] sh {script} {stage.trace} {{n}} run-{{n}} 0.02{{n}}")
    stage.jobs_file.touch()
    watcher = stage.start()
    try:
        for number in range(count):
            # A removed line counts only after 10 s, so the last saves only add lines, to end the test sooner.
            for _ in dice.choice(STYLES)(stage.jobs_file, user.edit(number < count * 0.8), dice):
                pause(dice.choice((0.0, 0.001, 0.01, 0.05)))
            pause(dice.choice((0.0, 0.0, 0.02, 0.2)))
        wanted = {(line.split()[-3], line.split()[-2]) for line in user.lines}
        wait_for(lambda: wanted <= set(_runs_in(stage.trace)), "every line of the file ran", timeout_s=120)
    except AssertionError as error:
        found.fault("lost", str(error)[:500])
    finally:
        watcher.terminate()
        watcher.wait(60)
    stage.drain(240)
    ever = {(line.split()[-3], line.split()[-2]) for line in user.ever}
    for note, times in Counter(_runs_in(stage.trace)).items():
        if note not in ever or times > 1:
            found.fault("wrong jobs" if note not in ever else "run twice", f"{note} ran {times} times")
    found.figures = {"saves": count, "lines written": len(ever), "jobs run": len(_runs_in(stage.trace))}
    return found


def _runs_in(trace: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split(" ")) for line in trace.read_text().splitlines()] if trace.exists() else []
