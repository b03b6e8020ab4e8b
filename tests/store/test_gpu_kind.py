"""The GPU kind of a store (simulated or real), and the data that the store keeps when the kind changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.new_store import RecordedGpus, change_gpu_kind, recorded_gpus
from gpu_scheduler.store.requests import add_request, open_requests
from gpu_scheduler.store.store import Store
from tests.changes import CheckedWriter

NOW = Clock().now()
SIMULATED, REAL = ("SIM-0", "SIM-1"), ("GPU-a", "GPU-b")


class KindStore:
    """A store with GPUs of one kind."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(DataDir.of(str(folder / "state.json")), create=True)
        self.writer = CheckedWriter(self.store, Settings())

    def manage(self, *uuids: str) -> None:
        samples = [GpuSample(uuid, n, "card", 24576, 0, 0.0, ()) for n, uuid in enumerate(uuids)]
        self.writer.record_gpus(samples, uuids, NOW)

    def job(self) -> int:
        return self.store.insert_job(JobSpec("command", "true", "/", command="true", vram=1000), "test")

    def execute(self, sql: str) -> None:
        with self.store.db.transaction() as db:
            db.execute(sql)

    def measure(self, peak: int) -> None:
        self.execute(
            "INSERT INTO measurement (workload_class, at, gpu_count, peak_mib, outcome)"
            f" VALUES ('[]', 0, 1, {peak}, 'completed')"
        )

    def column(self, sql: str) -> list[object]:
        return [row[0] for row in self.store.db.rows(sql)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[KindStore]:
    made = KindStore(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("uuids", "simulated"), [(SIMULATED, True), (REAL, False), (("MIG-x",), False), ((), None)]
)
def test_the_managed_gpus_determine_the_gpu_kind_of_a_store(
    desk: KindStore, uuids: tuple[str, ...], simulated: bool | None
) -> None:
    desk.job()
    desk.manage("GPU-earlier")
    desk.manage(*uuids)
    assert recorded_gpus(desk.store.data_dir.database) == RecordedGpus(simulated, 1)


@pytest.mark.parametrize(
    ("found", "simulated", "other"),
    [
        (RecordedGpus(True, 2), False, True),
        (RecordedGpus(False, 2), True, True),
        (RecordedGpus(True, 2), True, False),
        (RecordedGpus(False, 2), False, False),
        (RecordedGpus(True, 0), False, False),
        (RecordedGpus(None, 2), True, False),
    ],
)
def test_only_jobs_for_the_other_kind_of_gpu_conflict(
    found: RecordedGpus, simulated: bool, other: bool
) -> None:
    assert found.conflicts_with(simulated) is other


def test_finds_no_recorded_gpus_in_a_missing_or_broken_database(tmp_path: Path) -> None:
    assert recorded_gpus(tmp_path / "none.db") is None
    (tmp_path / "broken.db").write_bytes(b"no database, but long enough to be read" * 40)
    assert recorded_gpus(tmp_path / "broken.db") is None
    assert not (tmp_path / "none.db").exists()


def test_reads_a_store_of_an_earlier_version_without_upgrading_it(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    from gpu_scheduler.store import database

    first = (Path(database.__file__).with_name("migrations") / "0001_initial.sql").read_text()
    with closing(sqlite3.connect(tmp_path / "old.db")) as db:
        db.executescript(f"{first}; PRAGMA user_version = 1;")
        db.execute("INSERT INTO gpu (uuid, idx, name) VALUES ('SIM-0', 0, 'Simulated 24 GiB')")
        db.commit()
    before = (tmp_path / "old.db").read_bytes()
    assert recorded_gpus(tmp_path / "old.db") == RecordedGpus(True, 0)
    assert (tmp_path / "old.db").read_bytes() == before


def test_switching_to_real_gpus_removes_the_data_of_simulated_gpus(
    desk: KindStore,
) -> None:
    desk.manage(*SIMULATED)
    job = desk.job()
    raised = ResourceSpec.of(JobSpec("command", "true", "/", command="true", vram=1000), 70000).key()
    desk.execute(f"UPDATE job SET min_vram_mib = 70000, spec_key = '{raised}'")
    desk.execute("UPDATE gpu SET paused = 1, foreign_peaks = '[[1, 2, 3]]' WHERE uuid = 'SIM-0'")
    desk.execute("INSERT INTO pending_group (spec_key, reason) VALUES ('x', '{}')")
    desk.execute("INSERT INTO gpu_time VALUES (1, 3600.0, 60.0)")
    add_request(desk.store, "pause", "SIM-1")
    desk.measure(5000)
    change_gpu_kind(desk.store, SIMULATED, NOW)
    assert desk.store.gpus() == []
    assert desk.column("SELECT paused FROM gpu") == [0, 0]
    assert desk.column("SELECT foreign_peaks FROM gpu") == ["[]", "[]"]
    assert desk.column("SELECT reason FROM pending_group") == []
    assert open_requests(desk.store) == []
    assert desk.column("SELECT peak_mib FROM measurement") == []
    assert desk.column("SELECT hour FROM gpu_time") == []
    row = desk.store.job(job)
    assert row is not None
    assert (row.min_vram_mib, ResourceSpec.from_key(row.spec_key).vram) == (None, 1000)


def test_switching_back_to_real_gpus_restores_their_pauses_and_measurements(desk: KindStore) -> None:
    desk.manage(*REAL)
    desk.execute("UPDATE gpu SET paused = 1 WHERE uuid = 'GPU-a'")
    desk.measure(4000)
    change_gpu_kind(desk.store, REAL, NOW)
    desk.manage(*SIMULATED)
    desk.measure(9000)
    change_gpu_kind(desk.store, SIMULATED, NOW)
    desk.manage(*REAL)
    assert [(row.uuid, row.paused) for row in desk.store.gpus()] == [("GPU-a", 1), ("GPU-b", 0)]
    assert desk.column("SELECT peak_mib FROM measurement") == [4000]
