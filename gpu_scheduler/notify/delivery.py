"""Tells receivers of the ends of jobs, each at least once (docs/notify.md).

Each receiver has a thread that reads the events of the store and delivers those it wants, and each delivery
a process that is killed at a deadline, so no receiver holds up another. After a delivery, the thread writes
its position, an event id, to a file of the receiver, from which it goes on after a restart. Only `send` knows
apprise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence, Set
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gpu_scheduler.config import NOTIFY_PREFIX
from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind, JobEnded
from gpu_scheduler.core.model.reasons import StateReason
from gpu_scheduler.core.text.formatting import count_noun, format_duration, limit_length, safe_text
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError, UsageError
from gpu_scheduler.notify import send
from gpu_scheduler.show.events import to_json
from gpu_scheduler.show.job_text import reason_text
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.store.events import events_after, newest_event_id
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.system.safe_file import replace_file

log = logging.getLogger(__name__)

#: The kind of the event that the last job of a queue has ended. The store has no such event.
DRAINED = "drained"
_OPEN_STATES = ("queued", "starting", "running", "stopping")
#: A receiver gets at most so many messages in this time. If more ends wait, they become one message.
_MOST_MESSAGES, _WINDOW_S = 5, 30.0
#: Number of ends in one message, and of events that are read at once.
_MOST_ENDS, _BATCH = 50, 1000
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 1.0, 600.0
#: Ends are skipped at this age if their receiver has accepted nothing for as long.
GIVE_UP_S = 86400.0
#: Time that a receiver has to accept a message, and that all have for the last ones.
_DEADLINE_S, _LAST_S = 30.0, 4.0
_POLL_S = 1.0


class Receiver(Struct, frozen=True):
    """A URL of apprise, or a shell command that gets each event as JSON on its standard input."""

    target: str
    is_command: bool = False

    @property
    def key(self) -> str:
        """Identifies the receiver, without its secrets."""
        return hashlib.sha256(f"{self.is_command} {self.target}".encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{'command' if self.is_command else send.scheme_of(self.target)} receiver {self.key}"

    __repr__ = __str__  # the target may contain a password


class Position(Struct, frozen=True):
    """The newest event up to which a receiver has got all. at: the time of the last one, in wall seconds.

    warning: a sentence about ends that were skipped; None if none were since the last delivery.
    """

    id: int
    at: float
    warning: str | None = None


def check_urls(urls: Sequence[str]) -> None:
    """Raises UsageError if apprise is not installed, or does not accept one of the URLs."""
    request = json.dumps({"urls": list(urls), "deadline_s": _DEADLINE_S})
    done = subprocess.run([sys.executable, send.__file__], input=request, capture_output=True, text=True)
    if done.returncode == send.NOT_INSTALLED:
        python = shlex.quote(sys.executable)
        raise UsageError(f"notifications need another package: {python} -m pip install 'apprise>=1.9'")
    if done.returncode != send.ACCEPTED:
        raise UsageError(done.stdout.strip() or "apprise cannot check the URLs")


def is_wanted(event: Event, on: Set[str], pattern: str | None) -> bool:
    """Returns whether an event is the final end of a job, or that of the last job, that is wanted.

    on: "completed", "failed" and "drained"; every end that is neither completed nor cancelled has failed.
    pattern: a glob for the names of jobs; None for all jobs.
    """
    if event.kind == DRAINED:
        return DRAINED in on
    if event.kind != EventKind.FINISHED or not isinstance(event.details, (AttemptEnded, JobEnded)):
        return False
    outcome = event.details.outcome
    if outcome == "cancelled" or (pattern is not None and not fnmatchcase(event.name or "", pattern)):
        return False
    return (outcome if outcome == "completed" else "failed") in on


def next_message(waiting: int, sent: Sequence[float], now: float) -> int:
    """Returns how many of the waiting ends share the next message; 0 if it is too early for one.

    sent: the times of the last messages.
    """
    if len(sent) >= _MOST_MESSAGES and 0 <= now - sent[-_MOST_MESSAGES] < _WINDOW_S:
        return 0
    return min(waiting, _MOST_ENDS if waiting > _MOST_MESSAGES else 1)


def message_text(events: Sequence[Event]) -> tuple[str, str]:
    """Returns the title and the body of a message about one or more ends, with secrets hidden.

    Each line ends with the id of its event, because a message may be delivered twice.
    """
    lines = [f"{safe_text(limit_length(_line(event)))} [event {event.id}]" for event in events]
    title = f"{count_noun(len(events), 'event')}" if len(events) > 1 else safe_text(_head(events[0]))
    return title, "\n".join(lines)


def _head(event: Event) -> str:
    if event.kind == DRAINED:
        return "the queue is empty"
    name = event.name or limit_length(event.command, 60)
    return f"job {event.job_id} ({name}): {str(event.data['outcome']).replace('_', ' ')}"


def _line(event: Event) -> str:
    details, reason, text = event.details, event.reason, _head(event)
    if isinstance(details, AttemptEnded) and details.seconds is not None:
        text += f" after {format_duration(details.seconds)}"
    why = reason_text(reason) if isinstance(reason, StateReason) else str(reason or "")
    return f"{text}: {why}" if why else text


def _look(location: Location, after: int) -> tuple[list[Event], int, bool]:
    """Returns at most 1,000 events after an id, the id of the newest one, and whether the queue is empty."""
    try:
        with open_store(location, read_only=True) as store, store.snapshot():
            found, newest = events_after(store, after, _BATCH), newest_event_id(store)
            counts = state_counts(store) if found and found[-1].id == newest else {"queued": 1}
            return found, newest, not any(counts.get(state) for state in _OPEN_STATES)
    except StoreNotFoundError:  # nothing has run here yet
        return [], 0, False


class Delivery:
    """The delivery to one receiver. on, pattern: as in `is_wanted`; after: where a new receiver starts.

    Raises UsageError if the file with its position is damaged.
    """

    def __init__(
        self, receiver: Receiver, location: Location, on: Set[str], pattern: str | None, after: int
    ) -> None:
        self.receiver, self._location, self._on, self._pattern = receiver, location, on, pattern
        self._path = location.resolve().folder / f"{NOTIFY_PREFIX}{receiver.key}.json"
        self._position = Position(after, time.time())
        try:
            self._position = decode(self._path.read_bytes(), type=Position)
        except FileNotFoundError:
            pass
        except (OSError, MsgspecError) as error:
            raise UsageError(f"{self._path}: {error}; without it, messages start from now on") from None
        self._read_to, self._not_before = self._position.id, 0.0
        self._pending: list[Event] = []
        self._is_open = True  # whether jobs were open when the store was last read
        self._end: Event | None = None  # the newest end of a job
        self._sent: deque[float] = deque(maxlen=_MOST_MESSAGES)
        self._failing_since: float | None = None
        self._due_at = 0.0
        self._problem = ""
        self._save(self._position.at, self._position.warning)

    def run(self, ending: threading.Event) -> None:
        """Works until `ending` is set, and then once more delivers what is there."""
        is_last, wait_s = False, 0.0
        while wait_s == 0 or not is_last:
            ending.wait(wait_s)
            is_last = ending.is_set()
            try:
                wait_s = self.step(time.time(), is_last=is_last)
            except Exception:  # which must not keep the messages of others back
                log.exception("%s: this is a fault of the program; it goes on in a minute", self.receiver)
                wait_s = 60.0
        self._save(self._position.at, self._position.warning)

    def step(self, now: float, *, is_last: bool = False) -> float:
        """Reads events and delivers one message if it is due. Returns the seconds to wait; 0 for none.

        now: in wall seconds. is_last: whether to deliver all that waits, even if it is early.
        """
        is_behind = False
        try:
            is_behind = self._read()
        except SchedulerError as error:
            if str(error) != self._problem:
                log.warning("%s", error)
            self._problem = str(error)
        count = next_message(len(self._pending), self._sent, now)
        if is_last:
            count = min(len(self._pending), _MOST_ENDS)
        elif 0 < self._due_at - now <= _LONGEST_WAIT_S:
            count = 0
        if not count:
            return 0.0 if is_behind else _POLL_S
        events = self._pending[: 1 if self.receiver.is_command else count]
        problem = self._deliver(events)
        if problem is not None:
            self._fail(problem, now)
            return _POLL_S
        if self._failing_since is not None:
            log.info("%s accepts messages again", self.receiver)
        self._failing_since, self._due_at = None, 0.0
        if not self.receiver.is_command:
            self._sent.append(now)
        del self._pending[: len(events)]
        self._save(events[-1].at, None)
        return 0.0

    def _read(self) -> bool:
        """Reads new events. Returns whether there are more of them."""
        if len(self._pending) >= _BATCH:
            return False
        found, newest, is_empty = _look(self._location, self._read_to)
        self._problem = ""
        if newest < self._read_to:  # an older store was restored, whose new events have other ids
            self._read_to, self._not_before = 0, self._position.at
            return newest > 0
        self._is_open |= any(event.kind in _OPEN_STATES for event in found)
        ends = [event for event in found if event.kind == EventKind.FINISHED]
        self._end = ends[-1] if ends else self._end
        if is_empty and self._is_open and self._end is not None and found:
            found.append(Event(self._end.id, self._end.at, DRAINED))
        self._pending += [
            event
            for event in found
            if event.at >= self._not_before and is_wanted(event, self._on, self._pattern)
        ]
        if found:
            self._read_to, self._is_open = max(event.id for event in found), not is_empty
            if not self._pending and self._read_to - self._position.id >= _BATCH:
                self._save(found[-1].at, self._position.warning)
        return self._read_to < newest

    def _save(self, at: float, warning: str | None) -> None:
        """Records that all events that do not wait were delivered, unwanted or skipped."""
        self._position = Position(self._pending[0].id - 1 if self._pending else self._read_to, at, warning)
        try:
            replace_file(self._path, encode(self._position), synced=True)
        except OSError as error:  # after a restart, events are then delivered again
            log.warning("cannot write %s: %s", self._path, error.strerror)

    def _fail(self, problem: str, now: float) -> None:
        """Plans the next try, or skips the ends for which a receiver has been dead for too long."""
        if self._failing_since is None:
            log.warning("%s %s; messages are repeated for 24 h", self.receiver, problem)
            self._failing_since = now
        failing_s = now - self._failing_since
        self._due_at = now + min(max(_SHORTEST_WAIT_S, failing_s), _LONGEST_WAIT_S)
        old = list(takewhile(lambda event: event.at <= now - GIVE_UP_S, self._pending))
        if failing_s < GIVE_UP_S or not old:
            return
        text = f"{self.receiver} accepted nothing for 24 h; messages up to event {old[-1].id} were skipped"
        if self._position.warning is None:
            log.warning("%s", text)
        del self._pending[: len(old)]
        self._save(old[-1].at, text)

    def _deliver(self, events: Sequence[Event]) -> str | None:
        """Returns None if the receiver has accepted the events, otherwise what happened, as a predicate."""
        quiet: dict[str, Any] = {}
        if self.receiver.is_command:
            # It ends at its deadline also if this process is killed.
            argv = ["timeout", "-s", "KILL", f"{_DEADLINE_S:g}", "/bin/sh", "-c", self.receiver.target]
            text = to_json(replace(events[0], data={**events[0].data, "name": events[0].name})) + "\n"
        else:
            argv = [sys.executable, send.__file__]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            title, body = message_text(events)
            body = "\n".join(filter(None, (self._position.warning, body)))
            request = {"urls": [self.receiver.target], "deadline_s": _DEADLINE_S}
            text = json.dumps(request | {"title": title, "body": body})
        try:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, **quiet)
        except OSError as error:
            return f"cannot be reached ({error.strerror})"
        try:
            process.communicate(text.encode(), timeout=_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode in (-signal.SIGALRM, -signal.SIGKILL, 128 + signal.SIGKILL):
            return f"did not accept a message within {_DEADLINE_S:g} s"
        return f"did not accept a message (exit code {process.returncode})" if process.returncode else None


def follow(deliveries: Sequence[Delivery]) -> None:
    """Delivers until the process is asked to end, and for at most 4 s more. Returns only after an error."""
    ending = threading.Event()
    threads = [threading.Thread(target=one.run, args=(ending,), daemon=True) for one in deliveries]
    for thread in threads:
        thread.start()
    try:
        while all(thread.is_alive() for thread in threads):
            time.sleep(_POLL_S)
    finally:
        ending.set()
        end = time.monotonic() + _LAST_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def newest_event(location: Location) -> int:
    """Returns the id of the newest event; 0 if there is none."""
    return _look(location, 0)[1]
