"""The scenarios, whose invariants must hold, and the controls and limits, whose invariants must not."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tests.protocol.rules import ALL, Rules


class Scenario(NamedTuple):
    """How many times each fault and user action may happen. The search tries them in every order."""

    name: str
    faults: dict[str, int]


class Control(NamedTuple):
    """A scenario that must break an invariant with these rules off. breaks: prefix of the invariant."""

    disabled: tuple[str, ...]
    faults: dict[str, int]
    breaks: str

    @property
    def rules(self) -> Rules:
        """All rules except the disabled ones."""
        return replace(ALL, **dict.fromkeys(self.disabled, False))


SCENARIOS = (
    Scenario("crashes, kill, cancel", {"crash": 2, "kill": 1, "cancel": 1}),
    Scenario("crashes, kill, retry", {"crash": 2, "kill": 1, "retry": 1}),
    Scenario("crash, kill, cancel, retry", {"crash": 1, "kill": 1, "cancel": 1, "retry": 1}),
    Scenario("reboot, crash, cancel, retry", {"crash": 1, "reboot": 1, "cancel": 1, "retry": 1}),
    Scenario("reboot, kill, cancel", {"kill": 1, "reboot": 1, "cancel": 1}),
    Scenario("machine ends, crash, cancel", {"crash": 1, "machine": 1, "cancel": 1}),
    Scenario("machine ends, kill, reboot", {"kill": 1, "machine": 1, "reboot": 1}),
    Scenario("preempt, crash, cancel", {"crash": 1, "preempt": 1, "cancel": 1}),
    Scenario("preempt, kill, cancel", {"kill": 1, "preempt": 1, "cancel": 1}),
    Scenario("preempt, machine ends, crash", {"crash": 1, "machine": 1, "preempt": 1}),
    Scenario("preempt, reboot, crash", {"crash": 1, "reboot": 1, "preempt": 1}),
    Scenario("preempt, folder replaced, crash", {"replace": 1, "preempt": 1, "crash": 1}),
    Scenario("two preempts, crash, kill", {"crash": 1, "kill": 1, "preempt": 2}),
    Scenario("preempt, preempt --force, crash", {"crash": 1, "preempt": 1, "force": 1}),
    Scenario("preempt offline, crash, kill", {"crash": 1, "kill": 1, "offline": 1}),
    Scenario("preempt offline, preempt, crash", {"crash": 1, "offline": 1, "preempt": 1}),
    Scenario("preempt offline, --force, crash", {"crash": 1, "offline": 1, "force": 1}),
    Scenario("two preempts offline, crash", {"crash": 1, "offline": 2}),
    Scenario("cancel twice, crash", {"crash": 1, "cancel": 2}),
    Scenario("cancel, lock lost, crash", {"crash": 1, "cancel": 1, "unlock": 1}),
    Scenario("adopted, cancel, crash, kill", {"adopt": 1, "crash": 1, "cancel": 1, "kill": 1}),
    Scenario("victim, crash, kill, retry", {"crash": 1, "kill": 1, "victim": 1, "retry": 1}),
    Scenario("victim, preempt --force, cancel", {"victim": 1, "force": 1, "cancel": 1}),
    Scenario("victim, preempt offline, crash", {"crash": 1, "victim": 1, "offline": 1}),
    Scenario("hidden processes, kill, crash, retry", {"hide": 1, "kill": 1, "crash": 1, "retry": 1}),
    Scenario("two hidden processes, kill, cancel", {"hide": 2, "kill": 1, "cancel": 1}),
    Scenario(
        "hidden, unmarked, kill, crash, retry", {"hide": 1, "unmarked": 1, "kill": 1, "crash": 1, "retry": 1}
    ),
    Scenario("two hidden, unmarked, kill, cancel", {"hide": 2, "unmarked": 1, "kill": 1, "cancel": 1}),
    Scenario("fork chain, kill, cancel", {"chain": 1, "kill": 1, "cancel": 1}),
    Scenario("lock lost, kill, crash, cancel", {"unlock": 1, "kill": 1, "crash": 1, "cancel": 1}),
    Scenario("folder replaced, kill, cancel", {"replace": 1, "kill": 1, "cancel": 1}),
    Scenario("folder replaced, kill, crash, retry", {"replace": 1, "kill": 1, "crash": 1, "retry": 1}),
    Scenario("claim removed, kill, cancel", {"unclaim": 1, "kill": 1, "cancel": 1}),
    Scenario("claim removed, kill, crash, retry", {"unclaim": 1, "kill": 1, "crash": 1, "retry": 1}),
    Scenario("folder removed, kill, cancel", {"remove": 1, "kill": 1, "cancel": 1}),
    Scenario("folder removed, hidden process, kill", {"remove": 1, "hide": 1, "kill": 1}),
    Scenario("folder replaced, hidden process, kill", {"replace": 1, "hide": 1, "kill": 1}),
    Scenario("numbers reused, kill, cancel", {"reuse": 1, "kill": 1, "cancel": 1}),
    Scenario("copied, kill, crash, retry", {"copy": 1, "kill": 1, "crash": 1, "retry": 1}),
    Scenario("copied, kill, cancel", {"copy": 1, "kill": 1, "cancel": 1}),
    Scenario("copied, hidden process, kill", {"copy": 1, "hide": 1, "kill": 1}),
    Scenario("other program, crashes, kill, retry", {"other": 1, "crash": 2, "kill": 1, "retry": 1}),
    Scenario("other program, kill, cancel", {"other": 1, "kill": 1, "cancel": 1}),
    Scenario("other program, crash, cancel, retry", {"other": 1, "crash": 1, "cancel": 1, "retry": 1}),
    Scenario("other program, reboot, crash, kill", {"other": 1, "reboot": 1, "crash": 1, "kill": 1}),
    Scenario("other program, machine ends, kill", {"other": 1, "machine": 1, "kill": 1}),
    Scenario("other program, preempt, crash", {"other": 1, "preempt": 1, "crash": 1}),
    Scenario("other program, hidden process, kill", {"other": 1, "hide": 1, "kill": 1}),
    Scenario("other program, lock lost, kill", {"other": 1, "unlock": 1, "kill": 1}),
    Scenario("other program, folder replaced, kill", {"other": 1, "replace": 1, "kill": 1}),
    Scenario("other program, folder removed, kill", {"other": 1, "remove": 1, "kill": 1}),
    Scenario("other program, claim removed, kill", {"other": 1, "unclaim": 1, "kill": 1}),
    Scenario("lock file removed, kill, crash", {"other": 1, "unlink": 1, "kill": 1, "crash": 1}),
    Scenario("adopted, kill, cancel", {"adopt": 1, "kill": 1, "cancel": 1}),
    Scenario("adopted, kills, crash, retry", {"adopt": 1, "kill": 2, "crash": 1, "retry": 1}),
    Scenario("adopted, two preempts, kill", {"adopt": 1, "preempt": 2, "kill": 1}),
    Scenario("adopted, preempt offline, crash, kill", {"adopt": 1, "offline": 1, "crash": 1, "kill": 1}),
    Scenario("adopted, victim, crash, kill", {"adopt": 1, "victim": 1, "crash": 1, "kill": 1}),
    Scenario("adopted, machine ends, preempt", {"adopt": 1, "machine": 1, "preempt": 1}),
    Scenario("adopted, reboot, kill, preempt", {"adopt": 1, "reboot": 1, "kill": 1, "preempt": 1}),
    Scenario("adopted, reboot, kill, cancel", {"adopt": 1, "reboot": 1, "kill": 1, "cancel": 1}),
    Scenario("adopted, pid reused, kill", {"adopt": 1, "reuse": 1, "kill": 1}),
)

BIG = (
    Scenario("preempt offline, crash, cancel", {"crash": 1, "offline": 1, "cancel": 1}),
    Scenario("preempts offline and not, crash, kill", {"crash": 1, "kill": 1, "offline": 1, "preempt": 1}),
    Scenario(
        "crash, kill, machine ends, cancel, retry",
        {"crash": 1, "kill": 1, "machine": 1, "cancel": 1, "retry": 1},
    ),
    Scenario("machine ends, reboot, crash, cancel", {"crash": 1, "reboot": 1, "machine": 1, "cancel": 1}),
    Scenario(
        "other program, crash, kill, cancel, retry",
        {"other": 1, "crash": 1, "kill": 1, "cancel": 1, "retry": 1},
    ),
)

#: The rules that protect a runner from a second writer of `stop`, such as `cancel` and `preempt` of an older
#: version. Nothing here disables them: the model has only the writer of this version, the round.
WITHOUT_CONTROL = (
    "withdrawn_remembered", "all_remembered", "ignored_put_back", "kill_stays_open", "withdrawn_stop_ignored",
    "excuse_last_withdrawn",
)  # fmt: skip
_OVERLAP = "I10 processes of an attempt run on a GPU that another program has claimed"
CONTROLS = (
    Control(("record_first", "claims"), {"crash": 1}, "I1 "),
    Control(("claims",), {}, "I1 "),
    Control(("void_first",), {}, "I2"),
    Control(("claim_first",), {}, "I3"),
    Control(("stop_until_end",), {"crash": 1, "cancel": 1}, "I6"),
    Control(("job_waits_for_processes",), {"kill": 1, "retry": 1}, "I1 "),
    Control(("dead_needs_runner_gone",), {"unlock": 1}, "I9"),
    Control(("whole_identity",), {"kill": 1, "reuse": 1}, "I4"),
    Control(("removed_claim_waits",), {"unclaim": 1}, "I9"),
    Control(("runner_token",), {"unmarked": 1, "kill": 1}, "I2"),
    Control(("command_recorded",), {"unmarked": 1, "kill": 1, "hide": 1}, "I2"),
    Control(("marked",), {"kill": 1, "hide": 1}, "I5 the GPUs"),
    Control(("marked",), {"kill": 1, "hide": 1, "cancel": 1}, "I5 the GPUs"),
    Control(("by_session",), {"unmarked": 1, "kill": 1, "hide": 1}, "I5"),
    Control(("by_descent",), {"unmarked": 1, "kill": 1, "hide": 1}, "I5"),
    Control(("session_checked",), {"kill": 1, "reuse": 1}, "I8"),
    Control(("kill_runner_first",), {"cancel": 1}, "I6"),
    Control(("release_sweep",), {}, "I4"),
    Control(("release_in_store",), {"crash": 1, "kill": 1}, "I5"),
    Control(("no_children",), {"chain": 1}, "I5"),
    Control(("machine_gap",), {"machine": 1}, "I3"),
    Control(("own_stop_signal",), {"preempt": 1}, "I3"),
    Control(("withdraw_renames",), {"preempt": 1, "cancel": 1}, "I3"),
    Control(("stop_until_end",), {"crash": 1, "preempt": 1}, "I14"),
    Control(("withdrawal_closes",), {"preempt": 1}, "I14"),
    Control(("withdrawal_by_id",), {"preempt": 2}, "I14"),
    Control(("withdrawal_outlives_runner",), {"preempt": 1, "kill": 1}, "I16"),
    Control(("cancel_outranks",), {"preempt": 1, "cancel": 1}, "I6"),
    Control(("gpu_locked",), {"other": 1}, _OVERLAP),
    Control(("kernel_lock",), {"kill": 1, "retry": 1}, "I13"),
    Control(("lock_compared",), {"other": 1, "unlink": 1}, _OVERLAP),
    Control(("attempt_first",), {}, "I11 a runner loses"),
    Control(("attempt_first",), {}, "I12 the loop"),
    Control(("locks_first",), {}, "I12 the loop"),
    Control(("stored_runner",), {"remove": 1}, "I12 the loop"),
    Control(("release_last",), {}, "I10"),
    Control(("release_first",), {}, "I12 the runner"),
    Control(("lost_claim_uncounted",), {"other": 1}, "I11"),
    Control(("rounds_locked",), {"crash": 1, "cancel": 1}, "I21"),
    Control(("placing_off",), {"crash": 1, "offline": 1, "retry": 1}, "I22"),
    Control(("placing_off",), {"adopt": 1, "cancel": 1}, "I22"),
    Control(("only_stopped",), {"crash": 1, "kill": 1, "offline": 1}, "I23"),
    Control(("waiting_counts",), {"crash": 1, "kill": 1, "cancel": 1}, "I25"),
    Control(("waits_for_processes",), {"crash": 1, "cancel": 1}, "I24"),
    Control(("ends_unwatched",), {"adopt": 1, "crash": 1, "cancel": 1}, "I25"),
    Control(("ends_unlocked",), {"unlock": 1, "crash": 1, "cancel": 1}, "I25"),
    Control(("same_namespace",), {"crash": 1, "cancel": 1}, "I2"),
    Control(("watched_again",), {"adopt": 1, "kill": 1}, "I20"),
    Control(("watched_again",), {"adopt": 1, "kill": 1, "retry": 1}, "I1 "),
    Control(("process_unswept",), {"adopt": 1, "kill": 1}, "I19 a sweep"),
    Control(("requests_wait",), {"adopt": 1, "cancel": 1}, "I20"),
    Control(("stop_kept",), {"adopt": 1, "kill": 1, "cancel": 1}, "I14"),
    Control(
        ("stop_outlives_boot",), {"adopt": 1, "kill": 1, "cancel": 1, "reboot": 1}, "I6 the cancel is lost"
    ),
    Control(("watcher_leaves",), {"adopt": 1, "machine": 1}, "I19"),
    Control(("start_compared",), {"adopt": 1, "reuse": 1}, "I8"),
    Control(("claims",), {"adopt": 1}, "I19 two"),
    Control(("copy_refused",), {"copy": 1}, "I7 a copy starts"),
    Control(("copy_refused", "dead_needs_runner_gone"), {"copy": 1}, "I7 a copy signals"),
)

#: Faults that the rules cannot prevent, each without the excuse that normally hides it.
LIMITS = (
    Control(("excuse_lost",), {"unmarked": 1, "kill": 1, "hide": 1}, "I5"),
    Control(("excuse_chain",), {"kill": 1, "chain": 1}, "I5"),
    Control(("excuse_unrecorded_command",), {"unmarked": 1, "remove": 1, "kill": 1, "hide": 1}, "I2"),
    Control(("excuse_early",), {"unclaim": 1}, "I1 "),
    Control(("excuse_killed_holder",), {"other": 1, "kill": 1}, "I10 processes of a killed runner"),
    Control(("excuse_no_progress",), {"preempt": 1}, "I3 completed"),
    Control(("excuse_late_save",), {"adopt": 1, "preempt": 1, "kill": 1}, "I3 completed"),
    Control(("excuse_unlinked",), {"other": 1, "unlink": 1}, _OVERLAP),
)
