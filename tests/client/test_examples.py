"""The examples of the client run as their first lines say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import textwrap

import pytest

from tests.client.desk import Desk
from tests.stress.harness import ROOT


def run(desk: Desk, *words: str) -> str:
    """Runs Python in the folder of the queue, where examples without a URL find it. Returns its output."""
    desk.world.start()
    if desk.kind == "http":
        words = (*words, f"http://127.0.0.1:{desk.port}")
    done = subprocess.run(
        [sys.executable, *words], cwd=desk.folder, env=desk.world.env, capture_output=True, text=True,
        timeout=100, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sweep_prints_the_best(desk: Desk) -> None:
    lines = run(desk, str(ROOT / "examples/sweep.py")).splitlines()
    assert len(lines) == 7, lines
    assert lines[-1].endswith(" with 0.0")


@pytest.mark.parametrize("desk", ["store"], indirect=True)
def test_the_cells_of_the_notebook_run(desk: Desk) -> None:
    cells = json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]
    code = ["".join(one["source"]) for one in cells if one["cell_type"] == "code"]
    assert len(code) == 3
    assert "on GPU 0\n" in run(desk, "-c", textwrap.dedent("\n".join(code)))


def test_optuna_is_told_how_each_of_twenty_trials_ended(desk: Desk) -> None:
    if importlib.util.find_spec("optuna") is None:
        pytest.skip("needs optuna, which the extra `dev` installs")
    out = run(desk, str(ROOT / "examples/optuna_search.py"))
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (complete|pruned|fail)\b", out)}
    assert sum(counts.values()) == 20, out
    assert set(counts) == {"complete", "pruned", "fail"}, out
    best = re.search(r"^best: (\S+) with", out, re.MULTILINE)
    assert best is not None
    assert float(best[1]) < 1, out
    jobs = desk.world.jobs().values()
    assert sum(one["outcome"] == "failed" for one in jobs) == counts["fail"]
