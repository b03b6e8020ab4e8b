from __future__ import annotations

import json

import pytest

from gpu_scheduler.core.model.gpu import format_ranges
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.show.job_views import JobView
from gpu_scheduler.show.tables import common_prefix, title
from tests.records import job_view

LINE = "0,/home/me/train.py,env,--llm qwen --note two,0-3"


def shown(text: str, name: str | None = None, **spec: object) -> JobView:
    value = JobSpec(kind="command", text=text, cwd="/", **spec)  # type: ignore[arg-type]
    return job_view(1, text=text, name=name, spec_json=value.to_json())


@pytest.mark.parametrize(
    ("job", "called"),
    [
        (shown("python t.py --x 1"), "python t.py --x 1"),
        (shown("python t.py --x 1", name="bert"), "bert"),
        (shown(LINE, script="/home/me/train.py", arguments=("--llm", "qwen")), "train.py --llm qwen"),
        (shown(LINE, script="/x/t.py", arguments=("--note", "two words")), "t.py --note 'two words'"),
        (shown(LINE, script="/x/t.py", arguments=("--password", "-S3")), "t.py --password (hidden)"),
        (shown(LINE, script="/x/t.py"), "t.py"),
        (shown("evil \x1b[2J"), r"evil \x1b[2J"),
        (shown(LINE, script="/x/\x1b.py"), r"\x1b.py"),
    ],
)
def test_a_job_title_is_its_name_or_command(job: JobView, called: str) -> None:
    assert title(job) == called
    assert json.loads(job.record.spec_json)["text"] == job.record.text


@pytest.mark.parametrize(
    ("titles", "same"),
    [
        (["t.py --seed 1", "t.py --seed 2"], "t.py --seed …"),
        (["t.py --seed 1", "t.py --seed 1"], "t.py --seed 1"),
        (["t.py", "t.py --seed 1"], "t.py …"),
        (["a.py", "b.py"], ""),
    ],
)
def test_finds_the_common_prefix_of_job_titles(titles: list[str], same: str) -> None:
    assert common_prefix(titles) == same


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([3], "3"), ([3, 4], "3, 4"), ([5, 3, 4], "3-5"), ([12, 13, 14, 1, 7, 8], "1, 7, 8, 12-14")],
)
def test_formats_consecutive_job_ids_as_ranges(numbers: list[int], expected: str) -> None:
    assert format_ranges(numbers) == expected
