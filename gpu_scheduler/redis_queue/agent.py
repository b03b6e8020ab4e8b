"""Takes items of a queue in Redis as jobs of this store, and writes their ends back (docs/redis.md).

Each step is derived from the store and from Redis, so an agent that was killed between two steps goes on with
the next one. All it remembers by itself are times and what it tells other boxes; losing that is safe.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.control.new_line import NewJob
from gpu_scheduler.control.submit import Submission, check_jobs, insert_gated
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import UsageError
from gpu_scheduler.redis_queue.queue import (
    BEAT,
    BEGIN,
    CLAIM,
    CONFIRM,
    GIVE_BACK,
    LOOK,
    LOOK_LIMIT,
    REJECT,
    REPORT,
    RESTORE,
    WRITE_BACK,
    Arguments,
    Queue,
    Record,
    RecordError,
    Times,
    error_text,
    pairs,
    parse_arguments,
    parse_record,
    record_or_problem,
)
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.plan import items_to_start
from gpu_scheduler.show.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.store.moved_or_copied import recorded_location
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import (
    TakenItem,
    box_id,
    give_up,
    has_item,
    kept_items,
    open_items,
    request,
    set_item,
    set_redis_problem,
)


class _SafeText(logging.Filter):
    """Makes control characters visible, because whoever writes to Redis chooses ids and texts."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = safe_text(record.getMessage()), ()
        return True


log = logging.getLogger(__name__)
log.addFilter(_SafeText())

#: Seconds between two looks at the store for changes, which are noticed before the next look at Redis.
_STORE_POLL_S = 0.05
#: Least number of readings of an unchanged counter after which a box is silent.
_MIN_READINGS = 4
_RUN_KEY, _BOXES_KEY = "redis_run", "redis_boxes"


class Silence:
    """Tells which boxes are silent, from readings of their counters. Times are monotonic seconds."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._seen: dict[str, tuple[str, float, int]] = {}
        self._last_at: float | None = None

    def forget(self) -> None:
        """Starts again, because counters may have been raised unseen."""
        self._seen, self._last_at = {}, None

    def read(self, counters: Mapping[str, str], now: float) -> dict[str, float]:
        """Adds a reading. Returns for how many seconds each silent box has been silent."""
        if self._last_at is not None and not 0 <= now - self._last_at <= self._times.reading_gap:
            self.forget()
        self._last_at = now
        silent = {}
        for box, counter in counters.items():
            known, since, readings = self._seen.get(box, ("", now, 0))
            since, readings = (since, readings + 1) if known == counter else (now, 1)
            self._seen[box] = counter, since, readings
            if readings >= _MIN_READINGS and now - since >= self._times.silence:
                silent[box] = now - since
        return silent


def _record_now(item: TakenItem) -> str:
    """Returns the record of an item with the status of its job."""
    record = parse_record(item.record, item.redis_id)
    return record.with_status(item.status, item.gpus, item.pid).to_json()


class _Candidate(Struct, frozen=True):
    """An item that may be taken, before it has a fence, with its record."""

    item: TakenItem
    record: Record
    job: Submission


class Agent:
    """The agent of one store. folder: that of relative scripts. requeue_after: the seconds of silence after
    which the confirmed items of another box are given back too; None: never."""

    def __init__(
        self, location: Location, queue: Queue, folder: str, requeue_after: float | None = None
    ) -> None:
        self._location, self._queue, self._folder = location, queue, folder
        self._requeue_after, self._times = requeue_after, Times.scaled()
        self._silence = Silence(self._times)
        self._beat_due = 0.0
        self._number = ""
        #: The place in the queue of the first item to look at.
        self._offset = 0
        #: What keeps this box from the queue although Redis answers; None if nothing does.
        self._problem: str | None = None
        #: For the other boxes: why items cannot run here, and those whose jobs the store has lost.
        self._lacks: dict[str, str] = {}
        self._without_job: list[str] = []
        #: Since when each job, by its fence, could have started, and each item has had no record.
        self._waits_since: dict[str, float] = {}
        self._without_record: dict[str, float] = {}
        #: The earliest time at which an item that was given back is taken again.
        self._not_before: dict[str, float] = {}
        #: Why each item was last left alone, and the memory of each GPU of this box in MiB.
        self._left_alone: dict[str, str] = {}
        self._sizes: list[int] = []
        self._checked = lru_cache(2 * LOOK_LIMIT)(self._check)
        self._data_version: int | None = None

    def run(self) -> None:
        """Works until the process is asked to end. Redis may be away for any time."""
        create_missing_store(self._location)
        with open_store(self._location) as store:
            if recorded_location(store) is None:
                log.info("waiting for `start` to give this store an id")
            while recorded_location(store) is None:
                time.sleep(_STORE_POLL_S)
            self._box = box_id(store)
            backoff = 0.0
            while True:
                try:
                    self.round(store)
                    set_redis_problem(store, self._problem)
                    if backoff:
                        log.info("%s can be used again", self._queue.url)
                    backoff = 0.0
                    self._wait(store, self._times.look)
                except self._queue.errors as error:
                    self._silence.forget()
                    text = error_text(error)
                    if not backoff:
                        log.warning("%s: %s; the jobs of this box continue", self._queue.url, text)
                    verb = "reached" if isinstance(error, self._queue.silent) else "used"
                    set_redis_problem(store, f"cannot be {verb} ({self._queue.url}: {text})")
                    backoff = min(max(self._times.look, 2 * backoff), self._times.longest_backoff)
                    time.sleep(backoff)

    @contextmanager
    def _alone(self, item: str) -> Iterator[None]:
        """Leaves the item of the block as it is if something unexpected happens, so that others go on."""
        try:
            yield
        except self._queue.errors:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            text = f"{type(error).__name__}: {error}"
            if self._left_alone.get(item) != text:
                log.warning("item %s is left alone: %s", item, text)
            self._left_alone[item] = text

    def _wait(self, store: Store, seconds: float) -> None:
        """Waits for the next look at Redis, or until the store changes."""
        end = time.monotonic() + seconds
        while store.db.data_version == self._data_version and (left := end - time.monotonic()) > 0:
            time.sleep(min(_STORE_POLL_S, left))

    def round(self, store: Store) -> None:
        """Does all that is due now."""
        self._data_version = store.db.data_version
        number, at, cancelled, items = self._queue.run(LOOK, LOOK_LIMIT, self._offset)
        is_open = at is not None
        if number != self._number or not is_open:
            is_open = self._report(store, number) or is_open
        if is_open:
            self._problem = None
        now = time.monotonic()
        is_due = now >= self._beat_due
        self._settle(store, now, set(cancelled), is_due=is_due)
        if is_due:
            self._beat(store, now)
            self._beat_due = now + self._times.beat
        if is_open and self._take(store, items, now):
            self._settle(store, now, set())

    # A new run of Redis

    def _report(self, store: Store, number: str | None) -> bool:
        """Writes the claims of this box back if this is a new run of Redis. Returns whether it is open."""
        if number is None:
            knows_nothing = store.db.meta(_RUN_KEY) is None and not kept_items(store)
            waits = self._times.open_wait, self._times.first_wait
            number = self._queue.run(BEGIN, secrets.token_hex(8), "1" if knows_nothing else "0", *waits)
        assert number is not None
        if number != self._number:
            for text in self._queue.warnings():
                log.warning("%s", text)
        if number != store.db.meta(_RUN_KEY):
            log.info("a new run of Redis; this box reports to it what it has taken")
            self._queue.run_each(RESTORE, self._restored(store))
            self._silence.forget()
            self._beat_due = 0.0
            store.db.set_meta(_RUN_KEY, number)
        self._number = number
        return self._describe(store)

    def _restored(self, store: Store) -> Iterator[tuple[str, ...]]:
        """Yields the arguments of `RESTORE` for each item: its claim, its record and its arguments."""
        for item in kept_items(store):
            with self._alone(item.redis_id):
                ended, confirmed = ("1" if one else "0" for one in (item.is_over, not item.is_gated))
                claim = item.redis_id, self._box, item.fence, item.score, ended, confirmed
                yield *claim, _record_now(item), item.arguments or ""

    def _describe(self, store: Store) -> bool:
        """Writes what others should know of this box. Returns whether the run of Redis is open."""
        seconds: Any = self._queue.redis.time()
        box = {
            "host": socket.gethostname(), "folder": self._folder, "at": seconds[0], "run": self._number,
            "gpus": sorted((gpu.total_mib or 0 for gpu in store.gpus()), reverse=True),
            "lacks": dict(sorted(self._lacks.items())[:100]), "without_job": self._without_job[:100],
            "second": [
                one.redis_id for one in open_items(store) if one.state == "gone" and one.status == "running"
            ],
        }  # fmt: skip
        known = json.loads(store.db.meta(_BOXES_KEY) or "[]")
        text = json.dumps(box, ensure_ascii=False).encode("utf-8", "replace")  # Redis refuses lone surrogates
        is_open = bool(self._queue.run(REPORT, self._box, text, self._number, "0", *known))
        if not is_open:
            problem = f"waits until {self._away()} has reported, or for `redis-queue accept-loss`"
            if problem != self._problem:
                log.warning("Redis was restarted; the queue %s", problem)
            self._problem = problem
        return is_open

    def _away(self) -> str:
        """Returns the boxes that have not reported to this run of Redis."""
        found: Any = self._queue.redis.hgetall("gpusched:boxes")
        boxes = ((key, json.loads(text)) for key, text in sorted(found.items()))
        away = [f"{box.get('host', 'box')} ({key})" for key, box in boxes if box.get("run") != self._number]
        return ", ".join(away) or "another box"

    # The items of this box

    def _run(self, script: str, item: TakenItem, *args: str | float) -> Any:
        """Runs a script for an item of this box."""
        return self._queue.run(script, item.redis_id, self._box, item.fence, *args)

    def _settle(self, store: Store, now: float, cancelled: Set[str], *, is_due: bool = False) -> None:
        """Does the next step for each item that this box has taken and whose end is not written back.

        is_due: write each status back again, because somebody may have requeued what runs here, or a new run
        of Redis may have no claim of it.
        """
        items, confirmed = open_items(store), []
        for item in items:
            is_live = item.status in ("queued", "running") and not item.is_cancelled
            with self._alone(item.redis_id):
                if item.state == "gone":
                    if item.is_unstarted:
                        request(store, "cancel", [item.job_id], given_back=True)
                    continue
                if is_live and item.redis_id in cancelled:
                    request(store, "cancel", [item.job_id])
                if item.is_forgotten and item.status == "queued":
                    if self._give_back(item) != -1:
                        set_item(store, item, "gone")
                elif item.state == "ended" or not item.is_gated:
                    self._follow(store, item, now, is_due=is_due)
                elif self._may_start(store, item, now):
                    confirmed.append(item.job_id)
        request(store, "confirm", confirmed)
        fences = {one.fence for one in items}
        self._waits_since = {key: at for key, at in self._waits_since.items() if key in fences}

    def _may_start(self, store: Store, item: TakenItem, now: float) -> bool:
        """Returns whether a job that waits for its confirmation may start. Ends what must not start here."""
        if now - self._waits_since.get(item.fence, now) >= self._times.start:
            answer = self._give_back(item)
            if answer == 1:
                log.info("item %s did not start here and is in the queue again", item.redis_id)
        else:
            answer = self._run(CONFIRM, item, self._number, self._times.open_wait)
            if answer == 1:
                return True
            if answer == 0:
                log.warning(
                    "item %s belongs to another box or is cancelled; it does not start here", item.redis_id
                )
        if answer != -1:
            give_up(store, item)
        return False

    def _give_back(self, item: TakenItem) -> int:
        """Returns an item to the queue, and takes it again only after some time. Returns what Redis says."""
        self._not_before[item.redis_id] = time.monotonic() + self._times.start
        return int(self._run(GIVE_BACK, item, "", "1", "", self._number))

    def _follow(self, store: Store, item: TakenItem, now: float, *, is_due: bool) -> None:
        """Writes the status of a job back. Asks for the return of one that does not start."""
        if item.may_return and now - self._waits_since.setdefault(item.fence, now) >= self._times.start:
            request(store, "unconfirm", [item.job_id])
            return
        text = json.dumps([item.status, item.gpus, item.pid])
        is_new = text != item.written
        if not is_new and not is_due:
            return
        is_over = "1" if item.is_over else "0"
        answer = self._run(WRITE_BACK, item, _record_now(item), is_over, self._number)
        if answer == 1 and (is_new or item.is_over):
            set_item(store, item, "ended" if item.is_over else "open", text)
        elif answer == 0 and item.may_return:
            give_up(store, item)
        elif answer == 0:
            set_item(store, item, "gone")
            if not item.is_over:
                log.warning(
                    "item %s was given to another box; job %d goes on, so it may run twice", item.redis_id,
                    item.job_id,
                )  # fmt: skip

    # Other boxes

    def _beat(self, store: Store, now: float) -> None:
        """Raises the counter of this box, and gives back what silent boxes and lost jobs hold."""
        found, boxes, claims = self._queue.run(BEAT, self._box)
        counters = pairs(found)
        known = json.dumps(sorted(boxes))
        if known != store.db.meta(_BOXES_KEY):
            store.db.set_meta(_BOXES_KEY, known)
        silent = self._silence.read({box: one for box, one in counters.items() if box != self._box}, now)
        self._without_job = []
        self._checked.cache_clear()
        for item, box, fence, confirmed, _, text in sorted(claims):
            if box == self._box and not has_item(store, item, fence):
                if confirmed == "1":
                    self._without_job.append(item)  # the store was lost, so its job may have run
                else:
                    self._queue.run(GIVE_BACK, item, box, fence, "", "0", "", self._number)
            elif box in silent:
                forced = self._requeue_after is not None and silent[box] >= self._requeue_after
                record = record_or_problem(text, item) if forced and confirmed == "1" else ""
                queued = record.with_status("queued").to_json() if isinstance(record, Record) else ""
                given = (item, box, fence, counters[box], "1" if forced else "0", queued, self._number)
                if self._queue.run(GIVE_BACK, *given) == 1:
                    log.warning("box %s is silent; item %s is in the queue again", box, item)
        self._describe(store)

    # New items

    def _take(self, store: Store, items: list[Any], now: float) -> bool:
        """Takes the items that would start here. Returns whether there are any."""
        if scheduler_pid_of(store) is None:
            return False
        self._lacks, self._sizes = {}, [gpu.total_mib or 0 for gpu in store.gpus()]
        known = {one[0] for one in items}
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        if not self._offset:
            self._without_record = {key: at for key, at in self._without_record.items() if key in known}
        found: list[_Candidate] = []
        for row in items:
            with self._alone(row[0]):
                found += filter(None, [self._candidate(row, now)])
        # Nothing of these items can ever start here, so those behind them are looked at next.
        self._offset = self._offset + LOOK_LIMIT if len(items) == LOOK_LIMIT and not found else 0
        found.sort(key=lambda one: (float(one.item.score), one.record.created_at, one.record.job_id))
        chosen = items_to_start(store, [(one.job.jobs[0], one.record.created_at) for one in found])
        return sum(self._claim(found[index]) for index in chosen) > 0

    def _candidate(self, row: Any, now: float) -> _Candidate | None:
        """Returns an item that may be taken; sets aside what is no item."""
        item, place, text, arguments_text = row
        if text is None:
            since = self._without_record.setdefault(item, now)
            if now - since >= self._times.record_wait:
                self._queue.run(REJECT, item, "it has no record", "")
            return None
        try:
            record = parse_record(text, item)
            arguments = Arguments() if arguments_text is None else parse_arguments(arguments_text)
        except RecordError as error:
            log.warning("item %s is set aside: %s", item, error)
            self._queue.run(REJECT, item, str(error), text)
            return None
        if record.status != "queued" or item in self._not_before:
            return None
        if sum(size >= record.gpu_memory_mb for size in self._sizes) < record.num_gpus:
            return None
        need = (record.model_script, record.gpu_memory_mb, record.num_gpus, record.priority, arguments)
        job = self._checked(*need)
        if isinstance(job, str):
            self._lacks[item] = job
            return None
        return _Candidate(TakenItem(item, "", 0, place, text, arguments_text), record, job)

    def _check(
        self, script: str, memory_mb: int, gpus: int, priority: int, arguments: Arguments
    ) -> Submission | str:
        """Returns the job of an item, or why it cannot run here, for example that its script is missing.

        The answer is remembered until the next beat.
        """
        attributes: dict[str, Any] = {
            "gpus": str(gpus), "priority": str(priority),
            "env": [f"{name}={value}" for name, value in arguments.env],
        }  # fmt: skip
        if memory_mb and gpus:
            attributes["vram"] = str(memory_mb)
        if priority == 0:
            attributes["preempt"] = True
        if arguments.cwd is not None:
            attributes["cwd"] = arguments.cwd
        new = NewJob(script=script, arguments=arguments.args, attributes=attributes)
        try:
            return check_jobs(self._location, [new], os.environ, self._folder)
        except UsageError as error:
            return str(error).partition(";")[0][:200]

    def _claim(self, found: _Candidate) -> bool:
        """Takes an item and inserts its job, which waits for the confirmation."""
        item, name = found.item, found.item.redis_id
        answer: Any = self._queue.run(
            CLAIM, name, self._box, secrets.token_hex(16), item.record, self._number, self._times.open_wait
        )
        if not isinstance(answer, list):
            return False
        item = replace(item, fence=answer[0])
        try:
            insert_gated(self._location, found.job, f"redis:{name}", lambda made: replace(item, job_id=made))
        except Exception as error:  # noqa: BLE001 - no other item must suffer
            log.warning("item %s is given back: %s: %s", name, type(error).__name__, error)
            self._give_back(item)
            return False
        return True
