"""The runner of an attempt and its command, with their steps in the order of `runner/supervise.py`."""

from __future__ import annotations

from tests.protocol import decisions
from tests.protocol import state as st
from tests.protocol.state import OUTCOMES
from tests.protocol.steps import FAULT, OWN, STEP, Steps, end_of_command, terminate

_STOP_CAUSES = {st.STOP_CANCEL: st.CANCELLED, st.STOP_PREEMPT: st.PREEMPTED}


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
            _command(steps, a, f"COMMAND {number}")
        if state[a + st.OTHER_PROCESS]:
            _other_process(steps, a, number)


class _Runner:
    """Adds the steps that one runner can take in one state."""

    def __init__(self, steps: Steps, a: int, which: int, name: str) -> None:
        self._steps, self._a, self._which, self._name = steps, a, which, name
        self._at = a + st.RUNNERS[which - 1]
        self._id = st.runner_id(a, which)
        # A runner whose folder was removed or replaced does not find `stop`.
        away = steps.state[a + st.LINK] in (st.REPLACED, st.REMOVED)
        self._stop = 0 if away else steps.state[a + st.STOP]

    def next(self) -> None:
        """Adds the next steps of this runner."""
        pc = self._steps.state[self._at]
        if pc <= st.UNBLOCK:
            self._begin(pc)
        elif pc <= st.WITHDRAW:
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
                on = st.LINK_CLAIM if rules.claims else st.OPEN_LOCK
                self._add("finds no claim", {self._at: on, **early})
        elif pc == st.LINK_CLAIM:
            if state[a + st.CLAIM]:
                self._add("loses the claim and exits", {self._at: st.RUNNER_GONE})
            else:
                self._add("takes the claim", {self._at: st.FIRST_STOP_CHECK, a + st.CLAIM: self._which})
        elif pc == st.FIRST_STOP_CHECK:
            if self._stop:
                told, _ = decisions.request_end(0, _STOP_CAUSES[self._stop])
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
        if pc == st.WITHDRAW:
            self._withdraw()
            return
        if pc == st.SECOND_STOP_CHECK:
            self._check_stop("checks for stop", {self._at: st.ATTEND})
        elif state[a + st.COMMAND] == st.ZOMBIE:
            freed = {} if self._steps.rules.release_last else self._released()
            ended = {self._at: st.END_OTHER_PROCESSES, a + st.COMMAND: st.GONE}
            self._add("collects the command", {**ended, **freed})
            return
        if state[a + st.SIGNALS] & st.USR1:
            self._signalled(st.USR1)
        elif state[a + st.SIGNALS] & st.TERM:
            self._signalled(st.TERM)
        if pc == st.ATTEND and told:
            self._grace_over(decisions.after_grace(told))

    def _signalled(self, signal: int) -> None:
        a, signals = self._a, self._steps.state[self._a + st.SIGNALS] & ~signal
        one_signal = not self._steps.rules.own_stop_signal
        if signal == st.USR1 and not (one_signal and not self._stop):
            self._check_stop("receives 'check for stop'", {a + st.SIGNALS: signals})
        elif one_signal and self._stop:
            self._check_stop("receives SIGTERM", {a + st.SIGNALS: signals})
        else:
            causes = [_STOP_CAUSES[self._stop]] if self._stop else []
            self._request_end("receives SIGTERM", [*causes, st.INTERRUPTED], {a + st.SIGNALS: signals})

    def _check_stop(self, label: str, changes: dict[int, int]) -> None:
        if self._stop:
            cause = _STOP_CAUSES[self._stop]
            self._request_end(f"{label}: {OUTCOMES[cause]}", [cause], changes)
        else:
            self._add(f"{label}: none", changes)

    def _request_end(self, label: str, causes: list[int], changes: dict[int, int]) -> None:
        told, first = self._steps.state[self._a + st.TERMINATION], False
        for cause in causes:
            told, is_first = decisions.request_end(told, cause)
            first = first or is_first
        changes = {**changes, self._a + st.TERMINATION: told}
        if first:
            terminate(self._steps, STEP, f"{self._name} {label}, SIGTERM", self._a, changes)
        else:
            self._add(label, changes)

    def _grace_over(self, due: str | None) -> None:
        state, a = self._steps.state, self._a
        if due == "withdraw":
            self._add("withdraws after the grace period", {self._at: st.WITHDRAW})
        elif due == "kill" and st.command_lives(state, a):
            killed = {a + st.ACTUAL_END: st.BY_KILL}
            self._add("sends SIGKILL after the grace period", {a + st.COMMAND: st.ZOMBIE, **killed})
            self._add(
                "sends SIGKILL after the grace period, but the command is not gone yet",
                {a + st.COMMAND: st.DYING, **killed},
            )

    def _withdraw(self) -> None:
        a, told = self._a, decisions.take_back(self._steps.state[self._a + st.TERMINATION])
        after = {self._at: st.ATTEND, a + st.TERMINATION: told}
        if self._stop == st.STOP_CANCEL and self._steps.rules.withdraw_renames:
            # The cancel remains in the file `withdrawn`, where observers find it.
            told, first = decisions.request_end(told, st.CANCELLED)
            after[a + st.TERMINATION] = told
            label = f"{self._name} renames `stop` and reads a cancel"
            if first:
                terminate(self._steps, STEP, label, a, after)
            else:
                self._steps.add(STEP, label, after)
        else:
            self._add(
                "renames `stop` and continues",
                {**after, a + st.STOP: 0 if self._stop else after.get(a + st.STOP, 0)},
            )

    def _end(self, pc: int) -> None:
        state, rules, a = self._steps.state, self._steps.rules, self._a
        cause, truth = decisions.end_cause(state[a + st.TERMINATION]), state[a + st.ACTUAL_END]
        then = st.RELEASE_GPU if rules.release_first else st.PUBLISH
        if pc == st.END_OTHER_PROCESSES:
            self._end_other_processes(then if cause or truth == st.EXIT_0 else st.GAP)
        elif pc == st.GAP:
            if state[st.MACHINE_ENDING] == 2 and rules.machine_gap:
                return  # the runner's SIGTERM is still to come
            signals = state[a + st.SIGNALS]
            if signals & st.TERM or (signals and not rules.own_stop_signal and not self._stop):
                told, _ = decisions.request_end(state[a + st.TERMINATION], st.INTERRUPTED)
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
        a = self._a
        if cause == st.INTERRUPTED and truth == st.EXIT_0:
            cause = st.NONE  # the command saved its work and exited normally
        began = {st.EXIT_0: st.COMPLETED, st.NOT_BEGUN: st.NOT_STARTED, st.GPU_TAKEN: st.GPU_LOST}
        by_itself = began.get(truth, st.FAILED)
        result = cause or by_itself
        if self._steps.state[a + st.LINK] in (st.REPLACED, st.REMOVED):
            self._add("publishes its result elsewhere and exits", {self._at: st.RUNNER_GONE})
        else:
            self._add(f"publishes its result: {OUTCOMES[result]}", {self._at: st.EXIT, a + st.RESULT: result})


def _command(steps: Steps, a: int, name: str) -> None:
    state, end = steps.state, end_of_command(steps.state, a)
    command = state[a + st.COMMAND]
    if command == st.FORKED:
        steps.add(STEP, f"{name}: command.sh runs", {a + st.COMMAND: st.SCRIPT})
    elif command == st.SCRIPT:
        noted = steps.rules.command_recorded and state[a + st.LINK] not in (st.REPLACED, st.REMOVED)
        begun = {a + st.COMMAND: st.COMMAND_RUNS, a + st.COMMAND_RECORDED: int(noted)}
        steps.add(STEP, f"{name} records its identity and begins", begun)
        failed = {a + st.COMMAND: end, a + st.ACTUAL_END: st.NOT_BEGUN}
        steps.add(OWN, f"{name}: the check of its environment fails", failed)
    elif command == st.DYING:
        steps.add(STEP, f"{name} is finally gone", {a + st.COMMAND: end})
    else:
        ended = {a + st.COMMAND: end, a + st.ACTUAL_END: st.EXIT_0}
        steps.add(OWN, f"{name} exits 0", ended)
        steps.add(OWN, f"{name} exits 7", {**ended, a + st.ACTUAL_END: st.EXIT_7})
        # In any other state, a scan could not find the process.
        if not state[a + st.OTHER_PROCESS] and state[a + st.STORED_OUTCOME] <= st.OPEN:
            steps.add(OWN, f"{name} exits 0 and leaves a child", {**ended, a + st.OTHER_PROCESS: st.PLAIN})
            steps.add(OWN, f"{name} exits 0 and leaves an orphan", {**ended, a + st.OTHER_PROCESS: st.ORPHAN})
            _behave_badly(steps, a, name)
        if state[st.HIDE] and not state[a + st.HIDDEN]:
            hides = {st.HIDE: state[st.HIDE] - 1, a + st.HIDDEN: 1}
            steps.add(FAULT, f"{name} hides its environment", hides)


def _behave_badly(steps: Steps, a: int, name: str) -> None:
    """Adds steps in which a running command starts a child that hides, or a fork chain."""
    state = steps.state
    if state[st.HIDE]:
        fewer = {st.HIDE: state[st.HIDE] - 1}
        steps.add(
            FAULT,
            f"{name} starts a child that hides its environment",
            {**fewer, a + st.OTHER_PROCESS: st.IN_SESSION},
        )
        away = {**fewer, a + st.OTHER_PROCESS: st.OWN_SESSION}
        steps.add(FAULT, f"{name} starts a child that hides its environment and leaves the session", away)
    if state[st.CHAIN]:
        chain = {st.CHAIN: 0, a + st.OTHER_PROCESS: st.FORK_CHAIN}
        steps.add(FAULT, f"{name} starts a fork chain, whose processes end before a scan finds them", chain)


def _other_process(steps: Steps, a: int, number: int) -> None:
    left = steps.state[a + st.OTHER_PROCESS]
    if left in (st.STUCK, st.FORK_CHAIN, st.LOOSE_CHAIN):
        steps.add(STEP, f"OTHER PROCESS {number} is finally gone", {a + st.OTHER_PROCESS: st.NOBODY})
