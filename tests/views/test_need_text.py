"""Tests how needs are formatted as text."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.show.wait_text import need_text


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (Need(0), "no GPU"),
        (Need(1, 1000), "1 free GPU"),
        (Need(3, 1000), "3 free GPUs"),
        (Need(1, 1000, alone=True, assumed=True), "1 idle GPU"),
        (Need(2, 1000, alone=True, assumed=True), "2 idle GPUs"),
        (Need(1, 500), "0.5 of a GPU"),
        (Need(2, 500), "0.5 of each of 2 GPUs"),
        (Need(1, 500, exclusive=True), "0.5 of a GPU, alone"),
        (Need(1, 1000, exclusive=True), "1 free GPU"),
        (Need(1, vram=18432), "18.0 GiB of a GPU"),
        (Need(2, vram=18432), "18.0 GiB of each of 2 GPUs"),
        (Need(1, 250, vram=18432), "0.25 and 18.0 GiB of a GPU"),
        (Need(1, 1000, vram=18432), "1 free GPU with 18.0 GiB"),
        (Need(2, 1000, vram=18432), "2 free GPUs with 18.0 GiB each"),
        (Need(1, vram=900, exclusive=True), "900 MiB of a GPU, alone"),
        (Need(2, vram=18432, exclusive=True), "18.0 GiB of each of 2 GPUs, each alone"),
    ],
)
def test_formats_a_gpu_need(need: Need, text: str) -> None:
    assert need_text(need) == text
