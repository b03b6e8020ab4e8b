"""Collects the data that all job views share: wait reasons, requests, open attempts and health issues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.app import job_views
from gpu_scheduler.app.store_access import requested_verbs
from gpu_scheduler.attempts.log_folder import LogFolder
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.health_issue import HealthIssue, HealthSubject
from gpu_scheduler.core.model.states import ACTIVE
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.health.storage import LOG_FOLDER_KEY, find_issues, unusable_file_issue
from gpu_scheduler.store.dependencies import parents_of
from gpu_scheduler.store.location import original_of_copy
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.records import ActiveAttemptRecord
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.reservations import queue_reservation_record, victims_by_job
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.dependency import Parent
    from gpu_scheduler.core.scheduling.facts import Attempt


def health_issues_of(store: Store) -> tuple[HealthIssue, ...]:
    """Returns the health issues of the files that the scheduler writes."""
    logs, started = store.db.meta(LOG_FOLDER_KEY), store.recorded_options()
    trust = started.trust_files
    found = find_issues(store.data_dir, LogFolder.from_json(logs) if logs is not None else None, trust=trust)
    config = (
        unusable_file_issue(HealthSubject.LLM_CONFIG, Path(started.llm_config), trust=trust)
        if started.llm_config
        else None
    )
    return (*_copy_issues(store), *found, *(() if config is None else (config,)))


def _copy_issues(store: Store) -> Iterator[HealthIssue]:
    of = original_of_copy(store)
    if of is not None:
        problem, remedy = f"is a copy of {of}, which still exists", "`start` lists the options"
        folder = str(store.data_dir.folder)
        yield HealthIssue(HealthSubject.STORE, folder, problem, remedy, blocks_starts=True)


def context_of(
    store: Store, job_ids: Iterable[int], active: Iterable[ActiveAttemptRecord], *, is_up: bool
) -> job_views.ViewContext:
    """Returns the context for the views of these jobs.

    active: the active attempts of these jobs and of their parents, as `Store.active_attempts` returns them.
    """
    reasons = wait_reasons(store)
    if not is_up:
        # The wait reasons of the last scheduler may be outdated, except for jobs that can never fit.
        reasons = {key: reason for key, reason in reasons.items() if reason.is_infeasible}
    started, now = store.recorded_options(), Clock().now()
    observed = _observe_open(store, [attempt for attempt in active if attempt.state.is_open])
    context = job_views.ViewContext(
        now=now,
        wait_reasons=reasons,
        default_wait=WaitKind.NOT_TRIED if is_up else WaitKind.NO_SCHEDULER,
        parents=parents_of(store, job_ids),
        indices=store.gpu_indices(),
        open_requests={job_id: verbs[-1] for job_id, verbs in requested_verbs(store).items()},
        is_recovery_requested=any(
            request.verb == "recover" and not request.target for request in open_requests(store)
        ),
        open_attempts=observed,
        stops=job_views.open_stops(observed.values(), now),
        victims=victims_by_job(store),
        reservation=queue_reservation_record(store),
        oom_retries=started.oom_retries,
        fail_retries=started.fail_retries,
        is_scheduler_up=is_up,
    )
    return replace(context, parents=_with_unrecorded_ends(store, context))


def _with_unrecorded_ends(store: Store, context: job_views.ViewContext) -> Mapping[int, tuple[Parent, ...]]:
    """Returns the parents in the context, with the changes that the next round will record."""
    running = {one.id for parents in context.parents.values() for one in parents if one.state in ACTIVE}
    changed = {}
    for job_id, attempt in store.newest_attempts(running).items():
        job = store.job(job_id)
        view = None if job is None else job_views.job_view(job, attempt, context)
        if view is not None and not view.is_recorded:
            changed[job_id] = view.record
    if not changed:
        return context.parents

    def current(parent: Parent) -> Parent:
        record = changed.get(parent.id)
        return parent if record is None else parent._replace(state=record.state, outcome=record.outcome)

    return {job_id: tuple(map(current, parents)) for job_id, parents in context.parents.items()}


def _observe_open(store: Store, attempts: Collection[ActiveAttemptRecord]) -> dict[int, Attempt]:
    if not attempts:
        return {}
    from gpu_scheduler.attempts.observe import observe_attempt

    return {attempt.id: observe_attempt(store, attempt) for attempt in attempts}
