"""Monitors the files and folders that the scheduler writes to, and logs each health issue once.

A launch may also fail for a reason that no check finds: a project quota, or a shortage of processes, memory
or open files. The scheduler then starts no job for a while. This pause doubles with each further failure.
"""

from __future__ import annotations

import errno
import logging
import os

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.health.storage import find_issues
from gpu_scheduler.runner.shortage import start_error
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.shortages import PROCESSES_PER_JOB, describe_shortage, shortage_of

log = logging.getLogger(__name__)

#: Minimum number of seconds between two checks. While there is an issue, the loop checks every second.
MIN_CHECK_INTERVAL_S = 0.5
#: Initial and maximum length in seconds of the pause after a launch failed for a reason that no check finds.
BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
#: If a launch fails with one of these errors, the cause is storage, even if the next check finds no issue.
_STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class StorageMonitor:
    """Checks at most twice a second, and logs when a health issue begins and ends.

    trust: use files regardless of their owner and mode.
    """

    def __init__(
        self, data_dir: DataDir, log_folder: LogFolder, clock: Clock, *, trust: bool = False
    ) -> None:
        self._trust = trust
        self._data_dir = data_dir
        self._log_folder = log_folder
        self._clock = clock
        self._next_check_at = float("-inf")
        self._blocking_issue: str | None = None
        #: The pause after launches that failed for a reason that no check finds, in seconds since boot.
        self._pause_cause, self._paused_until, self._pause_s = "", float("-inf"), 0.0
        self._reported: frozenset[HealthIssue] = frozenset()

    def issue(self, *, fresh: bool = False) -> str | None:
        """Returns the issue that stops new starts; None if there is none. fresh: check again now."""
        now = self._clock.now().boot
        if fresh or now >= self._next_check_at:
            self._next_check_at = now + MIN_CHECK_INTERVAL_S
            found = find_issues(self._data_dir, self._log_folder, trust=self._trust)
            self._blocking_issue = next((str(issue) for issue in found if issue.blocks_starts), None)
            self._log_changes(frozenset(found))
        return self._blocking_issue or (self._pause_cause if now < self._paused_until else None)

    def is_cause_of(self, error: BaseException | None) -> bool:
        """Returns whether storage or a shortage made a launch fail. If so, launches pause for a while."""
        number = shortage_of(error)
        if number is not None:
            self.record_shortage(number)
            return True
        if not isinstance(error, OSError):
            return False
        if self.issue(fresh=True) is not None:
            return True
        if error.errno not in _STORAGE_ERRNOS:
            return False
        # The message names the folder, because logs and temporary files have a new name each time.
        where = os.path.dirname(error.filename or "") or error.filename
        self._record_failure(f"{where or 'launch'}: {error.strerror}: free some space there")
        return True

    def record_shortage(self, error_number: int) -> None:
        """Pauses launches after a shortage. error_number: the errno of the failed start."""
        if self.issue() is None:
            self._record_failure(describe_shortage(error_number))

    def check_processes(self) -> str | None:
        """Tries to start as many processes as a job needs; returns the shortage that prevents it, or None."""
        number = start_error(PROCESSES_PER_JOB)
        if number is None:
            return None
        self.record_shortage(number)
        return describe_shortage(number)

    def _record_failure(self, cause: str) -> None:
        """Begins or extends the pause, and logs its cause unless it is already known."""
        now = self._clock.now().boot
        goes_on = now < self._paused_until + MAX_BACKOFF_S
        is_known = cause == self._pause_cause and goes_on
        self._pause_s = min(2 * self._pause_s, MAX_BACKOFF_S) if goes_on else BACKOFF_S
        self._pause_cause, self._paused_until = cause, now + self._pause_s
        if not is_known:
            log.error("%s; until then launches are retried occasionally; running jobs continue", cause)

    def _log_changes(self, issues: frozenset[HealthIssue]) -> None:
        for issue in sorted(issues - self._reported, key=str):
            if issue.blocks_starts:
                log.error("%s; until then no new job starts, but running jobs continue", issue)
            else:
                log.warning("%s", issue)
        for issue in sorted(self._reported - issues, key=str):
            log.info("%s %s can be used again", issue.subject, issue.path)
        self._reported = issues
