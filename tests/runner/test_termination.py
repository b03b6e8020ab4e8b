"""Tests of the causes of a termination, and of their precedence and grace periods."""

from __future__ import annotations

import pytest

from gpu_scheduler.runner.termination import Termination, describe_outcome


def test_a_termination_sends_no_signal_before_a_stop_is_requested() -> None:
    assert Termination().due(1e9) is None


def test_a_stop_request_sends_sigterm_and_after_the_grace_period_sigkill_every_second() -> None:
    ending = Termination()
    assert ending.request("cancelled", 10, "kill", now=100) is True
    assert ending.request("cancelled", 10, "kill", now=101) is False
    assert ending.due(109.9) is None
    assert ending.due(110) == "kill"
    assert ending.due(110.5) is None
    assert ending.due(111) == "kill"


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ("machine", "preempted", "preempted"),
        ("preempted", "machine", "preempted"),
        ("machine", "cancelled", "cancelled"),
        ("cancelled", "machine", "cancelled"),
        ("preempted", "cancelled", "cancelled"),
        ("cancelled", "preempted", "cancelled"),
        ("timed_out", "preempted", "timed_out"),
        ("preempted", "timed_out", "timed_out"),
        ("timed_out", "cancelled", "cancelled"),
        ("preempted", "something new", "something new"),
    ],
)
def test_the_stronger_cause_of_a_termination_takes_precedence(first: str, second: str, cause: str) -> None:
    ending = Termination()
    ending.request(first, 10, "kill", now=0)
    ending.request(second, 10, "kill", now=1)
    assert ending.cause == cause


def test_a_later_request_can_only_shorten_the_grace_period() -> None:
    ending = Termination()
    ending.request("cancelled", 10, "kill", now=0)
    ending.request("cancelled", 60, "kill", now=1)
    assert ending.deadline == 10
    ending.request("cancelled", 2, "kill", now=1)
    assert ending.deadline == 3


def test_withdrawing_a_preemption_clears_the_cause_of_the_termination() -> None:
    ending = Termination()
    ending.request("preempted", 10, "withdraw", now=0)
    assert ending.due(10) == "withdraw"
    ending.withdraw()
    assert (ending.cause, ending.due(99)) == (None, None)
    assert ending.request("preempted", 5, "withdraw", now=100) is True


def test_a_preemption_that_ends_in_a_kill_cannot_become_one_that_may_be_withdrawn() -> None:
    ending = Termination()
    ending.request("preempted", 10, "kill", now=0)
    ending.request("preempted", 10, "withdraw", now=1)
    assert ending.due(10) == "kill"


def test_a_cancel_replaces_the_withdrawal_of_a_preemption_with_a_kill() -> None:
    ending = Termination()
    ending.request("preempted", 10, "withdraw", now=0)
    ending.request("cancelled", 10, "kill", now=5)
    assert ending.due(10) == "kill"


def test_a_machine_shutdown_still_applies_after_a_preemption_was_withdrawn() -> None:
    ending = Termination()
    ending.request("preempted", 10, "withdraw", now=0)
    ending.request("machine", 10, "kill", now=5)
    assert ending.due(10) == "withdraw"
    ending.withdraw()
    assert ending.cause == "machine"
    # The machine has sent SIGTERM, so a cancel neither repeats it nor gives the command more time.
    assert ending.request("cancelled", 60, "kill", now=12) is False
    assert ending.due(14.9) is None
    assert ending.due(15) == "kill"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ((None, True, 0, None), "completed: exit code 0"),
        ((None, True, 7, None), "failed: exit code 7"),
        ((None, True, None, 9), "failed: signal 9"),
        (("cancelled", True, 0, None), "cancelled: exit code 0"),
        (("machine", True, None, 15), "interrupted: signal 15"),
        (("cancelled", False, None, None), "cancelled: nothing was started"),
        ((None, False, 1, None), "not_started: exit code 1"),
        ((None, False, None, None), "not_started: nothing was started"),
    ],
)
def test_describes_how_a_command_ended(
    facts: tuple[str | None, bool, int | None, int | None], words: str
) -> None:
    assert describe_outcome(*facts) == words


def test_withdrawing_a_request_withdraws_all_that_were_open_and_the_one_in_the_file() -> None:
    ending = Termination()
    ending.request("preempted", 10, "withdraw", 0, "first")
    ending.request("preempted", 10, "withdraw", 1, "second")
    ending.withdraw("third")
    assert all(map(ending.has_withdrawn, ("first", "second", "third")))
    assert not ending.has_withdrawn("")
    ending.request("preempted", 10, "withdraw", 20, "fourth")
    assert not ending.has_withdrawn("fourth")


@pytest.mark.parametrize(
    ("first", "second", "is_sent"),
    [
        (("preempted", "USR1"), ("cancelled", "TERM"), True),
        (("preempted", "TERM"), ("cancelled", "TERM"), False),
        (("cancelled", "TERM"), ("preempted", "USR1"), False),
        (("preempted", "USR1"), ("machine", "TERM"), True),
    ],
)
def test_a_command_gets_the_signal_of_a_later_request_only_if_the_request_takes_effect(
    first: tuple[str, str], second: tuple[str, str], is_sent: bool
) -> None:
    ending = Termination()
    assert ending.request(first[0], 60, "withdraw", 0, "", first[1])
    assert ending.request(second[0], 10, "kill", 5, "", second[1]) is is_sent
