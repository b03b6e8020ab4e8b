from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.new_store import forgetting_jobs
from gpu_scheduler.store.requests import add_environment, launch_context
from gpu_scheduler.store.store import Store

SPEC = JobSpec(kind="command", text="true", cwd="/", command="true")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "state.json")), create=True)


@pytest.mark.parametrize("variables", [{}, {"A": "1", "ü": "\udcff\n", "BASH_FUNC_f%%": "() { :; }"}])
def test_returns_the_variables_of_a_job_unchanged(store: Store, variables: Mapping[str, str]) -> None:
    job = store.insert_job(SPEC, "submit", environment=add_environment(store, variables))
    assert launch_context(store, job).environment == variables


def test_jobs_with_equal_variables_share_one_row(store: Store) -> None:
    assert add_environment(store, {"A": "1", "B": "2"}) == add_environment(store, {"B": "2", "A": "1"})
    assert add_environment(store, {"A": "1"}) != add_environment(store, {"A": "2"})
    row = store.db.row("SELECT count(*) AS n FROM environment")
    assert row is not None
    assert row["n"] == 3


def test_a_job_of_a_jobs_file_has_no_variables_of_its_own(store: Store) -> None:
    assert launch_context(store, store.insert_job(SPEC, "file:/jobs.txt")) == (None, None)


def test_a_lost_environment_raises_an_error(store: Store) -> None:
    job = store.insert_job(SPEC, "submit", environment="gone")
    with pytest.raises(KeyError):
        launch_context(store, job)


def test_forgetting_the_jobs_forgets_their_variables(store: Store) -> None:
    store.insert_job(SPEC, "submit", environment=add_environment(store, {"TOKEN": "secret"}))
    with forgetting_jobs(store):
        pass
    assert store.db.rows("SELECT * FROM environment") == []
