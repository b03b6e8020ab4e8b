"""Claims of other programs, as `status` and `why` read them from the recorded lock folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.runner.locks import Lock
from gpu_scheduler.show.gpu_views import foreign_claims
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.status import StatusQuery, status
from gpu_scheduler.show.why import diagnose
from gpu_scheduler.system.gpu_claims import LOCK_FOLDER_KEY, LockReading
from gpu_scheduler.system.safe_file import name_of_user
from tests.claim_holder import claim_holder
from tests.cli.desk import Desk
from tests.turn_taker import turn_taker


@pytest.fixture
def locks(desk: Desk, location: Location) -> Path:
    """Provides the lock folder, as if a scheduler had recorded it."""
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.mkdir()
    desk.store.db.set_meta(LOCK_FOLDER_KEY, str(folder))
    return folder


def claims_in_status(location: Location) -> list[tuple[str, tuple[GpuClaim, ...], str | None]]:
    return [(gpu.state, gpu.claims, gpu.claims_problem) for gpu in status(location, StatusQuery()).gpus]


def test_status_and_why_show_the_claims_of_other_programs(
    desk: Desk, location: Location, locks: Path
) -> None:
    with claim_holder(locks, "SIM-0", 9000) as process:
        claim = GpuClaim(9000, process.pid, name_of_user(os.getuid()))
        assert claims_in_status(location) == [("claimed", (claim,), None), ("available", (), None)]
        waiting = diagnose(location, desk.job()).waiting
        assert waiting is not None
        first, second = waiting.placement.gpus
        assert (first.claims, first.claimable_mib) == ((claim,), 15_576)
        assert (second.claims, second.claimable_mib) == ((), None)
        process.kill()
        process.wait()
        assert claims_in_status(location) == [("available", (), None), ("available", (), None)]


def test_status_and_why_show_which_gpu_another_program_keeps_for_a_job(
    desk: Desk, location: Location, locks: Path
) -> None:
    with turn_taker(locks) as other:
        assert other.hold("SIM-0")
        kept = GpuClaim(None, other.pid, name_of_user(os.getuid()), is_turn=True)
        assert claims_in_status(location) == [("claimed", (kept,), None), ("available", (), None)]
        waiting = diagnose(location, desk.job()).waiting
        assert waiting is not None
        assert [gpu.claims for gpu in waiting.placement.gpus] == [(kept,), ()]
        assert foreign_claims(desk.store, LockReading(), (), other.pid).claims == {}
    assert [file.name for file in locks.iterdir()] == [".turn-SIM-0"]


def test_status_and_why_show_why_the_claims_cannot_be_read(
    desk: Desk, location: Location, locks: Path
) -> None:
    (locks / "SIM-0").mkdir()
    remedy = "its owner or root must remove it while no program uses this GPU"
    problem = f"{locks}/SIM-0 is not a regular file; {remedy}"
    assert claims_in_status(location)[0] == ("claimed", (), problem)
    waiting = diagnose(location, desk.job()).waiting
    assert waiting is not None
    assert waiting.placement.gpus[0].claims_problem == problem


def test_without_a_recorded_lock_folder_no_claims_are_shown(desk: Desk, location: Location) -> None:
    folder = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    folder.mkdir()
    with claim_holder(folder, "SIM-0"):
        assert claims_in_status(location)[0] == ("available", (), None)


def test_a_runner_that_ended_after_the_locks_were_read_is_not_shown(
    desk: Desk, location: Location, locks: Path
) -> None:
    with claim_holder(locks, "SIM-1") as process:
        before = LockReading({"SIM-0": (Lock(0, None, 2**22 + 1),), "SIM-1": (Lock(0, None, process.pid),)})
        found = foreign_claims(desk.store, before, (), None)
        assert [(uuid, [claim.pid for claim in claims]) for uuid, claims in found.claims.items()] == [
            ("SIM-1", [process.pid])
        ]
