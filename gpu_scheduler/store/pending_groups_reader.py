"""Reads the pending groups, and afterwards only those that have changed since.

The table `group_change` names the groups whose startable jobs have changed. Only the passing of time changes
others: a failed launch may be retried after a delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import Action, SetWaitReason
from gpu_scheduler.core.scheduling.facts import PendingGroup
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import queue_key
from gpu_scheduler.store.pending_groups import startable_jobs, wait_reason_by_spec
from gpu_scheduler.store.store import Marks, Store

#: Maximum number of jobs that a round reads from one pending group. If it starts them all, another round
#: follows.
JOBS_PER_GROUP = 64


class PendingGroupsReader:
    """Reads the pending groups. A new reader reads all of them, with the same result."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[str, PendingGroup] = {}
        self._in_order: tuple[PendingGroup, ...] = ()
        self._newest_change = 0
        self._read_at: Now | None = None

    def read(self, now: Now, marks: Marks) -> tuple[PendingGroup, ...]:
        """Returns the groups with jobs that may start now, in the order of their first jobs."""
        before = self._read_at
        # Read before the groups, so that a group that changes in between is read again.
        changes = self._changes() if marks.newest_group_change > self._newest_change else []
        if before is None or before.boot_id != now.boot_id or before.boot > now.boot:
            self._groups, self._in_order = {}, ()
            reasons = wait_reason_by_spec(self._store)
        else:
            keys = {key for _, key in changes}
            if marks.has_delayed:
                keys |= self._retried_groups(before, now)
            reasons = {key: self._stored_reason(key) for key in keys}
        self._replace({key: self._group(key, reason, now) for key, reason in reasons.items()})
        if changes:
            self._newest_change = changes[-1][0]
        self._read_at = now
        return self._in_order

    def accept(self, recorded: Iterable[Action]) -> None:
        """Accepts the wait reasons of these actions, which are in the store now."""
        reasons = {one.spec_key: one.reason for one in recorded if isinstance(one, SetWaitReason)}
        self._replace(
            {
                key: replace(self._groups[key], reason=reason)
                for key, reason in reasons.items()
                if key in self._groups
            }
        )

    def _replace(self, changes: Mapping[str, PendingGroup | None]) -> None:
        """Replaces these groups. None removes a group."""
        if not changes and self._in_order:
            return
        for key, group in changes.items():
            self._groups.pop(key, None)
            if group is not None:
                self._groups[key] = group
        self._in_order = tuple(sorted(self._groups.values(), key=lambda one: queue_key(one.jobs[0])))

    def _group(self, key: str, reason: WaitReason | None, now: Now) -> PendingGroup | None:
        jobs = tuple(startable_jobs(self._store, key, now.boot, now.boot_id, JOBS_PER_GROUP + 1))
        if not jobs:
            return None
        has_more = len(jobs) > JOBS_PER_GROUP
        return PendingGroup(ResourceSpec.from_key(key), jobs[:JOBS_PER_GROUP], has_more, reason)

    def _changes(self) -> list[tuple[int, str]]:
        sql = "SELECT id, spec_key FROM group_change WHERE id > ? ORDER BY id"
        return [tuple(row) for row in self._store.db.rows(sql, self._newest_change)]

    def _stored_reason(self, key: str) -> WaitReason | None:
        row = self._store.db.row("SELECT reason FROM pending_group WHERE spec_key = ?", key)
        return None if row is None else WaitReason.from_json(row["reason"])

    def _retried_groups(self, before: Now, now: Now) -> set[str]:
        """Returns the groups with a job whose retry delay has run out since the last reading."""
        rows = self._store.db.rows(
            "SELECT DISTINCT spec_key FROM job WHERE state = 'queued' AND boot_id = ?"
            " AND not_before_boot > ? AND not_before_boot <= ?",
            now.boot_id, before.boot, now.boot,
        )  # fmt: skip
        return {row["spec_key"] for row in rows}
