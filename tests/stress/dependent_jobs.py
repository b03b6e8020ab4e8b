"""A user whose jobs wait for each other: submits them, edits the jobs file and makes requests at random."""

from __future__ import annotations

import json
import random
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from tests.stress.dependency_state import BY, KINDS
from tests.stress.dependency_trace import JOB
from tests.stress.editors import rename
from tests.stress.harness import Stage

#: Maximum number of jobs or lines before a new one from which its parents are chosen.
_NEAR = 12


@dataclass(frozen=True)
class Line:
    """A line of the jobs file. after, after_any: names or ids."""

    number: int
    name: str
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()


class DependentUser:
    """The user. lines: those of the jobs file; inserted: the parents of the other jobs, by job id."""

    def __init__(self, stage: Stage, store: Store, dice: random.Random) -> None:
        self.lines: list[Line] = []
        self.inserted: dict[int, list[Dependency]] = {}
        self.made = 0
        self._stage, self._store, self._dice = stage, store, dice
        self._codes = stage.folder / "codes"
        self._codes.mkdir()
        self._script = stage.folder / "job.sh"
        self._script.write_text(JOB)

    def submit(self, count: int) -> None:
        """Submits jobs, in the file or straight into the store, and now and then one with `submit`."""
        if self._dice.random() < 0.15:
            self._submit_one()
        if self._dice.random() < 0.5:
            for _ in range(count):
                self.lines.append(self._new_line())
            self._stage.append([self._text(line) for line in self.lines[-count:]])
            return
        with self._store.db.transaction():  # all of them or, if the test is killed, none
            for _ in range(count):
                self._insert()
        self._store.data_dir.ring_doorbell()

    def request(self) -> None:
        """Requests a change of a random job."""
        rows = self._store.db.rows("SELECT id FROM job ORDER BY id DESC LIMIT 30")
        if not rows:
            return
        job, dice = self._dice.choice(rows)["id"], self._dice
        verb = dice.choice(("cancel", "retry", "retry", "hold", "release", "release", "parents"))
        if verb != "parents":
            add_request(self._store, verb, str(job), BY, **({"grace_s": 1.0} if verb == "cancel" else {}))
        elif job in self.inserted:  # the lines decide about the others
            name, parents = dice.choice(list(KINDS)), self._some_jobs()
            pairs = [(parent, str(parent)) for parent in parents]
            add_request(
                self._store, "set", str(job), BY, name=name,
                value=[reference for _, reference in pairs], parents=pairs,
            )  # fmt: skip
        self._store.data_dir.ring_doorbell()

    def change_exit_code(self) -> None:
        """Changes how a random job ends from now on."""
        if self.made:
            self._set_code(self._dice.randrange(self.made))

    def succeed(self) -> None:
        """Lets every job succeed from now on."""
        for path in self._codes.iterdir():
            path.write_text("0")

    def edit(self) -> None:
        """Changes, renames, moves or removes a line, and saves the file."""
        if not self.lines:
            return
        at, dice = self._dice.randrange(len(self.lines)), self._dice
        line, before = self.lines[at], self.lines[:at]
        kind = dice.choice(("text", "text", "name", "name", "parents", "parents", "remove"))
        if kind == "text":
            self.lines[at] = replace(line, number=self._next_number())
        elif kind == "name":
            self._rename(at, follow=dice.random() < 0.5)
        elif kind == "parents":
            self.lines[at] = self._with_parents(line, before)
        else:
            del self.lines[at]
        self._save()

    def correct(self, numbers: Container[int]) -> None:
        """Removes the references from the lines with these line numbers."""
        self.lines = [
            replace(line, after=(), after_any=()) if number in numbers else line
            for number, line in enumerate(self.lines, 1)
        ]
        self._save()

    def _save(self) -> None:
        content = "".join(f"{self._text(one)}\n" for one in self.lines).encode()
        for _ in rename(self._stage.jobs_file, content, self._dice):
            pass

    def _rename(self, at: int, *, follow: bool) -> None:
        """Gives a line another name. follow: also changes the references of other lines to the old name."""
        old, new = self.lines[at].name, f"renamed{self.lines[at].number}"
        self.lines[at] = replace(self.lines[at], name=new)
        if follow:
            for n, line in enumerate(self.lines):
                after, after_any = (_replaced(names, old, new) for names in (line.after, line.after_any))
                self.lines[n] = replace(line, after=after, after_any=after_any)

    def _new_line(self) -> Line:
        """Returns a line that waits for some of the lines before it, and for some older jobs."""
        number = self._next_number()
        name = f"group{number // _NEAR}" if self._dice.random() < 0.15 else f"job{number}"
        return self._with_parents(Line(number, name), self.lines)

    def _with_parents(self, line: Line, before: Sequence[Line]) -> Line:
        dice = self._dice
        if line.name.startswith("group") and dice.random() < 0.9:
            return line  # a group that waits for older lines is often part of a cycle
        near = [one.name for one in before[-_NEAR:]]
        after: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for reference in dice.sample(near, min(len(near), dice.choice((0, 1, 1, 2, 3)))):
            after[dice.choice(list(KINDS))].append(reference)
        if dice.random() < 0.2:
            after[dice.choice(list(KINDS))] += map(str, self._some_jobs()[:1])
        return replace(line, after=tuple(after["after"]), after_any=tuple(after["after_any"]))

    def _text(self, line: Line) -> str:
        after = f" after={','.join(line.after)}" if line.after else ""
        after_any = f" after-any={','.join(line.after_any)}" if line.after_any else ""
        return f"[share=0.25 name={line.name}{after}{after_any}] {self._command(line.number)}"

    def _insert(self) -> None:
        """Inserts a job that waits for some of the newest jobs."""
        number, parents = self._next_number(), self._some_jobs()
        command = self._command(number)
        spec = JobSpec("command", command, str(self._stage.folder), command=command, share=250)
        dependencies = [
            Dependency(parent, self._dice.choice(list(DependencyKind)), str(parent)) for parent in parents
        ]
        job = self._store.insert_job(spec, BY, dependencies=dependencies)
        self.inserted[job] = dependencies

    def _submit_one(self) -> None:
        """Submits a job with the command `submit`."""
        number, parents = self._next_number(), self._some_jobs()
        options = [f"--{kind.replace('_', '-')}={','.join(map(str, parents))}" for kind in KINDS if parents]
        options = options[: self._dice.randint(1, 2)]
        words = ["submit", "--json", "--share=0.25", *options, "--", *self._command(number).split()]
        answer = self._stage.cli(*words)
        assert answer.returncode == 0, f"{words}: {answer}"
        self.inserted[json.loads(answer.stdout)["id"]] = [
            Dependency(parent, kind, str(parent))
            for kind in list(KINDS.values())[: len(options)]
            for parent in parents
        ]

    def _some_jobs(self) -> list[int]:
        rows = self._store.db.rows("SELECT id FROM job ORDER BY id DESC LIMIT ?", _NEAR)
        return [
            row["id"] for row in self._dice.sample(rows, min(len(rows), self._dice.choice((0, 1, 1, 2, 3))))
        ]

    def _next_number(self) -> int:
        number, self.made = self.made, self.made + 1
        self._set_code(number)
        return number

    def _set_code(self, number: int) -> None:
        (self._codes / str(number)).write_text(str(self._dice.choice((0, 0, 0, 0, 0, 1, 3))))

    def _command(self, number: int) -> str:
        # The text must not change, because a line with another text is another job.
        seconds = number * 7 % 5 * 0.05
        return f"sh {self._script} {self._stage.trace} {number} {seconds:.2f} {self._codes}"


def _replaced(names: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in names)
