"""Connects to a queue in Redis, submits items to it, changes them, and lists who holds them."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import asdict

from gpu_scheduler.config import REDIS_URL_VARIABLE
from gpu_scheduler.core.text.formatting import HIDDEN, hidden_password
from gpu_scheduler.errors import NoSuchJobError, SchedulerError, UsageError, missing_package
from gpu_scheduler.redis_queue import scripts
from gpu_scheduler.redis_queue.records import (
    Arguments,
    Record,
    RecordError,
    parse_arguments,
    parse_record,
    record_or_problem,
)

if TYPE_CHECKING:
    import redis

DEFAULT_URL = "redis://localhost:6379/0"
#: Number of items that are read from the front of the queue.
LOOK_LIMIT = 1000
_TIMEOUT_S = 5.0
#: What to do about errors that contain these texts.
_REMEDIES = {
    "HELLO must be called with the client already authenticated": (
        f"Redis requires a password; set {REDIS_URL_VARIABLE} to a URL with it, such as redis://:PASSWORD@HOST/0"
    ),
    "certificate verify failed": "for a CA of your own, end the URL with ?ssl_ca_certs=/PATH/ca.pem",
}
#: The options that a URL may have. Others may change what was checked, or how answers are read.
_URL_OPTIONS = ("db", "username", "password")
_TLS_OPTIONS = (
    "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_check_hostname",
)  # fmt: skip
#: Number of scripts that are sent without waiting for their answers.
_BATCH = 500


class Times(Struct, frozen=True):
    """The times of the protocol in seconds (docs/redis.md), divided by one factor for tests."""

    look: float = 1.0
    beat: float = 15.0
    silence: float = 60.0
    reading_gap: float = 20.0
    start: float = 60.0
    open_wait: float = 60.0
    first_wait: float = 5.0
    record_wait: float = 600.0
    longest_backoff: float = 30.0

    @classmethod
    def scaled(cls) -> Times:
        """Returns the times divided by GPU_SCHEDULER_REDIS_TIME_SCALE."""
        scale = float(os.environ.get("GPU_SCHEDULER_REDIS_TIME_SCALE", "1"))
        return cls(**{name: seconds / scale for name, seconds in asdict(cls()).items()})


def encoded(text: str) -> bytes:
    """Returns a text as it is stored; ids may contain any bytes."""
    return text.encode("utf-8", "surrogateescape")


def decoded(text: bytes) -> str:
    """Returns the text that `encoded` encodes to these bytes."""
    return text.decode("utf-8", "surrogateescape")


def decoded_pairs(found: Sequence[bytes]) -> dict[str, str]:
    """Returns the fields and values of a hash, as a script returns it."""
    return {decoded(key): decoded(value) for key, value in zip(found[::2], found[1::2], strict=True)}


def check_url(url: str) -> None:
    """Raises UsageError for a URL whose Redis must not be used. Its text shows no part that may be secret."""
    if HIDDEN in url:
        raise UsageError(f"the password of the Redis queue is stored nowhere; set {REDIS_URL_VARIABLE}")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise UsageError("--redis: give a URL such as redis://localhost:6379/0, rediss://… or unix:///PATH")
    try:
        parts = urlsplit(url)
        is_clear = url.count("@") == parts.netloc.count("@") < 2 and "#" not in url and parts.port != 0
    except ValueError:
        is_clear = False
    if not is_clear:
        raise UsageError("--redis: the URL is ambiguous; percent-encode /, ?, # and @ in the password")
    options = dict(one.partition("=")[::2] for one in parts.query.split("&") if one)
    if options.keys() - {*_URL_OPTIONS, *(_TLS_OPTIONS if parts.scheme == "rediss" else ())}:
        raise UsageError(
            f"--redis: the URL has an unknown option; known are {', '.join(_URL_OPTIONS)}; with rediss://"
            f" also {', '.join(_TLS_OPTIONS)}"
        )
    if parts.scheme != "unix" and not re.fullmatch("/?[0-9]*", parts.path):
        raise UsageError("--redis: the database in the URL is no number; end the URL with /0")
    host = parts.hostname or "localhost"
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if parts.scheme == "redis" and not (is_local or parts.password or options.get("password")):
        raise UsageError(
            f"--redis: whoever can write to the Redis on {host} runs code as you; give a password (best in"
            f" the variable {REDIS_URL_VARIABLE}) or use rediss://"
        )


def error_text(error: Exception) -> str:
    """Returns what Redis or the network says, with the remedy if it is known."""
    text = str(error) or type(error).__name__
    remedy = next((remedy for found, remedy in _REMEDIES.items() if found in text), None)
    if remedy is None:
        return text
    return remedy if text.startswith("HELLO") else f"{text}; {remedy}"


class Queue:
    """A connection to a queue. Raises UsageError for a missing package or a URL that must not be used."""

    def __init__(self, url: str) -> None:
        check_url(url)
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise missing_package("a Redis queue needs another package", "redis", error) from None
        names = ("socket_timeout", *["socket_connect_timeout"] * (urlsplit(url).scheme != "unix"))
        timeouts: dict[str, Any] = dict.fromkeys(names, _TIMEOUT_S)
        try:
            # A script is repeated by whoever knows whether that is safe, never by the connection.
            made = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **timeouts)
        except ValueError:
            raise UsageError(
                "--redis: an option of the URL has a wrong value, such as a db that is no number"
            ) from None
        self.url = hidden_password(url)
        self.redis: redis.Redis = made
        self.errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._scripts: dict[str, Any] = {}

    def run(self, script: str, *args: str | bytes | int | float) -> Any:
        """Runs a script and returns its answer."""
        return self._add(script, args, self.redis)

    def run_each(self, script: str, rows: Iterable[Sequence[str]]) -> None:
        """Runs a script for each of these arguments, in order, without waiting for each answer."""
        pipe = self.redis.pipeline(transaction=False)
        for row in rows:
            self._add(script, row, pipe)
            if len(pipe) == _BATCH:
                pipe.execute()
        pipe.execute()

    def _add(self, script: str, args: Sequence[str | bytes | int | float], client: Any) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self.redis.register_script(script)
        values = [encoded(one) if isinstance(one, str) else one for one in args]
        return self._scripts[script](args=values, client=client)

    def answers(self, error: Exception) -> bool:
        """Returns whether Redis has answered with this error."""
        import redis

        return isinstance(error, redis.RedisError) and not isinstance(
            error, redis.ConnectionError | redis.TimeoutError
        )

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Turns the errors of Redis in the block into a SchedulerError."""
        try:
            yield
        except self.errors as error:
            raise SchedulerError(f"{self.url}: {error_text(error)}") from None

    def warnings(self) -> list[str]:
        """Returns what may lose items of the queue, with the remedies."""
        found: dict[str, Any] = {}
        for name in ("appendonly", "maxmemory-policy"):
            with suppress(*self.errors):  # the user of the URL may not ask
                answer: Any = self.redis.config_get(name)
                found |= answer
        made = []
        if found.get("appendonly") == "no":
            made.append(
                "Redis may lose the submissions of the last minutes when it is killed (appendonly no); set"
                " `appendonly yes` in redis.conf"
            )
        if (policy := found.get("maxmemory-policy", "noeviction")) != "noeviction":
            made.append(
                f"Redis may evict items of the queue (maxmemory-policy {policy}); set"
                " `maxmemory-policy noeviction` in redis.conf"
            )
        return made

    def record(self, item: str) -> Record | str:
        """Returns the record of an item, or why it has none."""
        text: Any = self.redis.get(b"scheduler:job:" + encoded(item))
        return record_or_problem(text, item)

    def submit(self, record: Record, arguments: Arguments | None) -> None:
        """Adds an item. Its record is there before its id is in the queue.

        Raises UsageError for one that the boxes would set aside.
        """
        try:
            parse_record(record.to_json().encode(), record.job_id)
            parse_arguments((arguments or Arguments()).to_json().encode())
        except RecordError as error:
            raise UsageError(f"the boxes would set this item aside: {error}") from None
        pipe = self.redis.pipeline(transaction=True)
        if arguments is not None:
            pipe.set(f"gpusched:arguments:{record.job_id}", arguments.to_json())
        pipe.set(f"scheduler:job:{record.job_id}", record.to_json())
        pipe.zadd("scheduler:queue", {record.job_id: record.score})
        pipe.execute()

    def cancel(self, item: str) -> str:
        """Cancels an item. Returns what was done."""
        record = self.record(item)
        failed = record.with_status("failed").to_json() if isinstance(record, Record) else ""
        answer = self.run(scripts.CANCEL, item, failed)
        if answer == b"none":
            raise NoSuchJobError(f"item {item} is neither in the queue at {self.url} nor on a box")
        return "cancelled" if answer == b"cancelled" else "its box has been asked to cancel it"

    def again(self, item: str, verb: str) -> str:
        """Queues a claimed item (`requeue`) or an ended one (`retry`) again. Returns what was done."""
        found = self.record(item)
        if isinstance(found, str):
            raise NoSuchJobError(f"item {item} at {self.url} cannot be queued again: {found}")
        record = found.with_status("queued")
        answer = self.run(scripts.AGAIN, item, record.to_json(), repr(record.score), verb)
        refusals = {
            b"queued": "is in the queue already",
            b"claimed": "is on a box; `redis-queue requeue` gives it back, and it may then run twice",
            b"elsewhere": "is run by no box of this queue, but by another program; if that is gone,"
            " `redis-queue requeue` queues it again",
            b"unclaimed": "is on no box; `redis-queue retry` queues it again",
        }
        if answer in refusals:
            raise SchedulerError(f"item {item} {refusals[answer]}")
        return "queued again"

    def accept_loss(self) -> str:
        """Opens the queue although boxes have not reported since Redis lost data. Returns what was done."""
        number: Any = self.redis.hget("gpusched:run", "number")
        if number is None or not self.run(scripts.REPORT, "", "", number, "1"):
            raise SchedulerError("no box has reported since Redis was started; start one first")
        return "claims no longer wait for boxes that have not reported"

    def listing(self) -> dict[str, Any]:
        """Returns the boxes, the first items of the queue, who holds what, and what was set aside."""
        number, at, _, items = self.run(scripts.LOOK, LOOK_LIMIT, 0)
        found, claims, length, now, aside = self.run(scripts.LIST)
        boxes = {box: json.loads(text) for box, text in decoded_pairs(found).items()}
        for box in boxes.values():
            box["reported"] = number is not None and box.get("run") == decoded(number)
        return {
            "url": self.url, "open": at is not None, "length": length, "boxes": boxes,
            "opens_in_s": None if at is None else max(0.0, float(at) + Times.scaled().open_wait - float(now)),
            "waiting": [_waiting(decoded(row[0]), row[2], boxes.values()) for row in items],
            "claims": [_claim(row, boxes, now) for row in sorted(claims)],
            "rejected": [json.loads(text.decode("utf-8", "replace")) for text in aside],
        }  # fmt: skip


def new_item(script: str, memory_mb: int, gpus: int, priority: int) -> Record:
    """Returns a new record, as the producer of the source document makes it."""
    return Record(script, memory_mb, gpus, priority, uuid.uuid4().hex[:12], "queued", (), time.time(), None)


def _waiting(item: str, text: bytes | None, boxes: Collection[dict[str, Any]]) -> dict[str, Any]:
    lacking = {str(box.get("host")): box["lacks"][item] for box in boxes if item in box.get("lacks", ())}
    row: dict[str, Any] = {"id": item, "script": None, "priority": None, "lacking": lacking, "fits": None}
    record = record_or_problem(text, item)
    if isinstance(record, str):
        return {**row, "problem": record}
    large = [sum(size >= record.gpu_memory_mb for size in box.get("gpus", ())) for box in boxes]
    return {
        **row, "script": record.model_script, "priority": record.priority, "memory_mb": record.gpu_memory_mb,
        "num_gpus": record.num_gpus, "status": record.status,
        "fits": max(large) >= record.num_gpus if large else None,
    }  # fmt: skip


def _claim(row: Sequence[Any], boxes: Mapping[str, dict[str, Any]], now: float) -> dict[str, Any]:
    item, box = decoded(row[0]), decoded(row[1])
    known = boxes.get(box, {})
    silent = max(0.0, now - known.get("at", 0.0)) if known else 0.0
    return {
        "id": item, "box": box, "host": known.get("host"),
        "status": getattr(record_or_problem(row[5], item), "status", None),
        "since": float(row[4]), "confirmed": row[3] == b"1",
        "silent_s": silent if silent > 3 * Times.scaled().beat else None,
        "has_job": item not in known.get("without_job", ()),
    }  # fmt: skip
