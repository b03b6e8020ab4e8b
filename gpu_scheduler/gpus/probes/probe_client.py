"""Queries a probe in a separate process, so that a hanging driver never blocks the caller.

Sends one query at a time. A process that has not answered by the deadline is killed and not waited for; the
next query goes to a new one. The caller decides how often to query.
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

#: Seconds that an answer may take, including the first. Waking four sleeping GPUs takes about 2 s, eight
#: large ones without persistence mode 10 s and more. A query to a hanging driver is answered as soon as the
#: driver responds again; a shorter deadline would only kill the process before that.
DEADLINE_S = 20.0


class UnreadableError(GpuStateError):
    """No GPU can be read. why: the reason without the remedy."""

    def __init__(self, failure: ProbeFailure) -> None:
        super().__init__("\n".join(filter(None, (f"cannot read the GPUs: {failure.text}", failure.remedy))))
        self.why = failure.text


class ProbeClient:
    """A client of a probe process: `query`, wait until `fileno` is readable, `read`; `expire` at `deadline`.

    The descriptor stays the same from construction to `close`, even if the process is replaced.
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
        #: Time of the open query in seconds since boot; None = no query is open.
        self.queried_at: float | None = None

    def __enter__(self) -> ProbeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The pid of the probe process; None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def deadline(self) -> float | None:
        """The time at which to call `expire`, in seconds since boot; None while no query is open."""
        return None if self.queried_at is None else self.queried_at + self._deadline_s

    def start(self) -> None:
        """Starts the process if there is none, so that the first answer comes sooner."""
        self._killed = [child for child in self._killed if not child.has_ended()]
        if self._child is not None:
            return
        if len(self._killed) >= _MAX_HANGING:
            # A process that is blocked in the kernel does not end, and more of them would only accumulate.
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
        """Requests a sample unless a query is open. now: seconds since boot; None = read the clock."""
        if self.queried_at is not None:
            return
        self.start()
        self.queried_at = _boot_time() if now is None else now
        self._query_number += 1
        if self._child is not None:
            self._child.send(b"%d\n" % self._query_number)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `read` has an answer."""
        return self._ready.fileno()

    def read(self) -> Snapshot | ProbeFailure | None:
        """Returns the answer to the open query, or its failure; None if it is pending. Never blocks."""
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
        """Fails the open query and kills the process if the deadline has passed; returns the failure.

        now: seconds since boot. Returns None if the deadline has not passed.
        """
        if self.deadline is None or now < self.deadline:
            return None
        late = _timed_out(self._deadline_s)
        return self._fail(late.text, late.remedy)

    def first_sample(self, timeout_s: float | None = None) -> Snapshot:
        """Queries the probe and waits for the answer, at most this long (None: until the deadline).

        A query without an answer by then stays open until its deadline. Raises UnreadableError if no GPU can
        be read.
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
            answer = self.expire(_boot_time()) or _timed_out(wait_s)
        if isinstance(answer, Snapshot) and not answer.gpus:
            answer = ProbeFailure("no GPU found", DRIVER_REMEDY)
        if isinstance(answer, ProbeFailure):
            raise UnreadableError(answer)
        return answer

    def close(self) -> None:
        """Ends the process; no query is possible afterwards."""
        self._drop()
        if not self._ready.closed:
            self._ready.close()
        # Ends within about a millisecond unless it is blocked in the kernel; then init collects it later.
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


#: Number of killed processes that may linger before no more are started.
_MAX_HANGING = 3
_HANG_REMEDY = (
    "check that `nvidia-smi` responds; if it is slow, `sudo nvidia-smi -pm 1` (persistence mode) keeps the"
    " driver loaded"
)


def _timed_out(waited_s: float) -> ProbeFailure:
    return ProbeFailure(f"no answer from the GPU driver within {waited_s:g} s", _HANG_REMEDY)


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
