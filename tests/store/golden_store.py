"""The golden file of a store with schema 1, which later versions must be able to open.

`python -m tests.store.golden_store` writes the file again. Once schema 1 is released, the file must not
change.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter

GOLDEN = Path(__file__).parents[1] / "golden" / "store_schema_1.sql"
NOW = Now(1_700_000_000.0, 1000.0, "boot")


def restore_golden(path: Path) -> None:
    """Creates a database from the golden file."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(GOLDEN.read_text(encoding="utf-8"))


def fill(store: Store) -> None:
    """Adds two GPUs and a finished, a running and a queued job to a store."""
    writer = CheckedWriter(store, Settings())
    process = GpuProcess(77, 500)
    samples = [GpuSample(f"U{n}", n, "card", 24_576, 600, 50.0, (process,)) for n in range(2)]
    writer.record_gpus(samples, ["U0", "U1"], NOW)
    specs = [
        JobSpec("command", text, "/", command=text, name=name, vram=vram)
        for text, name, vram in (("exit 3", None, None), ("python a.py", "bert", 9000), ("true", None, None))
    ]
    done, runs, _ = (store.insert_job(spec, "cli", NOW.wall) for spec in specs)
    attempt = writer.record([act.Start(done, ("U0",), 500)], NOW)[done]
    failed = Outcome.FAILED
    writer.record(
        [
            changes.end(attempt, failed, StateReason(ReasonKind.COMMAND_FAILED), exit_code=3),
            *changes.leave(attempt),
        ],
        NOW,
    )
    attempt = writer.record([act.Start(runs, ("U1", "U0"), 0, (("U1", 100),), vram=9000)], NOW)[runs]
    usage = (("U1", 9500, 80.0), ("U0", None, 20.0))
    writer.record(
        [
            changes.run(attempt),
            changes.set_attempt(attempt, runner_pid=4711, runner_start_ticks=99),
            changes.measure(attempt, NOW.boot, *usage, settings=Settings(tolerance=0.05)),
            changes.set_attempt(attempt, misplaced=(("U2", 78),)),
            changes.pause("U0", "state_file_edited"),
        ],
        NOW,
    )
    add_request(store, "cancel", "2", grace_s=5.0)


def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(DataDir.of(f"{folder}/s.json"), create=True)
        fill(store)
        pragmas = ("application_id", "user_version")
        lines = [f"PRAGMA {name} = {store.db.rows(f'PRAGMA {name}')[0][0]};" for name in pragmas]
        GOLDEN.write_text("\n".join([*lines, *store.db.connection.iterdump(), ""]), encoding="utf-8")
        store.close()


if __name__ == "__main__":
    _write()
