"""Tests that each line is parsed once, and that reusing parsed lines has the same result as a full parse."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile import debounce, job_line
from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.intake import jobs_file_text
from gpu_scheduler.intake.jobs_file_text import ParsedText, TextParser
from gpu_scheduler.intake.jobs_file_watcher import JobsFileReader

GPUS = frozenset(range(4))


def parser() -> TextParser:
    return TextParser("/w", "/home/u", GPUS)


def comparable(lines: tuple[Line, ...]) -> list[tuple[object, ...]]:
    """Returns the parts of each line that a reading keeps."""
    return [
        (line.number, line.raw, line.text, line.kind, line.identity, dict(line.attributes), line.problem)
        for line in lines
    ]


def parse_fresh(content: bytes, previous: Reading) -> ParsedText:
    return parser().parse(content, previous, previous)


def with_job_ids(lines: tuple[Line, ...]) -> Reading:
    return tuple(line.with_job(n) for n, line in enumerate(lines, 1))


PIECES = (
    "python a.py", "python b.py --x 1", "[gpus=2] python a.py", "0,/t.py,env,--x 1,0-3", "0,/t.py,env,--x 2",
    "0,/t.py,env,x,7", "1.5,a.py,env", "# note", "", "  ", "for i in 1 2; do", "  python c.py $i", "done",
    "echo a &&", "python d.py \\", "  --more", "cat <<EOF", "EOF", "echo it's", "caf\xe9.py; true", "a | b",
)  # fmt: skip
LINES = st.lists(st.sampled_from(PIECES), max_size=9)
ENDS = st.sampled_from(["\n", ""])
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "replace", "append", "any"]), st.integers(0, 9), LINES, ENDS
    ),
    min_size=1,
    max_size=5,
)


def apply_edit(lines: list[str], how: str, at: int, put: list[str]) -> list[str]:
    at = min(at, len(lines))
    if how == "append":
        return lines + put
    if how == "any":
        return put
    keep = lines[at:] if how == "insert" else lines[at + 1 :]
    return lines[:at] + ([] if how == "delete" else put[:2]) + keep


@settings(deadline=None, max_examples=40)
@given(start=LINES, edits=EDITS)
def test_parsing_with_known_lines_matches_a_parse_without(
    start: list[str], edits: list[tuple[str, int, list[str], str]]
) -> None:
    lines, again = start, parser()
    text = again.parse("".join(f"{line}\n" for line in lines).encode("latin-1"))
    for how, at, put, end in edits:
        previous = with_job_ids(text.lines)
        lines = apply_edit(lines, how, at, put)
        content = "\n".join(lines).encode("latin-1") + (end.encode() if lines else b"")
        text = again.parse(content, (*previous, *text.lines))
        assert comparable(text.lines) == comparable(parse_fresh(content, previous).lines)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["insert", "delete", "replace", "append", "any"]), st.integers(0, 9), LINES, ENDS
        ),
        st.sampled_from([1.0, 2.5, 5.5, 11.0]),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_reader_makes_the_same_decisions_as_a_function_without_state(
    tmp_path: Path, steps: list[tuple[str, int, list[str], str] | float]
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_bytes(b"")
    reader = JobsFileReader(path, "/w", "/home/u", GPUS)
    lines: list[str] = []
    content, since, now = b"", 0.0, 0.0
    previous: Reading = ()
    jobs: dict[int, Job] = {}
    for step in steps:
        if isinstance(step, float):
            now += step
        else:
            how, at, put, end = step
            lines = apply_edit(lines, how, at, put)
            written = "\n".join(lines).encode("latin-1") + (end.encode() if lines else b"")
            since = since if written == content else now
            content = written
            path.write_bytes(content)
        while True:
            poll = reader.poll(previous, jobs, now)
            seen = debounce.CurrentLines(parse_fresh(content, previous).lines, since)
            wanted = debounce.decide_accepted(previous, seen, jobs, now)
            assert (poll.waits, poll.recheck_at) == (wanted.waits, wanted.recheck_at)
            if poll.accepted is None:
                assert wanted.accepted is None
                break
            assert wanted.accepted is not None
            assert comparable(poll.accepted.lines) == comparable(wanted.accepted.lines)
            assert poll.accepted.pairs == wanted.accepted.pairs
            previous = with_job_ids(wanted.accepted.lines)
            jobs = {n: Job(n, JobState.QUEUED) for n in range(1, len(previous) + 1)}
        wrong = [line.number for line in previous if line.malformed]
        assert [mistake.number for mistake in poll.malformed] == wrong


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which every parsed line is added."""
    found: list[str] = []
    real = job_line.parse_line

    def counting(text: str, *rest: object) -> object:
        found.append(text)
        return real(text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs_file_text, "parse_line", counting)
    return found


def test_parses_only_changed_lines_again(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "jobs.txt"
    lines = [f"python train.py --seed {n}\n" for n in range(3000)]
    lines[10] = "1.5,a.py,env\n"
    path.write_text("".join(lines))
    reader = JobsFileReader(path, "/w", "/home/u", GPUS)
    poll = reader.poll((), {}, 0.0)
    assert poll.accepted is not None
    assert len(parsed) == 3000
    reading = with_job_ids(poll.accepted.lines)
    assert reader.poll(reading, {}, 0.1).accepted is None

    def look(number: int) -> list[str]:
        path.write_text("".join(lines))
        del parsed[:]
        found = reader.poll(reading, {}, float(number))
        assert [mistake.number for mistake in found.malformed]
        return [text for text in parsed if not text.startswith(("high", "#"))]

    lines.append("python appended.py\n")
    assert look(1) == ["python appended.py\n"]
    lines.insert(1500, "python inserted.py\n")
    assert look(2) == ["python inserted.py\n"]
    lines[700] = "python changed.py\n"
    assert look(3) == ["python changed.py\n"]
    lines.insert(0, "# a comment\n")
    assert look(4) == []
    del lines[2000]
    assert look(5) == []


@pytest.mark.parametrize(
    ("first", "more", "mistakes"),
    [
        (["for i in 1 2; do"], ["python a.py $i", "done", "b"], {1, 2, 3}),
        (["a", "python a.py \\"], ["--x 1", "b"], {2, 3}),
        (["python a.py \\", *["# \\"] * 70], ["--x 1", "b"], {1, 72}),
        (["for i in 1 2; do", *["b"] * 59], ["done"], {*range(1, 62)}),
        (["for i in 1 2; do", *["b"] * 60], ["done"], {1, 62}),
    ],
)
def test_appended_lines_may_continue_an_unfinished_command_above(
    tmp_path: Path, first: list[str], more: list[str], mistakes: set[int]
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join(first) + "\n")
    reader = JobsFileReader(path, "/w", "/home/u", GPUS)
    poll = reader.poll((), {}, 0.0)
    assert poll.accepted is not None
    reading = with_job_ids(poll.accepted.lines)
    reader.poll(reading, {}, 1.0)
    path.write_text("\n".join(first + more) + "\n")
    later = [reader.poll(reading, {}, now) for now in (2.0, 20.0)]
    assert {line.number for line in later[-1].malformed} == mistakes


def test_poll_repeats_its_result_until_the_result_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    reader = JobsFileReader(path, "/w", "/home/u", GPUS)
    for _ in range(2):
        poll = reader.poll((), {}, 0.0)
        assert poll.accepted is not None
        assert [line.text for line in poll.accepted.lines] == ["a"]
        reading = with_job_ids(poll.accepted.lines)
    path.write_text("a\nb\n")
    for _ in range(2):
        poll = reader.poll(reading, {}, 1.0)
        assert poll.accepted is not None
        assert poll.accepted.lines[-1].text == "b"


def test_reading_does_not_keep_the_job_specs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("[gpus=1] a\n[gpus=1] b\n")
    reader = JobsFileReader(path, "/w", "/home/u", GPUS)
    poll = reader.poll((), {}, 0.0)
    assert poll.accepted is not None
    reading = with_job_ids(poll.accepted.lines)
    assert all(line.spec is None for line in reading)
    assert reading[0].attributes is reading[1].attributes
    assert reader.spec_of(reading[1]).command == "b"
