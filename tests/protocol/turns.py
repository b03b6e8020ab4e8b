"""A model of programs that wait for GPUs and take turns, searched exhaustively like the model of an attempt.

Three programs want two GPUs, in the order in which they began to wait: two callers of `run`, of which one may
want both GPUs, and a scheduler, whose runner claims the GPU for its job. In some scenarios the scheduler
preempts a job of its own, or another program claims GPUs without taking turns. Programs may be killed at each
step, or stopped until their places count as left behind. All state is kernel locks: claims, holds and places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.explore import explore

GPUS = (0, 1)
NOBODY = -1
#: The programs. A lower number began to wait earlier, except that `first` of a scenario is the scheduler's.
CALLER, PAIR, SCHEDULER, RUNNER, VICTIM, OLD = range(6)
_NAMES = ("CALLER", "PAIR", "SCHEDULER", "RUNNER", "VICTIM", "OLD PROGRAM")


@dataclass(frozen=True)
class TurnRules:
    """The rules of the turns. If a rule is off, the model must find the fault that it prevents."""

    in_order: bool = True  #: a program takes a GPU if nobody is ahead; off: whoever is there takes it
    passed_over: bool = True  #: a place that has not moved for 5 s does not count; off: it does
    kernel_locks: bool = True  #: places and holds end with their process; off: they remain
    all_or_none: bool = True  #: a program that wants two GPUs claims both or none; off: one by one
    places_only_now: bool = True  #: it waits in line only while it could take both; off: always
    held_until_claimed: bool = True  #: a hold lasts until the runner's claim; off: until the launch
    read_after_hold: bool = True  #: the scheduler reads the claims after it has the hold; off: before
    runs_hold: bool = True  #: `run` takes the hold before it claims; off: it just claims
    held_before_stop: bool = True  #: a preemption takes the hold before it stops the victim; off: never


class TurnState(NamedTuple):
    """claims, holds: by GPU, the program that has it. steps: by program. places: by program, as bits of GPUs.

    ahead: by program, the programs that were ahead of it when it last looked. stopped: bits of the programs
    that are stopped; stale: those whose places have not moved for 5 s. dead: those that were killed.
    lost: whether a launch was lost. kills, stops: how many are left.
    """

    claims: tuple[int, ...] = (NOBODY, NOBODY)
    holds: tuple[int, ...] = (NOBODY, NOBODY)
    steps: tuple[str, ...] = ("begin", "begin", "begin", "none", "none", "none")
    places: tuple[int, ...] = (0, 0, 0)
    target: tuple[int, ...] = (0, 0, 0)
    ahead: tuple[int, ...] = (0, 0, 0)
    stopped: int = 0
    stale: int = 0
    dead: int = 0
    lost: bool = False
    kills: int = 0
    stops: int = 0


class TurnScenario(NamedTuple):
    """programs: those that take part. order: the order in which they began to wait."""

    name: str
    programs: tuple[int, ...]
    order: tuple[int, ...] = (CALLER, PAIR, SCHEDULER)
    kills: int = 0
    stops: int = 0


TURN_SCENARIOS = (
    TurnScenario("turns: three programs, kill", (CALLER, PAIR, SCHEDULER), kills=1),
    TurnScenario("turns: three programs, stopped", (CALLER, PAIR, SCHEDULER), stops=1),
    TurnScenario("turns: scheduler first, kill, stop", (CALLER, PAIR, SCHEDULER), (2, 1, 0), 1, 1),
    TurnScenario("turns: pair first, kill, stop", (CALLER, PAIR, SCHEDULER), (1, 2, 0), 1, 1),
    TurnScenario("turns: a preemption, kill", (CALLER, PAIR, SCHEDULER, VICTIM), kills=1),
    TurnScenario("turns: a preemption, stopped", (CALLER, SCHEDULER, VICTIM), stops=1),
    TurnScenario("turns: a program without turns, kill", (CALLER, PAIR, SCHEDULER, OLD), kills=1),
)


class TurnControl(NamedTuple):
    """A scenario that must break an invariant without this rule."""

    disabled: str
    scenario: TurnScenario
    breaks: str

    @property
    def rules(self) -> TurnRules:
        """All rules but this one."""
        return replace(TurnRules(), **{self.disabled: False})


_THREE = TURN_SCENARIOS[0]
TURN_CONTROLS = (
    TurnControl("in_order", _THREE, "T1"),
    TurnControl("passed_over", TURN_SCENARIOS[1], "T6"),
    TurnControl("kernel_locks", _THREE, "T6"),
    TurnControl("all_or_none", _THREE, "T3"),
    TurnControl("places_only_now", TURN_SCENARIOS[3], "T5"),
    TurnControl("held_until_claimed", _THREE, "T2"),
    TurnControl("read_after_hold", _THREE, "T2"),
    TurnControl("runs_hold", _THREE, "T2"),
    TurnControl("held_before_stop", TURN_SCENARIOS[4], "T4"),
)


@dataclass
class TurnResult:
    """The result of a search. broken: the invariant that does not hold, or None. trace: the way to it."""

    states: int
    broken: str | None = None
    trace: tuple[str, ...] = ()


def explore_turns(scenario: TurnScenario, rules: TurnRules, wanted: str = "T") -> TurnResult:
    """Visits every state, then checks that each program can always get its GPUs without further faults."""
    claims, holds, steps = (NOBODY, NOBODY), (NOBODY, NOBODY), list(TurnState().steps)
    for program in (CALLER, PAIR, SCHEDULER):
        steps[program] = "begin" if program in scenario.programs else "over"
    if VICTIM in scenario.programs:
        claims, steps[VICTIM], steps[SCHEDULER] = (VICTIM, NOBODY), "runs", "preempts"
    if OLD in scenario.programs:
        steps[OLD] = "waits"
    first = TurnState(claims, holds, tuple(steps), kills=scenario.kills, stops=scenario.stops)
    stuck = "T6 a program that is not stopped never gets its GPUs"
    return TurnResult(
        *explore(first, lambda state: _Steps(state, scenario, rules), _all_served, stuck, wanted)
    )


def _all_served(state: TurnState) -> bool:
    waiting = [p for p in (CALLER, PAIR, SCHEDULER) if state.steps[p] != "over"]
    return all(state.stopped >> p & 1 for p in waiting) and state.steps[RUNNER] in ("none", "over")


class _Steps:
    """The steps possible in one state: (label, state after it, whether it is a fault, what is wrong)."""

    def __init__(self, state: TurnState, scenario: TurnScenario, rules: TurnRules) -> None:
        self._s, self._scenario, self._rules = state, scenario, rules

    def __iter__(self) -> Iterator[tuple[str, TurnState, bool, str | None]]:
        s = self._s
        for program in (CALLER, PAIR, SCHEDULER):
            if s.steps[program] == "over":
                continue
            if s.stopped >> program & 1:
                if not s.stale >> program & 1:
                    yield (
                        f"5 s pass; {_NAMES[program]} has not moved",
                        s._replace(stale=s.stale | 1 << program),
                        False,
                        None,
                    )
                yield (
                    f"{_NAMES[program]} continues",
                    s._replace(stopped=s.stopped & ~(1 << program)),
                    True,
                    None,
                )
                continue
            yield from self._scheduler() if program == SCHEDULER else self._caller(program)
            if s.stops and s.steps[program] in ("waits", "first"):
                yield (
                    f"{_NAMES[program]} IS STOPPED",
                    s._replace(stopped=s.stopped | 1 << program, stops=s.stops - 1),
                    True,
                    None,
                )
            if s.kills:
                yield f"{_NAMES[program]} IS KILLED", self._killed(program), True, None
        yield from self._others()

    def _ahead(self, program: int, gpu: int) -> int:
        """Returns the programs, as bits, that began to wait for a GPU earlier and whose places count."""
        s, order = self._s, self._scenario.order
        stale = s.stale if self._rules.passed_over else 0
        return sum(
            1 << other
            for other in order[: order.index(program)]
            if s.places[other] >> gpu & 1 and not stale >> other & 1
        )

    def _is_free(self, program: int, gpu: int) -> bool:
        return self._s.claims[gpu] == NOBODY and self._s.holds[gpu] in (NOBODY, program)

    def _to(self, program: int, step: str, **changes: object) -> TurnState:
        """Returns the state in which a program has reached a step, and has thereby moved."""
        s = self._s
        steps = (*s.steps[:program], step, *s.steps[program + 1 :])
        stale = s.stale & ~(1 << program) if program < RUNNER else s.stale
        return s._replace(steps=steps, stale=stale, **changes)  # type: ignore[arg-type]

    def _caller(self, program: int) -> Iterator[tuple[str, TurnState, bool, str | None]]:
        s, rules, name = self._s, self._rules, _NAMES[program]
        step, wanted = s.steps[program], 3 if program == PAIR else s.target[program]
        gpus = [gpu for gpu in GPUS if wanted >> gpu & 1]
        could_take_both = all(self._is_free(program, gpu) for gpu in GPUS)
        if step == "begin":
            if program != PAIR or could_take_both or not rules.places_only_now:
                yield (
                    f"{name} takes its places",
                    self._to(program, "waits", places=_put(s.places, program, 3)),
                    False,
                    None,
                )
        elif step == "waits":
            if program == PAIR and not could_take_both and rules.places_only_now:
                yield (
                    f"{name} gives its places up",
                    self._to(program, "begin", places=_put(s.places, program, 0)),
                    False,
                    None,
                )
                return
            for target in (3,) if program == PAIR else (1, 2):
                seen = [gpu for gpu in GPUS if target >> gpu & 1]
                ahead = 0
                for gpu in seen:
                    ahead |= self._ahead(program, gpu)
                wrong = self._idle_gpu(program, seen)
                if wrong:
                    yield f"{name} waits", s, False, wrong
                if all(self._is_free(program, gpu) for gpu in seen) and not (ahead and rules.in_order):
                    yield f"{name} is first on {seen}", self._to(
                        program, "first", target=_put(s.target, program, target),
                        ahead=_put(s.ahead, program, ahead),
                    ), False, None  # fmt: skip
        elif step == "first":
            if not rules.runs_hold or all(s.holds[gpu] in (NOBODY, program) for gpu in gpus):
                holds = s.holds
                for gpu in gpus if rules.runs_hold else ():
                    holds = _put(holds, gpu, program)
                yield f"{name} has the hold on {gpus}", self._to(program, "holds", holds=holds), False, None
            else:
                yield f"{name} is refused the hold", self._to(program, "waits"), False, None
        elif step == "holds":
            free_holds = tuple(NOBODY if one == program else one for one in s.holds)
            claimable = [gpu for gpu in gpus if s.claims[gpu] == NOBODY]
            if claimable != gpus and (rules.all_or_none or not claimable):
                yield (
                    f"{name} is refused the claim",
                    self._to(program, "waits", holds=free_holds),
                    False,
                    None,
                )
                return
            claims, wrong = s.claims, None
            for gpu in claimable:
                claims = _put(claims, gpu, program)
            if s.ahead[program]:
                wrong = "T1 a program takes a GPU although another one is ahead of it"
            if claimable != gpus:
                wrong = "T3 a program claims some of its GPUs and waits for the others"
            if 0 in gpus and self._is_reserved():
                wrong = "T4 another program takes the GPU that a preemption frees"
            yield (
                f"{name} claims {claimable}",
                self._to(program, "runs", claims=claims, holds=free_holds, places=_put(s.places, program, 0)),
                False,
                wrong,
            )
        elif step == "runs":
            claims = tuple(NOBODY if one == program else one for one in s.claims)
            yield f"{name} ends", self._to(program, "over", claims=claims), False, None

    def _idle_gpu(self, program: int, gpus: list[int]) -> str | None:
        """Returns the fault that a free GPU is kept from a program by one that could not take it."""
        s = self._s
        for gpu in gpus:
            blocker = self._ahead(program, gpu) >> PAIR & 1
            busy = any(s.claims[other] in (CALLER, SCHEDULER, RUNNER) for other in GPUS)
            if blocker and busy and self._is_free(program, gpu) and not self._rules.places_only_now:
                return "T5 a program that wants two GPUs keeps one of them idle"
        return None

    def _is_reserved(self) -> bool:
        s = self._s
        is_preempting = VICTIM in self._scenario.programs and not s.dead >> SCHEDULER & 1
        return is_preempting and s.steps[SCHEDULER] not in ("over", "preempts") and s.steps[RUNNER] == "none"

    def _scheduler(self) -> Iterator[tuple[str, TurnState, bool, str | None]]:
        s, rules = self._s, self._rules
        step, target = s.steps[SCHEDULER], s.target[SCHEDULER]
        if step == "preempts":
            if s.holds[0] in (NOBODY, SCHEDULER):
                holds = _put(s.holds, 0, SCHEDULER) if rules.held_before_stop else s.holds
                steps = (*s.steps[:VICTIM], "stops", *s.steps[VICTIM + 1 :])
                yield (
                    "SCHEDULER holds GPU 0 and asks the victim to stop",
                    s._replace(holds=holds)._replace(
                        steps=(*steps[:SCHEDULER], "reserved", *steps[SCHEDULER + 1 :])
                    ),
                    False,
                    None,
                )
        elif step == "reserved":
            if s.claims[0] == NOBODY:
                yield "SCHEDULER plans the urgent job", self._to(SCHEDULER, "records"), False, None
        elif step == "begin":
            yield (
                "SCHEDULER takes its places",
                self._to(SCHEDULER, "waits", places=_put(s.places, SCHEDULER, 3)),
                False,
                None,
            )
        elif step == "waits":
            for gpu in GPUS:
                ahead = self._ahead(SCHEDULER, gpu)
                if self._is_free(SCHEDULER, gpu) and not (ahead and rules.in_order):
                    yield f"SCHEDULER is first on {gpu}", self._to(
                        SCHEDULER, "first", target=_put(s.target, SCHEDULER, gpu),
                        ahead=_put(s.ahead, SCHEDULER, ahead),
                    ), False, None  # fmt: skip
        elif step == "first":
            if s.holds[target] in (NOBODY, SCHEDULER):
                holds = _put(s.holds, target, SCHEDULER)
                yield f"SCHEDULER holds GPU {target}", self._to(SCHEDULER, "holds", holds=holds), False, None
            else:
                yield "SCHEDULER is refused the hold", self._to(SCHEDULER, "waits"), False, None
        elif step == "holds":
            if s.claims[target] != NOBODY and rules.read_after_hold:
                yield (
                    "SCHEDULER finds a new claim",
                    self._to(SCHEDULER, "waits", holds=self._without(SCHEDULER)),
                    False,
                    None,
                )
            else:
                wrong = (
                    "T1 the queue takes a GPU although a program is ahead of it"
                    if s.ahead[SCHEDULER]
                    else None
                )
                yield "SCHEDULER records the attempt", self._to(SCHEDULER, "records"), False, wrong
        elif step == "records":
            after = self._to(RUNNER, "launched", places=_put(s.places, SCHEDULER, 0))
            holds = s.holds if rules.held_until_claimed else self._without(SCHEDULER)
            steps = (*after.steps[:SCHEDULER], "launched", *after.steps[SCHEDULER + 1 :])
            yield "SCHEDULER launches the runner", after._replace(steps=steps, holds=holds), False, None
        elif step == "launched" and (s.steps[RUNNER] in ("claimed", "over") or s.lost):
            yield (
                "SCHEDULER sees the claim and gives the hold up",
                self._to(SCHEDULER, "over", holds=self._without(SCHEDULER)),
                False,
                None,
            )

    def _without(self, program: int) -> tuple[int, ...]:
        return tuple(NOBODY if one == program else one for one in self._s.holds)

    def _others(self) -> Iterator[tuple[str, TurnState, bool, str | None]]:
        s, target = self._s, self._s.target[SCHEDULER]
        if s.steps[RUNNER] == "launched":
            if s.claims[target] == NOBODY:
                claims = _put(s.claims, target, RUNNER)
                yield "RUNNER claims its GPU", self._to(RUNNER, "claimed", claims=claims), False, None
            else:
                has_excuse = OLD in self._scenario.programs or s.dead >> SCHEDULER & 1
                wrong = None if has_excuse else "T2 a launch is lost to a program that takes turns"
                yield "RUNNER loses its GPU", self._to(RUNNER, "over", lost=True), False, wrong
        elif s.steps[RUNNER] == "claimed":
            claims = tuple(NOBODY if one == RUNNER else one for one in s.claims)
            yield "RUNNER ends", self._to(RUNNER, "over", claims=claims), False, None
        if s.steps[VICTIM] == "stops":
            yield "VICTIM leaves", self._to(VICTIM, "over", claims=(NOBODY, s.claims[1])), False, None
        for gpu in GPUS:
            if s.steps[OLD] == "waits" and s.claims[gpu] == NOBODY:
                yield (
                    f"OLD PROGRAM claims {gpu}",
                    self._to(OLD, "runs", claims=_put(s.claims, gpu, OLD)),
                    True,
                    None,
                )
        if s.steps[OLD] == "runs":
            claims = tuple(NOBODY if one == OLD else one for one in s.claims)
            yield "OLD PROGRAM ends", self._to(OLD, "over", claims=claims), False, None

    def _killed(self, program: int) -> TurnState:
        s = self._s
        claims = tuple(NOBODY if one == program else one for one in s.claims)
        after = self._to(program, "over", claims=claims, kills=s.kills - 1, dead=s.dead | 1 << program)
        if self._rules.kernel_locks:
            after = after._replace(places=_put(s.places, program, 0), holds=self._without(program))
        if program == SCHEDULER and s.steps[VICTIM] == "runs":
            after = after._replace(claims=(NOBODY, after.claims[1]))  # the victim ends at some time
        return after


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
