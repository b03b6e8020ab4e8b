"""Records the output of real training runs for the tests: `python -m tests.hf.record [NAME...]`.

Writes tests/data/logs/NAME.log, and NAME.json with the command and how the log grew. The README there
describes the recordings.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.hf.trainer import PYTHON, SCRIPTS, environment

LOGS = Path(__file__).parents[1] / "data" / "logs"
_TRAIN = "train.py --output_dir outputs --report_to none --seed 3 --sample_ms 20"
_STEPS = f"{_TRAIN} --max_steps 150 --save_steps 50 --logging_steps 10"
_LIGHTNING = "lit.py --output_dir outputs --save_steps 10 --samples 160"


@dataclass(frozen=True)
class Recording:
    """A run to record.

    columns: the width of its terminal; None writes to a pipe, as to a log file. before: the command whose
    checkpoints the run resumes from. signal_after: the file of the output folder at which it gets `signal`.
    """

    command: str
    columns: int | None = None
    before: str | None = None
    signal_after: str | None = None
    signal: signal.Signals = signal.SIGTERM
    unbuffered: bool = False


RECORDINGS = {
    "hf-steps": Recording(_STEPS),
    "hf-steps-40-columns": Recording(_STEPS, columns=40),
    "hf-steps-80-columns": Recording(_STEPS, columns=80),
    "hf-steps-200-columns": Recording(
        f"{_TRAIN} --max_steps 70 --save_steps 50 --logging_steps 10 --sample_ms 40", columns=200
    ),
    "hf-bar-only": Recording(f"{_TRAIN} --max_steps 150 --save_steps 50"),
    "hf-no-bar": Recording(f"{_STEPS} --disable_tqdm True --num_train_epochs 3", unbuffered=True),
    "hf-no-bar-epochs": Recording(
        f"{_TRAIN} --disable_tqdm True --num_train_epochs 3 --samples 400 --save_steps 50 --logging_steps 10",
        unbuffered=True,
    ),
    "hf-no-bar-buffered": Recording(f"{_STEPS} --disable_tqdm True"),
    "hf-epochs-evaluated": Recording(
        f"{_TRAIN} --num_train_epochs 3 --samples 360 --eval_samples 160 --eval_strategy epoch"
        " --save_strategy epoch --logging_steps 15"
    ),
    "hf-resumed": Recording(
        f"{_STEPS} --resume_from_checkpoint outputs/checkpoint-50",
        before=f"{_TRAIN} --max_steps 50 --save_steps 50 --sample_ms 0",
    ),
    "hf-killed-by-sigterm": Recording(_STEPS, signal_after="checkpoint-50/trainer_state.json"),
    "hf-saved-on-sigterm": Recording(
        f"{_STEPS} --save_on_sigterm True", signal_after="checkpoint-50/trainer_state.json"
    ),
    "lightning-bar": Recording(f"{_LIGHTNING} --max_epochs 3 --sample_ms 40"),
    "lightning-rich": Recording("lit.py --output_dir outputs --samples 64 --sample_ms 20 --rich"),
    "lightning-rich-100-columns": Recording(
        "lit.py --output_dir outputs --max_epochs 3 --samples 64 --sample_ms 20 --rich", columns=100
    ),
    "lightning-resumed": Recording(
        f"{_LIGHTNING} --max_epochs 3 --sample_ms 40 --resume_from_checkpoint outputs/epoch=1-step=30.ckpt",
        before=f"{_LIGHTNING} --max_epochs 2",
    ),
    "lightning-saved-on-sigusr1": Recording(
        f"{_LIGHTNING} --sample_ms 40",
        signal_after="epoch=1-step=30.ckpt",
        signal=signal.SIGUSR1,
    ),
}


def main(names: list[str]) -> None:
    """Makes the named recordings, or all of them; three at a time, because the runs mostly wait."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(3) as pool:
        for size, name in pool.map(_record, names or list(RECORDINGS)):
            print(f"{size:7} bytes  {name}.log")


def _record(name: str) -> tuple[int, str]:
    recording = RECORDINGS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for script in SCRIPTS:
            shutil.copy(script, folder)
        if recording.before:
            subprocess.run([PYTHON, *recording.before.split()], cwd=folder, env=environment(), check=True)
        output, growth, code = _run(recording, folder)
    (LOGS / f"{name}.log").write_bytes(output)
    facts = {
        "command": f"python {recording.command}",
        "columns": recording.columns,
        "exit_code": code,
        "growth": growth,
    }
    text = json.dumps(facts, indent=1).replace(",\n   ", ", ").replace("[\n   ", "[").replace("\n  ]", "]")
    (LOGS / f"{name}.json").write_text(f"{text}\n")
    return len(output), name


def _run(recording: Recording, folder: Path) -> tuple[bytes, list[tuple[float, int]], int]:
    """Returns the output, its growth (seconds since the start, bytes until then), and the exit code."""
    source, sink = os.openpty() if recording.columns else os.pipe()
    if recording.columns:
        fcntl.ioctl(sink, termios.TIOCSWINSZ, struct.pack("HHHH", 24, recording.columns, 0, 0))
    began = time.monotonic()
    process = subprocess.Popen(
        [PYTHON, *(["-u"] if recording.unbuffered else []), *recording.command.split()],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=sink,
    )
    os.close(sink)
    output = bytearray()
    growth: list[tuple[float, int]] = []
    awaited = folder / "outputs" / recording.signal_after if recording.signal_after else None
    while part := _read(source):
        output += part
        at = round(time.monotonic() - began, 2)
        if not growth or at - growth[-1][0] >= 0.5:
            growth.append((at, len(output)))
        if awaited and awaited.exists():
            process.send_signal(recording.signal)
            awaited = None
    code = process.wait()
    growth.append((round(time.monotonic() - began, 2), len(output)))
    os.close(source)
    return bytes(output), growth, code


def _read(source: int) -> bytes:
    try:
        return os.read(source, 65536)
    except OSError:  # a terminal whose other end is closed
        return b""


if __name__ == "__main__":
    main(sys.argv[1:])
