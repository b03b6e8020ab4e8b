"""Watches the state file, applies users' edits, and keeps the file up to date without losing an edit."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.scheduling.placement import allocated_share
from gpu_scheduler.intake.jobs_file_text import is_open_for_writing
from gpu_scheduler.store import state_file
from gpu_scheduler.store.job_lists import open_jobs, state_counts
from gpu_scheduler.store.state_file import apply_edit, forget_last_edit, requested_pauses, resume_all
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, file_version

# Summarizes allocated shares, paused GPUs and the number of jobs in each state, for the state file.


def summarize(
    store: Store, ended_attempts: Collection[int] = ()
) -> tuple[list[float], list[int], dict[str, object]]:
    """Returns the allocated shares by GPU index, the paused GPUs and the number of jobs in each state.

    ended_attempts: the ids of attempts that have ended but whose end is not recorded yet. They hold no GPU,
    and their jobs are not counted.
    """
    gpus, active = store.gpus(), store.active_attempts()
    remaining = [attempt for attempt in active if attempt.id not in ended_attempts]
    shares = allocated_shares(gpus, remaining, store.recorded_options().spike_buffer)
    listed = [0.0] * (max((gpu.index for gpu in gpus), default=-1) + 1)
    for gpu in gpus:
        listed[gpu.index] = shares[gpu.uuid] / 1000
    counts = state_counts(store)
    ended = {attempt.job_id for attempt in active if attempt.id in ended_attempts and attempt.outcome is None}
    running = {job.id: job.state for job in open_jobs(store, tuple(ACTIVE))}
    for job_id in ended & running.keys():
        counts[running.pop(job_id)] -= 1
    jobs: dict[str, object] = {
        state: count for state, count in sorted(counts.items()) if count and state != JobState.FINISHED
    }
    jobs["running_ids"] = sorted(running)
    requested = requested_pauses(store)
    return listed, [gpu.index for gpu in gpus if requested[gpu.uuid]], jobs


def allocated_shares(
    gpus: Sequence[Gpu], attempts: Sequence[ActiveAttempt], spike_buffer: float
) -> dict[str, int]:
    """Returns the allocated share of each GPU in thousandths, by UUID; 0 for a GPU that no attempt holds."""
    totals = {gpu.uuid: gpu.total_mib for gpu in gpus}
    shares = dict.fromkeys(totals, 0)
    for attempt in attempts:
        if not attempt.state.holds_gpus:
            continue
        for allocation in attempt.allocations:
            share = allocated_share(allocation, totals.get(allocation.gpu), spike_buffer)
            shares[allocation.gpu] = shares.get(allocation.gpu, 0) + share
    return shares


log = logging.getLogger(__name__)

#: Seconds for which an invalid file must stay unchanged before it is set aside.
BROKEN_DELAY_S = 2.0
#: Seconds for which the file must be missing or empty before it is written anew. Some editors move the old
#: file away or empty it before they write the new one. A file written in between would lack the keys of
#: others, and an edit based on it would remove them.
MISSING_DELAY_S = 2.0
#: Minimum time between two writes, in seconds.
WRITE_INTERVAL_S = 1.0


class StateFileWatcher:
    """Examines each version of the state file once, and rewrites the file when its content should change.

    Times are in seconds since boot. ended_attempts: the ids of attempts that have ended but whose end is not
    recorded yet; trust: accept the file regardless of its owner and mode.
    """

    def __init__(self, store: Store, ended_attempts: Collection[int] = (), *, trust: bool = False) -> None:
        self._store = store
        self._ended_attempts = ended_attempts
        self._trust = trust
        self._path: Path = store.data_dir.state_file
        self._last_version: tuple[int, ...] | None = None
        self._broken_since: tuple[tuple[int, ...], float] | None = None
        self._has_existed = False
        self._missing_since: float | None = None
        self._written_at = float("-inf")
        self._rendered: tuple[list[float], list[int], dict[str, object]] | None = None
        self._last_summary: object = None  # what the file shows; None if that is not known
        self._problem: str | None = None
        self.due_at: float | None = None

    def start(self, now: float) -> None:
        """Examines any version that was replaced before its examination, then the file or its removal."""
        try:
            self._drop_edited_keys()
            self._apply_displaced()
            os.stat(self._path)
            there = True
        except FileNotFoundError:
            there = False
        except OSError as error:
            self._report_error(error)
            return
        if there:
            self.check(now)
            self._has_existed = self._last_version is not None  # even if it is missing at the first write
        elif self._store.db.meta("statefile_written") == "1":
            log.info("%s was removed; writing it again with no GPU paused", self._path)
            resume_all(self._store)

    def check(self, now: float) -> None:
        """Examines the file if it has changed."""
        try:
            status = os.stat(self._path)
            if status.st_size:
                self._missing_since = None  # an editor has saved the file, so the next absence is a new one
            version = file_version(status)
            if self._broken_since is None and version == self._last_version:
                return
            content = state_file.read(self._path, trust=self._trust)
        except OSError:
            content = None
        if content is None:
            self._last_version = self._broken_since = None
            return
        self._last_summary = None
        try:
            self._apply_and_log_edits(content)
            # Set only now, so that an edit that could not be recorded is examined again.
            self._last_version, self._broken_since = version, None
        except ValueError as error:
            self._last_version = version
            self._handle_broken(version, str(error), now)

    def write(self, now: float, *, at_once: bool = False) -> None:
        """Rewrites the file if its content should change. Never overwrites an edit.

        Does nothing in the second after a write. at_once: write immediately, because this is the last write.
        """
        self.due_at = self._broken_since[1] + BROKEN_DELAY_S if self._broken_since else None
        if self._broken_since is not None:
            return
        if now < self._written_at + WRITE_INTERVAL_S and not at_once:
            self.due_at = self._written_at + WRITE_INTERVAL_S
            return
        shown = summarize(self._store, self._ended_attempts)
        if shown == self._last_summary and self.is_unchanged():
            return
        try:
            if is_open_for_writing(self._path) or is_open_for_writing(state_file.displaced_path(self._path)):
                self.due_at = now + WRITE_INTERVAL_S
                return
            self._apply_displaced()
            there = state_file.read(self._path, trust=self._trust) or b""
            if not at_once and self._is_being_replaced(there, now):
                return
            if there:
                self._apply_and_log_edits(there)  # the new version must include these edits
            content = self._render(there, self._displaced_keys())
            if content != there:
                self._exchange(content, there)
            self._save_displaced_keys({})
            self._last_summary, self._problem = self._rendered, None
        except ValueError:
            self.check(now)
        except OSError as error:
            self._report_error(error)
            self.due_at = now + WRITE_INTERVAL_S
        self._written_at = now

    def _is_being_replaced(self, there: bytes, now: float) -> bool:
        """Returns whether an editor may be about to write the file, which is missing or empty; sets `due_at`.

        there: the content of the file; empty if it is missing.
        """
        if there or not self._has_existed:
            self._has_existed, self._missing_since = True, None
            return False
        if self._missing_since is None:
            self._missing_since = now
        until = self._missing_since + MISSING_DELAY_S
        if now >= until:
            self._missing_since = None
            return False
        self.due_at = until
        return True

    def is_unchanged(self) -> bool:
        """Returns whether the file is still the version that was last examined or written."""
        try:
            return file_version(os.stat(self._path)) == self._last_version
        except OSError:
            return False

    def _report_error(self, error: OSError) -> None:
        problem = error.strerror or str(error)
        if problem != self._problem:
            log.error("%s cannot be read or written (%s); jobs continue; retrying", self._path, problem)
        self._problem = problem

    def _render(self, old: bytes, edit: Mapping[str, Any]) -> bytes:
        keys = {**(state_file.parse(old) if old else {}), **edit}
        self._rendered = summarize(self._store, self._ended_attempts)
        return state_file.render(keys, *self._rendered)

    def _exchange(self, content: bytes, there: bytes = b"") -> None:
        """Replaces the file, whose content is `there`, with `content`.

        If someone edited the file in the meantime, applies the pauses in the edit and writes once more to add
        the edit's other keys to the file.
        """
        while content != there:
            state_file.exchange(self._path, content)
            self._last_version = file_version(os.stat(self._path))
            edit = self._apply_displaced(there)
            with self._store.db.transaction():
                self._store.db.set_meta("statefile_examined", state_file.digest(content))
                self._store.db.set_meta("statefile_written", "1")
            there, content = content, self._render(content, edit) if edit else content

    def _apply_displaced(self, known: bytes | None = None) -> dict[str, Any]:
        """Applies the version that the last write replaced. Returns its keys, or {} if it is `known`.

        If a process is still writing to the replaced version, waits briefly and then leaves it to the next
        call without `known`.
        """
        spare = state_file.displaced_path(self._path)
        for _ in range(20):
            if not is_open_for_writing(spare):
                break
            time.sleep(0.01)
        else:
            return {}
        found = safe_file.read(spare, trust=self._trust)
        if isinstance(found, FileProblem):
            if found.kind is ProblemKind.UNREADABLE:
                raise found.as_error(spare)
            if found.kind is not ProblemKind.MISSING:
                self._set_aside(str(found))
            return {}
        content = found.data
        if known is None:
            forget_last_edit(self._store)  # that edit came later and was not based on this version
        edit = self._apply_or_set_aside(content)
        if content == known:
            state_file.forget_displaced(self._path)
            return {}
        # Save the keys before the replaced version is deleted, because this process may be killed before it
        # writes them back to the file.
        self._save_displaced_keys({**self._displaced_keys(), **edit})
        state_file.forget_displaced(self._path)
        forget_last_edit(self._store)
        return edit

    def _displaced_keys(self) -> dict[str, Any]:
        """Returns the keys of replaced versions that have not been written back to the file yet."""
        keys: dict[str, Any] = json.loads(self._store.db.meta("statefile_left") or "{}")
        return keys

    def _save_displaced_keys(self, keys: Mapping[str, Any]) -> None:
        text = json.dumps(keys) if keys else ""
        if text != (self._store.db.meta("statefile_left") or ""):
            self._store.db.set_meta("statefile_left", text)

    def _drop_edited_keys(self) -> None:
        """Forgets saved keys of replaced versions if a newer edit has put the same keys into the file."""
        keys = self._displaced_keys()
        if not keys:
            return
        try:
            content = state_file.read(self._path, trust=self._trust)
            if content is None or state_file.digest(content) == self._store.db.meta("statefile_examined"):
                return
            state = state_file.parse(content)
        except (OSError, ValueError):
            return
        self._save_displaced_keys({key: value for key, value in keys.items() if key not in state})

    def _apply_and_log_edits(self, content: bytes) -> None:
        for text in apply_edit(self._store, content):
            log.info("%s", text)

    def _apply_or_set_aside(self, content: bytes) -> dict[str, Any]:
        try:
            self._apply_and_log_edits(content)
            return state_file.parse(content)
        except ValueError as error:
            self._set_aside(str(error))
            return {}

    def _set_aside(self, why: str) -> None:
        """Moves an invalid replaced version out of the way and logs a warning."""
        aside = state_file.set_aside(state_file.displaced_path(self._path), self._path)
        log.warning("a version of %s was moved to %s and ignored: %s", self._path, aside, why)

    def _handle_broken(self, version: tuple[int, ...], why: str, now: float) -> None:
        # The content alone does not show whether the file has been saved again in the meantime.
        if self._broken_since is None or self._broken_since[0] != version:
            self._broken_since = (version, now)
            return
        if now < self._broken_since[1] + BROKEN_DELAY_S:
            return
        aside = state_file.set_aside(state_file.link_target(self._path), self._path)
        self._broken_since = self._last_version = None
        self._has_existed = False  # moved away by this method, so it can be written at once
        log.error("%s was set aside as %s and rewritten from the store: %s", self._path, aside.name, why)
