"""Reading the file in which a job reports its progress."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.attempts.job_progress import ReportedProgress, read_progress_file


@pytest.mark.parametrize(
    ("text", "step", "total", "checkpoint"),
    [
        ('{"step": 50, "total": 300, "checkpoint": "out/checkpoint-50"}\n', 50, 300, "out/checkpoint-50"),
        ('{"step": 50}', 50, None, None),
        ('{"step": 1}\n{"step": 2, "total": 3}\n{"step": 3, "to', 2, 3, None),
        ('{"step": 1}\n\nnot JSON\n[2]\n3\n', 1, None, None),
        ('{"step": 1.5, "total": 3.0}', 1.5, 3, None),
        ('{"step": "50", "total": true, "checkpoint": 5}', None, None, None),
        ('{"step": -1, "total": 1e300, "checkpoint": ""}', None, None, None),
        ('{"step": 1, "step": 2}\n', None, None, None),
        ('{"step": NaN, "total": 3}', None, 3, None),
        ("", None, None, None),
    ],
)
def test_the_last_whole_line_counts(
    tmp_path: Path, text: str, step: float | None, total: float | None, checkpoint: str | None
) -> None:
    path = tmp_path / "progress"
    path.write_text(text)
    os.utime(path, (1000.0, 1000.0))
    found = read_progress_file(str(path))
    if found is None:
        assert (step, total, checkpoint) == (None, None, None)
    else:
        assert found == ReportedProgress(step, total, checkpoint, 1000.0)


def test_the_end_of_a_long_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text("".join(f'{{"step": {n}, "total": 99999}}\n' for n in range(20_000)))
    found = read_progress_file(str(path))
    assert found is not None
    assert found.step == 19_999


def test_anything_else_reports_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00{")
    (tmp_path / "deep").write_text("[" * 5000)
    for path in (None, *(str(tmp_path / name) for name in ("fifo", "binary", "deep", "missing", ""))):
        assert read_progress_file(path) is None
