"""A model of boxes that take items from one queue on Redis, searched like that of an attempt.

Two boxes, each with an agent, a store and a scheduler's loop, take items. Redis loses its data, goes back to
a snapshot, or restarts with everything. Agents are killed at each step. A box that is stopped, cut off or
silent is one that takes no steps for a while, so another box may call it silent at any time: the model has no
clock. An answer that is lost is a kill after the script. Users cancel, requeue, and run an ended item again
on its box; the scheduler of the source document may pop from the same queue. Not in the model: a box that
nobody knows yet, a store that is lost, the 60 s after a loss, and a second item: no script touches two, and
their states would multiply.

One step is one script, one transaction of a store, or one event of Redis. `RedisRules` has a switch for each
rule. Those marked [+] were missing in the first description of the protocol; the search found what happens
without them (`python -m tests.protocol controls redis` prints the shortest traces):

- confirm_waits, giving_back_waits: with old data, the first box to report gets a yes for a claim of the past,
  or gives one back, although the other box has the item's job running and has not reported yet.
- run_remembered: after FLUSHALL, run_id is the same. A box that reads `gpusched:run` when another one has
  written it again does not notice the loss, gets a no for its waiting job, and the item is lost.
- turns, never_started_left_out: "remove from the set every id that its store ever took" also removes items
  that were given back or requeued, even if Redis has just been restarted with all its data.
- answers_first: a `confirm` that the loop has not answered frees the job after it was reported unconfirmed.
- write_back_compares: Redis may be restarted between the reading of `gpusched:run` and the next script. A box
  that then does not find its claim forgets a job that has run, and does not report it.
- cancelled_given_back: a snapshot may say "confirmed" of a claim whose job was cancelled before it started.

A limit, which no rule here prevents: Redis loses all data, a job whose item had been given back is reported
and starts, and then Redis goes back to a snapshot from before the loss, which says that it was given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.explore import explore

BOXES = (0, 1)
NOBODY = -1
ALL_BOXES = 3
_NAMES = "AB"
#: What `gpusched:run` says: nothing; a run of the past; the run of the Redis that answers.
MISSING, OLD, VALID = range(3)


@dataclass(frozen=True)
class RedisRules:
    """The rules of the queue on Redis. If a rule is off, the model must find the fault that it prevents."""

    gate: bool = True  #: an item's job waits until its claim is confirmed; off: it may start at once
    fence: bool = True  #: scripts and jobs compare the fence; off: only the box and the item
    confirmed_kept: bool = True  #: only unconfirmed claims are given back; off: each claim of a silent box
    waits_for_boxes: bool = True  #: after a loss, no claim until each known box has reported; off: at once
    unconfirmed_first: bool = True  #: a job is gated again, then its claim is given back; off: the reverse
    #: [+] confirm, too, waits until each known box has reported; off: until its own has
    confirm_waits: bool = True
    #: [+] giving back waits until each known box has reported; off: until its own has
    giving_back_waits: bool = True
    #: [+] an agent remembers the whole `gpusched:run` to which it reported, with its time; off: the run_id
    run_remembered: bool = True
    #: [+] each claim of an item has a higher number than the last; a report counts only if its number is
    #: higher than the one in Redis; off: each report takes the item out of the set
    turns: bool = True
    #: [+] a job that was cancelled and never started is not reported; off: it is, like each that was taken
    never_started_left_out: bool = True
    #: [+] an agent reports once its requests are answered; off: a job with an open `confirm` is unconfirmed
    answers_first: bool = True
    #: [+] an end is written back only to the run to which its box has reported; off: to any, and the agent
    #: forgets a job whose claim it does not find
    write_back_compares: bool = True
    #: [+] a confirmed claim of a job that was cancelled before it started is given back; off: it is listed
    cancelled_given_back: bool = True


class Item(NamedTuple):
    """An item as Redis knows it. turn: the number of its last claim."""

    in_set: bool = True
    record: str = "queued"
    turn: int = 0
    box: int = NOBODY
    fence: int = 0
    confirmed: bool = False

    @property
    def free(self) -> Item:
        """The item without a claim."""
        return self._replace(box=NOBODY, fence=0, confirmed=False)


class Job(NamedTuple):
    """A job of a store.

    step: gated, waiting, running, ended, written (its end is in Redis), again (its user runs it again after
    that; it may start) or cancelled (before it started); requests: those that the loop has not answered.
    """

    fence: int
    turn: int
    step: str = "gated"
    requests: tuple[str, ...] = ()


class Box(NamedTuple):
    """A box. reported: whether it knows that it has reported to this run of Redis.

    agent: what its agent has in hand: (word, item, fence, turn), or nothing; jobs: by item.
    """

    reported: bool
    agent: tuple[str, int, int, int] | None
    jobs: tuple[tuple[Job, ...], ...]


class RedisState(NamedTuple):
    """run: what `gpusched:run` says; reported: the boxes, as bits, that Redis has as reported.

    source: what the source's scheduler does with which item. starts, allowed: by item, how often it started,
    and how often it may. gone: the items that only the lost data had. asks: requests that users may still
    make.
    """

    items: tuple[Item, ...]
    boxes: tuple[Box, ...]
    snapshot: tuple[Item, ...]
    run: int = VALID
    reported: int = ALL_BOXES
    source: tuple[str, int] = ("", 0)
    starts: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()
    gone: tuple[bool, ...] = ()
    asks: int = 0


class RedisScenario(NamedTuple):
    """restart, flush, restore: whether Redis restarts with its data, loses it, or goes back to a snapshot.

    source: whether the source's scheduler pops from the queue; asks: how many requests users make; accept:
    whether they say `accept-loss`.
    """

    name: str
    restart: bool = False
    flush: bool = False
    restore: bool = False
    source: bool = False
    asks: int = 0
    accept: bool = False


REDIS_SCENARIOS = (
    RedisScenario("redis: one item"),
    RedisScenario("redis: one item, Redis restarts", restart=True),
    RedisScenario("redis: one item, data lost", flush=True),
    RedisScenario("redis: one item, snapshot", restore=True),
    RedisScenario("redis: one item, the source's scheduler", restart=True, source=True),
    RedisScenario("redis: one item, one request", asks=1),
)
REDIS_BIG = (
    RedisScenario("redis: one item, restart, one request", restart=True, asks=1),
    RedisScenario("redis: one item, snapshot, one request", restart=True, restore=True, asks=1),
)


class RedisControl(NamedTuple):
    """A scenario that must break an invariant without this rule."""

    disabled: str
    scenario: RedisScenario
    breaks: str

    @property
    def rules(self) -> RedisRules:
        """All rules but this one."""
        return replace(RedisRules(), **{self.disabled: False})


_PLAIN, _RESTART, _FLUSH, _RESTORE = REDIS_SCENARIOS[:4]
REDIS_CONTROLS = (
    RedisControl("gate", _PLAIN, "R1"),
    RedisControl("fence", _PLAIN, "R1"),
    RedisControl("confirmed_kept", _PLAIN, "R1"),
    RedisControl("waits_for_boxes", _RESTORE, "R1"),
    RedisControl("unconfirmed_first", _PLAIN, "R1"),
    RedisControl("confirm_waits", _RESTORE, "R1"),
    RedisControl("giving_back_waits", _RESTORE, "R1"),
    RedisControl("run_remembered", _FLUSH, "R2"),
    RedisControl("turns", _RESTART, "R3"),
    RedisControl("never_started_left_out", _RESTORE, "R2"),
    RedisControl("answers_first", _RESTORE, "R1"),
    RedisControl("write_back_compares", _RESTORE, "R1"),
    RedisControl("cancelled_given_back", _RESTORE, "R4"),
)


@dataclass
class RedisResult:
    """The result of a search. broken: the invariant that does not hold, or None. trace: the way to it."""

    states: int
    broken: str | None = None
    trace: tuple[str, ...] = ()


Found = tuple[str, RedisState, bool, str | None]


def explore_redis(scenario: RedisScenario, rules: RedisRules, wanted: str = "R") -> RedisResult:
    """Visits every state, then checks that each item can always come to its end without further faults."""
    count = 1
    items = (Item(),) * count
    box = Box(True, None, ((),) * count)
    first = RedisState(
        items, (box,) * len(BOXES), items,
        starts=(0,) * count, allowed=(1,) * count, gone=(False,) * count, asks=scenario.asks,
    )  # fmt: skip

    def steps(state: RedisState) -> Iterator[Found]:
        for label, found, is_fault, wrong in _Steps(state, scenario, rules):
            after = _canonical(found, rules)
            yield label, after, is_fault, wrong or _lost(after)

    return RedisResult(*explore(first, steps, _is_over, "R4 an item never comes to its end", wanted))


def _is_over(state: RedisState) -> bool:
    return all(
        state.gone[n] or (item.record in ("ended", "cancelled") and item.box == NOBODY and not item.in_set)
        for n, item in enumerate(state.items)
    ) and not any(
        job.step not in ("written", "cancelled") for box in state.boxes for jobs in box.jobs for job in jobs
    )


def _lost(state: RedisState) -> str | None:
    """Returns the fault that nobody has an item any more."""
    for n, item in enumerate(state.items):
        is_known = item.in_set or item.box != NOBODY or item.record in ("ended", "cancelled")
        if not is_known and not state.gone[n] and not _is_held(state, n):
            return "R2 an item is lost: it is in no set, has no claim, and no store has it"
    return None


def _is_held(state: RedisState, n: int) -> bool:
    """Returns whether a store, or the source's scheduler, has an item that may still run or has ended."""
    if state.source[0] and state.source[1] == n:
        return True
    return any(
        job.step in ("again", "running", "ended", "written")
        or (
            job.step in ("gated", "waiting") and "cancel" not in job.requests and not _is_refused(box, n, job)
        )
        for box in state.boxes
        for job in box.jobs[n]
    )


def _is_refused(box: Box, n: int, job: Job) -> bool:
    return box.agent is not None and box.agent[0] == "refused" and box.agent[1:3] == (n, job.fence)


def _canonical(state: RedisState, rules: RedisRules) -> RedisState:
    """Renames fences and turns, and forgets what nobody can ask for, so that the states are finitely many."""
    items, snapshot, boxes = list(state.items), list(state.snapshot), list(state.boxes)
    for n in range(len(items)):
        in_hand = [box.agent for box in boxes if box.agent is not None and box.agent[1] == n]
        named = {items[n].fence, snapshot[n].fence, *(one[2] for one in in_hand)}
        for b, box in enumerate(boxes):
            kept, has_old = [], False
            for job in box.jobs[n]:
                if job.step == "cancelled" and job.fence not in named:
                    has_old = True
                else:
                    kept.append(job)
            if has_old and not rules.never_started_left_out:
                kept.insert(0, Job(0, 0, "cancelled"))
            jobs = (*box.jobs[:n], tuple(kept), *box.jobs[n + 1 :])
            boxes[b] = box._replace(jobs=jobs)
        jobs_of_n = [job for box in boxes for job in box.jobs[n]]
        fences: dict[int, int] = {0: 0}
        for fence in (
            items[n].fence,
            snapshot[n].fence,
            *(j.fence for j in jobs_of_n),
            *(one[2] for one in in_hand),
        ):
            fences.setdefault(fence, len(fences))
        numbers = sorted(
            {0, items[n].turn, snapshot[n].turn, *(j.turn for j in jobs_of_n), *(one[3] for one in in_hand)}
        )
        turns = {turn: number for number, turn in enumerate(numbers)}
        for some in (items, snapshot):
            some[n] = some[n]._replace(fence=fences[some[n].fence], turn=turns[some[n].turn])
        for b, box in enumerate(boxes):
            renamed = tuple(j._replace(fence=fences[j.fence], turn=turns[j.turn]) for j in box.jobs[n])
            agent = box.agent
            if agent is not None and agent[1] == n:
                agent = (agent[0], n, fences[agent[2]], turns[agent[3]])
            boxes[b] = box._replace(agent=agent, jobs=(*box.jobs[:n], renamed, *box.jobs[n + 1 :]))
    return state._replace(items=tuple(items), snapshot=tuple(snapshot), boxes=tuple(boxes))


class _Steps:
    """The steps possible in one state: (label, state after it, whether it is a fault, what is wrong)."""

    def __init__(self, state: RedisState, scenario: RedisScenario, rules: RedisRules) -> None:
        self._s, self._scenario, self._rules = state, scenario, rules

    def __iter__(self) -> Iterator[Found]:
        for b in BOXES:
            yield from self._agent(b)
            yield from self._loop(b)
        if self._scenario.source:
            yield from self._source()
        yield from self._redis()
        yield from self._users()

    # Helpers that return the state after a change.

    def _with_item(self, n: int, item: Item, state: RedisState | None = None) -> RedisState:
        s = state or self._s
        return s._replace(items=(*s.items[:n], item, *s.items[n + 1 :]))

    def _with_box(self, b: int, box: Box, state: RedisState | None = None) -> RedisState:
        s = state or self._s
        return s._replace(boxes=(*s.boxes[:b], box, *s.boxes[b + 1 :]))

    def _with_hand(
        self, b: int, hand: tuple[str, int, int, int] | None, state: RedisState | None = None
    ) -> RedisState:
        s = state or self._s
        return self._with_box(b, s.boxes[b]._replace(agent=hand), s)

    def _with_job(self, b: int, n: int, job: Job, state: RedisState | None = None) -> RedisState:
        """Replaces the job with this fence."""
        s = state or self._s
        box = s.boxes[b]
        jobs = tuple(job if one.fence == job.fence else one for one in box.jobs[n])
        return self._with_box(b, box._replace(jobs=(*box.jobs[:n], jobs, *box.jobs[n + 1 :])), s)

    def _job(self, b: int, n: int, fence: int) -> Job | None:
        return next((job for job in self._s.boxes[b].jobs[n] if job.fence == fence), None)

    def _is_claimed_by(self, n: int, b: int, fence: int) -> bool:
        item = self._s.items[n]
        return item.box == b and (item.fence == fence or not self._rules.fence)

    def _may(self, b: int, waits: bool) -> bool:
        """Returns whether a script of this box is answered; waits: it needs the reports of all boxes."""
        s = self._s
        if s.run != VALID or not s.boxes[b].reported:
            return False
        return not waits or s.reported == ALL_BOXES

    # The agent.

    def _agent(self, b: int) -> Iterator[Found]:
        s, box, name = self._s, self._s.boxes[b], f"AGENT {_NAMES[b]}"
        if box.agent is not None:
            yield from self._with_something_in_hand(b, box.agent)
            yield f"{name} IS KILLED, or loses the answer", self._with_hand(b, None), True, None
            return
        yield from self._report(b)
        for n, item in enumerate(s.items):
            yield from self._take(b, n, item)
            yield from self._give_back(b, n, item)
            for job in box.jobs[n]:
                if not job.requests:
                    yield from self._about(b, n, item, job)

    def _report(self, b: int) -> Iterator[Found]:
        s, box, name = self._s, self._s.boxes[b], f"AGENT {_NAMES[b]}"
        if s.run != VALID:
            # After a loss without a restart, run_id is the same: whoever compares only that notices nothing.
            forgets = self._rules.run_remembered or s.run == OLD
            boxes = tuple(
                one._replace(reported=one.reported and not forgets and other != b)
                for other, one in enumerate(s.boxes)
            )
            reported = 0 if forgets else ALL_BOXES & ~(1 << b)
            yield (
                f"{name} writes gpusched:run",
                s._replace(run=VALID, reported=reported, boxes=boxes),
                False,
                None,
            )
            return
        if box.reported:
            return
        if self._rules.answers_first and any(job.requests for jobs in box.jobs for job in jobs):
            return
        after, wrong = s, None
        keeps_data = not (self._scenario.flush or self._scenario.restore)
        for n, item in enumerate(s.items):
            now = self._reported(b, n, item)
            after = self._with_item(n, now, after)
            if keeps_data and item.in_set and not now.in_set:
                wrong = "R3 a report takes an item out of the set although Redis has kept its data"
        jobs = tuple(
            tuple(j._replace(step="written") if j.step == "ended" else j for j in some) for some in box.jobs
        )
        after = self._with_box(b, box._replace(reported=True, jobs=jobs), after)
        yield (
            f"{name} reports what its store took",
            after._replace(reported=s.reported | 1 << b),
            False,
            wrong,
        )

    def _reported(self, b: int, n: int, item: Item) -> Item:
        """Returns what Redis says about an item after this box has reported it."""
        jobs = self._s.boxes[b].jobs[n]
        if not self._rules.never_started_left_out and jobs:
            item = item._replace(in_set=False)
        for job in sorted((j for j in jobs if j.step != "cancelled"), key=lambda j: j.turn):
            is_its = item.box == b and item.fence == job.fence
            is_over = job.step in ("ended", "written")
            is_confirmed = job.step in ("waiting", "again", "running") or (is_its and item.confirmed)
            if self._rules.turns:
                if not is_its and job.turn <= item.turn:
                    continue
                item = item._replace(turn=job.turn)
            else:
                item = item._replace(in_set=False)
                if not is_its and item.box != NOBODY and (item.confirmed or not is_confirmed):
                    continue
            if is_over:
                item = item.free._replace(in_set=False, record="ended")
            else:
                record = item.record if item.record == "cancelled" else "queued"
                item = Item(False, record, item.turn, b, job.fence, is_confirmed)
        return item

    def _take(self, b: int, n: int, item: Item) -> Iterator[Found]:
        if not item.in_set or item.record != "queued":
            return
        if not self._may(b, waits=self._rules.waits_for_boxes):
            return
        open_jobs = [job for job in self._s.boxes[b].jobs[n] if job.step not in ("written", "cancelled")]
        if len(open_jobs) > 1:
            return
        fence, turn = 99, item.turn + 1
        after = self._with_item(n, Item(False, item.record, turn, b, fence, False))
        after = self._with_hand(b, ("claimed", n, fence, turn), after)
        yield f"AGENT {_NAMES[b]} claims item {n}", after, False, None

    def _give_back(self, b: int, n: int, item: Item) -> Iterator[Found]:
        """Gives a claim of a silent box back, or one of its own without a job."""
        if item.box == NOBODY or not self._may(b, waits=self._rules.giving_back_waits):
            return
        back = item.free._replace(in_set=item.record != "cancelled")
        if item.box != b:
            if not item.confirmed or not self._rules.confirmed_kept:
                text = f"AGENT {_NAMES[b]} finds {_NAMES[item.box]} silent and gives item {n} back"
                yield text, self._with_item(n, back), False, None
            return
        job = self._job(b, n, item.fence)
        if job is None and not item.confirmed:
            yield f"AGENT {_NAMES[b]} gives item {n} back: no job", self._with_item(n, back), False, None
        is_listed = item.confirmed and item.record != "cancelled" and not self._rules.cancelled_given_back
        if job is not None and job.step == "cancelled" and not is_listed:
            text = f"AGENT {_NAMES[b]} gives item {n} back: its job is cancelled"
            yield text, self._with_item(n, back), False, None

    def _about(self, b: int, n: int, item: Item, job: Job) -> Iterator[Found]:
        """Steps about one job, of which the loop has answered all requests."""
        name, hand = f"AGENT {_NAMES[b]}", (n, job.fence, job.turn)
        is_its = self._is_claimed_by(n, b, job.fence)
        if job.step == "gated" and self._may(b, waits=self._rules.confirm_waits):
            if is_its and item.record != "cancelled":
                after = self._with_item(n, item._replace(confirmed=True))
                yield (
                    f"{name} confirms item {n}: yes",
                    self._with_hand(b, ("confirmed", *hand), after),
                    False,
                    None,
                )
            else:
                yield f"{name} confirms item {n}: no", self._with_hand(b, ("refused", *hand)), False, None
        elif job.step == "waiting" and self._may(b, waits=True):
            if not is_its or item.record == "cancelled":
                yield f"{name} finds a stale fence", self._with_hand(b, ("refused", *hand)), False, None
            elif self._rules.unconfirmed_first:
                after = self._with_job(b, n, job._replace(requests=("unconfirm",)))
                yield (
                    f"{name} asks for unconfirm",
                    self._with_hand(b, ("unconfirming", *hand), after),
                    False,
                    None,
                )
            else:
                after = self._with_item(n, item.free._replace(in_set=True))
                yield (
                    f"{name} gives item {n} back",
                    self._with_hand(b, ("refused", *hand), after),
                    False,
                    None,
                )
        elif job.step in ("again", "running") and self._is_claimable(b, job, item):
            again = Item(False, "queued", item.turn, b, job.fence, True)
            yield f"{name} claims item {n} again", self._with_item(n, again), False, None
        elif job.step == "ended" and (self._may(b, waits=False) or not self._rules.write_back_compares):
            is_forgotten = not is_its and not self._rules.write_back_compares
            after = self._with_job(b, n, job._replace(step="cancelled" if is_forgotten else "written"))
            if is_its:
                after = self._with_item(n, item.free._replace(record="ended"), after)
            yield f"{name} writes the end of item {n} back", after, False, None

    def _is_claimable(self, b: int, job: Job, item: Item) -> bool:
        """Returns whether the claim of this job has ended in Redis, and nobody has queued its item again."""
        is_ended = item.box == NOBODY and item.record == "ended" and not item.in_set
        return is_ended and item.turn == job.turn and self._may(b, waits=False)

    def _with_something_in_hand(self, b: int, agent: tuple[str, int, int, int]) -> Iterator[Found]:
        word, n, fence, turn = agent
        name, box = f"AGENT {_NAMES[b]}", self._s.boxes[b]
        job = self._job(b, n, fence)
        if word == "claimed":
            new = Job(fence, turn, "gated" if self._rules.gate else "waiting")
            jobs = (*box.jobs[:n], (*box.jobs[n], new), *box.jobs[n + 1 :])
            after = self._with_box(b, Box(box.reported, None, jobs))
            yield f"{name} inserts the job of item {n}", after, False, None
            return
        after = self._with_hand(b, None)
        if job is None or job.step not in ("gated", "waiting"):
            yield f"{name} finds that the job has started or is gone", after, False, None
        elif word in ("confirmed", "refused"):
            verb = "confirm" if word == "confirmed" else "cancel"
            after = self._with_job(b, n, job._replace(requests=(*job.requests, verb)), after)
            yield f"{name} asks for {verb} of item {n}", after, False, None
        elif not job.requests:  # unconfirm was answered, and the job is gated
            item = self._s.items[n]
            if not self._may(b, waits=False):
                yield f"{name} cannot give item {n} back", after, False, None
            elif self._is_claimed_by(n, b, fence):
                after = self._with_item(n, item.free._replace(in_set=item.record != "cancelled"))
                yield (
                    f"{name} gives item {n} back",
                    self._with_hand(b, ("refused", *agent[1:]), after),
                    False,
                    None,
                )
            else:
                yield f"{name} has no claim", self._with_hand(b, ("refused", *agent[1:])), False, None

    # The loop of a box.

    def _loop(self, b: int) -> Iterator[Found]:
        s, name = self._s, f"LOOP {_NAMES[b]}"
        for n, jobs in enumerate(s.boxes[b].jobs):
            for job in jobs:
                if job.requests:
                    verb, *others = job.requests
                    step = {
                        ("confirm", "gated"): "waiting", ("unconfirm", "waiting"): "gated",
                        ("cancel", "gated"): "cancelled", ("cancel", "waiting"): "cancelled",
                    }.get((verb, job.step), job.step)  # fmt: skip
                    after = self._with_job(b, n, job._replace(step=step, requests=tuple(others)))
                    yield f"{name} answers {verb} of item {n}", after, False, None
                elif job.step in ("waiting", "again"):
                    after = self._with_job(b, n, job._replace(step="running"))
                    after, wrong = self._started(n, after)
                    yield f"{name} starts item {n}", after, False, wrong
                elif job.step == "running":
                    yield (
                        f"{name} sees the end",
                        self._with_job(b, n, job._replace(step="ended")),
                        False,
                        None,
                    )

    def _started(self, n: int, after: RedisState) -> tuple[RedisState, str | None]:
        s = self._s
        starts = s.starts[n] + 1
        wrong = "R1 an item starts more often than anybody asked" if starts > s.allowed[n] else None
        return after._replace(starts=(*s.starts[:n], starts, *s.starts[n + 1 :])), wrong

    # Everything else.

    def _source(self) -> Iterator[Found]:
        s, (word, n) = self._s, self._s.source
        if word == "":
            for number, item in enumerate(s.items):
                if item.in_set:
                    after = self._with_item(number, item._replace(in_set=False))
                    yield f"SOURCE pops item {number}", after._replace(source=("popped", number)), False, None
        elif word == "popped":
            after = self._with_item(n, s.items[n]._replace(in_set=True, record="queued"))
            yield f"SOURCE adds item {n} again", after._replace(source=("", 0)), False, None
            after, wrong = self._started(n, self._with_item(n, s.items[n]._replace(record="running")))
            yield f"SOURCE starts item {n}", after._replace(source=("runs", n)), False, wrong
        else:
            after = self._with_item(n, s.items[n]._replace(record="ended"))
            yield f"SOURCE sees the end of item {n}", after._replace(source=("", 0)), False, None

    def _redis(self) -> Iterator[Found]:
        s, scenario = self._s, self._scenario
        if scenario.restart and s.run == VALID:
            yield "REDIS RESTARTS with its data", s._replace(run=OLD, reported=0), True, None
        if scenario.restore:
            if s.snapshot != s.items and s.run == VALID:
                yield "REDIS saves a snapshot", s._replace(snapshot=s.items), True, None
            if s.snapshot != s.items:
                gone = tuple(
                    was or (item == _NOTHING and not _is_held(s, n))
                    for n, (was, item) in enumerate(zip(s.gone, s.snapshot, strict=True))
                )
                after = s._replace(run=OLD, reported=0, items=s.snapshot, gone=gone)
                yield "REDIS RESTARTS FROM ITS SNAPSHOT", after, True, None
        if scenario.flush and (s.run == VALID or any(item != _NOTHING for item in s.items)):
            # An item that Redis alone had is gone; so is the news that it was cancelled.
            gone = tuple(was or not _is_held(s, n) for n, was in enumerate(s.gone))
            items = (_NOTHING,) * len(s.items)
            snapshot = items if not scenario.restore else s.snapshot
            after = s._replace(run=MISSING, reported=0, items=items, gone=gone, snapshot=snapshot)
            yield "REDIS LOSES ALL DATA", after, True, None

    def _users(self) -> Iterator[Found]:
        s = self._s
        if self._scenario.accept and s.run == VALID and s.reported != ALL_BOXES:
            allowed = tuple(max(one, 2) for one in s.allowed)
            after = s._replace(reported=ALL_BOXES, allowed=allowed)
            yield "USER accepts the loss", after, True, None
        if not s.asks:
            return
        for n, item in enumerate(s.items):
            if item.record == "cancelled" or item == _NOTHING:
                continue
            asked = s._replace(asks=s.asks - 1)
            cancelled = item._replace(record="cancelled", in_set=False)
            if item.record == "queued":
                yield f"USER cancels item {n}", self._with_item(n, cancelled, asked), True, None
            if not item.in_set and (item.box != NOBODY or item.record == "ended"):
                is_more = item.confirmed or item.record == "ended" or s.reported != ALL_BOXES
                allowed = (*s.allowed[:n], s.allowed[n] + is_more, *s.allowed[n + 1 :])
                after = self._with_item(n, item.free._replace(record="queued", in_set=True), asked)
                yield f"USER requeues item {n}", after._replace(allowed=allowed), True, None
            for b in BOXES:
                for job in s.boxes[b].jobs[n]:
                    if job.step in ("gated", "waiting") and not job.requests:
                        after = self._with_job(b, n, job._replace(step="ended"), asked)
                        yield f"USER cancels item {n} on box {_NAMES[b]}", after, True, None
                    if job.step == "written":
                        after = self._with_job(b, n, job._replace(step="again"), asked)
                        allowed = (*s.allowed[:n], s.allowed[n] + 1, *s.allowed[n + 1 :])
                        text = f"USER runs item {n} again on box {_NAMES[b]}"
                        yield text, after._replace(allowed=allowed), True, None


_NOTHING = Item(in_set=False, record="none")
