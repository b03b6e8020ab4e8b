"""P17: boxes share one queue on Redis, while their agents, their schedulers, the network and Redis fail.

What the jobs write themselves is judged: each item runs once, unless docs/redis.md has a row that says
otherwise. The negative controls are the scheduler of the source document, which pops an item and then runs
it, and boxes that start what they claim without `confirm`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator

from gpu_scheduler.redis_queue import agent, queue
from gpu_scheduler.store.taken_items import box_id
from tests.stress.harness import pause, program_for
from tests.stress.part import Findings, Order
from tests.stress.redis_agent_steps import UNCONFIRMED
from tests.stress.redis_boxes import SCALE, SILENT_S, Lab, Program, RedisBox, RedisServer, name_of
from tests.stress.redis_source import QUEUE, RECORD
from tests.waiting import wait_for

#: Seconds that an outage of Redis takes, shortened.
_DOWN_S = 120 / SCALE
#: A moment: the program, the name of its step, and the signal that it gets there.
_Moment = tuple[Program, str, int]
#: The programs that fail, and the signals that they get at each step.
_SIGNALS: dict[Program, tuple[int, ...]] = {
    "agent": (signal.SIGKILL, signal.SIGSTOP), "scheduler": (signal.SIGKILL,)
}  # fmt: skip
_STEPPING = "tests.stress.redis_agent_steps"
#: The steps at the scripts that the agent has.
_STEPS_OF_SCRIPTS = {
    f"{moment} script {name}"
    for moment in ("before", "sent", "after")
    for name, text in vars(agent).items()
    if str(text).startswith(queue._COMMON)
}
_NO_SERVER = "redis-server is not installed"
#: Memory that allows a box with four GPUs to run 40 jobs at once, and their number.
_SMALL_MB, _MANY = 2000, 40


def kills(order: Order) -> Findings:
    """Runs 300 jobs ten times, while agents, schedulers and links fail at random."""
    if not RedisServer.is_installed():
        return Findings(skipped=_NO_SERVER)
    found = Findings()
    rounds, jobs = order.scaled(10), 300 if order.full_length else order.scaled(3000, least=12)
    for number in range(rounds):
        with Lab(order, order.folder / f"kills{number}", program=program_for(order)) as lab:
            if order.is_control:
                _stop_unconfirmed(lab, jobs)
            else:
                _fail_at_random(lab, jobs, found, with_source=number % 3 == 1)
            lab.judge(found)
    found.figures = {"items": rounds * jobs, **found.figures}
    return found


def _fail_at_random(lab: Lab, jobs: int, found: Findings, *, with_source: bool) -> None:
    lab.server.start()
    for box in lab.boxes:
        box.start()
    if with_source:
        lab.run_beside("tests.stress.redis_source", "4")
        found.count("rounds beside the source's scheduler")
    while len(lab.codes) < jobs:
        lab.push(min(6, jobs - len(lab.codes)))
        pause(lab.dice.uniform(0.0, 0.4))
        box, what = lab.dice.choice(lab.boxes), lab.dice.choice(_FAULTS)
        found.count(what.__name__.strip("_").replace("_", " "))
        what(lab, box)
    lab.settle(60 + jobs)
    lab.judge_records(found)


def _agents_killed(lab: Lab, box: RedisBox) -> None:
    box.signal_agent(signal.SIGKILL)
    pause(lab.dice.choice((0.0, 0.2, SILENT_S)))
    box.start_agent()


def _schedulers_killed(lab: Lab, box: RedisBox) -> None:
    box.kill_scheduler()
    pause(lab.dice.choice((0.0, 0.5)))
    box.start_scheduler()


def _boxes_killed(lab: Lab, box: RedisBox) -> None:
    box.kill()
    pause(lab.dice.choice((0.0, SILENT_S)))
    box.start()


def _agents_stopped(lab: Lab, box: RedisBox) -> None:
    box.signal_agent(signal.SIGSTOP)
    pause(SILENT_S + lab.dice.uniform(0, 0.5))
    box.signal_agent(signal.SIGCONT)


def _boxes_cut_off(lab: Lab, box: RedisBox) -> None:
    box.proxy.set(lab.dice.choice(("closed", "mute")))
    pause(lab.dice.choice((0.2, SILENT_S)))
    box.proxy.set("open")


_FAULTS: tuple[Callable[[Lab, RedisBox], None], ...] = (
    _agents_killed, _schedulers_killed, _boxes_killed, _agents_stopped, _boxes_cut_off,
)  # fmt: skip


def _stop_unconfirmed(lab: Lab, jobs: int) -> None:
    """Stops agents without confirm for longer than a box may be silent, while their jobs run."""
    lab.server.start()
    boxes = [box for box in lab.boxes if not box.companion]
    for box in boxes:
        box.env[UNCONFIRMED] = "1"
        box.start()
    while len(lab.codes) < jobs:
        before = sum(lab.starts().values())
        # These jobs outlast the silence, so their claims are open when the other boxes give them back.
        lab.push(6, 3 * SILENT_S, shortest_s=2 * SILENT_S)
        wait_for(lambda before=before: sum(lab.starts().values()) > before, "a start")  # type: ignore[misc]
        box = max(boxes, key=lambda one: len(lab.starts_on(one.name)))
        box.signal_agent(signal.SIGSTOP)
        pause(SILENT_S)
        box.signal_agent(signal.SIGCONT)
    lab.settle(60)


def steps(order: Order) -> Findings:
    """Kills an agent or a scheduler at each of its steps, and stops the agent there for long."""
    if not RedisServer.is_installed():
        return Findings(skipped=_NO_SERVER)
    found = Findings()
    with Lab(order, order.folder / "steps", boxes="AB", program=_STEPPING) as lab:
        if order.is_control:
            _kill_source(lab, order.scaled(300))
        else:
            _fail_at_steps(lab, order, found)
            lab.judge_records(found)
        lab.judge(found)
    found.figures = {"items": len(lab.codes), **found.figures}
    return found


def _fail_at_steps(lab: Lab, order: Order, found: Findings) -> None:
    """Lets the first box fail at each moment in turn.

    It does so in a new run of Redis or, if it does not reach the moment there, as a new box with a new Redis.
    """
    lab.server.start()
    first, second = lab.boxes
    first.start_agent()
    first.start_scheduler()
    second.start()
    lab.push(12)
    lab.settle(60)
    _lose_claim(lab)
    for program in _SIGNALS:
        _pass_all_steps(lab, program)
        wait_for(lab.have_ended, "the ends of all items", timeout_s=60 + 4 * SILENT_S)
        second.signal_agent(signal.SIGCONT)
    moments = _moments(lab)
    chosen = lab.dice.sample(moments, order.scaled(len(moments), least=4))
    reached: list[_Moment] = []
    for nth, moment in enumerate(chosen):
        program, step, number = moment
        if _fail_at(lab, moment):
            reached.append(moment)
        else:
            with Lab(order, order.folder / f"new{nth}", boxes="A", program=_STEPPING) as new:
                new.server.start()
                if _fail_at(new, moment):
                    reached.append(moment)
                    found.count("moments of a new box")
                else:
                    found.fault("moment not reached", f"{program} {step}, signal {int(number)}")
                new.settle(60)
                new.judge(found)
                found.count("items on new boxes", len(new.codes))
    found.figures["moments"] = f"{len(reached)} of {len(chosen)}"
    for program, numbers in _SIGNALS.items():
        for number in numbers:
            count = sum(one[0] == program and one[2] == number for one in reached)
            found.count(f"{program} {'killed' if number == signal.SIGKILL else 'stopped'}", count)
    lab.settle(120)
    with lab.server.client() as client:
        for item in client.zrange(QUEUE, 0, -1):
            found.fault("left in the queue", repr(item))


def _moments(lab: Lab) -> list[_Moment]:
    """Returns the moments at the steps that the boxes have reached and at all scripts of the agent."""
    moments: list[_Moment] = []
    for program, numbers in _SIGNALS.items():
        names = {name for box in lab.boxes for name in box.steps(program)}
        if program == "agent":
            names |= _STEPS_OF_SCRIPTS
        moments += [(program, name, number) for name in sorted(names) for number in numbers]
    return moments


def _fail_at(lab: Lab, moment: _Moment) -> bool:
    """Lets the first box fail at this moment, and continue. Returns whether it reached the moment."""
    box, (program, step, number) = lab.boxes[0], moment
    if lab.codes:
        gives_up = step.endswith(
            ("give_up", "JobChanged finished")
        )  # the scheduler cancels what the agent gives up
        if gives_up:
            _lose_claim(lab)
        _pass_all_steps(lab, program, step, number)
        if gives_up and program == "scheduler":
            box.go_on("agent")
    else:
        # While an agent is stopped in the middle of a commit, no scheduler can start.
        box.restart("scheduler", *(moment[1:] if program == "scheduler" else ()))
        box.restart("agent", *(moment[1:] if program == "agent" else ()))
        lab.push(3)
    is_reached = _comes(lambda: box.has_failed(program), 30 + 4 * SILENT_S)
    for other in lab.boxes[1:]:
        other.signal_agent(signal.SIGCONT)
    if is_reached and number == signal.SIGSTOP:
        pause(SILENT_S)
        box.go_on(program)
    else:
        box.restart(program)
    _comes(lab.have_ended, 60 + 4 * SILENT_S)
    return is_reached


def _pass_all_steps(lab: Lab, program: Program, step: str = "", number: int = signal.SIGKILL) -> None:
    """Starts a program of the first box anew, in a scene in which it passes all steps but those of a new box.

    The agent meets a new run of Redis, to which the other box reports after it, a bad item, and a claim of
    its box without a job. The first box has all items to itself.
    """
    box, other = lab.boxes
    other.signal_agent(signal.SIGSTOP)
    wait_for(other.is_stopped, "a stopped agent")
    if program == "agent":
        box.signal_agent(signal.SIGKILL)
        _claim_without_job(lab, box)
        lab.server.kill()
        lab.server.start()
    before = len(box.steps(program))
    box.restart(program, step, number)
    with lab.server.client() as client:
        if program == "agent":
            _comes(lambda: box.has_failed(program) or "after HGETALL" in box.steps(program)[before:], 20)
            other.signal_agent(signal.SIGCONT)
            _comes(lambda: box.has_failed(program) or client.hget("gpusched:run", "at") != b"", 20)
            other.signal_agent(signal.SIGSTOP)
        client.set(f"{RECORD}bad", "{")
        client.zadd(QUEUE, {"bad": 0})
    if program == "scheduler":  # its jobs outlast the 5 s between two readings of GPUs
        lab.push(3, 7.0, shortest_s=6.0)
    else:
        lab.push(3)


def _lose_claim(lab: Lab) -> None:
    """Stops the agent of the first box after a claim until the other box has run the item."""
    box, other = lab.boxes
    other.signal_agent(signal.SIGSTOP)
    box.restart("agent", "before script CONFIRM", signal.SIGSTOP)
    lab.push(1)
    wait_for(box.is_stopped, "a claim")
    other.signal_agent(signal.SIGCONT)
    wait_for(lab.have_ended, "the end of the item on the other box", timeout_s=60 + 4 * SILENT_S)


def _claim_without_job(lab: Lab, box: RedisBox) -> None:
    """Pushes an item and claims it for this box, whose agent does not get the answer."""
    lab.push(1)
    item = name_of(max(lab.codes))
    with lab.server.client() as client, contextlib.closing(box.stage.store()) as store:
        number, text = client.hget("gpusched:run", "number"), client.get(RECORD + item)
        answer = client.eval(queue.CLAIM, 0, item, box_id(store), "lost", text, number, "0")
        assert isinstance(answer, list), answer


def _comes(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Waits for the condition. Returns whether it became true in time."""
    try:
        return wait_for(condition, timeout_s=timeout_s)
    except AssertionError:
        return False


def _kill_source(lab: Lab, jobs: int) -> None:
    """Kills a scheduler of the source again and again, up to 2 ms after it has taken an item."""
    lab.server.start()
    with lab.server.client() as client:
        while len(lab.codes) < jobs:
            lab.push(4, 0.1)
            count = client.zcard(QUEUE)
            scheduler = lab.run_beside("tests.stress.redis_source", "100")
            wait_for(lambda count=count: client.zcard(QUEUE) < count, "a pop", every_s=0.0)  # type: ignore[misc]
            pause(lab.dice.uniform(0.0, 0.002))
            scheduler.kill()
            scheduler.wait()
    lab.run_beside("tests.stress.redis_source", "100")
    lab.settle(5)


def losses(order: Order) -> Findings:
    """Kills, empties, rolls back and fills Redis, while three boxes run its items."""
    if not RedisServer.is_installed():
        return Findings(skipped=_NO_SERVER)
    found = Findings()
    for number in range(order.scaled(5)):
        chosen = _LOSSES if order.full_length else order.rng("losses").sample(_LOSSES, 2)
        for loss in chosen:
            name = loss.__name__.strip("_")
            with Lab(order, order.folder / f"{name}{number}", program=program_for(order)) as lab:
                lab.server.start(appendonly=loss not in (_rolled_back, _rolled_back_unconfirmed, _retried))
                for box in lab.boxes:
                    box.start()
                lab.push(order.scaled(40, least=9))
                pause(lab.dice.uniform(0.1, 1.0))
                loss(lab)
                lab.push(order.scaled(20, least=6))
                lab.settle(90)
                found.count(name.replace("_", " "))
                found.count("items", len(lab.codes))
                if loss in (_restarted, _down, _full):
                    lab.judge_records(found)
                lab.judge(found)
    found.figures = {"items": found.figures.pop("items"), **found.figures}
    return found


def _restarted(lab: Lab) -> None:
    lab.server.kill()
    lab.server.start()


def _down(lab: Lab) -> None:
    lab.server.kill()
    pause(_DOWN_S)
    lab.server.start()


def _emptied(lab: Lab) -> None:
    _without_agents(lab, lambda: lab.excuse_unclaimed("Redis lost its data"))
    lab.server.kill()
    lab.server.remove_data()
    lab.server.start()
    _continue_agents(lab)


def _flushed(lab: Lab) -> None:
    _without_agents(lab, lambda: lab.excuse_unclaimed("Redis lost its data"))
    with lab.server.client() as client:
        client.flushall()
    _continue_agents(lab)


def _rolled_back(lab: Lab) -> None:
    """Goes back to a snapshot that is longer ago than a box may be silent."""
    before = set(lab.codes)
    with _snapshot(lab):
        lab.push(6)
        lab.boxes[0].signal_agent(signal.SIGSTOP)
        pause(2 * SILENT_S)
        _without_agents(lab, lambda: lab.excuse_unclaimed("Redis lost its data"))
        for n in before & lab.excused.keys():
            del lab.excused[n]  # the snapshot has them
    _continue_agents(lab)


def _rolled_back_unconfirmed(lab: Lab) -> None:
    """Goes back to a snapshot with unconfirmed claims, while their jobs run and their box is away."""
    lab.settle(60)
    box, others = lab.boxes[0], lab.boxes[1:]
    _without_agents(lab, lambda: None)
    box.restart("agent", "before script CONFIRM", signal.SIGSTOP)
    lab.push(4)
    wait_for(box.is_stopped, "a claim")
    with _snapshot(lab):
        box.signal_agent(signal.SIGCONT)
        wait_for(lambda: all(lab.starts()[n] for n in sorted(lab.codes)[-4:]), "starts")
        box.signal_agent(signal.SIGSTOP)
    for other in others:
        other.signal_agent(signal.SIGCONT)
    pause(3 * SILENT_S)
    box.signal_agent(signal.SIGCONT)


def _retried(lab: Lab) -> None:
    """Goes back to a snapshot in which ended items wait again, although they have run again since."""
    again = _retry_some(lab)
    with _snapshot(lab):
        _continue_agents(lab)
        wait_for(lambda: all(lab.starts()[n] == 2 for n in again), "second runs")


def _restarted_after_retry(lab: Lab) -> None:
    """Restarts Redis with its data while one box has claimed, but not confirmed, what another one ended."""
    _retry_some(lab)
    box = lab.boxes[1]
    box.restart("agent", "before script CONFIRM", signal.SIGSTOP)
    wait_for(box.is_stopped, "a claim")
    lab.server.kill()
    lab.server.start()
    for other in (lab.boxes[0], lab.boxes[2]):
        other.signal_agent(signal.SIGCONT)
    pause(SILENT_S)
    box.signal_agent(signal.SIGCONT)


def _retry_some(lab: Lab) -> list[int]:
    """Waits until all items have ended, stops all agents and retries some items, which it returns."""
    lab.settle(60)
    box, again = lab.boxes[0], sorted(lab.codes)[:6]

    def retry() -> None:
        done = box.cli("redis-queue", "retry", *map(name_of, again), "--redis", box.url)
        assert done.returncode == 0, done.stderr

    lab.expected = dict.fromkeys(again, 2)
    _without_agents(lab, retry)
    return again


@contextlib.contextmanager
def _snapshot(lab: Lab) -> Iterator[None]:
    """Saves what Redis has; after the block, kills it and starts it with that."""
    with lab.server.client() as client:
        client.save()
    dump, kept = lab.server.folder / "dump.rdb", lab.server.folder / "kept"
    shutil.copy(dump, kept)
    yield
    lab.server.kill()
    shutil.copy(kept, dump)
    lab.server.start(appendonly=False)


def _full(lab: Lab) -> None:
    """Lets Redis refuse writes for a while."""
    with lab.server.client() as client:
        client.config_set("maxmemory", "1")
        pause(_DOWN_S)
        client.config_set("maxmemory", "0")


def _without_agents(lab: Lab, action: Callable[[], None]) -> None:
    """Does this while all agents are stopped, so that no item changes hands; they stay stopped."""
    for box in lab.boxes:
        box.signal_agent(signal.SIGSTOP)
    wait_for(lambda: all(box.is_stopped() or box.agent_pid() is None for box in lab.boxes), "stopped agents")
    action()


def _continue_agents(lab: Lab) -> None:
    for box in lab.boxes:
        box.signal_agent(signal.SIGCONT)


_LOSSES: tuple[Callable[[Lab], None], ...] = (
    _restarted, _down, _emptied, _flushed, _full, _rolled_back, _rolled_back_unconfirmed, _retried,
    _restarted_after_retry,
)  # fmt: skip


def dead_box(order: Order) -> Findings:
    """Ends a box for good while 40 jobs run on it: one command requeues them, and each runs once more."""
    if not RedisServer.is_installed():
        return Findings(skipped=_NO_SERVER)
    found, jobs = Findings(), order.scaled(_MANY, least=4)
    for number in range(order.scaled(3)):
        with Lab(order, order.folder / f"dead{number}", program=program_for(order)) as lab:
            lab.server.start()
            dead, *others = lab.boxes
            dead.start()
            lab.push(jobs, gated=True, memory_mb=_SMALL_MB)
            wait_for(lambda lab=lab: len(lab.starts()) == jobs, "running jobs", 60 + SILENT_S)  # type: ignore[misc]
            for box in others:
                box.start()
            pause(SILENT_S)
            dead.destroy()
            _requeue(lab, others[0], jobs, found)
            (lab.folder / "gate").touch()
            lab.settle(90)
            with contextlib.suppress(AssertionError):
                wait_for(lambda lab=lab, n=jobs: sum(lab.starts().values()) >= 2 * n)  # type: ignore[misc]
            lab.settle(30)
            lab.expected = dict.fromkeys(lab.codes, 2)
            lab.judge(found)
            lab.judge_records(found)
            again = {n for box in others for n in lab.starts_on(box.name)}
            found.count("items requeued and run by other boxes", len(again))
    found.figures = {"items": jobs * order.scaled(3), **found.figures}
    return found


def _requeue(lab: Lab, box: RedisBox, jobs: int, found: Findings) -> None:
    """Waits until `redis-queue` lists the items of the dead box as silent, and requeues all of them."""
    names = [name_of(n) for n in lab.codes]

    def listed() -> bool:
        done = box.cli("redis-queue", "--redis", box.url, "--json")
        try:
            claims = json.loads(done.stdout)["claims"]
        except ValueError:
            return False
        return {one["id"] for one in claims if one["silent_s"] is not None} == set(names)

    try:
        wait_for(listed, "silent items", timeout_s=30 + 2 * SILENT_S, every_s=0.5)
    except AssertionError:
        found.fault("not listed", box.cli("redis-queue", "--redis", box.url).stdout[-2000:])
    pause(SILENT_S)
    if len(lab.starts()) != jobs or sum(lab.starts().values()) != jobs:
        found.fault("run twice", "items of a dead box ran before anybody requeued them")
    done = box.cli("redis-queue", "requeue", *names, "--redis", box.url)
    if done.returncode != 0:
        found.fault("refused", done.stdout + done.stderr)
