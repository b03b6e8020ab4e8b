"""Asks conda for its environments. Apart from the other checks, since asking brings `subprocess` with it."""

from __future__ import annotations

from gpu_scheduler.asking import Answer, ask

#: Seconds for `conda env list`, which is a large Python program.
_CONDA_S = 20.0


def ask_conda(conda_sh: str) -> Answer:
    """What `conda env list` prints; `environments` reads it."""
    return ask(["bash", "-c", '. "$1" && conda env list', "bash", conda_sh], timeout_s=_CONDA_S)


def environments(text: str) -> list[str]:
    """The environments that `conda env list` prints; those without a name by their folder."""
    rows = (line.split() for line in text.splitlines())
    return [words[0] for words in rows if words and not words[0].startswith("#")]
