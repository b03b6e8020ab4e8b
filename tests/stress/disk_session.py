"""Runs a scheduler and its users on a disk, before and after its power is cut.

Usage: python -m tests.stress.disk_session before|after OUT

This program is the first process of a pid namespace and runs in a folder on that disk. OUT is a folder on
another disk, where the jobs write their traces.

`before` runs a scheduler and its users until everything is killed. For each acknowledgement that the users
received, OUT/acks has a line `job ID` (accepted) or `done ID CODE` (ended). `after` writes the content of the
store to OUT/record.json before it starts anything. When no job is left to run, it writes what the scheduler
reports to OUT/final.json.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.stress.harness import Stage, scheduler
from tests.stress.no_fsync import disable_fsync
from tests.stress.trace import JOB

STATE = "gpu_scheduler_state.json"


def before(out: Path, is_control: bool) -> None:
    """Submits about fifty jobs a second until the process is killed."""
    module = "tests.stress.no_fsync" if is_control else "gpu_scheduler"
    here = Path.cwd()
    (out / "trace.sh").write_text(JOB)
    running = Stage(here, command=scheduler(out, program=module)).start()
    if is_control:
        disable_fsync()
    store = Store(DataDir.of(STATE))
    told: set[int] = set()
    with open(out / "acks", "a", buffering=1) as acks:
        for number in range(1_000_000):
            line = f"sh {out}/trace.sh {out}/trace {number} 0.0{number % 9} {number % 5}"
            if number % 4 == 0:
                _append(here / "jobs.txt", f"[share=0.5] {line}\n")
            else:
                spec = JobSpec("command", line, str(here), command=line, share=500)
                print("job", store.insert_job(spec, "stress"), file=acks)
                store.data_dir.ring_doorbell()
            _acknowledge_ends(store, told, acks)
            time.sleep(0.015)
            assert running.poll() is None


def _append(path: Path, line: str) -> None:
    """Appends a line and syncs the file. The line's job is acknowledged once it is in the store."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.fsync(fd)
    os.close(fd)


def _acknowledge_ends(store: Store, acknowledged: set[int], acks: TextIO) -> None:
    for row in store.db.rows("SELECT id, exit_code FROM job WHERE state = 'finished'"):
        if row["id"] not in acknowledged:
            acknowledged.add(row["id"])
            print("done", row["id"], row["exit_code"], file=acks)


def after(out: Path) -> None:
    """Writes what the store has, then runs a scheduler until no job is left to run, and writes its report."""
    stage = Stage(Path.cwd())
    (out / "record.json").write_text(json.dumps(_record(stage.home.database)))
    if stage.home.database.exists():
        stage.drain(240)
        (out / "final.json").write_text(json.dumps(stage.status()))


def _record(path: Path) -> dict[str, object]:
    if not path.exists():
        return {"integrity": "there is no database", "jobs": {}}
    try:
        database = sqlite3.connect(path)
        integrity = database.execute("PRAGMA integrity_check").fetchone()[0]
        jobs = {
            str(i): [state, code]
            for i, state, code in database.execute("SELECT id, state, exit_code FROM job")
        }
        database.close()
    except sqlite3.DatabaseError as error:
        return {"integrity": str(error), "jobs": {}}
    return {"integrity": integrity, "jobs": jobs}


if __name__ == "__main__":
    if sys.argv[1] == "before":
        before(Path(sys.argv[2]), "control" in sys.argv)
    else:
        after(Path(sys.argv[2]))
        subprocess.run(["sync", "-f", "."], check=False)
