"""The progress that the last lines of a log show."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.explain.log_progress import MAX_LINES, LogWindow, progress_of_log
from gpu_scheduler.core.explain.progress import RunOptions
from gpu_scheduler.core.model.job import Progress, ProgressUnit
from tests.core import training_logs
from tests.core.training_logs import Piece, tqdm

#: Recorded logs of real runs.
LOGS = Path(__file__).parents[1] / "data" / "logs"
NO_OPTIONS = RunOptions()
STEP, EPOCH, PERCENT = ProgressUnit.STEP, ProgressUnit.EPOCH, ProgressUnit.PERCENT


def progress(text: str | bytes, options: RunOptions = NO_OPTIONS) -> Progress | None:
    window = LogWindow()
    window.feed(text.encode() if isinstance(text, str) else text)
    return progress_of_log(window.marks(), options)


@pytest.mark.parametrize(
    ("text", "current", "total", "unit"),
    [
        ("Step 50/300", 50, 300, STEP),
        ("Step 1/1", 1, 1, STEP),
        ("INFO:root:step: 1,050 / 30_000 loss=0.3", 1050, 30000, STEP),
        ("[rank0]: global_step 50 of 300", 50, 300, STEP),
        ("[50/300] loss 0.3", 50, 300, STEP),
        ("2024-01-02 03:04:05 - mmengine - Iter(train) [ 50/300]  lr: 1e-4", 50, 300, STEP),
        ("\x1b[32mIteration\x1b[0m \x1b[1m50/300\x1b[0m", 50, 300, STEP),
        ("| epoch   2 |   200/ 400 batches | lr 5.00 | ms/batch 9.4", 1.5, 4, EPOCH),
        ("Train Epoch: 3 [30000/60000 (50%)]\tLoss: 0.28", 2.5, 4, EPOCH),
        ("Epoch: [3]  [ 100/200]  eta: 0:10:20  lr: 0.1", 2.5, 4, EPOCH),
        ("Epoch(train)  [3][100/200]  lr: 1e-2  eta: 0:10:20", 2.5, 4, EPOCH),
        ("Epoch 2/10", 1, 10, EPOCH),
        ("Epoch 2/10 started at 12:30:01", 1, 10, EPOCH),
        ("Epoch 2/10, lr=1.00e-04", 1, 10, EPOCH),
        ("Epoch 2/10 - loss: 0.5", 2, 10, EPOCH),
        ("finished epoch 2 of 10", 2, 10, EPOCH),
        ("{'loss': 0.5, 'learning_rate': 4e-05, 'epoch': 1.5}", 1.5, 4, EPOCH),
        ("{'loss': '0.5', 'epoch': '1.5'}", 1.5, 4, EPOCH),
        ("50.0%", 50, 100, PERCENT),
        ("Progress: 53 %", 53, 100, PERCENT),
        ("trained 12.5% of the data, 12.5% complete", 12.5, 100, PERCENT),
        (f"\r{tqdm('', 150, 300)}", 150, 300, STEP),
        ("\rtrain:  50%|##### | 1.5k/3.0k [01:30<01:30, 1.6it/s]", 1500, 3000, STEP),
        ("\r 50%|█████     | 150/300 [01:3", 150, 300, STEP),
        ("\r 50% 150/300 [01:30<01:30,  1.67it/s]", 150, 300, STEP),
        ("\repochs:  50%|█████     | 5/10 [01:30<01:30,  9.1s/it]", 5, 10, EPOCH),
        ("Training ━━━━━━━━━━━━╸━━━━━━━  53% 0:01:24", 53, 100, PERCENT),
        ("Training ━━━━━━━━━━━━╸━━━━━━━ 150/300 0:01:24", 150, 300, STEP),
    ],
)
def test_reads_a_line(text: str, current: float, total: float, unit: ProgressUnit) -> None:
    for end in ("", "\n", "\r\n"):
        found = progress(text + end, RunOptions(epochs=4))
        assert found is not None
        assert (found.current, found.total, found.unit) == (current, total, unit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accuracy: 87.5%",
        "GPU 53% used, 12/24 GB",
        "| 30%   45C    P2   100W / 300W |  10000MiB / 24576MiB |     53%      Default |",
        "batch size 32/64",
        "Num Epochs = 3",
        "epochs: 10",
        "Restoring from outputs/epoch=1-step=30.ckpt",
        "val_loss=0.5 (90% of best)",
        "Step 400/300",
        "Step 3/0",
        "[1/3] nvcc -c kernel.cu",
        "[ 50%] Building CXX object main.cpp.o",
        "# Command: python train.py [5/10]",
        "--- exit code 1 after step 5/10",
        "Downloading model.bin:  50%|█████     | 220M/440M [00:04<00:04, 98.1MB/s]",
        "Downloading ━━━━━━━━━━━━━━━ 1.2/3.4 GB 35.0 MB/s eta 0:00:10",
        "Tokenizing:  50%|█████     | 150/300 [01:30<01:30,  1.67it/s]",
        "Evaluating:  50%|█████     | 150/300 [01:30<01:30,  1.67it/s]",
        "150it [01:30,  1.67it/s]",
        "eval step 3/20",
        "Epoch 3:  45%|████▌     | 450/1000 [00:12<00:15, 35.2it/s, v_num=0]",
        "{'loss': 0.5, 'epoch': 1.5}",
        "{'step': 50, 'loss': 0.1}",
    ],
)
def test_shows_nothing_without_evidence(text: str) -> None:
    assert progress(text) is None


def test_a_bar_of_the_work_that_the_command_names_counts() -> None:
    bar = f"\r{tqdm('Evaluating', 150, 300)}"
    assert progress(bar, RunOptions(command="python run_eval.py --split test")) is not None


def test_the_trainers_epochs_do_not_count_if_the_number_of_steps_ends_the_run() -> None:
    assert progress("{'loss': 0.5, 'epoch': 1.5}", RunOptions(epochs=3, max_steps=100)) is None


def test_steps_without_a_total_count_if_the_command_names_it() -> None:
    assert progress("iter 100: loss 2.3, time 20ms", RunOptions(max_steps=5000)) == Progress(100, 5000, STEP)


def test_a_bar_shows_the_seconds_of_its_work() -> None:
    found = progress("\r 50%|█████     | 150/300 [1:01:30<1:01:30,  1.67it/s]")
    assert found is not None
    assert found.elapsed_s == 3690.5  # it shows only whole seconds


def test_a_step_counts_although_epochs_follow() -> None:
    assert progress("Step 1500/3000\n{'loss': 0.1, 'epoch': 1.6}\n") == Progress(1500, 3000, STEP)


def test_a_finished_counter_does_not_count_if_an_epoch_begins_after_it() -> None:
    assert progress("[500/500] images indexed\nEpoch 2/10\n") == Progress(1, 10, EPOCH)


def test_a_finished_counter_counts_at_the_end() -> None:
    found = progress("Epoch 10/10: loss 0.1\nStep 300/300\n{'train_runtime': 9.1, 'epoch': 3.0}\n")
    assert found is not None
    assert found.is_complete


def test_only_the_last_lines_count() -> None:
    assert progress("Step 50/300\n" + "loss 0.1\n" * (MAX_LINES - 1)) is not None
    assert progress("Step 50/300\n" + "loss 0.1\n" * MAX_LINES) is None


def test_a_bar_that_starts_again_without_epochs_shows_nothing() -> None:
    first = "".join(f"\r{tqdm('', batch, 100)}" for batch in range(0, 101, 5))
    assert progress(first) == Progress(100, 100, STEP, elapsed_s=0.5)
    for again in ("\n", f"\r{' ' * 60}\r", ""):  # also if the bar disappears when it is full
        assert progress(f"{first}{again}\r{tqdm('', 10, 100)}") is None
        assert progress(f"{first}{again}\r{tqdm('', 10, 100)}\r{tqdm('', 15, 100)}") is None


def test_a_long_evaluation_does_not_push_out_the_bar_that_encloses_it() -> None:
    nested = "".join(f"\n\r{tqdm('', batch, 5000)}\x1b[A" for batch in range(5001))
    assert progress(f"\r{tqdm('', 150, 300)}{nested}") == Progress(150, 300, STEP, elapsed_s=0.5)


KINDS: list[tuple[Callable[[], Iterator[Piece]], RunOptions, float]] = [
    # The last number is the greatest error that the evidence makes unavoidable.
    (training_logs.trainer, RunOptions(), 0.001),
    (training_logs.tutorial, RunOptions(), 0.2),
    (training_logs.global_steps, RunOptions(), 0.2),
    (training_logs.keras, RunOptions(), 0.001),
    (training_logs.bar_per_epoch, RunOptions(), 0.001),
    (training_logs.unnamed_bars, RunOptions(), 0.2),
    (training_logs.lightning, RunOptions(epochs=5), 0.001),
    (training_logs.lightning_rich, RunOptions(), 0.001),
    (training_logs.rich_percent, RunOptions(), 0.001),
    (training_logs.iterations, RunOptions(max_steps=500), 0.2),
    (training_logs.timm, RunOptions(epochs=5), 0.2),
    (training_logs.several_ranks, RunOptions(), 0.01),
    (training_logs.build_first, RunOptions(), 0.001),
    (training_logs.yolo, RunOptions(), 0.001),
    (training_logs.fairseq, RunOptions(epochs=5), 0.001),
    (training_logs.diffusers, RunOptions(), 0.001),
]


@pytest.mark.parametrize(("write", "options", "tolerance"), KINDS)
def test_the_progress_is_right_at_every_moment_of_a_run(
    write: Callable[[], Iterator[Piece]], options: RunOptions, tolerance: float
) -> None:
    window, text, checked = LogWindow(), b"", 0
    pieces = list(write())
    for number, (piece, done) in enumerate(pieces):
        data = piece.encode()
        window.feed(data)
        text += data
        found = progress_of_log(window.marks(), options)
        if number % 20 == 0:
            # A reader that starts now finds the same.
            assert progress(text, options) == found
        if found is None or found.fraction is None:
            assert done < 0.5, piece
            continue
        assert found.fraction == pytest.approx(done, abs=tolerance), piece
        checked += 1
    assert checked > len(pieces) // 2


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_are_read_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    pieces = LogWindow()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 400], strict=True):
        pieces.feed(data[begin:end])
    whole = progress(data)
    assert progress_of_log(pieces.marks(), RunOptions()) == whole
    assert whole is None or whole.total is None or 0 <= whole.current <= whole.total


@given(st.text("0123456789/%|[]█ Epochstep:\r\n\x1b[A", max_size=200))
def test_any_text_shows_at_most_the_total(text: str) -> None:
    found = progress(text, RunOptions(epochs=3, max_steps=10))
    assert found is None or found.fraction is None or 0 <= found.fraction <= 1


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_log_that_is_read_in_pieces_shows_the_same_as_the_whole_log(path: Path) -> None:
    data, options, chance = path.read_bytes(), RunOptions(epochs=3), random.Random(path.stem)
    window, end = LogWindow(), 0
    while end < len(data):
        begin, end = end, end + chance.choice((1, 7, 50, 400, 3000))
        window.feed(data[begin:end])
        if chance.random() < 0.3:
            assert progress_of_log(window.marks(), options) == progress(data[:end], options), end


def test_a_line_without_an_end_needs_little_memory() -> None:
    window = LogWindow()
    for text in ("Step 5/300 ", "x" * 100_000, f"\r{tqdm('', 7, 300)}" * 10_000):
        window.feed(text.encode())
        assert len(window._rest) < 10_000
    assert progress_of_log(window.marks(), NO_OPTIONS) == Progress(7, 300, STEP, elapsed_s=0.5)
