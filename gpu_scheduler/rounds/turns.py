"""Lets the queue of one scheduler take turns with other programs (docs/design.md, Turns).

The queue waits in line as one program. The scheduler holds a GPU from the decision to start a job there until
the job's runner has claimed it, and while the GPU is reserved, so that no other program takes it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from pathlib import Path

from gpu_scheduler.attempts.observe import runner_pids
from gpu_scheduler.core.model.gpu import Gpu, GpuClaim
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import pending_queue as rules
from gpu_scheduler.core.scheduling.actions import Action, Start
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.runner.record_lock import Lock
from gpu_scheduler.system.gpu_claims import claims_of, lock_problem, own_claims, read_locks_of, turn_claim
from gpu_scheduler.system.turns import MOVE_EVERY_S, TURN_EVERY_S, Turns

log = logging.getLogger(__name__)

#: Seconds for which a GPU that a `preempt` by hand has freed is kept for the queue.
_FREED_S = 30.0


class QueueTurns:
    """The places and holds of a scheduler's queue on these GPUs. folder: the folder with their lock files."""

    def __init__(self, folder: Path, uuids: Collection[str]) -> None:
        self.folder = folder
        self._turns = Turns(folder)
        #: The GPUs that a process claims from which the scheduler descends, so that no other program can.
        self._inherited = own_claims(read_locks_of(folder, uuids).locks)
        #: The GPUs that are kept for jobs, and those that runners are about to claim.
        self._kept: set[str] = set()
        self._launching: set[str] = set()
        self._freed_until: dict[str, float] = {}
        #: Since when the queue waits for the GPUs of refused starts, and those of them that are not its turn.
        self._refused: dict[str, float] = {}
        self._blocked: set[str] = set()

    @property
    def look_every_s(self) -> float:
        """The seconds after which `have_changed` must be called; infinite if it need not be."""
        if self._refused:
            return TURN_EVERY_S
        return MOVE_EVERY_S if self._turns.places else math.inf

    def have_changed(self) -> bool:
        """Moves on in line; returns whether nobody is ahead any more on the GPU of a refused start."""
        self._turns.move()
        return any(self._turns.ahead(uuid, self._refused[uuid]) is None for uuid in self._blocked)

    def begin_round(self, facts: Facts) -> dict[str, GpuClaim]:
        """Takes the holds on the GPUs that are reserved or freed for jobs, or that runners are to claim.

        Returns the programs that have the hold on other GPUs.
        """
        now = facts.now.boot
        ends = {**self._freed_until, **dict.fromkeys(rules.freed_by_hand(facts), now + _FREED_S)}
        self._freed_until = {uuid: end for uuid, end in ends.items() if end > now}
        # What no job of the queue could use is left to other programs.
        freed = rules.queue_line(facts, self._freed_until, most=len(self._freed_until))
        wanted = {*rules.reserved_gpus(facts), *freed} - self._inherited
        self._kept = {uuid for uuid in wanted if self._turns.hold(uuid)}
        self._launching = {uuid for uuid in self._awaited_claims(facts) if self._turns.hold(uuid)}
        self._refused, self._blocked = {}, set()
        if not facts.pending_groups and not facts.reserved_jobs:
            return {}  # no job could start, whoever has the holds
        uuids = [gpu.uuid for gpu in facts.gpus if gpu.uuid not in self._inherited]
        others = {uuid: self._turns.ahead(uuid) for uuid in uuids}
        return {uuid: turn_claim(pid) for uuid, pid in others.items() if pid is not None}

    def refusals(self, facts: Facts, actions: Sequence[Action]) -> dict[str, GpuClaim]:
        """Takes the holds that the starts need. Returns the programs that have them or are ahead, by GPU.

        Only the first start has the place of the queue in line; the next ones begin to wait with it.
        """
        starts = [one for one in actions if isinstance(one, Start) and one.process is None]
        gpus = {gpu.uuid: gpu for gpu in facts.gpus} if starts else {}
        found: dict[str, GpuClaim] = {}
        since = 0.0
        for start in starts:
            since = facts.now.boot if since else rules.queue_since(start.waiting_since, facts)
            for uuid in gpus.keys() & {*start.gpus} - self._kept - self._inherited:
                claim = self._blocker(gpus[uuid], since, facts)
                if claim is not None:
                    found[uuid] = claim
                    self._refused |= dict.fromkeys(start.gpus, since)
        self._blocked |= found.keys()
        return found

    def end_round(self, facts: Facts, actions: Sequence[Action]) -> None:
        """Takes the places of the queue in line, and gives up the holds that nobody needs any more."""
        started = {uuid for one in actions if isinstance(one, Start) for uuid in one.gpus}
        self._freed_until = {one: end for one, end in self._freed_until.items() if one not in started}
        self._turns.keep(self._kept | self._launching | started)
        claimed = rules.claimed_gpus(facts)
        # Once a GPU is free, the queue keeps its place for a moment, until it knows whether a job fits there.
        line = rules.queue_line(facts, claimed | self._turns.places.keys())
        if started:
            self._refused = dict.fromkeys(self._refused, facts.now.boot)
        self._turns.wait_in_line({**line, **self._refused}, claimed | self._refused.keys())
        if self._turns.problem is not None:
            log.warning("%s; without it, programs do not take turns", lock_problem(self._turns.problem))
            self._turns.problem = None

    def _blocker(self, gpu: Gpu, since: float, facts: Facts) -> GpuClaim | None:
        """Takes the hold on a GPU. Returns who has it or is ahead, or who has just claimed the GPU."""
        had_hold = gpu.uuid in self._turns.held
        pid = self._turns.take(gpu.uuid, since)
        if pid is not None:
            return turn_claim(pid)
        # Before the hold was taken, another program may have claimed the GPU since the facts were read.
        known = {*runner_pids(facts.attempts), *(claim.pid for claim in gpu.claims)}
        claims = () if had_hold else claims_of(self._locks(gpu.uuid), gpu.total_mib)
        return next((one for one in claims if one.pid not in known), None)

    def _awaited_claims(self, facts: Facts) -> set[str]:
        """Returns the GPUs that the runner of an attempt has not claimed yet."""
        return {
            uuid
            for one in facts.attempts
            if one.state.is_open and one.status.result is None and one.status.claim != "dead"
            for uuid in (one.gpus if one.watched_pid is None else ())
            if uuid not in self._inherited
            and (one.state is AttemptState.STARTING or uuid in self._turns.held)
            if one.status.pid not in [lock.pid for lock in self._locks(uuid)]
        }

    def _locks(self, uuid: str) -> Sequence[Lock]:
        return read_locks_of(self.folder, [uuid]).locks.get(uuid, ())
