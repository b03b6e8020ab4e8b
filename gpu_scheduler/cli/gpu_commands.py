"""`pause` and `resume`: print the answer for each GPU."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterable

from gpu_scheduler.app import gpu_requests
from gpu_scheduler.app.answers import Answer, AnswerKind
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.text.formatting import safe_text
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
    path = safe_text(str(location_of(options).resolve().state_file))
    texts = {
        AnswerKind.IN_STATE_FILE: f"{done} in {path}, which the first `start` reads",
        AnswerKind.NOTHING_TO_DO: "not paused; no scheduler has run here yet",
    }
    for answer in answers:
        print(f"GPU {answer.target}: {texts.get(answer.kind) or answer_text(answer)}")
    return 0
