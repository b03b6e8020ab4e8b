"""Takes items of a queue in Redis as jobs of this store, and writes their ends back (docs/redis.md).

Each step is derived from the store and from Redis, so an agent that was killed between two steps goes on with
the next one. All it remembers by itself are times and what it is about to give back; losing that is safe.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.app import redis_items
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.app.submit import NewJob, Submission, check_jobs, insert_gated
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.redis_queue import scripts
from gpu_scheduler.redis_queue.queue import LOOK_LIMIT, Queue, Times, decoded
from gpu_scheduler.redis_queue.records import (
    Arguments,
    Record,
    RecordError,
    parse_arguments,
    parse_record,
)
from gpu_scheduler.store.location import recorded_location, refuse_copy
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import (
    TakenItem,
    box_id,
    forget_items,
    kept_items,
    open_items,
    set_item,
    set_redis_problem,
)

log = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class _Candidate:
    """An item that may be taken. text, place: its record and its score as read."""

    item: str
    score: float
    text: bytes
    record: Record
    place: str
    checked: Submission


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
        self._lacks: set[str] = set()
        self._without_job: list[str] = []
        self._returning: set[str] = set()
        self._cancelling: set[str] = set()
        self._unseen: set[str] = set()
        self._started_waiting: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._without_record: dict[str, float] = {}
        self._checked: dict[tuple[Any, ...], tuple[float, Submission | None]] = {}
        self._data_version: int | None = None

    def run(self) -> None:
        """Works until the process is asked to end. Redis may be away for any time."""
        create_missing_store(self._location)
        with open_store(self._location) as store:
            refuse_copy(store)
            if recorded_location(store) is None:
                log.info("waiting for `start` to give this store an id")
            while recorded_location(store) is None:
                time.sleep(_STORE_POLL_S)
            self._box, is_new = box_id(store)
            if is_new:
                items = open_items(store)
                jobs = redis_items.jobs_of(store, [one.job_id for one in items])
                forget_items(store, [key for key, job in jobs.items() if not job.is_gated])
            backoff, has_warned = 0.0, False
            while True:
                try:
                    self.round(store)
                    if not has_warned:
                        has_warned = True
                        for text in self._queue.warnings():
                            log.warning("%s", text)
                    set_redis_problem(store, None)
                    if backoff:
                        log.info("%s can be reached again", self._queue.url)
                    backoff = 0.0
                    self._wait(store, self._times.look)
                except self._queue.errors as error:
                    self._silence.forget()
                    text = str(error) or type(error).__name__
                    if not backoff:
                        log.warning("%s: %s; the jobs of this box continue", self._queue.url, text)
                        set_redis_problem(store, f"{self._queue.url}: {text}")
                    backoff = min(max(self._times.look, 2 * backoff), self._times.longest_backoff)
                    time.sleep(backoff)

    def _wait(self, store: Store, seconds: float) -> None:
        """Waits for the next look at Redis, or until the store changes."""
        end = time.monotonic() + seconds
        while store.db.data_version == self._data_version and (left := end - time.monotonic()) > 0:
            time.sleep(min(_STORE_POLL_S, left))

    def round(self, store: Store) -> None:
        """Does all that is due now."""
        self._data_version = store.db.data_version
        number, at, cancelled, items = self._queue.run(scripts.LOOK, LOOK_LIMIT)
        if number is None or decoded(number) != self._number or at is None:
            at = self._report(store, None if number is None else decoded(number), is_open=at is not None)
        now = time.monotonic()
        self._settle(store, now, {decoded(one) for one in cancelled})
        if now >= self._beat_due:
            self._beat_due = now + self._times.beat
            self._beat(store, now)
        if at and self._take(store, items, now):
            self._settle(store, now, set())

    # A new run of Redis

    def _report(self, store: Store, number: str | None, *, is_open: bool) -> bool:
        """Writes the claims of this box back if this is a new run of Redis. Returns whether it is open."""
        if number is None:
            knows_nothing = not kept_items(store) and store.db.meta(_RUN_KEY) is None
            waits = self._times.open_wait, self._times.first_wait
            number = decoded(
                self._queue.run(scripts.BEGIN, secrets.token_hex(8), "1" if knows_nothing else "0", *waits)
            )
        if number != store.db.meta(_RUN_KEY):
            log.info("Redis has been started or has lost its data; this box writes its claims back")
            self._restore(store)
            self._silence.forget()
            self._beat_due = 0.0
            store.db.set_meta(_RUN_KEY, number)
        self._number = number
        return self._describe(store) or is_open

    def _restore(self, store: Store) -> None:
        items = [one for one in kept_items(store) if one.state != "second"]
        jobs = redis_items.jobs_of(store, [one.job_id for one in items if one.state != "ended"])
        for item in items:
            job = jobs.get(item.job_id)
            confirmed = job is None or not job.is_gated
            is_ended = item.state == "ended"
            self._queue.run(
                scripts.RESTORE, item.redis_id, self._box, item.fence, item.score,
                "1" if is_ended else "0", "1" if confirmed else "0",
            )  # fmt: skip

    def _describe(self, store: Store) -> bool:
        """Writes what others should know of this box. Returns whether the run of Redis is open."""
        seconds: Any = self._queue.redis.time()
        box = {
            "host": socket.gethostname(), "folder": self._folder, "at": seconds[0], "run": self._number,
            "gpus": sorted((gpu.total_mib or 0 for gpu in store.gpus()), reverse=True),
            "lacks": sorted(self._lacks)[:100], "without_job": self._without_job[:100],
            "second": [one.redis_id for one in open_items(store) if one.state == "second"],
        }  # fmt: skip
        known = json.loads(store.db.meta(_BOXES_KEY) or "[]")
        return bool(self._queue.run(scripts.REPORT, self._box, json.dumps(box), self._number, "0", *known))

    # The items of this box

    def _settle(self, store: Store, now: float, cancelled: set[str]) -> None:
        """Does the next step for each item that this box has taken and whose end is not written back."""
        items = open_items(store)
        jobs = redis_items.jobs_of(store, [one.job_id for one in items]) if items else {}
        confirmed, ended = [], []
        for item in items:
            job = jobs.get(item.job_id)
            if job is None:  # its job was forgotten
                job = redis_items.TakenJob("failed", (), None, is_gated=False, may_return=False)
            is_live = job.status in ("queued", "running")
            if item.redis_id in cancelled and is_live and item.fence not in self._cancelling:
                self._cancelling.add(item.fence)
                ended.append(item.job_id)
            if job.is_gated:
                if self._is_allowed(store, item):
                    confirmed.append(item.job_id)
            else:
                self._follow(store, item, job, now)
        redis_items.request(store, "cancel", ended)
        redis_items.request(store, "confirm", confirmed)
        fences = {one.fence for one in items}
        self._returning &= fences
        self._cancelling &= fences
        self._started_waiting = {key: at for key, at in self._started_waiting.items() if key in fences}

    def _is_allowed(self, store: Store, item: TakenItem) -> bool:
        """Returns whether a job that waits for its confirmation may start. Ends what must not start here."""
        mine = (item.redis_id, self._box, item.fence)
        if item.fence in self._returning:
            answer = self._queue.run(scripts.GIVE_BACK, *mine, "", "1", "", self._number)
            if answer == -1:
                return False
            if answer == 1:
                log.info("item %s did not start here and is in the queue again", item.redis_id)
                self._not_before[item.redis_id] = time.monotonic() + self._times.start
            redis_items.give_up(store, item)
            return False
        answer = self._queue.run(scripts.CONFIRM, *mine, self._number, self._times.open_wait)
        if answer == 0:
            log.warning(
                "item %s belongs to another box or is cancelled; it does not start here", item.redis_id
            )
            redis_items.give_up(store, item)
        return bool(answer == 1)

    def _follow(self, store: Store, item: TakenItem, job: redis_items.TakenJob, now: float) -> None:
        """Writes the status of a job back. Asks for the return of one that does not start."""
        is_over = job.status in ("completed", "failed")
        if job.may_return:
            since = self._started_waiting.setdefault(item.fence, now)
            if now - since >= self._times.start:
                self._returning.add(item.fence)
                redis_items.request(store, "unconfirm", [item.job_id])
                return
        text = json.dumps([job.status, job.gpus, job.pid])
        if text == item.written and item.fence not in self._unseen:
            return
        self._unseen.discard(item.fence)
        if item.state == "open":
            record = parse_record(item.record.encode(), item.redis_id).with_status(
                job.status, job.gpus, job.pid
            )
            mine = (item.redis_id, self._box, item.fence)
            ended = "1" if is_over else "0"
            answer = self._queue.run(scripts.WRITE_BACK, *mine, record.to_json(), ended, self._number)
            if answer == 1:
                set_item(store, item, "ended" if is_over else "open", text)
            if answer != 0:
                return
            if job.may_return:
                redis_items.give_up(store, item)
                return
            if not is_over:
                log.warning(
                    "item %s was given to another box; job %d goes on, so it may run twice", item.redis_id,
                    item.job_id,
                )  # fmt: skip
        set_item(store, item, "gone" if is_over else "second", text)

    # Other boxes

    def _beat(self, store: Store, now: float) -> None:
        """Raises the counter of this box, and gives back what silent boxes and lost jobs hold."""
        redis = self._queue.redis
        redis.hincrby("gpusched:counter", self._box, 1)
        found: Any = redis.hgetall("gpusched:counter")
        counters = {decoded(box): decoded(counter) for box, counter in found.items()}
        boxes: Any = redis.hkeys("gpusched:boxes")
        known = json.dumps(sorted(map(decoded, boxes)))
        if known != store.db.meta(_BOXES_KEY):
            store.db.set_meta(_BOXES_KEY, known)
        silent = self._silence.read({box: one for box, one in counters.items() if box != self._box}, now)
        mine = {(one.redis_id, one.fence) for one in kept_items(store)}
        # Somebody may have requeued what runs here, or a new run of Redis has no claim of it.
        self._unseen = {one.fence for one in open_items(store) if one.state == "open"}
        self._without_job = []
        claims: Any = redis.smembers("gpusched:claims")
        for key in sorted(claims):
            item = decoded(key)
            claim: Any = redis.hgetall(b"gpusched:claim:" + key)
            box, fence = (decoded(claim.get(name, b"")) for name in (b"box", b"fence"))
            if not fence:
                continue
            self._unseen.discard(fence)
            is_confirmed = claim.get(b"confirmed") == b"1"
            if box == self._box and (item, fence) not in mine:
                if is_confirmed:
                    self._without_job.append(item)  # the store was lost, so its job may have run
                else:
                    self._queue.run(scripts.GIVE_BACK, item, box, fence, "", "0", "", self._number)
            elif box in silent:
                also_confirmed = self._requeue_after is not None and silent[box] >= self._requeue_after
                record = self._queued_record(key) if also_confirmed and is_confirmed else ""
                given = (item, box, fence, counters[box], "1" if also_confirmed else "0", record)
                if self._queue.run(scripts.GIVE_BACK, *given, self._number) == 1:
                    log.warning("box %s is silent; item %s is in the queue again", box, item)
        self._describe(store)

    def _queued_record(self, key: bytes) -> str:
        text: Any = self._queue.redis.get(b"scheduler:job:" + key)
        try:
            return parse_record(text or b"", decoded(key)).with_status("queued").to_json()
        except RecordError:
            return ""

    # New items

    def _take(self, store: Store, items: list[Any], now: float) -> bool:
        """Takes the items that would start here. Returns whether there are any."""
        if scheduler_pid_of(store) is None:
            return False
        self._lacks = set()
        known = {decoded(one[0]) for one in items}
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        self._without_record = {key: at for key, at in self._without_record.items() if key in known}
        found = [one for row in items if (one := self._candidate(store, row, now)) is not None]
        found.sort(key=lambda one: (one.score, one.record.created_at, one.item))
        specs: list[tuple[JobSpec, float]] = [(one.checked.jobs[0], one.record.created_at) for one in found]
        chosen = redis_items.items_to_start(store, specs)
        return sum(self._claim(found[index]) for index in chosen) > 0

    def _candidate(self, store: Store, row: Any, now: float) -> _Candidate | None:
        """Returns an item that may be taken; sets aside what is no item."""
        item, score, text = decoded(row[0]), float(row[1]), row[2]
        if text is None:
            since = self._without_record.setdefault(item, now)
            if now - since >= self._times.record_wait:
                self._queue.run(scripts.REJECT, item, "it has no record", "")
            return None
        try:
            if not isinstance(text, bytes):
                raise RecordError(
                    "the record is larger than 65536 bytes" if text else "the record is no text"
                )
            record = parse_record(text, item)
            arguments = Arguments() if row[3] is None else parse_arguments(row[3])
        except RecordError as error:
            log.warning("item %r is set aside: %s", item, error)
            self._queue.run(scripts.REJECT, item, str(error), text if isinstance(text, bytes) else "")
            return None
        if record.status != "queued" or item in self._not_before:
            return None
        checked = self._check(record, arguments, now)
        if checked is None:
            self._lacks.add(item)
            return None
        return _Candidate(item, score, text, record, decoded(row[1]), checked)

    def _check(self, record: Record, arguments: Arguments, now: float) -> Submission | None:
        """Returns the job of an item; None if it cannot run here, for example because its script is missing.

        The answer is remembered until the next beat.
        """
        key = (record.model_script, record.gpu_memory_mb, record.num_gpus, record.priority, arguments)
        known = self._checked.get(key)
        if known is None or now >= known[0]:
            if len(self._checked) > 2 * LOOK_LIMIT:
                self._checked.clear()
            self._checked[key] = known = now + self._times.beat, self._checked_job(record, arguments)
        return known[1]

    def _checked_job(self, record: Record, arguments: Arguments) -> Submission | None:
        attributes: dict[str, Any] = {
            "vram": str(record.gpu_memory_mb), "gpus": str(record.num_gpus), "priority": str(record.priority),
            "env": [f"{name}={value}" for name, value in arguments.env],
        }  # fmt: skip
        if record.gpu_memory_mb == 0 or record.num_gpus == 0:
            del attributes["vram"]
        if record.priority == 0:
            attributes["preempt"] = True
        if arguments.cwd is not None:
            attributes["cwd"] = arguments.cwd
        new = NewJob(script=record.model_script, arguments=arguments.args, attributes=attributes)
        try:
            return check_jobs(self._location, [new], os.environ, self._folder)
        except UsageError:
            return None

    def _claim(self, found: _Candidate) -> bool:
        """Takes an item and inserts its job, which waits for the confirmation."""
        answer: Any = self._queue.run(
            scripts.CLAIM, found.item, self._box, secrets.token_hex(16), found.text, self._number,
            self._times.open_wait,
        )  # fmt: skip
        if not isinstance(answer, list):
            return False
        fence = decoded(answer[0])
        record = found.text.decode()

        def item(job_id: int) -> TakenItem:
            return TakenItem(found.item, fence, job_id, found.place, record)

        try:
            insert_gated(self._location, found.checked, f"redis:{found.item}", item)
        except SchedulerError as error:
            log.warning("item %s is given back: %s", found.item, error)
            self._queue.run(scripts.GIVE_BACK, found.item, self._box, fence, "", "0", "", self._number)
            self._not_before[found.item] = time.monotonic() + self._times.start
            return False
        return True
