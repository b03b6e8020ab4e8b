"""The rules of the protocol, each with a switch.

If a rule is off, the simpler rule named beside it replaces it, and the model must find the resulting fault.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The rules that can be switched off. With all rules on, the model is the protocol as implemented."""

    # The store and the claim.
    record_first: bool = True  #: an attempt is recorded before its process is spawned; off: after that
    claims: bool = True  #: a runner takes the claim before it starts the command; off: it just starts it
    void_first: bool = True  #: the loop voids the claim before it gives up; off: it gives up at once
    claim_first: bool = True  #: the loop reads the claim, then the result; off: the reverse
    stop_until_end: bool = True  #: a request is open until the end is recorded; off: until `stop` is written
    job_waits_for_processes: bool = True  #: a new attempt waits for the last one's processes; off: no wait
    # When a runner counts as dead.
    dead_needs_runner_gone: bool = True  #: when its lock is free and it is gone; off: when its lock is free
    whole_identity: bool = True  #: a runner is identified by pid, start and boot; off: by pid
    removed_claim_waits: bool = True  #: a missing claim is not dead while processes live; off: it is
    # Which processes belong to an attempt.
    runner_token: bool = True  #: a runner's child carries the token before exec; off: it does not
    command_recorded: bool = True  #: the command records its identity before exec; off: it has only a token
    marked: bool = True  #: a process keeps the mark of its attempt whatever it does; off: it has no mark
    by_session: bool = True  #: members of the command's session belong to the attempt; off: they do not
    by_descent: bool = True  #: descendants of found processes belong to the attempt; off: they do not
    session_checked: bool = True  #: a session whose number was reused does not count; off: it does
    # Ending processes and releasing the GPUs.
    kill_runner_first: bool = True  #: an overdue runner is killed, then its processes; off: its command
    release_sweep: bool = True  #: the loop ends processes left after a result; off: it waits for them
    release_in_store: bool = True  #: "its GPUs are not released" is in the store; off: in memory
    no_children: bool = True  #: the runner believes an empty scan if it has no children; off: always
    # The runner and its signals.
    machine_gap: bool = True  #: the SIGTERMs of a machine shutdown come within 0.3 s; off: any time apart
    own_stop_signal: bool = True  #: "check for stop" is a signal of its own; off: SIGTERM means both
    withdraw_renames: bool = True  #: to withdraw, `stop` is renamed and read; off: unlinked
    # Preemptions.
    withdrawal_closes: bool = True  #: a withdrawn preemption is closed; off: its `stop` is written again
    withdrawal_by_id: bool = True  #: a withdrawal closes the preemption with its id; off: any preemption
    withdrawal_outlives_runner: bool = True  #: a withdrawal counts if the runner has died; off: it does not
    kill_stays_open: bool = True  #: a withdrawal closes no preemption that ends in SIGKILL; off: it does
    withdrawn_remembered: bool = True  #: the runner ignores a preemption that it withdrew; off: it obeys
    all_remembered: bool = True  #: the runner remembers each preemption that it withdrew; off: the last one
    ignored_put_back: bool = (
        True  #: it takes `stop` away, and puts a new request back; off: it withdraws that
    )
    withdrawn_stop_ignored: bool = True  #: observers ignore a withdrawn `stop`; off: they count it
    cancel_outranks: bool = True  #: an open cancel refuses a preemption; off: the preemption replaces it
    # The lock of the GPU.
    gpu_locked: bool = True  #: a runner locks the GPU; off: it only checks that nobody has locked it
    kernel_lock: bool = True  #: the lock of a process that has ended is free; off: it remains
    lock_compared: bool = True  #: a runner that has locked a removed file tries again; off: it continues
    attempt_first: bool = True  #: a runner claims the attempt, then the GPU; off: the reverse
    locks_first: bool = True  #: the loop reads the locks, then it observes the attempt; off: the reverse
    stored_runner: bool = True  #: the store names the runner of a removed folder; off: only its claim does
    release_last: bool = True  #: the GPU is released after the last process; off: after the command
    release_first: bool = True  #: the GPU is released before the result is published; off: after that
    lost_claim_uncounted: bool = True  #: a lost GPU does not count as a failed launch; off: it does
    # `cancel` and `preempt`, which run rounds while nobody else does.
    rounds_locked: bool = True  #: a command locks the rounds; off: it only checks that nobody runs rounds
    placing_off: bool = True  #: its rounds start no job; off: they do
    only_stopped: bool = True  #: they act only on attempts that shall stop; off: on all, like the scheduler
    waiting_counts: bool = True  #: an attempt shall stop if a request waits for its end; off: if one is open
    waits_for_processes: bool = True  #: a command waits for the last process; off: until the end is recorded
    ends_unwatched: bool = True  #: it leaves what only a launch can end to the next scheduler; off: it waits
    ends_unlocked: bool = True  #: it does not wait for a runner that it cannot observe; off: it does
    same_namespace: bool = True  #: it runs rounds only where it sees the runners; off: anywhere
    # Adopted processes.
    watched_again: bool = True  #: a dead watcher is replaced by another one; off: the job is interrupted
    process_unswept: bool = True  #: no scan finds the process; off: it belongs to the attempt
    requests_wait: bool = True  #: a request waits until the process is watched; off: the job is cancelled
    stop_kept: bool = True  #: an open request applies to the next watcher; off: to this one only
    stop_outlives_boot: bool = True  #: a reboot carries out an open cancel; off: the job is interrupted
    watcher_leaves: bool = True  #: SIGTERM ends only the watcher; off: as for a command
    start_compared: bool = True  #: the watcher compares the start of the process; off: only its pid
    # Copies of the data directory.
    copy_refused: bool = True  #: no scheduler starts on a copy; off: one reconciles its attempts
    # Limits: faults that no rule prevents. If an excuse is off, the model shows how the fault happens.
    excuse_lost: bool = (
        True  #: an unmarked process hid its environment, left its session and lost its parents
    )
    excuse_chain: bool = True  #: a fork chain without a live runner, which no scan finds
    excuse_unrecorded_command: bool = True  #: the runner of an unmarked command died, its record was removed
    excuse_early: bool = True  #: a claim or folder is removed before the loop has read the claim
    excuse_killed_holder: bool = True  #: the runner was killed, so the GPU is free before its command ends
    excuse_no_progress: bool = True  #: a command that reports no progress saves its work, and exits 0 late
    excuse_last_withdrawn: bool = True  #: the runner died, and its last withdrawal names another preemption
    excuse_late_save: bool = True  #: an adopted process saves after a withdrawal, and its watcher has died
    excuse_unlinked: bool = True  #: the lock file is removed while a process has locked it


ALL = Rules()
