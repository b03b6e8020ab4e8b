"""Dropping the frames of progress bars that later frames overwrite."""

from __future__ import annotations

import random
import time

import pytest

from gpu_scheduler.core.text import job_output as progress_frames
from gpu_scheduler.core.text.job_output import FrameFilter

#: tqdm's output for a bar of batches inside a bar of epochs. The inner bar disappears when it is complete.
NESTED = (
    b"\repoch:   0%| | 0/2"
    b"\n\rbatch:   0%| | 0/2\x1b[A\n\rbatch:  50%|#| 1/2\x1b[A\n\rbatch: 100%|##| 2/2\x1b[A"
    b"\n\r                  \x1b[A\repoch:  50%|# | 1/2"
    b"\n\rbatch:   0%| | 0/2\x1b[A\n\rbatch:  50%|#| 1/2\x1b[A\n\rbatch: 100%|##| 2/2\x1b[A"
    b"\n\r                  \x1b[A\repoch: 100%|##| 2/2\repoch: 100%|##| 2/2\ndone\n"
)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"", b""),
        (b"one\ntwo\n", b"one\ntwo\n"),
        (b"one\ntwo", b"one\ntwo"),
        (b"\n\nx\n\n", b"\n\nx\n\n"),
        (b"one\r\ntwo\r\r\n", b"one\ntwo\n"),
        (b"\r 0%\r 50%\r100%\nthen\n", b"100%\nthen\n"),
        (b" 0%\r 50%\r100%\r\nthen\n", b"100%\nthen\n"),
        (b"\r 0%\r 50%", b" 50%"),
        (b"\r 0%\r 50%\r", b" 50%"),
        (b"\r100%\r    \rthen\n", b"then\n"),
        (b"\x1b[32m100%\r\x1b[0m\nthen\n", b"\x1b[32m100%\x1b[0m\nthen\n"),
        (b"\r100%\x1b[0m\r\x1b[0m\r\x1b[1;31m\r\x1b[0m", b"100%\x1b[0m"),
        (b"100%\r\x1b[2K\x1b[0m\nthen\n", b"\x1b[2K\x1b[0m\nthen\n"),
        (b"\xff\x1b[31mred\x1b[0m\n", b"\xff\x1b[31mred\x1b[0m\n"),
        ("\r\u2588\r\u2588\u2588\u2028x\n".encode(), "\u2588\u2588\u2028x\n".encode()),
        (NESTED, b"epoch:   0%| | 0/2\nepoch: 100%|##| 2/2\ndone\n"),
        (NESTED[:-6], b"epoch:   0%| | 0/2\nepoch: 100%|##| 2/2"),
        (NESTED[: NESTED.index(b"  50%|# ")], b"epoch:   0%| | 0/2\nepoch:"),
    ],
)
def test_passes_only_the_last_frame_of_each_progress_line(written: bytes, shown: bytes) -> None:
    whole, pieces = FrameFilter(), FrameFilter()
    assert whole.feed(written, 0.0) + whole.flush() == shown
    if b"\x1b[A" not in written:  # This escape sequence is recognized only if it arrives in one piece.
        each = [pieces.feed(written[at : at + 1], float(at)) for at in range(len(written))]
        assert b"".join(each) + pieces.flush() == shown


def test_updates_an_unfinished_progress_line_once_a_second_with_complete_frames() -> None:
    bar = FrameFilter(update_interval_s=1.0)
    shown = [bar.feed(f"\r{n / 10:5.1f}%".encode(), n / 100) for n in range(1001)]
    assert [line for line in shown if line] == [
        f"{n / 10 - 0.1:5.1f}%\n".encode() for n in range(1, 1001, 100)
    ]
    assert bar.feed(b"", 10.0) == b""
    assert bar.feed(b"\nnext\n", 10.1) == b"100.0%\nnext\n"
    # The updates of the job's next bar are also one second apart.
    assert bar.feed(b"\r a\r b", 10.2) == b""
    assert bar.feed(b"\r c", 11.2) == b" b\n"


def test_shows_a_slow_progress_bar_as_soon_as_output_pauses() -> None:
    bar = FrameFilter(update_interval_s=1.0)
    assert bar.feed(b"\r 1%", 0.0) == b""
    assert bar.feed(b"", 0.1) == b" 1%\n"
    assert bar.feed(b"", 5.0) == b""
    assert bar.feed(b"\r 2%", 6.0) == b""
    assert bar.feed(b"", 6.1) == b" 2%\n"
    assert bar.feed(b"\n", 7.0) == b""
    assert bar.flush() == b""


def test_holds_back_a_plain_line_until_it_is_complete() -> None:
    plain = FrameFilter(update_interval_s=1.0)
    assert plain.feed(b"loading ... ", 0.0) == b""
    assert plain.feed(b"", 60.0) == b""
    assert plain.feed(b"done\n", 61.0) == b"loading ... done\n"


def test_updates_nested_progress_bars_once_a_second() -> None:
    bars = FrameFilter(update_interval_s=1.0)
    shown = b""
    for at in range(500):
        shown += bars.feed(b"\n\rbatch %d\x1b[A" % at, at / 100)
    shown += bars.feed(b"\repoch 1\nend\n", 5.0)
    assert shown.split(b"\n")[0] == b""  # the line above the first bar
    assert 5 <= len(shown.split()) // 2 <= 7
    assert shown.endswith(b"epoch 1\nend\n")
    assert b"\x1b" not in shown


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\rlast\n"])
def test_passes_a_long_line_completely_without_buffering_all_of_it(
    end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_frames, "MAX_FRAME_BYTES", 1000)
    lines, shown = FrameFilter(update_interval_s=1.0), b""
    for _ in range(500):
        shown += lines.feed(b"x" * 100, 0.0)
        assert len(lines._unfinished) <= 1000
    shown += lines.feed(end, 0.0) + lines.flush()
    assert shown.rstrip(b"\n") == b"x" * 50_000 + (b"\nlast" if end == b"\rlast\n" else b"")


def test_plain_lines_pass_unchanged_in_pieces_of_any_size() -> None:
    chance = random.Random(1)
    parts = [b"a", b"bc", b" ", b"\n", b"\n\n", b"\x1b[1m", b"\xe2\x96"]
    text = b"".join(chance.choice(parts) for _ in range(3000))
    for size in (1, 2, 7, 100):
        lines = FrameFilter(update_interval_s=0.5)
        cut = [lines.feed(text[at : at + size], at / 10) for at in range(0, len(text), size)]
        assert b"".join(cut) + lines.flush() == text


def test_does_not_repeat_a_message_that_an_update_between_bars_has_shown() -> None:
    bars = FrameFilter(update_interval_s=1.0)
    shown = bars.feed(b"\router 0%\n\rinner 0%\x1b[A\r\x1b[AMESSAGE\n", 0.0)
    shown += bars.feed(b"\router 1%\r", 2.0)
    shown += bars.feed(b"", 4.0) + bars.feed(b"outer 2%\nend\n", 6.0)
    assert shown.count(b"MESSAGE") == 1


@pytest.mark.parametrize("sequence", [b"\x1b[A", b"\x1b[0m"])
def test_handles_many_escape_sequences_quickly(sequence: bytes) -> None:
    many = sequence * 100_000
    for text in (many, many + b"x", b"x" + many):
        lines = FrameFilter(update_interval_s=1.0)
        began = time.process_time()
        lines.feed(b"\r" + text + b"\r" + text + b"\r", 0.0)
        lines.feed(b"", 2.0)
        lines.flush()
        assert time.process_time() - began < 1.0
