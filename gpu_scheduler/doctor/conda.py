"""Lists conda's environments. This is a module of its own because it imports `subprocess`."""

from __future__ import annotations

from gpu_scheduler.asking import Answer, ask

#: Timeout in seconds of `conda env list`, which is a large Python program.
_CONDA_S = 20.0


def ask_conda(conda_sh: str) -> Answer:
    """Runs `conda env list`; `parse_environments` parses its output."""
    return ask(["bash", "-c", '. "$1" && conda env list', "bash", conda_sh], timeout_s=_CONDA_S)


def environments(text: str) -> list[str]:
    """Returns the environments in the output of `conda env list`; unnamed ones by their folder."""
    rows = (line.split() for line in text.splitlines())
    return [words[0] for words in rows if words and not words[0].startswith("#")]
