"""Where the real trainers live: their Python, their scripts and their environment."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
#: The environment that `tools/setup_hf.sh` creates.
ENVIRONMENT = _ROOT / ".venv-hf"
PYTHON = str(ENVIRONMENT / "bin" / "python")
SCRIPTS = (Path(__file__).with_name("train.py"), Path(__file__).with_name("lit.py"))


def environment() -> dict[str, str]:
    """Returns the environment of a trainer: one thread, no downloads, no settings of the developer."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",  # they name the folders of the libraries
        "TERM": "xterm-256color",
    }
