"""Finding the last visible line of a running job's log."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.text.job_output import last_visible_line

HEADER = "# job 3, attempt 1: python t.py\n# command: python t.py\n# GPUs: 0; started 2026-11-22 05:27:41\n"


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        ("", None),
        (HEADER, None),
        (f"{HEADER}# epochs are counted from 1\n", None),
        (f"{HEADER}step 1\n", "step 1"),
        (f"{HEADER}step 1\nstep 2", "step 2"),
        (f"{HEADER}step 1\n# not a header\n", "# not a header"),
        ("step 1\n\n  \n", "step 1"),
        ("begun\n\r 10%|#  | 1/9\r 20%|## | 2/9", "20%|## | 2/9"),
        ("begun\n 10%|#  | 1/9\r 20%|## | 2/9\r", "20%|## | 2/9"),
        ("epoch 1\r\nepoch 2\r\n", "epoch 2"),
        (" 10%|#  | 1/9\r\x1b[K", "10%|#  | 1/9"),
        ("\x1b[1;32mINFO\x1b[0m loss \x1b]8;;http://x\x07here\x1b]8;;\x07\n", "INFO loss here"),
        ("outer  50%|#\n\x1b[A\n\x1b[A", "outer  50%|#"),
        ("saved\n--- completed, exit code 0, 3 s\n", "saved"),
    ],
)
def test_finds_the_last_visible_line_of_a_log(tail: str, line: str | None) -> None:
    assert last_visible_line(tail) == line
