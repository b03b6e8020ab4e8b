"""The runner of an attempt, with its steps in the order of `runner/supervise.py`."""

from __future__ import annotations

from tests.protocol import adopted, stops, termination
from tests.protocol import state as st
from tests.protocol.command import steps_of_command, steps_of_other_process
from tests.protocol.state import OUTCOMES
from tests.protocol.steps import OWN, STEP, Steps, terminate

#: The request of a machine that is shutting down.
_MACHINE = 0
_EXITS_0 = (st.EXIT_0, st.EXIT_SAVED)
_OBEYS_WITHDRAWN = "I15 the runner obeys a preemption that it has withdrawn"


def steps_of_runners(steps: Steps) -> None:
    """Adds the next steps of every runner and every command."""
    state = steps.state
    for number, a in enumerate(st.ATTEMPTS, 1):
        if not state[a + st.RUNNER1]:
            continue  # nothing was launched, or everything has ended
        for which, runner in enumerate(st.RUNNERS, 1):
            if st.is_alive(state[a + runner]):
                _Runner(steps, a, which, f"RUNNER {number}.{which}").next()
        if st.FORKED <= state[a + st.COMMAND] <= st.DYING:
            steps_of_command(steps, a, f"COMMAND {number}")
        if state[a + st.OTHER_PROCESS]:
            steps_of_other_process(steps, a, number)


class _Runner:
    """Adds the steps that one runner can take in one state."""

    def __init__(self, steps: Steps, a: int, which: int, name: str) -> None:
        self._steps, self._a, self._which, self._name = steps, a, which, name
        self._at = a + st.RUNNERS[which - 1]
        self._id = st.runner_id(a, which)
        # A runner whose folder was removed or replaced does not find `stop`.
        self._is_away = steps.state[a + st.LINK] in (st.REPLACED, st.REMOVED)
        self._stop = 0 if self._is_away else steps.state[a + st.STOP]

    def next(self) -> None:
        """Adds the next steps of this runner."""
        pc = self._steps.state[self._at]
        if pc <= st.UNBLOCK:
            self._begin(pc)
        elif pc <= st.PUT_BACK:
            self._attend(pc)
        else:
            self._end(pc)

    def _add(self, label: str, changes: dict[int, int], kind: int = STEP) -> None:
        self._steps.add(kind, f"{self._name} {label}", changes)

    def _released(self) -> dict[int, int]:
        """Returns the change that releases the GPU if this runner has locked it."""
        return {st.GPU_LOCK: st.NO_LOCK} if self._steps.state[st.GPU_LOCK] == self._id else {}

    def _begin(self, pc: int) -> None:
        state, rules, a = self._steps.state, self._steps.rules, self._a
        if pc == st.CHECK_CLAIM:
            if state[a + st.CLAIM] and rules.claims:
                self._add("finds a claim and exits", {self._at: st.RUNNER_GONE})
            else:
                early = {} if rules.attempt_first or state[st.GPU_LOCK] else {st.GPU_LOCK: self._id}
                first = st.FIRST_STOP_CHECK if state[a + st.WATCHES] else st.OPEN_LOCK
                on = st.LINK_CLAIM if rules.claims else first
                self._add("finds no claim", {self._at: on, **early})
        elif pc == st.LINK_CLAIM:
            if state[a + st.CLAIM]:
                self._add("loses the claim and exits", {self._at: st.RUNNER_GONE})
            else:
                self._add("takes the claim", {self._at: st.FIRST_STOP_CHECK, a + st.CLAIM: self._which})
        elif pc == st.FIRST_STOP_CHECK and state[a + st.WATCHES]:
            self._watch()
        elif pc == st.FIRST_STOP_CHECK:
            if self._stop:
                told, _ = termination.request_end(0, self._stop)
                self._add("finds `stop` and starts nothing", {self._at: st.PUBLISH, a + st.TERMINATION: told})
            else:
                self._add("finds no stop", {self._at: st.OPEN_LOCK})
        elif pc <= st.LOCK_REMOVED:
            self._claim_gpu(pc)
        elif pc == st.SPAWNING:
            spawned = {a + st.COMMAND: st.FORKED, a + st.SPAWNS: state[a + st.SPAWNS] + 1}
            self._add("spawns the command", {self._at: st.UNBLOCK, **spawned})
            self._add(
                "cannot spawn", {self._at: st.END_OTHER_PROCESSES, a + st.ACTUAL_END: st.NOT_BEGUN}, OWN
            )
        else:
            self._add("unblocks its signals", {self._at: st.SECOND_STOP_CHECK})

    def _watch(self) -> None:
        """Adds the claim of the GPU, which may fail, and the first look at the adopted process."""
        state, a = self._steps.state, self._a
        locked = {} if state[st.GPU_LOCK] else {st.GPU_LOCK: self._id}
        is_other = state[st.PROCESS] > st.REUSED_PID and not self._steps.rules.start_compared
        if st.process_lives(state) or is_other:
            broken = "I8 a runner watches a foreign process" if is_other else None
            watched = {**locked, a + st.COMMAND: st.WATCHED, self._at: st.SECOND_STOP_CHECK}
            self._steps.add(STEP, f"{self._name} watches the process", watched, broken)
        else:
            # If it opened the process before the claim, it may know how the process ended.
            self._process_has_ended("finds that the process has ended", locked)

    def _process_has_ended(self, label: str, changes: dict[int, int]) -> None:
        after = {**changes, self._at: st.END_OTHER_PROCESSES, self._a + st.COMMAND: st.GONE}
        for how in (adopted.end_of_process(self._steps.state), st.UNKNOWN_END):
            knows = "nobody knows how" if how == st.UNKNOWN_END else "and how"
            self._add(f"{label}, {knows}", {**after, self._a + st.ACTUAL_END: how})

    def _claim_gpu(self, pc: int) -> None:
        state, rules = self._steps.state, self._steps.rules
        holder = state[st.GPU_LOCK]
        if pc == st.OPEN_LOCK:
            self._add("opens the lock file", {self._at: st.LOCK_GPU})
        elif pc == st.LOCK_REMOVED:
            on = st.OPEN_LOCK if rules.lock_compared else st.SPAWNING
            self._add("locks a lock file that was removed", {self._at: on})
        elif holder not in (st.NO_LOCK, self._id):
            broken = "I11 a runner loses the GPU to a runner of the same scheduler"
            self._steps.add(
                STEP,
                f"{self._name} finds the GPU claimed",
                {self._at: st.PUBLISH, self._a + st.ACTUAL_END: st.GPU_TAKEN},
                None if holder == st.OTHER_PROGRAM else broken,
            )
        else:
            locked = {st.GPU_LOCK: self._id} if rules.gpu_locked else {}
            self._add("claims the GPU", {self._at: st.SPAWNING, **locked})

    def _attend(self, pc: int) -> None:
        state, a = self._steps.state, self._a
        told = state[a + st.TERMINATION]
        if pc in (st.WITHDRAW, st.DISCARD, st.PUT_BACK):
            {st.WITHDRAW: self._withdraw, st.DISCARD: self._discard, st.PUT_BACK: self._put_back}[pc]()
            return
        if pc == st.SECOND_STOP_CHECK:
            self._check_stop("checks for stop", {self._at: st.ATTEND})
        elif state[a + st.COMMAND] == st.ZOMBIE:
            freed = {} if self._steps.rules.release_last else self._released()
            ended = {self._at: st.END_OTHER_PROCESSES, a + st.COMMAND: st.GONE}
            self._add("collects the command", {**ended, **freed})
            return
        elif state[a + st.COMMAND] == st.WATCHED and not st.process_lives(state):
            self._process_has_ended("sees the end of the process", {})
            return
        if state[a + st.SIGNALS] & st.USR1:
            self._signalled(st.USR1)
        elif state[a + st.SIGNALS] & st.TERM:
            self._signalled(st.TERM)
        if pc == st.ATTEND and told:
            self._grace_over(termination.after_grace(told))

    def _signalled(self, signal: int) -> None:
        a, signals = self._a, self._steps.state[self._a + st.SIGNALS] & ~signal
        one_signal = not self._steps.rules.own_stop_signal
        watches = self._steps.state[a + st.WATCHES]
        if signal == st.USR1 and not (one_signal and not self._stop):
            self._check_stop("receives 'check for stop'", {a + st.SIGNALS: signals})
        elif one_signal and self._stop:
            self._check_stop("receives SIGTERM", {a + st.SIGNALS: signals})
        elif self._ignores_stop():
            self._check_stop("checks for stop, because of SIGTERM", {})
        elif watches and self._steps.rules.watcher_leaves:
            self._leave({a + st.SIGNALS: signals})
        else:
            requests = [self._stop] if self._stop else []
            self._request_end("receives SIGTERM", [*requests, _MACHINE], {a + st.SIGNALS: signals})

    def _leave(self, changes: dict[int, int]) -> None:
        """Adds SIGTERM to a watcher, which exits without a result unless it carries out a request to stop."""
        if self._stop:
            self._request_end("receives SIGTERM", [self._stop], changes)
        elif termination.end_cause(self._steps.state[self._a + st.TERMINATION]):
            self._add("receives SIGTERM, but ends the process first", changes)
        else:
            self._add("receives SIGTERM and exits without a result", {**changes, self._at: st.RUNNER_GONE})

    def _ignores_stop(self) -> bool:
        """Returns whether the runner has withdrawn the request in the file `stop`."""
        state, rules, a = self._steps.state, self._steps.rules, self._a
        if not rules.withdrawn_remembered or not (
            rules.all_remembered or self._stop == state[a + st.WITHDRAWN]
        ):
            return False
        return termination.has_withdrawn(state[a + st.TERMINATION], self._stop)

    def _check_stop(self, label: str, changes: dict[int, int]) -> None:
        if self._ignores_stop():
            self._add(f"{label}: {self._named()} was withdrawn before", {**changes, self._at: st.DISCARD})
        elif self._stop:
            self._request_end(f"{label}: {self._named()}", [self._stop], changes)
        else:
            self._add(f"{label}: none", changes)

    def _named(self) -> str:
        return stops.name_of(self._stop)

    def _request_end(self, label: str, requests: list[int], changes: dict[int, int]) -> None:
        told, signals = self._steps.state[self._a + st.TERMINATION], False
        for stop in requests:
            told, is_signalled = termination.request_end(told, stop)
            signals = signals or is_signalled
        changes = {**changes, self._a + st.TERMINATION: told}
        again = any(stops.was_withdrawn(self._steps.state, self._a, stop) for stop in requests)
        broken = _OBEYS_WITHDRAWN if again else None
        if signals and self._steps.state[self._a + st.WATCHES] and not any(requests):
            broken = "I19 a watcher ends a process that nobody asked to end"
        if signals:
            label = f"{self._name} {label}, SIGTERM"
            preempts = any(stops.preemption_id(stop) is not None for stop in requests)
            terminate(self._steps, STEP, label, self._a, changes, preempts=preempts, broken=broken)
        else:
            self._steps.add(STEP, f"{self._name} {label}", changes, broken)

    def _grace_over(self, due: str | None) -> None:
        state, a = self._steps.state, self._a
        if due == "withdraw":
            self._add("withdraws after the grace period", {self._at: st.WITHDRAW})
        elif due == "kill" and state[a + st.COMMAND] == st.WATCHED and st.process_lives(state):
            killed = {st.PROCESS: adopted.ended(st.BY_KILL)}
            self._add("sends SIGKILL to the process after the grace period", killed)
        elif due == "kill" and st.command_lives(state, a):
            killed = {a + st.ACTUAL_END: st.BY_KILL}
            self._add("sends SIGKILL after the grace period", {a + st.COMMAND: st.ZOMBIE, **killed})
            self._add(
                "sends SIGKILL after the grace period, but the command is not gone yet",
                {a + st.COMMAND: st.DYING, **killed},
            )

    def _withdraw(self) -> None:
        """Adds the withdrawal. If a cancel has just replaced the request, the runner obeys the cancel."""
        state, a = self._steps.state, self._a
        told, withdrawn = termination.withdraw(state[a + st.TERMINATION], self._stop)
        withdrawn = (
            state[a + st.EVER_WITHDRAWN] if self._is_away else withdrawn | state[a + st.EVER_WITHDRAWN]
        )
        after = {self._at: st.ATTEND, a + st.TERMINATION: told, a + st.EVER_WITHDRAWN: withdrawn}
        renames = self._steps.rules.withdraw_renames
        if self._stop:
            after.update({a + st.STOP: 0, **({a + st.WITHDRAWN: self._stop} if renames else {})})
        if stops.is_kill(self._stop) and renames:
            self._request_end_after("renames `stop`", self._stop, after)
        else:
            self._add(f"renames `stop` and continues: {self._named()}", after)

    def _request_end_after(self, label: str, stop: int, changes: dict[int, int]) -> None:
        told, signals = termination.request_end(changes[self._a + st.TERMINATION], stop)
        changes = {**changes, self._a + st.TERMINATION: told}
        label = f"{self._name} {label} and obeys it: {stops.name_of(stop)}"
        if signals:
            preempts = stops.preemption_id(stop) is not None
            terminate(self._steps, STEP, f"{label}, SIGTERM", self._a, changes, preempts=preempts)
        else:
            self._steps.add(STEP, label, changes)

    def _back(self) -> int:
        """Returns the step that a runner that has discarded `stop` continues with."""
        return st.ATTEND if self._steps.state[self._a + st.COMMAND] != st.GONE else st.END_OTHER_PROCESSES

    def _discard(self) -> None:
        """Adds the first step that discards a withdrawn `stop`, which a new request may have replaced."""
        a, rules = self._a, self._steps.rules
        if not self._stop:
            self._add("finds no `stop` to take away", {self._at: self._back()})
        elif rules.ignored_put_back:
            label = f"renames `stop` to `ignored` and reads {self._named()}"
            self._add(label, {self._at: st.PUT_BACK, a + st.STOP: 0, a + st.IGNORED: self._stop})
        else:
            taken = {self._at: self._back(), a + st.STOP: 0, a + st.WITHDRAWN: self._stop}
            if stops.is_kill(self._stop):
                told = self._steps.state[a + st.TERMINATION]
                self._request_end_after("renames `stop`", self._stop, {**taken, a + st.TERMINATION: told})
            else:
                _, withdrawn = termination.withdraw(0, self._stop)
                known = self._steps.state[a + st.EVER_WITHDRAWN]
                taken[a + st.EVER_WITHDRAWN] = known | withdrawn
                self._add(f"renames `stop` to `withdrawn`: {self._named()}", taken)

    def _put_back(self) -> None:
        """Adds the second step: a withdrawn request is named in `withdrawn` again, a new one is put back."""
        state, a = self._steps.state, self._a
        taken = state[a + st.IGNORED]
        after = {self._at: self._back(), a + st.IGNORED: 0}
        if termination.has_withdrawn(state[a + st.TERMINATION], taken):
            self._add("renames `ignored` to `withdrawn`", {**after, a + st.WITHDRAWN: taken})
        else:
            put = {} if state[a + st.STOP] else {a + st.STOP: taken}
            told = state[a + st.TERMINATION]
            self._request_end_after("puts `stop` back", taken, {**after, **put, a + st.TERMINATION: told})

    def _end(self, pc: int) -> None:
        state, rules, a = self._steps.state, self._steps.rules, self._a
        cause, truth = termination.end_cause(state[a + st.TERMINATION]), state[a + st.ACTUAL_END]
        then = st.RELEASE_GPU if rules.release_first else st.PUBLISH
        if pc == st.END_OTHER_PROCESSES:
            if cause and state[a + st.SIGNALS] & st.USR1:
                self._signalled(st.USR1)
            self._end_other_processes(then if cause or truth in (*_EXITS_0, st.EXIT_LEFT) else st.GAP)
        elif pc == st.GAP:
            if state[st.MACHINE_ENDING] == 2 and rules.machine_gap:
                return  # the runner's SIGTERM is still to come
            signals = state[a + st.SIGNALS]
            if signals & st.TERM or (signals and not rules.own_stop_signal and not self._stop):
                told, _ = termination.request_end(state[a + st.TERMINATION], _MACHINE)
                self._add(
                    "receives a late SIGTERM from the machine",
                    {self._at: then, a + st.TERMINATION: told},
                )
            else:
                self._add("has waited 0.3 s for SIGTERM from the machine", {self._at: then})
        elif pc == st.RELEASE_GPU:
            self._add("releases the GPU", {self._at: st.PUBLISH, **self._released()})
        elif pc == st.PUBLISH:
            self._publish(cause, truth)
        else:
            self._add("syncs the folder and exits", {self._at: st.RUNNER_GONE, a + st.SYNCED: 1})

    def _end_other_processes(self, then: int) -> None:
        state, rules, a = self._steps.state, self._steps.rules, self._a
        left, on = state[a + st.OTHER_PROCESS], {self._at: then}
        # An orphan is not a child, and without children the runner does not scan again.
        if left in (st.NOBODY, st.ORPHAN):
            self._add("has no children left", on)
        elif left == st.FORK_CHAIN:
            self._add("ends the remaining processes", {**on, a + st.OTHER_PROCESS: st.NOBODY})
            self._add("gives up on a fork chain", {**on, a + st.OTHER_PROCESS: st.LOOSE_CHAIN})
            if not rules.no_children:
                self._add("does not find a fork chain", on)
        elif left in (st.PLAIN, st.IN_SESSION, st.OWN_SESSION):
            stuck = st.STUCK if left == st.PLAIN else left
            self._add("ends the remaining processes", {**on, a + st.OTHER_PROCESS: st.NOBODY})
            self._add("cannot end the remaining processes", {**on, a + st.OTHER_PROCESS: stuck})
        else:
            self._add("cannot end the remaining processes", on)

    def _publish(self, cause: int, truth: int) -> None:
        state, a = self._steps.state, self._a
        if cause == st.INTERRUPTED and truth in _EXITS_0:
            cause = st.NONE  # the command saved its work and exited normally
        began = {
            st.UNKNOWN_END: st.ENDED,
            st.BY_MACHINE: st.KILLED,
            **(dict.fromkeys((st.BY_TERM, st.BY_KILL), st.KILLED) if state[a + st.WATCHES] else {}),
            **dict.fromkeys(_EXITS_0, st.COMPLETED),
            st.NOT_BEGUN: st.NOT_STARTED,
            st.GPU_TAKEN: st.GPU_LOST,
        }
        by_itself = began.get(truth, st.FAILED)
        result = cause or by_itself
        if state[a + st.LINK] in (st.REPLACED, st.REMOVED):
            self._add("publishes its result elsewhere and exits", {self._at: st.RUNNER_GONE})
        else:
            self._add(f"publishes its result: {OUTCOMES[result]}", {self._at: st.EXIT, a + st.RESULT: result})
