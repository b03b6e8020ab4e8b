"""Tests that the store keeps the readings of jobs files, whatever changes in them."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.jobs_files import load_reading, save_reading, working_folder
from gpu_scheduler.store.store import Store

PATH = "/project/jobs.txt"


def reading(*texts: str) -> Reading:
    """Returns a reading with a line for each text."""
    return tuple(Line(number, f"{text}\n", text, "command", text) for number, text in enumerate(texts, 1))


def test_lines_can_be_inserted_in_the_same_place_any_number_of_times(tmp_path: Path) -> None:
    store = Store(DataDir.of(str(tmp_path / "s.json")), create=True)
    working_folder(store, PATH, "/project")
    texts, before = ["first", "last"], reading()
    for number in range(50):
        after = reading(*texts)
        save_reading(store, PATH, before, after)
        assert load_reading(store, PATH) == after
        texts[1:1], before = [f"new {number}"], after
