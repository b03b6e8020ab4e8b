"""The state of the model: a byte string with one byte for each field, and functions that interpret it.

Global fields are indices. The fields of an attempt are offsets: `state[a + CLAIM]`, where `a` is `attempt(1)`
or `attempt(2)`. The model has one scheduler and two attempts of one job, with two runners each, and one GPU,
which an attempt claims as a whole. This is the smallest case in which every fault can occur.
"""

from __future__ import annotations

from tests.protocol.rules import Rules

# How often each fault and user action can still happen. PREEMPT: `preempt`, whose request the loop carries
# out; OFFLINE: `preempt`, whose command waits; FORCE: `preempt --force`; VICTIM: the scheduler
# preempts the job for another one. ADOPT: whether the job is an adopted process, according to the store.
# OTHER: whether there is another program that uses the GPU; it claims the
# GPU any number of times. UNMARKED: whether the runners cannot mark their processes.
FAULTS = (
    "crash", "kill", "reboot", "machine", "cancel", "retry", "preempt", "offline", "force", "victim", "hide",
    "chain", "unlock", "replace", "unclaim", "remove", "copy", "reuse", "unlink", "adopt", "other",
    "unmarked",
)  # fmt: skip
(
    CRASH, KILL, REBOOT, MACHINE, CANCEL, RETRY, PREEMPT, OFFLINE, FORCE, VICTIM, HIDE,
    CHAIN, UNLOCK, REPLACE, UNCLAIM, REMOVE, COPY, REUSE, UNLINK, ADOPT, OTHER, UNMARKED,
) = range(len(FAULTS))  # fmt: skip

#: The other global fields.
(
    ROUNDS,  # bits for the processes that run rounds, each of which has taken the scheduler's lock
    # the loop's next step, the lock and the claim that it observed, and the `stop` that it will write
    LOOP, OBSERVED_LOCK, OBSERVED_CLAIM, PENDING_STOP,
    # what the store contains: the job, its newest attempt, the open request to stop it, and the requests that
    # no round has carried out yet; and whether a cancel was ever requested
    JOB, NEWEST, STOP_REQUEST, CANCEL_REQUEST, CANCEL_EVER_REQUESTED, RETRY_REQUEST, PREEMPT_REQUESTS,
    EVER_PREEMPTED,  # whether the first id of a preemption was used
    CLI,  # the command `cancel`
    PREEMPT_CLI,  # the command `preempt`: 0, or 1 + the id of its preemption
    # the boot, whether the machine is shutting down, whether a kill or the loss of a folder has happened
    BOOT, MACHINE_ENDING, FAULTED,
    COPIED, COPY_CLAIM, COPY_JOB,  # a copy of the data directory: its attempt, claim and job state
    GPU_LOCK,  # the process that has locked the lock file of the GPU
    # the adopted process, and bits for the ids of the preemptions that its dead watchers have withdrawn
    PROCESS, PROCESS_WITHDRAWN,
) = range(len(FAULTS), len(FAULTS) + 24)  # fmt: skip
FIRST = len(FAULTS) + 24

#: The fields of an attempt.
(
    STORED_OUTCOME, BOOTED, FOLDER, CLAIM, LINK, STOP, WITHDRAWN, IGNORED, RESULT, SYNCED, RUNNER1, RUNNER2,
    SIGNALS, TERMINATION, EVER_WITHDRAWN, COMMAND, HIDDEN, COMMAND_RECORDED, ACTUAL_END, OTHER_PROCESS,
    SPAWNS, RELEASED, LAUNCHES, MACHINE_ENDED, SWEPT, REUSED, SAVING, WATCHES, FIELDS,
) = range(29)  # fmt: skip
RUNNERS = (RUNNER1, RUNNER2)

# ROUNDS: the scheduler, `cancel` and `preempt`
SCHEDULER, CANCEL_ROUNDS, PREEMPT_ROUNDS = 1, 2, 4
# LOOP, of whichever process runs rounds. DOWN: none does.
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
# ENDED and KILLED: of an adopted process, of which nobody knows how it ended, or which a signal has ended.
NONE, OPEN, COMPLETED, FAILED, CANCELLED, INTERRUPTED, NOT_STARTED, PREEMPTED, GPU_LOST, ENDED, KILLED = (
    range(11)
)
OUTCOMES = [
    "none", "open", "completed", "failed", "cancelled", "interrupted", "not_started", "preempted",
    "not_started (GPU claimed)", "ended", "failed (signal)",
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
# STOP, WITHDRAWN, IGNORED, STOP_REQUEST and PENDING_STOP: a cancel or a preemption (see `stops`). IGNORED:
# the `stop` that the runner has taken out of the folder. EVER_WITHDRAWN: bits for the ids of all preemptions
# that it has withdrawn.
STOP_CANCEL = 1
FIRST_ID, SECOND_ID, FORCE_ID, VICTIM_ID = range(4)
# The next step of a runner. LOCK_REMOVED: as LOCK_GPU, but the lock file that it opened was removed.
(
    CHECK_CLAIM, LINK_CLAIM, FIRST_STOP_CHECK, OPEN_LOCK, LOCK_GPU, LOCK_REMOVED, SPAWNING, UNBLOCK,
    SECOND_STOP_CHECK, ATTEND, WITHDRAW, DISCARD, PUT_BACK, END_OTHER_PROCESSES, GAP, RELEASE_GPU, PUBLISH,
    EXIT, RUNNER_GONE,
) = range(1, 20)  # fmt: skip
# GPU_LOCK and OBSERVED_LOCK: NO_LOCK, OTHER_PROGRAM, or the id of a runner (`runner_id`)
NO_LOCK, OTHER_PROGRAM = 0, 5
# SIGNALS that the runner has received but not handled yet
USR1, TERM = 1, 2
# COMMAND. DYING: it was killed but is not gone yet. WATCHED: there is none, and the runner has opened the
# adopted process.
NO_COMMAND, FORKED, SCRIPT, COMMAND_RUNS, DYING, ZOMBIE, GONE, WATCHED = range(8)
# HIDDEN: the command has hidden its environment. COMMAND_RECORDED: the command has recorded its identity in
# the folder that is now in place.
# ACTUAL_END: how the command really ended. GPU_TAKEN: it never began, because its GPU was claimed.
# EXIT_SAVED: it was preempted, saved its work and exited 0 although its work was not complete. SAVING: it has
# been preempted and is saving its work. UNKNOWN_END and BY_MACHINE: only of adopted processes. EXIT_LEFT: it
# exited 0 at once, and the work that it left in the background did not end in the time that it had.
(
    NEVER, EXIT_0, EXIT_7, BY_TERM, NOT_BEGUN, BY_KILL, GPU_TAKEN, EXIT_SAVED, UNKNOWN_END, BY_MACHINE,
    EXIT_LEFT,
) = range(11)  # fmt: skip
# PROCESS. PROCESS_ENDED + how it ended (see ACTUAL_END). REUSED_PID is added if another process has its pid.
NO_PROCESS, PROCESS_RUNS, PROCESS_SAVES, PROCESS_ENDED = range(4)
REUSED_PID = 16
# OTHER_PROCESS of the attempt. PLAIN carries the token. ORPHAN is not a child of the runner. STUCK cannot be
# killed. IN_SESSION hides its environment. OWN_SESSION has also left the session, and LOST has lost its
# parents as well. The chains fork and exit faster than a scan.
NOBODY, PLAIN, ORPHAN, STUCK, IN_SESSION, OWN_SESSION, LOST, FORK_CHAIN, LOOSE_CHAIN = range(9)
# REUSED: which ids of ended processes now belong to foreign processes
RUNNER_NUMBER, SESSION_NUMBER = 1, 2
# CLI. FREE: it saw that nobody runs rounds. REPORTED: it has reported the end of the job.
CLI_NONE, CLI_WAITS, CLI_FREE, CLI_REPORTED = range(4)

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
    state[PROCESS] = PROCESS_RUNS if state[ADOPT] else NO_PROCESS
    return bytes(state)


def is_command_round(state: bytes | bytearray) -> bool:
    """Returns whether a command runs the rounds. Its rounds only end attempts, and start none."""
    return state[ROUNDS] > SCHEDULER


def is_blind(state: bytes | bytearray, rules: Rules) -> bool:
    """Returns whether the rounds are those of a command that sees no process of the scheduler's machine."""
    return is_command_round(state) and not rules.same_namespace


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


def process_lives(state: bytes | bytearray) -> bool:
    """Returns whether the adopted process runs."""
    return state[PROCESS] in (PROCESS_RUNS, PROCESS_SAVES)


def command_lives(state: bytes | bytearray, a: int) -> bool:
    """Returns whether the command exists and was not killed."""
    return FORKED <= state[a + COMMAND] <= COMMAND_RUNS


def observed_claim(state: bytes, a: int, rules: Rules) -> int:
    """Returns what `observe` would report about the claim and the runner that it names."""
    claim = state[a + CLAIM]
    if claim == VOID:
        return CLAIM_VOID
    if claim and is_blind(state, rules):
        return CLAIM_DEAD
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


def are_marked(state: bytes | bytearray, rules: Rules) -> bool:
    """Returns whether the processes of an attempt keep its mark."""
    return rules.marked and not state[UNMARKED]


def finds_command(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan finds the command, by its mark, its token or its recorded identity."""
    command = state[a + COMMAND]
    if are_marked(state, rules):
        return FORKED <= command <= DYING
    if command == FORKED:
        return rules.runner_token
    if command in (COMMAND_RUNS, DYING) and state[a + HIDDEN]:
        return bool(state[a + COMMAND_RECORDED]) or is_below_runner(state, a, rules)
    return command in (SCRIPT, COMMAND_RUNS, DYING)


def finds_other_process(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan finds the other process, by mark, token or session, or as a descendant."""
    left = state[a + OTHER_PROCESS]
    if left == NOBODY or are_marked(state, rules):
        return left != NOBODY
    if left == LOST:
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


def sweeps_process(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan takes the adopted process for a process of the attempt that watches it."""
    return not rules.process_unswept and bool(state[a + WATCHES]) and process_lives(state)


def finds_foreign_process(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a scan mistakes a foreign process for a process of the attempt."""
    return bool(state[a + REUSED] & SESSION_NUMBER) and rules.by_session and not rules.session_checked
