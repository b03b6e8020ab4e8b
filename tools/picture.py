"""Records docs/images/status.svg: `status --watch` beside a jobs file, while a real scheduler runs the jobs.

Usage: .venv/bin/python tools/picture.py [SVG]. The scheduler simulates four GPUs in a temporary folder.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 80, 16
#: Seconds that a frame of the recording covers, and that the picture shows it.
INTERVAL_S, SHOWN_S = 2.0, 1.6
MAX_FRAMES = 13
#: The frame that viewers without animations show.
STILL = 4
LINES = [
    "# one line is one job; edit and save at any time",
    "[name=prepare gpus=0] sleep 3 && echo prepared 4,000 files",
    "[name=train after=prepare] python3 examples/train.py --epochs 14",
    "[name=dev] python3 examples/eval.py --llm qwen2.5-3b-inst --samples 130",
    "[name=test] python3 examples/eval.py --llm qwen2.5-3b-inst --samples 230",
    "[name=typo share=0.5] python3 examples/eval.py --samples none",
]
#: A line that is appended while the scheduler runs, with the number of the frame before which that happens.
APPENDED, APPENDED_AT = "[name=pair gpus=2] python3 examples/train.py --epochs 8", 3
#: Pixels.
CHAR, LINE, PAD, BAR = 8.4, 19.0, 14.0, 26.0
COLOURS = {
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "34": "#79c0ff",
    "36": "#76e3ea",
    "2": "#8b949e",
}


def record() -> list[tuple[list[str], list[str]]]:
    """Returns frames: the lines of the jobs file, and those of the terminal with their colour sequences."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples")
        shutil.copy2(ROOT / "llm_config.json", folder)
        jobs = folder / "jobs.txt"
        jobs.write_text("\n".join(LINES) + "\n")
        program = [sys.executable, str(ROOT / "scheduler.py")]
        scheduler = subprocess.Popen(
            [*program, "start", "--simulate", "4", "--log-dir", "logs"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        frames = []
        try:
            while not (folder / "gpu_scheduler_state.d" / "scheduler.db").exists():
                time.sleep(0.01)
            for number, shown in enumerate(
                _frames([*program, "status", "--watch", f"{INTERVAL_S:g}"], folder)
            ):
                if number == APPENDED_AT:
                    with jobs.open("a") as file:
                        file.write(f"{APPENDED}\n")
                frames.append((jobs.read_text().splitlines(), shown))
        finally:
            subprocess.run([*program, "stop", "--jobs"], cwd=folder, stdout=subprocess.DEVNULL, check=False)
            scheduler.wait(60)
        return frames


def _frames(command: list[str], folder: Path) -> Iterator[list[str]]:
    """Yields what a command draws in a terminal, once for each redraw."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(command[0], command, {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    drawn, count = b"", 0
    try:
        while count < MAX_FRAMES:
            if not select.select([terminal], [], [], 30)[0]:
                raise SystemExit("`status --watch` draws nothing")
            drawn += os.read(terminal, 65536)
            # Each redraw begins at the top left and ends by clearing the rest of the screen.
            *whole, drawn = drawn.split(b"\x1b[J")
            for text in whole:
                lines = text.decode().rpartition("\x1b[H")[2].split("\n")
                yield [re.sub(r"\r|\x1b\[[0-9?]*[A-Za-ln-z]", "", line) for line in lines]
                count += 1
    finally:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        os.close(terminal)


def draw(frames: list[tuple[list[str], list[str]]]) -> str:
    """Returns an SVG that shows the frames one after the other."""
    width = COLUMNS * CHAR + 2 * PAD
    top = BAR + (len(LINES) + 1) * LINE + PAD
    height = top + BAR + ROWS * LINE + PAD
    share = 100 / len(frames)
    rules = "".join(f".c{code}{{fill:{colour}}}" for code, colour in COLOURS.items())
    style = (
        "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}"
        f".t{{fill:#8b949e}}.c1{{font-weight:bold}}{rules}"
        f".f{{visibility:hidden;animation:show {SHOWN_S * len(frames):g}s step-end infinite}}"
        ".s{visibility:visible}"
        f"@keyframes show{{0%{{visibility:visible}}{share:.3f}%{{visibility:hidden}}}}"
        "@media (prefers-reduced-motion:reduce){.f{animation:none}}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
        f"<style>{style}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0d1117"/>',
        f'<rect y="{top:g}" width="{width:g}" height="1" fill="#30363d"/>',
        f'<text class="t" x="{PAD:g}" y="19">jobs.txt</text>',
        f'<text class="t" x="{PAD:g}" y="{top + 19:g}">$ python3 scheduler.py status --watch</text>',
    ]
    for number, (jobs, shown) in enumerate(frames):
        kind = "f s" if number == STILL else "f"
        delay = SHOWN_S * number - SHOWN_S * len(frames)
        parts.append(f'<g class="{kind}" style="animation-delay:{delay:g}s">')
        parts += [_text(line, BAR + (row + 1) * LINE) for row, line in enumerate(jobs)]
        parts += [_text(line, top + BAR + (row + 1) * LINE) for row, line in enumerate(shown) if line]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(line: str, y: float) -> str:
    """Returns a line of text. Its length is fixed, so that columns are aligned in every font."""
    spans, codes, length = "", "", 0
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if piece.startswith("\x1b"):
            codes = " ".join(f"c{code}" for code in piece[2:-1].split(";") if code not in ("", "0"))
        elif piece:
            length += len(piece)
            spans += f'<tspan class="{codes}">{escape(piece)}</tspan>' if codes else escape(piece)
    return f'<text x="{PAD:g}" y="{y:g}" textLength="{length * CHAR:.1f}">{spans}</text>'


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "status.svg"
    target.write_text(draw(record()))
    print(f"{target}: {target.stat().st_size:,} bytes")
