"""Answers to requests are stored without loss, and the answer code determines the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.control.requests import Answer, AnswerKind, answer_text
from gpu_scheduler.core.model.request import ACCEPTED_STATES, REFUSALS, AnswerCode, RequestAnswer, wrong_state
from gpu_scheduler.core.model.states import JobState, Outcome

ANSWERS = st.builds(
    RequestAnswer, st.sampled_from(AnswerCode), state=st.none() | st.sampled_from(JobState),
    accepted=st.lists(st.sampled_from(JobState), max_size=3).map(tuple), verb=st.sampled_from(("", "hold")),
    outcome=st.none() | st.sampled_from(Outcome), exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 31), attribute=st.text(max_size=5),
)  # fmt: skip


@given(ANSWERS)
def test_an_answer_to_a_request_survives_being_stored(answer: RequestAnswer) -> None:
    assert RequestAnswer.from_json(answer.to_json()) == answer


@given(ANSWERS)
def test_the_answer_code_alone_decides_whether_a_request_was_refused(answer: RequestAnswer) -> None:
    assert answer.is_refusal is (answer.code in REFUSALS)
    assert answer_text(Answer(3, AnswerKind.CARRIED_OUT, answer), "/s.d")


@pytest.mark.parametrize("verb", ACCEPTED_STATES)
@pytest.mark.parametrize("state", JobState)
def test_a_refusal_names_the_job_states_in_which_the_request_is_accepted(verb: str, state: JobState) -> None:
    refused = wrong_state(verb, state)
    assert refused.is_refusal
    assert all(
        str(one) in answer_text(Answer(3, AnswerKind.REFUSED, refused), "/s.d")
        for one in (state, *refused.accepted)
    )


def test_the_answer_for_a_job_that_has_not_ended_names_who_ends_it_and_what_explains_it() -> None:
    answer = Answer(3, AnswerKind.NOT_ENDED, RequestAnswer(AnswerCode.STOPPING))
    assert answer_text(answer, "/s.d") == ("not ended yet; the next `start` ends it; see `why 3`")
    assert answer.has_failed
