"""Tests what the agent of an engine does next for an attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.engines.engine import EngineJob
from gpu_scheduler.engines.steps import DEAD_S, GONE_S, SUBMIT_AGAIN_S, Memory, Seen, Step, next_steps

NOW = 10_000.0
PENDING, RUNNING = EngineJob("pending", "7", reason="Resources"), EngineJob("running", "7", "n1")
FAILED = EngineJob("ended", "7", "n1", "NonZeroExitCode")
CANCELLED = EngineJob("ended", "7", reason="CANCELLED", was_cancelled=True)
STILL = Memory(NOW - 2000, NOW - 2, 5, NOW - DEAD_S)
BEATS = Memory(NOW - 2000, NOW - 2, 5, NOW - DEAD_S + 1)
CASES = [
    ("new", Seen(), Memory(), [Step.SUBMIT]),
    ("just submitted", Seen(), Memory(submitted_at=NOW - SUBMIT_AGAIN_S + 1), []),
    ("answer lost", Seen(), Memory(submitted_at=NOW - SUBMIT_AGAIN_S), [Step.SUBMIT]),
    ("gone", Seen(), Memory(NOW - 900, NOW - GONE_S + 1), []),
    ("gone for long", Seen(), Memory(NOW - 900, NOW - GONE_S), [Step.SUBMIT]),
    ("pending", Seen(job=PENDING), Memory(NOW - 5), [Step.WRITE]),
    ("starting", Seen(job=RUNNING), Memory(NOW - 5), [Step.WRITE]),
    ("could not start", Seen(job=FAILED), Memory(NOW - 5), [Step.VOID]),
    ("cancelled by others", Seen(job=CANCELLED), Memory(NOW - 5), [Step.VOID]),
    ("given up while pending", Seen(job=PENDING, gives_up=True), Memory(NOW - 5), [Step.VOID, Step.CANCEL]),
    ("given up before it was submitted", Seen(gives_up=True), Memory(), [Step.VOID, Step.CANCEL]),
    ("given up too late", Seen(has_claim=True, job=RUNNING, gives_up=True), BEATS, [Step.WRITE]),
    ("void, but still in the engine", Seen(True, True, job=PENDING), Memory(), [Step.CANCEL]),
    ("void", Seen(True, True), Memory(), []),
    ("running", Seen(True, heartbeat=5, job=RUNNING), BEATS, [Step.WRITE]),
    ("ended in the engine, but beats", Seen(True, heartbeat=6, job=FAILED), STILL, [Step.WRITE]),
    ("ended in the engine, silent for less", Seen(True, heartbeat=5, job=FAILED), BEATS, [Step.WRITE]),
    ("dead", Seen(True, heartbeat=5, job=FAILED), STILL, [Step.DECLARE_DEAD]),
    ("dead and forgotten by the engine", Seen(True, heartbeat=5), STILL, [Step.DECLARE_DEAD]),
    ("silent in a look that hung", Seen(True, heartbeat=5, job=FAILED, took_s=9.0), STILL, [Step.WRITE]),
    ("dead and requeued", Seen(True, heartbeat=5, job=PENDING), STILL, [Step.DECLARE_DEAD]),
    ("silent, but the engine says that it runs", Seen(True, heartbeat=5, job=RUNNING), STILL, [Step.WRITE]),
    ("to be killed", Seen(True, heartbeat=5, job=RUNNING, kills=True), BEATS, [Step.WRITE, Step.CANCEL]),
    ("ended", Seen(True, has_result=True, job=RUNNING), BEATS, []),
]


@pytest.mark.parametrize(("seen", "memory", "steps"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_next_steps_follow_the_table(seen: Seen, memory: Memory, steps: list[Step]) -> None:
    assert [*next_steps(seen, memory, NOW).steps] == steps


def test_a_job_that_had_a_node_counts_as_a_failed_launch_even_if_it_was_cancelled() -> None:
    had_node = EngineJob("ended", "7", "n1", "CANCELLED", was_cancelled=True)
    assert not next_steps(Seen(job=had_node), Memory(NOW - 5), NOW).is_cancelled


def test_a_void_claim_says_why() -> None:
    failed, cancelled = (next_steps(Seen(job=job), Memory(NOW - 5), NOW) for job in (FAILED, CANCELLED))
    assert (failed.reason, failed.is_cancelled) == ("NonZeroExitCode", False)
    assert (cancelled.reason, cancelled.is_cancelled) == ("CANCELLED", True)


jobs = st.sampled_from([None, PENDING, RUNNING, FAILED, CANCELLED])
looks = st.lists(
    st.tuples(
        st.builds(
            Seen, st.booleans(), st.just(False), st.just(False), st.sampled_from([None, 1, 2]), jobs,
            st.booleans(), st.booleans(),
        ),
        st.sampled_from([0.5, 2.0, 30.0, 130.0, 800.0]),
    ),
    max_size=30,
)  # fmt: skip


@given(looks)
def test_an_attempt_is_dead_only_after_a_heartbeat_has_stood_still_while_it_was_looked_at(
    history: list[tuple[Seen, float]],
) -> None:
    memory, now = Memory(), NOW
    counter: int | None = None
    since = now
    for n, (seen, passed) in enumerate(history):
        now += passed
        if n == 0 or seen.heartbeat != counter:
            counter, since = seen.heartbeat, now
        plan = next_steps(seen, memory, now)
        memory = plan.memory
        if Step.DECLARE_DEAD in plan.steps:
            assert seen.has_claim
            assert now - since >= DEAD_S
            assert seen.job is None or seen.job.state != "running"
        if Step.SUBMIT in plan.steps:
            assert not seen.has_claim
            assert seen.job is None
            assert not seen.gives_up
        if Step.VOID in plan.steps:
            assert not seen.has_claim
