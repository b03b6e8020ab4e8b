"""`pause` and `resume`: print the answer for each GPU."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterable

from gpu_scheduler.app import gpu_requests
from gpu_scheduler.app.answers import Answer, AnswerKind
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.views.answers import answer_text


def pause(options: Namespace) -> int:
    """Keeps new jobs off these GPUs."""
    answers = gpu_requests.pause(location_of(options), _gpus(options))
    return _print_answers(options, answers, "paused")


def resume(options: Namespace) -> int:
    """Lets these GPUs accept new jobs again."""
    answers = gpu_requests.resume(location_of(options), _gpus(options))
    return _print_answers(options, answers, "resumed")


def _gpus(options: Namespace) -> Collection[int] | None:
    """Returns the named GPUs, None for all."""
    return None if None in options.ids else {gpu for given in options.ids for gpu in given}


def _print_answers(options: Namespace, answers: Iterable[Answer], done: str) -> int:
    for answer in answers:
        print(f"GPU {answer.target}: {_text(options, answer, done)}")
    return 0


def _text(options: Namespace, answer: Answer, done: str) -> str:
    if answer.kind is AnswerKind.NOTHING_TO_DO:
        return "not paused; no scheduler has run here yet"
    if answer.kind is AnswerKind.IN_STATE_FILE:
        from gpu_scheduler.core.text.formatting import safe_text

        path = safe_text(str(location_of(options).resolve().state_file))
        return f"{done} in {path}, which the first `start` reads"
    return answer_text(answer)
