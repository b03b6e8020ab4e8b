"""The rules of the protocol, each with a switch. Turned off, a rule is replaced by the simpler one
that is named beside it, and the model must find what goes wrong then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Every rule that the model can do without. All on: the protocol as it is built."""

    # The record and the claim.
    record_first: bool = True  #: an attempt is recorded before a process of it exists; off: spawned first
    claims: bool = True  #: a runner takes the claim before it starts the command; off: it just starts it
    void: bool = True  #: the loop takes the claim before it gives an attempt up; off: it gives it up at once
    claim_first: bool = True  #: a look reads the claim, then the result; off: the other way round
    cancel_lives: bool = True  #: a cancel stays open until the end is recorded; off: until `stop` is written
    job_waits: bool = True  #: no new attempt while processes of the last one live; off: at once
    # What dead means.
    runner_counts: bool = True  #: free lock and runner gone; off: free lock
    whole_identity: bool = True  #: the runner is pid, start and boot; off: the pid
    removed_claim_waits: bool = True  #: a claim that is missing is not dead while processes live; off: it is
    # Which processes belong to an attempt.
    runner_token: bool = (
        True  #: the runner carries the token, and its child before exec; off: the child does not
    )
    command_recorded: bool = True  #: the command writes itself down before exec; off: tokens alone tell
    by_session: bool = True  #: members of the command's session belong to it; off: not by that
    by_descent: bool = True  #: descendants of what is found belong to it; off: not by that
    session_checked: bool = True  #: a session whose number is a later process's does not count; off: it does
    # Ending them, and the GPU.
    kill_runner_first: bool = (
        True  #: a runner that is late is killed, the rest is rule 5; off: its command is
    )
    release_sweep: bool = True  #: the loop ends what is left after a result; off: it waits for it
    release_on_record: bool = True  #: "its GPUs are not given back" is on the record; off: in memory
    no_children: bool = True  #: an empty scan of the runner counts if it has no children; off: it counts
    # The runner and its signals.
    machine_gap: bool = True  #: the SIGTERMs of an ending machine come within 0.3 s; off: any time apart
    look_signal: bool = True  #: "look for stop" is a signal of its own; off: SIGTERM means both
    withdraw_renames: bool = True  #: to withdraw, `stop` is renamed and read; off: unlinked
    # `cancel` while no scheduler is up.
    cli_looks_again: bool = True  #: it reads the claim after it has written `stop`; off: before
    cli_sweeps: bool = True  #: it ends processes whose runner is gone; off: the next scheduler does
    # Copies of the record.
    copy_refused: bool = True  #: a copy leaves the open attempts alone; off: it settles them as its own
    # Limits: what the rules cannot prevent. Off: not excused, so that the model shows how it happens.
    excuse_lost: bool = True  #: a process that hid its environment, left the session and lost its parents
    excuse_chain: bool = True  #: a chain of forks, each gone sooner than a scan sees it, without its runner
    excuse_unrecorded: bool = (
        True  #: what it wrote down is gone with the folder, it is hidden, its runner is dead
    )
    excuse_early: bool = True  #: a claim or folder is removed before the loop has seen the claim


ALL = Rules()
