"""Simulates the logs of training programs: pieces of output, each with the part of the run that is done."""

from __future__ import annotations

from collections.abc import Iterator

#: A piece of output, and the part of the run that is done once it is written.
Piece = tuple[str, float]


def tqdm(label: str, current: int, total: int, elapsed_s: int = 0) -> str:
    """Returns a frame of a tqdm bar, without its carriage return."""
    filled = 10 * current // total
    bar = "█" * filled + " " * (10 - filled)
    times = f"{elapsed_s // 60:02d}:{elapsed_s % 60:02d}"
    begin = f"{label}: " if label else ""
    return f"{begin}{100 * current // total:3d}%|{bar}| {current}/{total} [{times}<00:09,  1.67it/s]"


def trainer() -> Iterator[Piece]:
    """Hugging Face Trainer with evaluations: their bar is nested in that of the run."""
    yield "Map: 100%|██████████| 25000/25000 [00:09<00:00, 2613.18 examples/s]\n", 0.0
    yield "Downloading: 100%|██████████| 440M/440M [00:04<00:00, 98.1MB/s]\n", 0.0
    yield "Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.2s/it]", 0.0
    yield "\rLoading checkpoint shards: 100%|██████████| 2/2 [00:02<00:00,  1.1s/it]\n", 0.0
    for step in range(1, 301):
        yield "\r" + tqdm("", step, 300, step), step / 300
        if step % 10 == 0:
            loss = f"{{'loss': {3 / step:.4f}, 'learning_rate': 4e-05, 'epoch': {step / 100:.2f}}}"
            yield f"\r{' ' * 60}\r{loss}\n\r{tqdm('', step, 300, step)}", step / 300
        if step % 100 == 0:
            for batch in range(1, 26):
                yield f"\n\r{tqdm('', batch, 25)}\x1b[A", step / 300
            yield f"\n\r{' ' * 60}\x1b[A\r{tqdm('', step, 300, step)}", step / 300
    yield "\n{'train_runtime': 300.1, 'train_loss': 0.4, 'epoch': 3.0}\n", 1.0


def tutorial() -> Iterator[Piece]:
    """The format of many tutorials: steps that start again with every epoch."""
    for epoch in range(1, 6):
        for step in range(10, 301, 10):
            done = (epoch - 1 + step / 300) / 5
            yield f"Epoch [{epoch}/5], Step [{step}/300], Loss: {1 / epoch:.4f}\n", done
        yield f"Test Accuracy: {80 + epoch}.5 %\n", epoch / 5


def global_steps() -> Iterator[Piece]:
    """Steps that count through all epochs, on lines that also name the epoch."""
    for step in range(10, 3001, 10):
        epoch = (step - 1) // 600 + 1
        yield f"2024-05-01 10:00:00 INFO epoch {epoch}/5 step {step}/3000 loss 0.5\n", step / 3000


def keras() -> Iterator[Piece]:
    """Keras: a heading for each epoch, and a bar that moves back with backspaces."""
    for epoch in range(1, 5):
        yield f"Epoch {epoch}/4\n", (epoch - 1) / 4
        for batch in range(1, 51):
            dots = "." * (30 - batch * 30 // 50)
            bar = f"{batch:2d}/50 [{'=' * (batch * 30 // 50)}>{dots}] - ETA: 4s - loss: 0.4"
            yield "\x08" * 60 + "\r" + bar, (epoch - 1 + batch / 50) / 4
        yield "\n", epoch / 4


def bar_per_epoch() -> Iterator[Piece]:
    """A bar for each epoch, and one for its validation, which the program prints one after the other."""
    for epoch in range(1, 6):
        for batch in range(0, 101, 4):
            yield "\r" + tqdm(f"Epoch {epoch}/5", batch, 100), (epoch - 1 + batch / 100) / 5
        for batch in range(0, 21, 4):
            yield ("\n" if not batch else "") + "\r" + tqdm("Validation", batch, 20), epoch / 5
        yield "\n", epoch / 5


def unnamed_bars() -> Iterator[Piece]:
    """An unnamed bar for each epoch, below a heading of the program."""
    for epoch in range(1, 6):
        yield f"Starting epoch {epoch}/5\n", (epoch - 1) / 5
        for batch in range(0, 101, 2):
            yield "\r" + tqdm("", batch, 100), (epoch - 1 + batch / 100) / 5
        yield f"\nEpoch {epoch}/5: loss 0.51, accuracy 87.5%\n", epoch / 5


def lightning() -> Iterator[Piece]:
    """PyTorch Lightning: epochs count from 0, and their number is only known from the command."""
    yield "GPU available: True (cuda), used: True\n", 0.0
    for batch in range(3):
        yield "\r" + tqdm("Sanity Checking DataLoader 0", batch, 2), 0.0
    for epoch in range(5):
        for batch in range(0, 101, 5):
            frame = tqdm(f"Epoch {epoch}", batch, 100).replace("it/s]", "it/s, v_num=0, loss=1.2]")
            yield "\r" + frame, (epoch + batch / 100) / 5
        for batch in range(11):
            yield f"\n\r{tqdm('Validation DataLoader 0', batch, 10)}\x1b[A", (epoch + 1) / 5


def lightning_rich() -> Iterator[Piece]:
    """The rich bar of PyTorch Lightning in a terminal, which names the number of the last epoch."""
    for epoch in range(5):
        for batch in range(0, 101, 5):
            bar = "\x1b[38;5;92m" + "━" * (batch // 5) + "╸" + "━" * (20 - batch // 5) + "\x1b[0m"
            times = f"\x1b[38;5;245m0:00:{batch // 2:02d} • 0:00:15\x1b[0m"
            text = (
                f"Epoch {epoch}/4  {bar} \x1b[37m{batch}/100\x1b[0m {times} 35.20it/s v_num: 0.000 loss: 0.4"
            )
            yield "\r\x1b[2K" + text, (epoch + batch / 100) / 5
        yield "\n", (epoch + 1) / 5


def rich_percent() -> Iterator[Piece]:
    """The default bar of rich, with a percentage and the remaining time."""
    for percent in range(101):
        bar = "━" * (percent * 40 // 100) + "╸" + "━" * (40 - percent * 40 // 100)
        yield (
            f"\r\x1b[2KTraining \x1b[38;5;197m{bar}\x1b[0m \x1b[35m{percent:3d}%\x1b[0m 0:01:24",
            percent / 100,
        )


def iterations() -> Iterator[Piece]:
    """nanoGPT: iterations without a total, which the command names."""
    for step in range(0, 501, 5):
        if step % 100 == 0:
            yield f"step {step}: train loss 2.1, val loss 2.2\n", step / 500
        yield f"iter {step}: loss 2.1234, time 120.51ms, mfu 17.35%\n", step / 500


def timm() -> Iterator[Piece]:
    """timm: epochs count from 0; validation lines have brackets, too."""
    for epoch in range(5):
        for batch in range(0, 1251, 50):
            text = (
                f"Train: {epoch} [{batch:4d}/1251 ({100 * batch // 1251:3d}%)]  Loss: 6.9 (6.92)  LR: 1e-4\n"
            )
            yield text, (epoch + batch / 1251) / 5
        for batch in range(0, 196, 50):
            yield f"Test: [{batch:4d}/195]  Time: 0.2 (0.3)  Acc@1: 70.1 (69.9)\n", (epoch + 1) / 5


def several_ranks() -> Iterator[Piece]:
    """Two processes that write to one log and are a few steps apart."""
    for step in range(4, 401, 2):
        yield f"[rank0]: Step {step}/400 loss 0.3\n", step / 400
        yield f"[rank1]: Step {step - 3}/400 loss 0.3\n", step / 400


def build_first() -> Iterator[Piece]:
    """A build of CUDA extensions before a training that reports percentages."""
    for number in range(1, 4):
        yield (
            f"[{number}/3] /usr/local/cuda/bin/nvcc -ccbin gcc -c kernel{number}.cu -o kernel{number}.o\n",
            0.0,
        )
    yield "[ 50%] Building CXX object src/CMakeFiles/ext.dir/main.cpp.o\n", 0.0
    yield "GPU utilisation 93%, dropout 10%\n", 0.0
    for percent in range(0, 101, 2):
        yield f"2024-05-01 10:00:00 progress: {percent}% done, val accuracy 71.5%\n", percent / 100


def yolo() -> Iterator[Piece]:
    """Ultralytics YOLO: the epoch stands before the bar, and a bar for the validation follows."""
    head = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
    classes = "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)"
    for epoch in range(1, 6):
        yield head, (epoch - 1) / 5
        for batch in range(9):
            frame = tqdm(
                f"        {epoch}/5      4.72G      1.145       1.68      1.201        200        640",
                batch,
                8,
            )
            yield f"\r{frame}", (epoch - 1 + batch / 8) / 5
        yield "\n", epoch / 5
        for batch in range(5):
            yield f"\r{tqdm(classes, batch, 4)}", epoch / 5
        yield "\n                   all        128        929      0.652      0.554      0.614\n", epoch / 5


def fairseq() -> Iterator[Piece]:
    """fairseq: the batches of an epoch follow its number."""
    for epoch in range(1, 6):
        for batch in range(10, 301, 10):
            begin = f"2024-05-01 10:00:00 | INFO | train_inner | epoch {epoch:03d}:"
            yield f"{begin} {batch:6d} / 300 loss=5.2, ppl=36.8\n", (epoch - 1 + batch / 300) / 5


def diffusers() -> Iterator[Piece]:
    """diffusers: a bar of the run, and now and then unnamed bars of a pipeline that makes samples."""
    for step in range(1, 301):
        yield f"\r{tqdm('Steps', step, 300)}", step / 300
        if step in (100, 200):
            for _ in range(4):
                for sample in range(0, 51, 5):
                    yield f"\n\r{tqdm('', sample, 50)}\x1b[A", step / 300
                yield f"\r{tqdm('', 50, 50)}\n", step / 300  # its last frame takes the line of the outer bar
