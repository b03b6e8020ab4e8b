"""Compares the effects of random edits with a small model of the user's intentions.

The model ignores texts and positions. Each intended line has its own number, and each edit records its
expected effect as it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.states import JobState, Outcome
from tests.core.jobs_file_world import JobsFileWorld


@dataclass
class IntendedLine:
    """A line that the user intends to write."""

    uid: int
    csv: bool
    priority: int | None = None
    hold: bool = False
    commented_out: bool = False
    suffix: str = ""
    has_typo: bool = False
    saved: bool = False

    def written_text(self) -> str:
        """Returns the line as written in the file."""
        text = self.intended_text()
        if self.has_typo:
            # The typo goes into the attribute block. A line without a block gets one.
            text = text.replace("[", "[vram=20H ", 1) if text.startswith("[") else f"[vram=20H] {text}"
        return ("# " if self.commented_out else "") + text + self.suffix

    def intended_text(self) -> str:
        """Returns the line without its typo."""
        if self.csv:
            priority = "" if self.priority is None else str(self.priority)
            return ("[hold] " if self.hold else "") + f"{priority},job{self.uid}.py,,--x {self.uid} y"
        items = [f"priority={self.priority}"] * (self.priority is not None) + ["hold"] * self.hold
        return (f"[{' '.join(items)}] " if items else "") + f"python job{self.uid}.py 'a b'"

    @property
    def key(self) -> str:
        """Returns the text that identifies this line's job."""
        return f"job{self.uid}.py"


@dataclass
class User:
    """Edits a file and records the expected state of every line."""

    lines: list[IntendedLine] = field(default_factory=list)
    expected: dict[int, str] = field(default_factory=dict)
    serial: int = 0

    def new(self, csv: bool) -> IntendedLine:
        self.serial += 1
        self.expected[self.serial] = "queued"
        return IntendedLine(self.serial, csv)

    def apply_hold(self, line: IntendedLine) -> None:
        """Updates the expected state of a line after its `hold` changed.

        A line that is commented out or has a typo keeps its expected state.
        """
        if not line.commented_out and not line.has_typo and self.expected[line.uid] in ("queued", "held"):
            self.expected[line.uid] = "held" if line.hold else "queued"

    def lines_with_typos(self) -> set[int]:
        """Returns the numbers of the lines that have a typo. The jobs of these lines must not start."""
        return {line.uid for line in self.lines if line.has_typo and not line.commented_out}

    def line_removed(self, line: IntendedLine) -> None:
        if self.expected[line.uid] in ("queued", "held"):
            self.expected[line.uid] = "cancelled"

    def line_restored(self, line: IntendedLine) -> None:
        if self.expected[line.uid] in ("failed", "cancelled"):
            self.expected[line.uid] = "held" if line.hold else "queued"

    def save(self) -> str:
        """Marks the written lines as saved and returns the text of the file."""
        for line in self.lines:
            line.saved = not line.commented_out
        return "".join(line.written_text() + "\n" for line in self.lines)

    def queue(self) -> list[str]:
        visible = [
            line for line in self.lines if not line.commented_out and self.expected[line.uid] == "queued"
        ]
        return [line.key for line in visible]


def edit(user: User, kind: str, a: int, b: int) -> None:
    """Makes one edit.

    Only CSV lines are uncommented, because adding a command again creates another job. Only saved lines get a
    typo: a typo in a new line would protect a line that is deleted in the same save, and a typo that is
    corrected before the next save would never be read.
    """
    if kind in ("append", "insert") or not user.lines:
        line = user.new(csv=bool(b % 2))
        user.lines.insert(a % (len(user.lines) + 1) if kind == "insert" else len(user.lines), line)
        return
    line = user.lines[a % len(user.lines)]
    if kind == "delete":
        user.lines.remove(line)
        if not line.commented_out:
            user.line_removed(line)
    elif kind == "retype":
        fresh = user.new(csv=line.csv)
        user.lines[user.lines.index(line)] = fresh
        if not line.commented_out:
            user.line_removed(line)
    elif kind == "move":
        user.lines.remove(line)
        user.lines.insert(b % (len(user.lines) + 1), line)
    elif kind == "comment" and not line.commented_out:
        line.commented_out = True
        user.line_removed(line)
    elif kind == "uncomment" and line.commented_out and line.csv and not line.has_typo:
        line.commented_out = False
        user.line_restored(line)
    elif kind == "priority" and not (line.csv and line.has_typo):  # a CSV line is identified by its text
        line.priority = b % 4 or None
    elif kind == "hold":
        line.hold = not line.hold
        user.apply_hold(line)
    elif kind == "spoil" and line.saved and not line.commented_out:
        line.has_typo = True
    elif kind == "mend":
        line.has_typo = line.saved = False
        user.apply_hold(line)
    elif kind == "noise":
        line.suffix = (" # note, with commas", "\r", "", "   ", " #")[b % 5]


EDITS = (
    "append", "insert", "delete", "retype", "move", "comment", "uncomment", "priority", "hold", "noise",
    "spoil", "mend",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from([*EDITS, "start", "finish", "fail"]), st.integers(0, 50), st.integers(0, 50)),
    min_size=1,
    max_size=25,
)


def by_uid(world: JobsFileWorld) -> dict[int, Any]:
    """Returns the jobs by the number in their text. Fails if two jobs have the same number."""
    found: dict[int, Any] = {}
    for job in world.jobs.values():
        uid = uid_of(job)
        assert uid not in found, f"two jobs for line {uid}"
        found[uid] = job
    return found


def uid_of(job: Any) -> int:
    """Returns the number in a job's text."""
    return int(job.spec.text.split("job")[1].split(".")[0])


def advance_job(world: JobsFileWorld, user: User, kind: str, a: int) -> None:
    """Starts or ends a job, without an edit."""
    jobs = by_uid(world)
    wanted = JobState.QUEUED if kind == "start" else JobState.RUNNING
    waiting = user.lines_with_typos() if kind == "start" else set()
    candidates = sorted(uid for uid, job in jobs.items() if job.state is wanted and uid not in waiting)
    if not candidates:
        return
    uid = candidates[a % len(candidates)]
    if kind == "start":
        jobs[uid].state, user.expected[uid] = JobState.RUNNING, "running"
    else:
        outcome = Outcome.COMPLETED if kind == "finish" else Outcome.FAILED
        jobs[uid].state, jobs[uid].outcome, user.expected[uid] = JobState.FINISHED, outcome, str(outcome)


@settings(deadline=None, max_examples=300)
@given(STEPS, st.integers(1, 3))
def test_the_effects_of_successive_saves_match_the_model(
    steps: list[tuple[str, int, int]], edits_per_save: int
) -> None:
    user, world = User(), JobsFileWorld()
    pending = 0
    for kind, a, b in steps:
        if kind in EDITS:
            edit(user, kind, a, b)
            pending += 1
            if pending < edits_per_save and kind not in ("comment", "uncomment", "hold", "delete"):
                continue
        world.save(user.save(), wait=30)
        pending = 0
        if kind not in EDITS:
            advance_job(world, user, kind, a)
    world.save(user.save(), wait=30)
    jobs = by_uid(world)
    hidden = {line.uid for line in user.lines if line.commented_out}
    states = {uid: str(job.outcome or job.state) for uid, job in jobs.items()}
    expected = {uid: state for uid, state in user.expected.items() if uid in jobs or uid not in hidden}
    # A line that was added and removed before the same save never became a job.
    expected = {uid: state for uid, state in expected.items() if uid in jobs or state != "cancelled"}
    assert states == expected
    assert [text.split(",")[1] if "," in text else text.split()[1] for text in world.queue()] == user.queue()
    assert {uid_of(world.jobs[job_id]) for job_id in world.waiting_for_lines} == user.lines_with_typos()
    assert world.next_check is None
    assert sum(line.malformed for line in world.reading) == len(user.lines_with_typos())
    for line in user.lines:
        if not line.commented_out and not line.has_typo and states[line.uid] in ("queued", "held"):
            assert jobs[line.uid].spec.priority == line.priority


TEXTS = st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True)


@settings(deadline=None, max_examples=300)
@given(TEXTS, st.lists(st.tuples(TEXTS, st.floats(0.01, 9.5), st.integers(0, 30)), max_size=6), TEXTS)
def test_no_job_is_lost_in_a_burst_of_saves(
    first: list[str], between: list[tuple[list[str], float, int]], last: list[str]
) -> None:
    """A line in both the first and the last text keeps its job, whatever the file contains in between.

    Each text in between lasts less than 10 s and may be truncated anywhere. The last lines become the queue.
    """
    world = JobsFileWorld()
    world.save("".join(f"python {text}.py\n" for text in first), wait=30)
    before = {job.spec.text: i for i, job in world.jobs.items()}
    for texts, wait, cut in between:
        whole = "".join(f"python {text}.py\n" for text in texts)
        # After 5 s, a truncated line would be accepted as a line of its own.
        world.save(whole[: len(whole) - min(cut, len(whole))], wait=min(wait, 4.9) if cut else wait)
    world.save("".join(f"python {text}.py\n" for text in last), wait=30)
    assert world.queue() == [f"python {text}.py" for text in last]
    after = {job.spec.text: i for i, job in world.jobs.items() if job.state is JobState.QUEUED}
    for text in first:
        if text in last:
            line = f"python {text}.py"
            assert after[line] == before[line]
    assert not world.waiting_for_lines


FEW_TEXTS = st.lists(st.sampled_from(["a", "b", "[priority=1] a", "0,x.py", "5,x.py"]), max_size=7)


@settings(deadline=None, max_examples=300)
@given(FEW_TEXTS, FEW_TEXTS, st.lists(st.sampled_from(["start", "finish"]), max_size=4))
def test_each_of_several_equal_lines_has_its_own_job(
    first: list[str], second: list[str], fates: list[str]
) -> None:
    world = JobsFileWorld()
    world.save("".join(f"{text}\n" for text in first), wait=30)
    for i, fate in enumerate(fates, 1):
        if i in world.jobs:
            world.jobs[i].state = JobState.RUNNING
            if fate == "finish":
                world.end(i)
    before = {i: job.state for i, job in world.jobs.items()}
    world.save("".join(f"{text}\n" for text in second), wait=30)
    bound = [line.job_id for line in world.reading if line.job_id is not None]
    commands = [line for line in world.reading if line.kind == "command"]
    assert len(bound) == len(set(bound)) == len(commands) + any(line.kind == "csv" for line in world.reading)
    for line in commands:
        assert line.job_id is not None
        assert world.jobs[line.job_id].spec.identity == line.identity
    waiting = {i for i, job in world.jobs.items() if job.state is JobState.QUEUED}
    assert waiting <= set(bound)
    for i, state in before.items():
        if state is not JobState.QUEUED:
            assert world.jobs[i].state is state
    for name in ("a", "b"):
        old = [i for i in before if world.jobs[i].spec.command == name]
        new = [i for i, job in world.jobs.items() if job.spec.command == name]
        count = sum(text.removeprefix("[priority=1] ") == name for text in second)
        assert len(new) == max(len(old), count), "each additional line creates exactly one job"
