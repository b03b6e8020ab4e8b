"""Builds the facts with which the next round places jobs, from the store and the observed attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_scheduler.app.current_need import learned_needs
from gpu_scheduler.app.stored_gpus import stored_facts
from gpu_scheduler.claims.foreign_claims import ForeignClaims
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.facts import Attempt, Facts
from gpu_scheduler.intake.llm_config import current_llm_config
from gpu_scheduler.intake.state_file_edits import requested_pauses
from gpu_scheduler.store.attempt_history import QueueStartsReader
from gpu_scheduler.store.gpu_time import gpu_time
from gpu_scheduler.store.reservations import queue_reservation, reserved_jobs
from gpu_scheduler.store.run_times import RunTimesReader
from gpu_scheduler.store.store import Store


def round_facts(store: Store, attempts: Sequence[Attempt], now: Now, foreign: ForeignClaims) -> Facts:
    """Returns the facts of the next round, without the waiting jobs.

    attempts: all active attempts; foreign: the claims of other programs.
    """
    options = store.recorded_options()
    return replace(
        stored_facts(store.gpus(), requested_pauses(store), attempts, options, now, foreign),
        config=current_llm_config(options),
        learned_mib=learned_needs(store),
        reserved_jobs=tuple(reserved_jobs(store, now)),
        queue_reservation=queue_reservation(store),
        overtakes=QueueStartsReader(store).overtakes(),
        run_times=RunTimesReader(store).run_times(),
        gpu_time=gpu_time(store, now.wall),
    )
