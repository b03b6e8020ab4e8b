"""Tables and lists fitted to a screen."""

from __future__ import annotations

import pytest

from gpu_scheduler.show.layout import (
    CappedList,
    Cell,
    Column,
    TableRow,
    Viewport,
    allot_lines,
    render_line,
    table,
)


def listed(entries: int, total: int | None = None) -> CappedList:
    rows = [TableRow((Cell(str(n)),)) for n in range(entries)]
    return CappedList("jobs", rows, entries if total is None else total)


@pytest.mark.parametrize(
    ("lists", "least", "room", "given"),
    [
        ([listed(3), listed(4)], [1, 1], 9, [3, 4]),
        ([listed(3), listed(4)], [1, 1], 5, [3, 2]),
        ([listed(9), listed(4)], [2, 1], 5, [4, 1]),
        ([listed(9), listed(4), listed(1)], [2, 1, 1], 2, [2, 0, 0]),
        ([listed(0), listed(4, 50)], [2, 1], 9, [0, 5]),
        ([listed(3)], [1], -2, [0]),
    ],
)
def test_the_last_lists_are_shortened_first_if_space_is_limited(
    lists: list[CappedList], least: list[int], room: int, given: list[int]
) -> None:
    assert allot_lines(lists, least, room) == given


@pytest.mark.parametrize(
    ("whole", "lines", "expected"),
    [
        (listed(3), 3, ["0", "1", "2"]),
        (listed(3), 2, ["0", "… and 2 more jobs (status --all)"]),
        (listed(3), 1, ["… 3 jobs (status --all)"]),
        (listed(3), 0, []),
        (listed(0), 0, []),
        (listed(2, 2_000), 9, ["0", "1", "… and 1,998 more jobs (status --all)"]),
        (listed(2, 2_000), 2, ["0", "… and 1,999 more jobs (status --all)"]),
    ],
)
def test_a_shortened_list_ends_with_the_number_of_omitted_items(
    whole: CappedList, lines: int, expected: list[str]
) -> None:
    shown = whole.capped(lines)
    assert ["".join(cell.text for cell in entry.cells) for entry in shown] == expected
    assert sum(entry.count for entry in shown) == (whole.total if lines else 0)


COLUMNS = (Column("Job", is_right=True), Column("What", is_flexible=True), Column("Last line"))
ROWS = [
    TableRow(
        (Cell("7"), Cell("train.py --epochs 30 --seed 1"), Cell("epoch 3/30: loss 0.25", keep_end=True))
    ),
    TableRow((Cell("模型"),), is_spanning=True),
    TableRow((Cell("12"), Cell("t.py", "31"), Cell(""))),
]


@pytest.mark.parametrize("width", [1, 12, 30, 44, 60, 200])
def test_table_lines_never_exceed_the_width_of_the_screen(width: int) -> None:
    from rich.cells import cell_len

    screen = Viewport(width, 20)
    lines = [render_line(line, screen) for line in table(COLUMNS, ROWS, width)]
    assert max(map(cell_len, lines)) <= width


def test_truncates_titles_and_last_lines_in_the_middle() -> None:
    lines = [render_line(line, Viewport(44, 20)) for line in table(COLUMNS, ROWS, 44)]
    assert lines == [
        "Job  What                Last line",
        "  7  train.py …--seed 1  epoch 3/3…loss 0.25",
        "     模型",
        " 12  t.py",
    ]


def test_output_to_a_pipe_is_complete_and_a_long_cell_does_not_widen_its_column() -> None:
    rows = [*ROWS, TableRow((Cell("13"), Cell("x" * 500), Cell("last")))]
    lines = [render_line(line, Viewport()) for line in table(COLUMNS, rows, None)]
    assert lines[-1] == f" 13  {'x' * 500}  last"
    assert len(lines[1]) < 100


def test_writes_colours_only_if_the_terminal_supports_them() -> None:
    line = [Cell("ok "), Cell("failed", "31"), Cell("", "31")]
    assert render_line(line, Viewport(80, 24)) == "ok failed"
    assert render_line(line, Viewport(80, 24, has_colours=True)) == "ok \x1b[31mfailed\x1b[0m"
    assert render_line(line, Viewport(6, 24, has_colours=True)) == "ok \x1b[31mfa…\x1b[0m"


def test_truncates_paths_only_if_the_number_of_rows_is_limited() -> None:
    line = [Cell("log /" + "y" * 90, is_path=True)]
    assert len(render_line(line, Viewport(40))) == 95
    assert len(render_line(line, Viewport(40, 24))) == 40
