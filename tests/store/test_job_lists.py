"""Tests which jobs a name, a group or a pattern means."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import job_exists, jobs_meant, newest_jobs_meant
from gpu_scheduler.store.store import Store

NAMES = ("g/a", "g/b/c", "g0", "g0/a", "ga", "h/a")


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("g", ["g/a", "g/b/c"]),
        ("g/b", ["g/b/c"]),
        ("g0", ["g0"]),
        ("g*", ["g/a", "g/b/c", "g0", "g0/a", "ga"]),
        ("[!g]/a", ["h/a"]),
        ("b", []),
    ],
)
def test_a_reference_means_the_job_with_this_name_or_those_of_its_group(
    tmp_path: Path, reference: str, names: list[str]
) -> None:
    store = Store(DataDir.of(str(tmp_path / "s.json")), create=True)
    for name in NAMES:
        store.insert_job(JobSpec("command", "true", "/", command="true", name=name), "test")
    assert [job.name for job in jobs_meant(store, reference)] == names
    assert newest_jobs_meant(store, reference) == [NAMES.index(name) + 1 for name in names]
    assert job_exists(store, reference) == bool(names)
