"""A queue in Redis: the records that it holds, the scripts that change them, and the connection to it.

The keys of the source document are `scheduler:queue` and `scheduler:job:ID`; all others begin with
`gpusched:` (docs/redis.md). Its programs read and write the records too, so nothing is added to them.
"""

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
from msgspec.structs import asdict, replace

from gpu_scheduler.config import REDIS_URL_VARIABLE
from gpu_scheduler.core.text.formatting import HIDDEN, hidden_password
from gpu_scheduler.core.text.parsing import parse_json
from gpu_scheduler.errors import NoSuchJobError, SchedulerError, UsageError, missing_package

if TYPE_CHECKING:
    import redis

DEFAULT_URL = "redis://localhost:6379/0"
#: Number of items that are read from the front of the queue.
LOOK_LIMIT = 1000
#: How a text has bytes that are no UTF-8.
_ERRORS = "surrogateescape"
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


_STATUSES = ("queued", "running", "completed", "failed")
#: Longest accepted record in bytes.
MAX_BYTES = 64 * 1024
_MAX_TIME = 1e10
#: The largest value of each whole number.
_MOST = {"gpu_memory_mb": 1 << 30, "num_gpus": 1024, "priority": 1_000_000}


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
    """Returns a text of Redis, in which ids and records may have any bytes, as these bytes."""
    return text.encode("utf-8", _ERRORS)


def pairs(found: Sequence[str]) -> dict[str, str]:
    """Returns the fields and values of a hash, as a script returns it."""
    return dict(zip(found[::2], found[1::2], strict=True))


# The records: JSON objects of exactly nine fields.


class RecordError(ValueError):
    """Raised for a text that is no record. Its message says why."""


class Record(Struct, frozen=True):
    """An item of the queue, with the fields of the source document in their order."""

    model_script: str
    gpu_memory_mb: int
    num_gpus: int
    priority: int
    job_id: str
    status: str
    assigned_gpus: tuple[int, ...]
    created_at: float
    pid: int | None

    @property
    def score(self) -> float:
        """The place in the queue, lowest first."""
        return self.priority * 1e10 + self.created_at

    def to_json(self) -> str:
        """Returns the text of the record."""
        return json.dumps(asdict(self))

    def with_status(self, status: str, gpus: Sequence[int] = (), pid: int | None = None) -> Record:
        """Returns the record with another status."""
        return replace(self, status=status, assigned_gpus=tuple(gpus), pid=pid)


class Arguments(Struct, frozen=True):
    """The arguments, the folder and the variables of a script, which `redis-submit` adds to its record."""

    args: tuple[str, ...] = ()
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        """Returns the text that `parse_arguments` reads."""
        return json.dumps({"args": self.args, "cwd": self.cwd, "env": dict(self.env)})


def parse_record(text: str, job_id: str) -> Record:
    """Returns the record of an item. Raises RecordError."""
    values = _object(text, "the record")
    names = set(Record.__struct_fields__)
    if wrong := sorted(names ^ values.keys()):
        raise RecordError(f"field {wrong[0][:40]!r} is {'missing' if wrong[0] in names else 'unknown'}")
    script, gpus, created_at, pid = (
        values[name] for name in ("model_script", "assigned_gpus", "created_at", "pid")
    )
    is_list = isinstance(gpus, list) and len(gpus) <= _MOST["num_gpus"]

    def number(name: str, value: object, least: int, most: int) -> tuple[str, bool, str]:
        is_right = type(value) is int and least <= value <= most
        return name, is_right, f"no whole number from {least} to {most}"

    for name, is_right, otherwise in (
        (
            "model_script",
            isinstance(script, str) and 0 < len(script) <= 4096 and script.isprintable(),
            "no text of 1 to 4096 printable characters",
        ),
        *(number(name, values[name], 0, most) for name, most in _MOST.items()),
        ("job_id", values["job_id"] == job_id, "not the id of the item"),
        ("status", values["status"] in _STATUSES, f"none of {', '.join(_STATUSES)}"),
        ("assigned_gpus", is_list, "no list of GPUs"),
        *(number("assigned_gpus", gpu, 0, _MOST["num_gpus"]) for gpu in (gpus if is_list else ())),
        (
            "created_at",
            type(created_at) in (int, float) and 0 <= created_at < _MAX_TIME,
            "no time in seconds since 1970",
        ),
        number("pid", 1 if pid is None else pid, 1, 1 << 32),
    ):
        if not is_right:
            raise RecordError(f"field {name!r} is {otherwise}")
    return Record(**{**values, "assigned_gpus": tuple(gpus)})


def record_or_problem(text: str | None, job_id: str) -> Record | str:
    """Returns the record of an item, or why it has none."""
    try:
        return "it has no record" if text is None else parse_record(text, job_id)
    except RecordError as error:
        return str(error)


def parse_arguments(text: str) -> Arguments:
    """Returns what `redis-submit` has added to a record. Raises RecordError."""
    values = _object(text, "the text of its arguments")
    args, cwd, env = (values.get(name) for name in ("args", "cwd", "env"))
    if len(values) != 3 or not isinstance(args, list) or not isinstance(env, dict):
        raise RecordError("its arguments are no object of args, cwd and env")
    for word in (*args, *env, *env.values(), *([cwd] if cwd is not None else [])):
        if not isinstance(word, str) or "\0" in word:
            raise RecordError("its arguments are no texts")
    for name in env:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise RecordError(f"{name[:40]!r} is no name of a variable; use letters, digits and _")
    return Arguments(tuple(args), cwd, tuple(sorted(env.items())))


def _object(text: str, what: str) -> dict[str, Any]:
    data = encoded(text)
    if len(data) > MAX_BYTES:
        raise RecordError(f"{what} is larger than {MAX_BYTES} bytes")
    try:
        values = parse_json(data.decode("utf-8"))
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError("the record has a text that is no UTF-8") from None
    except (ValueError, RecursionError):
        raise RecordError(f"{what} is not JSON") from None
    if not isinstance(values, dict):
        raise RecordError(f"{what} is no JSON object")
    return values


# The scripts, in Lua: no other command runs in the middle of one. Redis undoes nothing if a command of a
# script fails, for example because the user may not use it. So each one writes what takes the place of an id
# before it takes the id out of the queue. Every script that acts for a box compares the box and the fence of
# the claim.

#: A claim of an item: box, fence, score, at, confirmed and ended ("0" or "1"). After the item was given back,
#: requeued or retried, the fence is "" and `was` is the last one. A fence is TURN:RANDOM; the turn counts the
#: claims of the item, so that after a rollback the newest one is known. `run` is the run of Redis that
#: `begin` recorded: run_id, number (a random text) and at, the time from which it is open; "" until it is.
#: `text` is the value of a key as a text (false: none; "": it is no text), with one byte more than a record
#: may have at most.
_COMMON = """
local QUEUE, CLAIMS = 'scheduler:queue', 'gpusched:claims'
local function record(id) return 'scheduler:job:' .. id end
local function claim(id) return 'gpusched:claim:' .. id end
local function of(id) local c = {} local v = redis.call('HGETALL', claim(id))
  for i = 1, #v, 2 do c[v[i]] = v[i + 1] end return c end
local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
local function process() return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') end
local function run() local r = redis.call('HMGET', 'gpusched:run', 'run_id', 'number', 'at')
  if r[1] ~= process() then return false, '' end return r[2], r[3] end
local function is_open(number, wait) local n, at = run()
  return n == number and at ~= '' and now() - at >= tonumber(wait) end
local function is_mine(c, box, fence) return fence ~= '' and c.box == box and c.fence == fence end
local function is_held(c) return c.fence and c.fence ~= '' and c.ended ~= '1' end
local function turn(fence) return tonumber(string.match(fence or '', '^(%d+):')) or 0 end
local function last(c) return c.fence and c.fence ~= '' and c.fence or c.was or '' end
local function arguments(id) return 'gpusched:arguments:' .. id end
local function expire(key) redis.call('EXPIRE', key, 2592000) end
local function close(id) redis.call('SREM', CLAIMS, id) expire(claim(id)) end
local function finish(id)
  redis.call('HSET', claim(id), 'ended', '1') close(id) expire(arguments(id)) end
local function hold(id, box, fence, score, at, confirmed)
  redis.call('HSET', claim(id), 'box', box, 'fence', fence, 'score', score, 'at', at, 'confirmed', confirmed,
    'ended', '0')
  redis.call('SADD', CLAIMS, id) redis.call('PERSIST', claim(id)) redis.call('PERSIST', arguments(id))
  redis.call('ZREM', QUEUE, id) end
local function free(id, c, score) redis.call('ZADD', QUEUE, score, id)
  redis.call('HSET', claim(id), 'fence', '', 'was', last(c), 'ended', '0')
  close(id) redis.call('PERSIST', arguments(id)) end
local function text(key) local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return false end
  return kind == 'string' and redis.call('GETRANGE', key, 0, 65536) or '' end
local function held() local found = {}
  for _, id in ipairs(redis.call('SMEMBERS', CLAIMS)) do local c = of(id)
    if is_held(c) then found[#found + 1] = {id, c.box or '', c.fence, c.confirmed or '0', c.at or '0',
      text(record(id))} end end
  return found end
local function reject(id, why)
  local name = #id > 128 and redis.sha1hex(id) or id
  redis.call('SET', 'gpusched:rejected:' .. name, cjson.encode({id = string.sub(name, 1, 128), reason = why,
    at = now()}))
  redis.call('ZADD', 'gpusched:rejected', now(), name)
  for _, old in ipairs(redis.call('ZRANGE', 'gpusched:rejected', 0, -1001)) do
    redis.call('ZREM', 'gpusched:rejected', old) redis.call('DEL', 'gpusched:rejected:' .. old) end
  expire(arguments(id)) redis.call('ZREM', QUEUE, id) end
"""


def _script(text: str) -> str:
    return _COMMON + text


#: The state of the queue: the number of the run (false: `begin` is due), whether it is open, the ids to
#: cancel and, for each item, its id, score, record and arguments. ARGV: limit, number of items to skip.
LOOK = _script("""
local number, at = run()
local found = {}
local ids = redis.call('ZRANGE', QUEUE, ARGV[2], ARGV[2] + ARGV[1] - 1, 'WITHSCORES')
for i = 1, #ids, 2 do local id = ids[i]
  if #id > 128 then reject(id, 'the id is longer than 128 bytes')
  else found[#found + 1] = {id, ids[i + 1], text(record(id)), text(arguments(id))} end end
return {number, at ~= '' and at or false, redis.call('SMEMBERS', 'gpusched:cancelled'), found}
""")

#: Records a new run of Redis unless another agent has. ARGV: number, whether the box knows nothing of this
#: queue, wait, first wait. Returns the number.
BEGIN = _script("""
local number = run()
if number then return number end
local is_first = redis.call('EXISTS', 'gpusched:run', 'gpusched:boxes', CLAIMS, 'gpusched:counter') == 0
local at = is_first and ARGV[2] == '1' and string.format('%.6f', now() - ARGV[3] + ARGV[4]) or ''
redis.call('HSET', 'gpusched:run', 'run_id', process(), 'number', ARGV[1], 'at', at)
return ARGV[1]
""")

#: Writes one item back after a new run. ARGV: id, box, fence, score, ended, confirmed, record, arguments ("":
#: none). Returns "mine", "ended" (Redis knows that; the id may be used again), "again" (it was given back,
#: requeued or retried since) or "other" (another box has it).
RESTORE = _script("""
local id, box, fence = ARGV[1], ARGV[2], ARGV[3]
local c = of(id)
local mine = is_mine(c, box, fence)
if c.was == fence and c.fence == '' then return 'again' end
if mine and c.ended == '1' then return 'ended' end
if not mine and turn(fence) <= turn(last(c)) then return 'other' end
redis.call('SET', record(id), ARGV[7])
if ARGV[8] ~= '' then redis.call('SET', arguments(id), ARGV[8]) end
hold(id, box, fence, ARGV[4], c.at or now(), ARGV[6] == '1' and '1' or mine and c.confirmed or '0')
if ARGV[5] == '1' then finish(id) end
return 'mine'
""")

#: Opens the run if every box has reported. ARGV: box, its JSON, number, whether losses are accepted, the
#: boxes that it remembers … Returns 1 if it is open. Without a box, it only opens the run.
REPORT = _script("""
local number, at = run()
if number ~= ARGV[3] then return 0 end
for i = 5, #ARGV do redis.call('HSETNX', 'gpusched:boxes', ARGV[i], '{}') end
if ARGV[1] ~= '' then redis.call('HSET', 'gpusched:boxes', ARGV[1], ARGV[2]) end
if at ~= '' then return 1 end
local boxes = redis.call('HGETALL', 'gpusched:boxes')
for i = 1, #boxes, 2 do
  if cjson.decode(boxes[i + 1]).run ~= number then
    if ARGV[4] == '0' then return 0 end
    redis.call('HDEL', 'gpusched:boxes', boxes[i]) redis.call('HDEL', 'gpusched:counter', boxes[i]) end end
redis.call('HSET', 'gpusched:run', 'at', string.format('%.6f', now()))
return 1
""")

#: Raises the counter of a box. ARGV: box. Returns the counters, the boxes and, for each item that is held,
#: its id, box, fence, whether it is confirmed, the time of its claim, and its record.
BEAT = _script("""
redis.call('HINCRBY', 'gpusched:counter', ARGV[1], 1)
return {redis.call('HGETALL', 'gpusched:counter'), redis.call('HKEYS', 'gpusched:boxes'), held()}
""")

#: Takes an item out of the queue. ARGV: id, box, random text, record, number, wait. Returns the fence in a
#: list, or why not.
CLAIM = _script("""
local id = ARGV[1]
if not is_open(ARGV[5], ARGV[6]) then return 'run' end
local c, score = of(id), redis.call('ZSCORE', QUEUE, id)
if not score then return 'gone' end
if is_held(c) then return 'taken' end
if text(record(id)) ~= ARGV[4] then return 'changed' end
local fence = turn(last(c)) + 1 .. ':' .. ARGV[3]
hold(id, ARGV[2], fence, score, now(), '0')
return {fence}
""")

#: Lets a claimed item start. ARGV: id, box, fence, number, wait. Returns 1, 0 (never start it) or
#: -1 (not yet).
CONFIRM = _script("""
if not is_open(ARGV[4], ARGV[5]) then return -1 end
local c = of(ARGV[1])
if not is_mine(c, ARGV[2], ARGV[3]) or c.ended == '1' then return 0 end
redis.call('HSET', claim(ARGV[1]), 'confirmed', '1')
return 1
""")

#: Returns an item to the queue at its old score. ARGV: id, box, fence, counter of the box ("": its own box
#: asks, so that a confirmed claim is returned too), whether to return a confirmed one, record as queued ("":
#: it is unchanged), number. Returns 1, 0 or -1 (not yet: Redis may have lost the claim).
GIVE_BACK = _script("""
local id, c = ARGV[1], of(ARGV[1])
if run() ~= ARGV[7] then return -1 end
if not is_mine(c, ARGV[2], ARGV[3]) or c.ended == '1' then return 0 end
if ARGV[4] ~= '' then
  if not is_open(ARGV[7], 0) or redis.call('HGET', 'gpusched:counter', ARGV[2]) ~= ARGV[4] then return 0 end
  if c.confirmed == '1' and ARGV[5] == '0' then return 0 end end
if ARGV[6] ~= '' then redis.call('SET', record(id), ARGV[6], 'XX') end
free(id, c, c.score)
return 1
""")

#: Writes the status of a job back, and claims the item again if it had ended. ARGV: id, box, fence, record,
#: whether it has ended, number. Returns 1, 0 (somebody else has the item, or has queued it again) or -1 (not
#: yet: Redis may have lost the claim).
WRITE_BACK = _script("""
local id, c = ARGV[1], of(ARGV[1])
if run() ~= ARGV[6] then return -1 end
if not is_mine(c, ARGV[2], ARGV[3]) then return 0 end
if c.ended == '1' and redis.call('ZSCORE', QUEUE, id) then return tonumber(ARGV[5]) end
redis.call('SET', record(id), ARGV[4])
if ARGV[5] == '1' then finish(id) redis.call('SREM', 'gpusched:cancelled', id)
elseif c.ended == '1' then hold(id, ARGV[2], ARGV[3], c.score, c.at, c.confirmed) end
return 1
""")

#: Sets an item aside if its record is still the same. ARGV: id, reason, record ("": whatever it is).
REJECT = _script("""
if ARGV[3] == '' or text(record(ARGV[1])) == ARGV[3] then reject(ARGV[1], ARGV[2]) end return 1
""")

#: Cancels an item. ARGV: id, its record as failed ("": it has none). Returns "cancelled", "asked" (its box
#: ends it) or "none".
CANCEL = _script("""
local id = ARGV[1]
if is_held(of(id)) then redis.call('SADD', 'gpusched:cancelled', id) return 'asked' end
if not redis.call('ZSCORE', QUEUE, id) then return 'none' end
if ARGV[2] ~= '' then redis.call('SET', record(id), ARGV[2]) end
expire(arguments(id))
redis.call('ZREM', QUEUE, id)
return 'cancelled'
""")

#: Queues a claimed ("requeue") or an ended item ("retry") again. ARGV: id, record as queued, its score, verb.
#: An item that is running although no box holds it is that of another program.
AGAIN = _script("""
local id, c = ARGV[1], of(ARGV[1])
if redis.call('ZSCORE', QUEUE, id) then return 'queued' end
if ARGV[4] == 'retry' and is_held(c) then return 'claimed' end
local known, now_so = pcall(cjson.decode, text(record(id)) or '')
local runs = known and now_so.status == 'running'
if ARGV[4] == 'retry' and runs then return 'elsewhere' end
if ARGV[4] == 'requeue' and not is_held(c) and not runs then return 'unclaimed' end
redis.call('SET', record(id), ARGV[2])
redis.call('SREM', 'gpusched:cancelled', id)
free(id, c, is_held(c) and c.score or ARGV[3])
return 'again'
""")

#: The boxes, the items that are held (as BEAT), the length of the queue, the time, and the newest items that
#: were set aside.
LIST = _script("""
local aside = {}
for _, name in ipairs(redis.call('ZREVRANGE', 'gpusched:rejected', 0, 99)) do
  local found = redis.call('GET', 'gpusched:rejected:' .. name)
  if found then aside[#aside + 1] = found end end
return {redis.call('HGETALL', 'gpusched:boxes'), held(), redis.call('ZCARD', QUEUE), now(), aside}
""")


# The connection.


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
            made = redis.Redis.from_url(
                url, retry=Retry(NoBackoff(), 0), decode_responses=True, encoding_errors=_ERRORS, **timeouts
            )
        except ValueError:
            raise UsageError(
                "--redis: an option of the URL has a wrong value, such as a db that is no number"
            ) from None
        self.url = hidden_password(url)
        self.redis: redis.Redis = made
        self.errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        #: Those of these errors with which Redis has not answered.
        self.silent: tuple[type[Exception], ...] = (redis.ConnectionError, redis.TimeoutError, OSError)

    def run(self, script: str, *args: str | bytes | int | float) -> Any:
        """Runs a script and returns its answer."""
        return self.redis.register_script(script)(args=args)

    def run_each(self, script: str, rows: Iterable[Sequence[str]]) -> None:
        """Runs a script for each of these arguments, in order, without waiting for each answer."""
        pipe, run = self.redis.pipeline(transaction=False), self.redis.register_script(script)
        for row in rows:
            run(args=row, client=pipe)
            if len(pipe) == _BATCH:
                pipe.execute()
        pipe.execute()

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Turns the errors of Redis in the block into a SchedulerError."""
        try:
            yield
        except self.errors as error:
            raise SchedulerError(f"{self.url}: {error_text(error)}") from None

    def warnings(self) -> list[str]:
        """Returns what may lose items of the queue, with the remedies."""
        found = []
        for name, safe, problem in (
            ("appendonly", "yes", "lose the submissions of the last minutes when it is killed"),
            ("maxmemory-policy", "noeviction", "evict items of the queue"),
        ):
            with suppress(*self.errors):  # the user of the URL may not ask
                answer: Any = self.redis.config_get(name)
                if (value := answer.get(name, safe)) != safe:
                    remedy = f"set `{name} {safe}` in redis.conf"
                    found.append(f"Redis may {problem} ({name} {value}); {remedy}")
        return found

    def record(self, item: str) -> Record | str:
        """Returns the record of an item, or why it has none."""
        text: Any = self.redis.get(f"scheduler:job:{item}")
        return record_or_problem(text, item)

    def submit(self, record: Record, arguments: Arguments | None) -> None:
        """Adds an item. Its record is there before its id is in the queue.

        Raises UsageError for one that the boxes would set aside.
        """
        try:
            parse_record(record.to_json(), record.job_id)
            parse_arguments((arguments or Arguments()).to_json())
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
        answer = self.run(CANCEL, item, failed)
        if answer == "none":
            raise NoSuchJobError(f"item {item} is neither in the queue at {self.url} nor on a box")
        return "cancelled" if answer == "cancelled" else "its box has been asked to cancel it"

    def again(self, item: str, verb: str) -> str:
        """Queues a claimed item (`requeue`) or an ended one (`retry`) again. Returns what was done."""
        found = self.record(item)
        if isinstance(found, str):
            raise NoSuchJobError(f"item {item} at {self.url} cannot be queued again: {found}")
        record = found.with_status("queued")
        answer = self.run(AGAIN, item, record.to_json(), repr(record.score), verb)
        refusals = {
            "queued": "is in the queue already",
            "claimed": "is on a box; `redis-queue requeue` gives it back, and it may then run twice",
            "elsewhere": "is run by no box of this queue, but by another program; if that is gone,"
            " `redis-queue requeue` queues it again",
            "unclaimed": "is on no box; `redis-queue retry` queues it again",
        }
        if answer in refusals:
            raise SchedulerError(f"item {item} {refusals[answer]}")
        return "queued again"

    def accept_loss(self) -> str:
        """Opens the queue although boxes have not reported since Redis lost data. Returns what was done."""
        number: Any = self.redis.hget("gpusched:run", "number")
        if number is None or not self.run(REPORT, "", "", number, "1"):
            raise SchedulerError("no box has reported since Redis was started; start one first")
        return "claims no longer wait for boxes that have not reported"

    def listing(self) -> dict[str, Any]:
        """Returns the boxes, the first items of the queue, who holds what, and what was set aside."""
        number, at, _, items = self.run(LOOK, LOOK_LIMIT, 0)
        found, claims, length, now, aside = self.run(LIST)
        boxes = {box: json.loads(text) for box, text in pairs(found).items()}
        for box in boxes.values():
            box["reported"] = number is not None and box.get("run") == number
        return {
            "url": self.url, "open": at is not None, "length": length, "boxes": boxes,
            "opens_in_s": None if at is None else max(0.0, float(at) + Times.scaled().open_wait - float(now)),
            "waiting": [_waiting(row[0], row[2], boxes.values()) for row in items],
            "claims": [_claim(row, boxes, now) for row in sorted(claims)],
            "rejected": [json.loads(encoded(text).decode("utf-8", "replace")) for text in aside],
        }  # fmt: skip


def new_item(script: str, memory_mb: int, gpus: int, priority: int) -> Record:
    """Returns a new record, as the producer of the source document makes it."""
    return Record(script, memory_mb, gpus, priority, uuid.uuid4().hex[:12], "queued", (), time.time(), None)


def _waiting(item: str, text: str | None, boxes: Collection[dict[str, Any]]) -> dict[str, Any]:
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
    item, box = row[:2]
    known = boxes.get(box, {})
    silent = max(0.0, now - known.get("at", 0.0)) if known else 0.0
    return {
        "id": item, "box": box, "host": known.get("host"),
        "status": getattr(record_or_problem(row[5], item), "status", None),
        "since": float(row[4]), "confirmed": row[3] == "1",
        "silent_s": silent if silent > 3 * Times.scaled().beat else None,
        "has_job": item not in known.get("without_job", ()),
    }  # fmt: skip
