"""Tells receivers of the ends of jobs, each at least once (docs/notify.md).

Each receiver has a thread that reads the events of the store and delivers those it wants, and each delivery
a process that is killed at a deadline, so no receiver holds up another. After a delivery, the thread writes
its position, an event, to a file of the receiver, from which it goes on after a restart. Only `send` knows
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

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gpu_scheduler.config import NOTIFY_PREFIX
from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind, JobEnded
from gpu_scheduler.core.text.formatting import limit_length, safe_text
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError, UsageError
from gpu_scheduler.notify import send
from gpu_scheduler.show.events import message_of, read_events, to_json
from gpu_scheduler.show.job_views import skipped_text
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.store.events import event_id_before, events_after, newest_event_id
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.system.safe_file import replace_file

log = logging.getLogger(__name__)

#: The kind of the event that the last job of a queue has ended. The store has no such event.
DRAINED = "drained"
_EMPTY = "the queue is empty"
_OPEN_STATES = ("queued", "starting", "running", "stopping")
#: A receiver gets at most so many messages in this time. If more ends wait, they become one message.
_MOST_MESSAGES, _WINDOW_S = 5, 30.0
#: Number of ends in one message, and of events that are read at once.
_MOST_ENDS, _BATCH = 50, 200
#: After so many tries, every second one is without the texts of users, in case the receiver refuses these.
_MOST_TRIES = 5
_SHORTEST_WAIT_S, _LONGEST_WAIT_S, _FAULT_S = 1.0, 600.0, 60.0
#: Ends are skipped at this age if their receiver has accepted nothing for as long.
GIVE_UP_S = 86400.0
#: Time that a receiver has to accept a message, and that all have for the last ones.
_DEADLINE_S, _LAST_S = 30.0, 4.0
_POLL_S = 1.0
_SEND_PROBLEMS = {
    send.REFUSED: "did not accept a message",
    send.WRONG_URL: "has a URL that apprise does not accept any more",
    send.NOT_INSTALLED: "cannot be reached, because apprise is not installed any more",
}


class Receiver(Struct, frozen=True):
    """A URL of apprise, or a shell command that gets each event as JSON on its standard input.

    number: its place among the receivers of this process, from 1.
    """

    number: int
    target: str
    is_command: bool = False

    def __str__(self) -> str:
        return f"receiver {self.number} ({'command' if self.is_command else send.scheme_of(self.target)})"

    __repr__ = __str__  # the target may contain a password


class Position(Struct, frozen=True):
    """The last event up to which a receiver has got all that it wants.

    id, at, kind, job_id: as in `Event`; they identify the event, because a store that was restored or made
    anew may give its id to another one. is_empty: whether no job was left then. has_ended: whether a job has
    ended since the queue was last empty. skipped: the last event about which it did not get a message; None
    if it got one since.
    """

    id: int
    at: float
    kind: str = ""
    job_id: int = 0
    is_empty: bool = False
    has_ended: bool = False
    skipped: int | None = None
    receiver: str = ""


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
    """Returns whether an event is the final end of a job that is wanted.

    on: "completed" and "failed"; every end that is neither completed nor cancelled has failed.
    pattern: a glob for the names of jobs; None for all jobs.
    """
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


def message_text(
    events: Sequence[Event], tolerance: float = 0.10, *, is_short: bool = False
) -> tuple[str, str]:
    """Returns the title and the body of a message about one or more ends, with secrets hidden.

    Each line ends with the id of its event, because a message may be delivered twice. tolerance: the fraction
    by which an accurate declaration may be off. is_short: whether to omit everything that users wrote.
    """
    titles, lines = [], []
    for event in events:
        job = f"job {event.job_id}" + (
            "" if is_short else f" ({event.name or limit_length(event.command, 60)})"
        )
        title = f"{job}: {str(event.data.get('outcome')).replace('_', ' ')}"
        titles.append(_EMPTY if event.kind == DRAINED else title)
        is_whole = not is_short and event.kind != DRAINED
        line = f"{job} {message_of(event, tolerance).text}" if is_whole else titles[-1]
        lines.append(f"{safe_text(limit_length(line))} [event {event.id}]")
    return f"{len(events)} events" if len(events) > 1 else safe_text(titles[0]), "\n".join(lines)


def _after(position: Position, event: Event, *, is_empty: bool = False, has_ended: bool = True) -> Position:
    known = {"id": event.id, "at": event.at, "kind": event.kind, "job_id": event.job_id}
    return replace(position, **known, is_empty=is_empty, has_ended=has_ended)


def _same(position: Position, event: Event) -> bool:
    return (position.id, position.at, position.kind, position.job_id) == (
        event.id, event.at, event.kind, event.job_id,
    )  # fmt: skip


class Delivery:
    """The delivery to one receiver. on, pattern: as in `is_wanted`; after: where a new receiver starts.

    Raises UsageError if the file with its position is damaged.
    """

    def __init__(
        self, receiver: Receiver, location: Location, on: Set[str], pattern: str | None, after: int
    ) -> None:
        self.receiver, self._location, self._on, self._pattern = receiver, location, on, pattern
        # The name of the file is shown, so it must not help to guess a password in the URL.
        target = f"{receiver.is_command} {receiver.target}".encode()
        key = hashlib.scrypt(target, salt=b"gpu-scheduler", n=1 << 14, r=8, p=1, dklen=8).hex()
        self._path = location.resolve().folder / f"{NOTIFY_PREFIX}{key}.json"
        self._position = Position(after, time.time())
        try:
            self._position = decode(self._path.read_bytes(), type=Position)
        except FileNotFoundError:
            pass
        except (OSError, MsgspecError) as error:
            raise UsageError(f"{self._path}: {error}; without it, messages start from now on") from None
        self._sent: deque[float] = deque(maxlen=_MOST_MESSAGES)
        self._failing_since: float | None = None
        self._tries, self._due_at, self._tolerance = 0, 0.0, 0.0
        #: The kinds of the events at the next position that a command has accepted already.
        self._accepted: set[str] = set()
        self._go_to(replace(self._position, receiver=str(receiver)))

    def run(self, ending: threading.Event) -> None:
        """Works until `ending` is set, and then once more delivers what is there."""
        is_last, wait_s, said = False, 0.0, ""
        while wait_s == 0 or not is_last:
            ending.wait(wait_s)
            is_last = ending.is_set()
            try:
                wait_s, said = self.step(time.time(), is_last=is_last), ""
            except SchedulerError as error:
                if str(error) != said:
                    log.warning("%s", error)
                wait_s, said = _POLL_S, str(error)
            except Exception:  # which must not keep the messages of others back
                log.exception("%s: this is a fault of the program; it goes on in a minute", self.receiver)
                wait_s, self._tries = _FAULT_S, _MOST_TRIES  # without the text, which may be the cause

    def step(self, now: float, *, is_last: bool = False) -> float:
        """Reads events and delivers one message if it is due. Returns the seconds to wait; 0 for none.

        now: in wall seconds. is_last: whether to deliver all that waits, even if it is early.
        """
        if not is_last and 0 < self._due_at - now <= _LONGEST_WAIT_S:
            return _POLL_S
        wanted, end = self._read()
        if not wanted:
            if end == self._position:
                return _POLL_S
            self._go_to(end, is_synced=False)  # to read again what is not wanted does no harm
            return 0.0
        count = min(len(wanted), _MOST_ENDS) if is_last else next_message(len(wanted), self._sent, now)
        if not count:
            return _POLL_S
        last = wanted[0 if self.receiver.is_command or self._is_short else count - 1]
        batch = [event for event in wanted if event.id <= last.id]  # an end, and that the queue is empty then
        problem = self._deliver(batch)
        if problem is not None:
            since = now - GIVE_UP_S if self._gives_up(problem, now) else 0.0
            batch = list(takewhile(lambda event: event.at <= since, wanted))
            if not batch:
                return _POLL_S
            self._due_at = now
            if self._position.skipped is None:
                log.warning("%s", skipped_text(str(self.receiver), batch[-1].id))
        else:
            if self._failing_since is not None:
                log.info("%s accepts messages again", self.receiver)
            self._failing_since, self._tries, self._due_at = None, 0, 0.0
            if not self.receiver.is_command:
                self._sent.append(now)
        position = end if batch[-1] is wanted[-1] else _after(self._position, batch[-1])
        self._go_to(replace(position, skipped=problem and batch[-1].id))
        return 0.0

    @property
    def _is_short(self) -> bool:
        """Whether the next message omits what users wrote. The one after it is whole again."""
        return self._tries >= _MOST_TRIES and self._tries % 2 == 1

    def _read(self) -> tuple[list[Event], Position]:
        """Returns the next events that the receiver wants, and the position after all that were read."""
        at = self._position
        try:
            with open_store(self._location, read_only=True) as store, store.snapshot():
                found, start = events_after(store, at.id - 1, _BATCH), at.id
                is_known = not at.kind or (found and _same(at, found[0]))
                if start and not is_known:  # another store, or the event was forgotten
                    start = min(start, event_id_before(store, at.at))
                    found = events_after(store, start - 1, _BATCH)
                counts, newest = state_counts(store), newest_event_id(store)
                self._tolerance = store.recorded_options().tolerance
        except StoreNotFoundError:  # nothing has run here yet
            return [], at
        new = [event for event in found if event.id > start]
        if not new:
            return [], _after(at, found[0], is_empty=at.is_empty, has_ended=at.has_ended) if found else at
        ends = [event for event in new if event.kind == EventKind.FINISHED]
        wanted = [event for event in new if is_wanted(event, self._on, self._pattern)]
        is_empty = new[-1].id == newest and not any(counts.get(state) for state in _OPEN_STATES)
        had_jobs = not at.is_empty or any(event.kind in _OPEN_STATES for event in new)
        has_ended = at.has_ended or bool(ends)
        if is_empty and had_jobs and has_ended and DRAINED in self._on:
            last = ends[-1] if ends else new[-1]
            wanted.append(Event(last.id, last.at, DRAINED))
        return wanted, _after(at, new[-1], is_empty=is_empty, has_ended=has_ended and not is_empty)

    def _gives_up(self, problem: str, now: float) -> bool:
        """Plans the next try. Returns whether the receiver has accepted nothing for 24 h."""
        if self._failing_since is None:
            log.warning("%s %s; messages are repeated for 24 h", self.receiver, problem)
            self._failing_since = now
        self._tries += 1
        failing_s = now - self._failing_since
        self._due_at = now + min(max(_SHORTEST_WAIT_S, failing_s), _LONGEST_WAIT_S)
        return failing_s >= GIVE_UP_S

    def _go_to(self, position: Position, *, is_synced: bool = True) -> None:
        """Records that all events up to a position were delivered, unwanted or skipped."""
        self._position = position
        self._accepted.clear()
        try:
            replace_file(self._path, encode(position), synced=is_synced)
        except OSError as error:  # after a restart, events are then delivered again
            log.warning("cannot write %s: %s", self._path, error.strerror)

    def _deliver(self, events: Sequence[Event]) -> str | None:
        """Returns None if the receiver has accepted the events, otherwise what happened, as a predicate."""
        if self.receiver.is_command:
            # It ends at its deadline also if this process is killed.
            argv = ["timeout", "-s", "KILL", f"{_DEADLINE_S:g}", "/bin/sh", "-c", self.receiver.target]
            for event in events:
                named = replace(event, data={**event.data, "name": event.name})
                if event.kind not in self._accepted:
                    if problem := _problem_of(argv, f"{to_json(named)}\n"):
                        return problem
                    self._accepted.add(event.kind)
            return None
        title, body = message_text(events, self._tolerance, is_short=self._is_short)
        if self._position.skipped is not None:
            body = f"{skipped_text(str(self.receiver), self._position.skipped)}\n{body}"
        request = {"urls": [self.receiver.target], "deadline_s": _DEADLINE_S, "title": title, "body": body}
        return _problem_of([sys.executable, send.__file__], json.dumps(request), subprocess.DEVNULL)


def _problem_of(argv: Sequence[str], text: str, output: int | None = None) -> str | None:
    """Runs a program with a text as its input. Returns why it failed, as a predicate; None if it did not."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        return f"cannot be reached ({error.strerror})"
    try:
        process.communicate(text.encode(), timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code = process.returncode
    if code in (-signal.SIGALRM, -signal.SIGKILL, 128 + signal.SIGKILL):
        return f"did not accept a message within {_DEADLINE_S:g} s"
    if output is not None and code in _SEND_PROBLEMS:
        return _SEND_PROBLEMS[code]
    return f"did not accept a message (exit code {code})" if code else None


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
    try:
        return read_events(location, sys.maxsize)[1]
    except StoreNotFoundError:  # nothing has run here yet
        return 0
