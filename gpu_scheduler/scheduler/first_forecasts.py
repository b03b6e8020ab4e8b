"""Forecasts each job once, soon after it was submitted, so that the forecasts can be judged later."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.actions import RecordForecasts
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.forecast import known_times
from gpu_scheduler.store.forecasts import jobs_without_forecast, newest_job, waiting_jobs
from gpu_scheduler.store.store import Store

#: Minimum number of seconds between two forecasts, which take up to 0.2 s each.
_INTERVAL_S = 60.0
#: Number of jobs at the head of the queue that are forecast, and of parents that each of them may have.
_MAX_JOBS, _MAX_PARENTS = 200, 50
#: A job that was submitted longer ago, such as before this scheduler started, gets no forecast any more.
_RECENT_S = 900.0


class FirstForecasts:
    """Makes the first forecast of each job, as far as it does not rest on a guess.

    A job that is too far behind in the queue, or that nothing is known about, has none.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next_at = float("-inf")
        self._newest_seen = 0

    def due(self, facts: Facts) -> list[RecordForecasts]:
        """Returns the forecasts to record in a round that has nothing else to do."""
        is_blind = not facts.all_sampled or facts.probe_error is not None or facts.storage_issue is not None
        if is_blind or facts.now.boot < self._next_at:
            return []
        newest = newest_job(self._store)
        if newest == self._newest_seen:
            return []
        new = jobs_without_forecast(self._store, self._newest_seen, facts.now.wall - _RECENT_S)
        self._newest_seen = newest
        waiting = waiting_jobs(self._store, facts.now, _MAX_JOBS, _MAX_PARENTS) if new else []
        if not any(one.job.job_id in new for one in waiting):
            return []
        self._next_at = facts.now.boot + _INTERVAL_S
        times = {key: found for key, found in known_times(facts, waiting).items() if key in new}
        return [RecordForecasts(times)] if times else []
