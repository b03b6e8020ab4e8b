"""Prints the output of `start` in a separate thread, so that a blocked terminal never delays a job.

If the terminal does not accept a line in time, the line is not printed, but it is still in the log file.
"""

from __future__ import annotations

import errno
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.reporting.job_output import JobOutputReader
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.deadline import start_thread
from gpu_scheduler.system.shortages import describe_shortage

#: Maximum number of lines that wait for the terminal.
_MAX_QUEUED_LINES = 10_000
#: Maximum number of consecutive reads of an ended attempt's log. Later reads print the rest.
_MAX_FINAL_READS = 16
#: Errors of a stdout file that cannot grow at present. The current line is lost; later lines may be written.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Console:
    """Prints log lines and the prefixed output of direct jobs; drops lines if the terminal blocks.

    Raises SchedulerError if no thread can be started.
    """

    def __init__(self) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED_LINES)
        self.on_terminal = sys.stdout.isatty()
        self._tails: dict[int, JobOutputReader] = {}
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._is_closing = threading.Event()
        self._has_tails = threading.Event()
        self._problem: str | None = None
        # Both threads start now, because later the process limit may not allow it.
        self._printer = _start_thread(self._print)
        self._follower = _start_thread(self._follow)

    def put(self, line: str) -> None:
        """Queues a line for printing; drops it if the queue is full."""
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            pass

    def follow_attempt(self, attempt_id: int, store: Store) -> None:
        """Starts printing the log of a direct attempt. Each printed line begins with the job id."""
        attempt = store.attempt(attempt_id)
        if attempt is None or attempt.log is None or _is_stdout_discarded():
            return
        with self._lock:
            self._tails[attempt_id] = JobOutputReader(
                attempt.job_id, attempt.number, Path(attempt.log), include_runner_line=not self.on_terminal
            )
            self._has_tails.set()

    def finish_attempt(self, job_id: int, number: int) -> None:
        """Prints the rest of an ended attempt's log. The caller does this before it logs the end."""
        with self._lock:
            ended = {key: tail for key, tail in self._tails.items() if tail.attempt == (job_id, number)}
        for attempt_id, tail in ended.items():
            tail.has_ended = True
            for _ in range(_MAX_FINAL_READS):
                self._read(attempt_id, tail)

    def flush(self) -> None:
        """Waits up to one second until all queued lines are printed."""
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, 1.0)

    def close(self) -> None:
        """Prints the remaining lines, for at most one second per thread."""
        self._is_closing.set()
        self._has_tails.set()
        self._follower.wait(1.0)
        try:
            self.lines.put_nowait(None)
        except queue.Full:
            pass
        self._printer.wait(1.0)

    def _print(self) -> None:
        while (line := self.lines.get()) is not None:
            try:
                sys.stdout.write(line + "\n")
                if self.lines.empty():
                    sys.stdout.flush()
            except OSError as error:
                if error.errno not in _FULL_DISK:
                    return
            except ValueError:
                return
            self.lines.task_done()

    def _follow(self) -> None:
        while not self._is_closing.is_set():
            self._has_tails.wait()
            while not self._is_closing.wait(0.1):
                self._read_tails()
                with self._lock:
                    if not self._tails:
                        self._has_tails.clear()  # there is no log to follow
                        break
        self._read_tails()

    def _read_tails(self) -> None:
        with self._lock:
            tails = dict(self._tails)
        for attempt_id, tail in tails.items():
            self._read(attempt_id, tail)

    def _read(self, attempt_id: int, tail: JobOutputReader) -> None:
        with self._read_lock:
            if tail.is_exhausted:
                return  # the other thread has read the end, and has now put its lines
            try:
                lines = tail.read()
            except OSError as error:
                self._report_problem(f"cannot show job output: {error.strerror}; see the job logs")
                return
            self._report_problem(None)
            for line in lines:
                self.put(line)
        if tail.is_exhausted:
            with self._lock:
                self._tails.pop(attempt_id, None)

    def _report_problem(self, problem: str | None) -> None:
        """Prints each problem with job output once, and a line when job output can be shown again."""
        if problem != self._problem:
            self._problem = problem
            self.put(problem or "job output is shown again")


def _start_thread(work: Callable[[], None]) -> threading.Event:
    """Starts a thread; returns the event that it sets when it ends."""
    ended = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            ended.set()

    if not start_thread(run):
        raise SchedulerError(f"cannot start a thread: {describe_shortage(errno.EAGAIN)}")
    return ended


def _is_stdout_discarded() -> bool:
    """Returns whether stdout is /dev/null, as it is for a scheduler in the background."""
    try:
        return os.fstat(sys.stdout.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError):
        return False
