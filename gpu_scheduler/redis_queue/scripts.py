"""The changes to Redis. Each one is a Lua script: no other command runs in the middle of it.

Redis undoes nothing if a command of a script fails, for example because the user may not use it. So each
script writes what takes the place of an id before it takes the id out of the queue.

The keys of the source document are `scheduler:queue` and `scheduler:job:ID`; all others begin with
`gpusched:` (docs/redis.md). Every script that acts for a box compares the box and the fence of the claim.
"""

from __future__ import annotations

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
