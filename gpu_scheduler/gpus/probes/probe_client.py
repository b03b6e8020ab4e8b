"""Queries a probe in a separate process, so that a hanging driver never blocks the caller.

Sends one query at a time. If the process has not answered by the deadline, kills it without waiting for its
end; the next query goes to a new process. The caller decides how often to query.
"""

from __future__ import annotations

import os
import select
import sys
import time
from types import TracebackType

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import Snapshot
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes import DRIVER_REMEDY
from gpu_scheduler.gpus.probes.probe_process import ProbeProcess
from gpu_scheduler.gpus.probes.wire import ProbeFailure, decode

__all__ = ["DEADLINE_S", "ProbeClient", "ProbeFailure", "UnreadableError"]

#: Seconds that an answer may take, including the first one. Waking four sleeping GPUs takes about 2 s; waking
#: eight large GPUs without persistence mode can take over 10 s. When a hanging driver responds again, it
#: answers the open query at once; with a shorter deadline, the process would often be killed before that.
DEADLINE_S = 20.0


class UnreadableError(GpuStateError):
    """No GPU can be read. why: the reason, without the remedy."""

    def __init__(self, failure: ProbeFailure) -> None:
        super().__init__("\n".join(filter(None, (f"cannot read the GPUs: {failure.text}", failure.remedy))))
        self.why = failure.text


class LateAnswerError(UnreadableError):
    """The probe did not answer in the time that the caller gave, which was shorter than the deadline."""


class ProbeClient:
    """Sends queries to a probe process and reads its answers.

    Call `query`, wait until `fileno` is readable, then call `read`. Call `expire` when `deadline` has passed.
    The descriptor stays the same until `close`, even if the process is replaced.
    """

    def __init__(
        self,
        kind: ProbeKind,
        simulate: str | None = None,
        sim_dir: str | None = None,
        interpreter: str = sys.executable,
        deadline_s: float | None = None,
    ) -> None:
        self._arguments = ["--kind", kind]
        if simulate is not None:
            self._arguments += ["--simulate", simulate]
        if sim_dir is not None:
            self._arguments += ["--sim-dir", os.path.abspath(sim_dir)]
        self._interpreter = interpreter
        self._deadline_s = DEADLINE_S if deadline_s is None else deadline_s
        self._ready = select.epoll()
        self._child: ProbeProcess | None = None
        self._killed: list[ProbeProcess] = []
        self._query_number = 0
        self._start_failure: str | None = None
        #: The note of the newest answer to `sample`.
        self.note = ""
        #: The time of the open query in seconds since boot; None if no query is open.
        self.queried_at: float | None = None

    def __enter__(self) -> ProbeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The pid of the probe process; None if there is none at present."""
        return None if self._child is None else self._child.pid

    @property
    def deadline(self) -> float | None:
        """The time at which to call `expire`, in seconds since boot; None if no query is open."""
        return None if self.queried_at is None else self.queried_at + self._deadline_s

    def start(self) -> None:
        """Starts the process unless it is running. Call this early, so that the first answer comes sooner."""
        self._killed = [child for child in self._killed if not child.has_ended()]
        if self._child is not None:
            return
        if len(self._killed) >= _MAX_HANGING:
            # A process that is blocked in the kernel does not end when it is killed. More of them would only
            # accumulate.
            self._start_failure = f"{_MAX_HANGING} earlier queries still hang in the driver"
            return
        self._start_failure = None
        try:
            self._child = ProbeProcess(self._interpreter, self._arguments)
        except OSError as error:
            self._start_failure = f"the probe cannot be started: {error}"
            return
        self._ready.register(self._child.fileno(), select.EPOLLIN)

    def query(self, now: float | None = None) -> None:
        """Requests a sample unless a query is open. now: seconds since boot; reads the clock if None."""
        if self.queried_at is not None:
            return
        self.start()
        self.queried_at = _boot_time() if now is None else now
        self._query_number += 1
        if self._child is not None:
            self._child.send(b"%d\n" % self._query_number)

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when there is an answer for `read`."""
        return self._ready.fileno()

    def read(self) -> Snapshot | ProbeFailure | None:
        """Returns the answer to the open query, or its failure; None if there is none yet. Never blocks."""
        if self._start_failure is not None:
            return self._fail(self._start_failure)
        if self._child is None:
            return None
        lines, ended = self._child.lines()
        for line in lines:
            try:
                number, answer = decode(line)
            except ValueError as error:
                return self._fail(str(error))
            if number == self._query_number and self.queried_at is not None:
                self.queried_at = None
                return answer
        if not ended:
            return None
        error_line = self._child.last_error_line()
        return self._fail("the probe process ended" + (f": {error_line}" if error_line else ""))

    def expire(self, now: float) -> ProbeFailure | None:
        """If the deadline has passed, kills the process and returns the failure of the query; otherwise None.

        now: seconds since boot.
        """
        if self.deadline is None or now < self.deadline:
            return None
        late = _timed_out(self._deadline_s)
        return self._fail(late.text, late.remedy)

    def sample(self, timeout_s: float | None = None) -> Snapshot:
        """Queries the probe, waits for the answer and returns it.

        timeout_s: the maximum time to wait; None waits until the deadline. A query that is not answered in
        this time stays open until its deadline. Raises UnreadableError if no GPU can be read, and
        LateAnswerError if there is no answer in this time.
        """
        ready = select.poll()
        ready.register(self.fileno(), select.POLLIN)
        self.query()
        wait_s = self._deadline_s if timeout_s is None else min(timeout_s, self._deadline_s)
        end = _boot_time() + wait_s
        answer = self.read()
        while answer is None and (left := end - _boot_time()) > 0:
            ready.poll(left * 1000)
            answer = self.read()
        if answer is None:
            answer = self.expire(_boot_time())
        if answer is None:
            raise LateAnswerError(_timed_out(wait_s))
        if isinstance(answer, Snapshot) and not answer.gpus:
            answer = ProbeFailure("no GPU found", DRIVER_REMEDY)
        if isinstance(answer, ProbeFailure):
            raise UnreadableError(answer)
        self.note = answer.note
        return answer

    def close(self) -> None:
        """Ends the process. Do not query the probe after this."""
        self._drop()
        if not self._ready.closed:
            self._ready.close()
        # A killed process ends within about a millisecond, unless it is blocked in the kernel. In that case,
        # init collects it later.
        end = _boot_time() + 0.2
        while any(not child.has_ended() for child in self._killed) and _boot_time() < end:
            time.sleep(0.001)
        for child in self._killed:
            child.abandon()

    def _fail(self, text: str, remedy: str = "") -> ProbeFailure:
        self._drop()
        self._start_failure = None
        self.queried_at = None
        return ProbeFailure(text, remedy)

    def _drop(self) -> None:
        if self._child is not None:
            self._ready.unregister(self._child.fileno())
            self._child.kill()
            self._killed.append(self._child)
            self._child = None


#: If this many killed processes have not ended, no new process is started.
_MAX_HANGING = 3
_HANG_REMEDY = (
    "check that `nvidia-smi` responds; if it is slow, `sudo nvidia-smi -pm 1` (persistence mode) keeps the"
    " driver loaded"
)


def _timed_out(waited_s: float) -> ProbeFailure:
    return ProbeFailure(f"no answer from the GPU driver within {waited_s:g} s", _HANG_REMEDY)


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
