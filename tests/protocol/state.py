"""The state of the model: a byte string with one byte for each field, and functions that interpret it.

Global fields are indices. The fields of an attempt are offsets: `state[a + CLAIM]`, where `a` is `attempt(1)`
or `attempt(2)`. The model has one scheduler and two attempts of one job, with two runners each, and one GPU,
which an attempt claims as a whole. This is the smallest case in which every fault can occur.
"""

from __future__ import annotations

from tests.protocol.rules import Rules

# How often each fault and user action can still happen. OTHER: whether there is another program that uses the
# GPU; it claims the GPU any number of times.
FAULTS = (
    "crash", "kill", "reboot", "machine", "cancel", "retry", "preempt", "hide", "chain", "unlock", "replace",
    "unclaim", "remove", "copy", "reuse", "unlink", "other",
)  # fmt: skip
(
    CRASH, KILL, REBOOT, MACHINE, CANCEL, RETRY, PREEMPT, HIDE, CHAIN, UNLOCK, REPLACE,
    UNCLAIM, REMOVE, COPY, REUSE, UNLINK, OTHER,
) = range(len(FAULTS))  # fmt: skip

#: The other global fields.
(
    # the loop's next step, the lock and the claim that it observed, and the `stop` that it will write
    LOOP, OBSERVED_LOCK, OBSERVED_CLAIM, PENDING_STOP,
    # what the store contains, and whether a cancel was ever requested
    JOB, NEWEST, CANCEL_REQUEST, CANCEL_EVER_REQUESTED, RETRY_REQUEST, PREEMPT_REQUEST,
    CLI, CLI_OBSERVED,  # `cancel` without a scheduler: its next step, and what it observed
    # the boot, whether the machine is shutting down, whether a kill or the loss of a folder has happened
    BOOT, MACHINE_ENDING, FAULTED,
    COPIED, COPY_CLAIM, COPY_JOB,  # a copy of the data directory: its attempt, claim and job state
    GPU_LOCK,  # the process that has locked the lock file of the GPU
) = range(len(FAULTS), len(FAULTS) + 19)  # fmt: skip
FIRST = len(FAULTS) + 19

#: The fields of an attempt.
(
    STORED_OUTCOME, BOOTED, FOLDER, CLAIM, LINK, STOP, RESULT, SYNCED, RUNNER1, RUNNER2, SIGNALS, TERMINATION,
    COMMAND, HIDDEN, COMMAND_RECORDED, ACTUAL_END, OTHER_PROCESS, SPAWNS, RELEASED, LAUNCHES, MACHINE_ENDED,
    SWEPT, REUSED, FIELDS,
) = range(24)  # fmt: skip
RUNNERS = (RUNNER1, RUNNER2)

# LOOP
(
    DOWN,
    IDLE,
    OBSERVE,
    READ,
    RECONCILE,
    MAKE,
    WRITE_SPEC,
    SPAWN,
    VOID_CLAIM,
    WRITE_STOP,
    SIGNAL,
    KILL_RUNNER,
    TERM_ALL,
    KILL_ALL,
) = range(14)
# JOB
QUEUED, STARTING, RUNNING, STOPPING, HELD, FINISHED = range(6)
# STORED_OUTCOME and RESULT. GPU_LOST: not started, because the GPU was claimed by another program first.
NONE, OPEN, COMPLETED, FAILED, CANCELLED, INTERRUPTED, NOT_STARTED, PREEMPTED, GPU_LOST = range(9)
OUTCOMES = [
    "none", "open", "completed", "failed", "cancelled", "interrupted", "not_started", "preempted",
    "not_started (GPU claimed)",
]  # fmt: skip
# FOLDER
HALF_MADE, MADE = 1, 2
# CLAIM: the number of the runner that has it, or VOID
VOID = 3
# OBSERVED_CLAIM: the claim as `observe` returns it. UNCLAIMED: the claim is missing, but the runner that took
# it is alive.
CLAIMS = ("none", "void", "live", "unlocked", "unclaimed", "dead")
CLAIM_NONE, CLAIM_VOID, CLAIM_LIVE, CLAIM_UNLOCKED, CLAIM_UNCLAIMED, CLAIM_DEAD = range(6)
# LINK between a live runner and its folder. UNLOCKED: the lock is lost. REPLACED: another folder with the
# same files is in its place, so neither side reads what the other writes. REMOVED: the folder was removed.
INTACT, UNLOCKED, REPLACED, REMOVED = range(4)
# STOP: a request that ends in `kill` or `withdraw` after the grace period
STOP_CANCEL, STOP_PREEMPT = 1, 2
# The next step of a runner. LOCK_REMOVED: as LOCK_GPU, but the lock file that it opened was removed.
(
    CHECK_CLAIM, LINK_CLAIM, FIRST_STOP_CHECK, OPEN_LOCK, LOCK_GPU, LOCK_REMOVED, SPAWNING, UNBLOCK,
    SECOND_STOP_CHECK, ATTEND, WITHDRAW, END_OTHER_PROCESSES, GAP, RELEASE_GPU, PUBLISH, EXIT, RUNNER_GONE,
) = range(1, 18)  # fmt: skip
# GPU_LOCK and OBSERVED_LOCK: NO_LOCK, OTHER_PROGRAM, or the id of a runner (`runner_id`)
NO_LOCK, OTHER_PROGRAM = 0, 5
# SIGNALS that the runner has received but not handled yet
USR1, TERM = 1, 2
# COMMAND. DYING: it was killed but is not gone yet.
NO_COMMAND, FORKED, SCRIPT, COMMAND_RUNS, DYING, ZOMBIE, GONE = range(7)
# HIDDEN: the command has hidden its environment. COMMAND_RECORDED: the command has recorded its identity in
# the folder that is now in place.
# ACTUAL_END: how the command really ended. GPU_TAKEN: it never began, because its GPU was claimed.
NEVER, EXIT_0, EXIT_7, BY_TERM, NOT_BEGUN, BY_KILL, GPU_TAKEN = range(7)
# OTHER_PROCESS of the attempt. PLAIN carries the token. ORPHAN is not a child of the runner. STUCK cannot be
# killed. IN_SESSION hides its environment. OWN_SESSION has also left the session, and LOST has lost its
# parents as well. The chains fork and exit faster than a scan.
NOBODY, PLAIN, ORPHAN, STUCK, IN_SESSION, OWN_SESSION, LOST, FORK_CHAIN, LOOSE_CHAIN = range(9)
# REUSED: which ids of ended processes now belong to foreign processes
RUNNER_NUMBER, SESSION_NUMBER = 1, 2
# CLI
(
    CLI_NONE,
    CLI_REQUESTS,
    CLI_OBSERVES,
    CLI_STOPS,
    CLI_OBSERVES_AGAIN,
    CLI_SIGNALS,
    CLI_WAITS,
    CLI_DONE,
    CLI_KILLED,
) = range(9)

LAUNCHING = (MAKE, WRITE_SPEC, SPAWN)
ACTIVE = (STARTING, RUNNING, STOPPING)


def attempt(number: int) -> int:
    """Returns the index of the first field of this attempt."""
    return FIRST + (number - 1) * FIELDS


ATTEMPTS = (attempt(1), attempt(2))


def initial(**faults: int) -> bytes:
    """Returns the initial state: a job is queued, and no scheduler is up."""
    state = bytearray(FIRST + 2 * FIELDS)
    for name, times in faults.items():
        state[FAULTS.index(name)] = times
    return bytes(state)


def is_alive(runner: int) -> bool:
    """Returns whether a runner is alive."""
    return 0 < runner < RUNNER_GONE


def owner(state: bytes | bytearray, a: int) -> int:
    """Returns the number (1 or 2) of the live runner that has taken the attempt; 0 if there is none."""
    for number, runner in enumerate(RUNNERS, 1):
        if LINK_CLAIM < state[a + runner] < RUNNER_GONE:
            return number
    return 0


def has_runner(state: bytes | bytearray, a: int) -> bool:
    """Returns whether a runner of the attempt is alive."""
    return 0 < state[a + RUNNER1] < RUNNER_GONE or 0 < state[a + RUNNER2] < RUNNER_GONE


def runner_id(a: int, which: int) -> int:
    """Returns the id (1 to 4) of runner `which` (1 or 2) of an attempt."""
    return (2 if a > FIRST else 0) + which


def runner_of(lock: int) -> tuple[int, int] | None:
    """Returns the attempt and the number (1 or 2) of the runner that holds a lock; None if no runner does."""
    return (ATTEMPTS[lock > 2], 2 - lock % 2) if NO_LOCK < lock < OTHER_PROGRAM else None


def scan_finds_runner(state: bytes | bytearray, a: int) -> bool:
    """Returns whether a scan finds a runner of the attempt. A new one does not carry the token yet."""
    return any(CHECK_CLAIM < state[a + runner] < RUNNER_GONE for runner in RUNNERS)


def command_lives(state: bytes | bytearray, a: int) -> bool:
    """Returns whether the command exists and was not killed."""
    return FORKED <= state[a + COMMAND] <= COMMAND_RUNS


def observed_claim(state: bytes, a: int, rules: Rules) -> int:
    """Returns what `observe` would report about the claim and the runner that it names."""
    claim = state[a + CLAIM]
    if claim == VOID:
        return CLAIM_VOID
    if not claim:
        if not state[a + FOLDER] or state[JOB] not in (RUNNING, STOPPING):
            return CLAIM_NONE
        return CLAIM_UNCLAIMED if owner(state, a) and rules.removed_claim_waits else CLAIM_DEAD
    if not is_alive(state[a + RUNNERS[claim - 1]]):
        reused = state[a + REUSED] & RUNNER_NUMBER and not rules.whole_identity
        return CLAIM_UNLOCKED if reused else CLAIM_DEAD
    if state[a + LINK] == INTACT:
        return CLAIM_LIVE
    return CLAIM_UNLOCKED if rules.dead_needs_runner_gone else CLAIM_DEAD


def reachable_runner(state: bytes, a: int, rules: Rules) -> int:
    """Returns the number (1 or 2) of the runner that a signal can reach; 0 if none is known to be alive."""
    seen = observed_claim(state, a, rules)
    return owner(state, a) if seen in (CLAIM_LIVE, CLAIM_UNCLAIMED) else 0


def is_below_runner(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan finds descendants of the runner, which carries the token and adopts orphans."""
    return rules.by_descent and owner(state, a) > 0


def finds_command(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan finds the command, by its token or by its recorded identity."""
    command = state[a + COMMAND]
    if command == FORKED:
        return rules.runner_token
    if command in (COMMAND_RUNS, DYING) and state[a + HIDDEN]:
        return bool(state[a + COMMAND_RECORDED]) or is_below_runner(state, a, rules)
    return command in (SCRIPT, COMMAND_RUNS, DYING)


def finds_other_process(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan finds the other process, by token, by session or as a descendant."""
    left = state[a + OTHER_PROCESS]
    if left in (NOBODY, LOST):
        return False
    if left in (IN_SESSION, OWN_SESSION):
        if left == IN_SESSION and rules.by_session and state[a + COMMAND_RECORDED]:
            return True
        below = rules.by_descent and command_lives(state, a) and finds_command(state, a, rules)
        return below or is_below_runner(state, a, rules)
    return True


def finds(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan finds a process of the attempt, apart from its runners."""
    return finds_command(state, a, rules) or finds_other_process(state, a, rules)


def finds_foreign_process(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan mistakes a foreign process for a process of the attempt."""
    return bool(state[a + REUSED] & SESSION_NUMBER) and rules.by_session and not rules.session_checked


def canonical(state: bytearray, rules: Rules) -> bytes:
    """Returns the state that represents all states that are equivalent to this one.

    Clears fields that nothing reads any more, and immediately takes steps that affect no other process.
    """
    for a in ATTEMPTS:
        if not state[a + STORED_OUTCOME] and not state[a + RUNNER1]:
            continue
        _normalize_runners(state, a, rules)
        _clear_irrelevant(state, a)
    holder = runner_of(state[GPU_LOCK])
    if rules.kernel_lock and holder is not None and not is_alive(state[holder[0] + RUNNERS[holder[1] - 1]]):
        state[GPU_LOCK] = NO_LOCK
    if state[JOB] == QUEUED and state[NEWEST]:
        _forget_lost_gpu(state, state[NEWEST])
    loop = state[LOOP]
    if loop != OBSERVE:
        state[OBSERVED_LOCK] = NO_LOCK
    if loop not in (READ, RECONCILE):
        state[OBSERVED_CLAIM] = 0
    if loop != WRITE_STOP:
        state[PENDING_STOP] = 0
    if state[CLI] >= CLI_DONE:
        state[CLI], state[CLI_OBSERVED] = CLI_DONE, 0
    return bytes(state)


def _normalize_runners(state: bytearray, a: int, rules: Rules) -> None:
    claim = state[a + CLAIM]
    if claim and rules.claims and rules.record_first and rules.attempt_first:
        for number, runner in enumerate(RUNNERS, 1):
            if state[a + runner] in (CHECK_CLAIM, LINK_CLAIM) and claim != number:
                state[a + runner] = RUNNER_GONE  # a runner that finds another claim can only exit
        if state[LOOP] not in LAUNCHING:
            state[a + LAUNCHES] = 2
    if not state[UNLINK]:  # whether the lock file is open matters only if it can be removed
        for runner in RUNNERS:
            if state[a + runner] == OPEN_LOCK:
                state[a + runner] = LOCK_GPU
    if state[a + RESULT]:
        state[a + STOP] = state[a + TERMINATION] = state[a + SIGNALS] = 0
        # Whether the folder is synced matters only at a reboot.
        if not state[REBOOT] and rules.release_first:
            for runner in RUNNERS:
                if state[a + runner] == EXIT:
                    state[a + runner] = RUNNER_GONE
    if state[a + LINK] and not has_runner(state, a):
        state[a + LINK] = INTACT
    if not has_runner(state, a):
        state[a + SIGNALS] = state[a + TERMINATION] = 0
        if state[a + COMMAND] == ZOMBIE:
            state[a + COMMAND] = GONE
        if state[a + OTHER_PROCESS] == OWN_SESSION and not command_lives(state, a):
            state[a + OTHER_PROCESS] = LOST
        elif state[a + OTHER_PROCESS] == FORK_CHAIN and state[a + RESULT] == NONE:
            state[a + OTHER_PROCESS] = LOOSE_CHAIN


def _clear_irrelevant(state: bytearray, a: int) -> None:
    if state[a + COMMAND] not in (COMMAND_RUNS, DYING):
        state[a + HIDDEN] = 0
        if state[a + OTHER_PROCESS] != IN_SESSION:
            state[a + COMMAND_RECORDED] = 0
    if _is_over(state, a):
        state[a + 1 : a + FIELDS] = bytes(FIELDS - 1)
        state[a + RELEASED] = 1


def _is_over(state: bytearray, a: int) -> bool:
    """Returns whether an attempt is recorded as ended, its GPUs are released, and no process is left."""
    recorded = state[a + STORED_OUTCOME] > OPEN and state[a + RELEASED] and not has_runner(state, a)
    return bool(recorded) and state[a + COMMAND] in (NO_COMMAND, GONE) and not state[a + OTHER_PROCESS]


def _forget_lost_gpu(state: bytearray, number: int) -> None:
    """Clears an attempt that lost its GPU, so that a job can lose its GPU any number of times.

    An attempt that is still named by `cancel` or by a copy is kept.
    """
    a = attempt(number)
    named = CLI_NONE < state[CLI] < CLI_DONE or state[COPIED] == number
    if state[a + STORED_OUTCOME] == GPU_LOST and _is_over(state, a) and not named:
        state[NEWEST] = number - 1
        state[a : a + FIELDS] = bytes(FIELDS)
