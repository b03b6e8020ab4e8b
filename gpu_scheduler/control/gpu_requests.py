"""Pauses and resumes GPUs through the store or, before the first start, through the state file."""

from __future__ import annotations

from collections.abc import Collection

from gpu_scheduler.app.location import Location
from gpu_scheduler.control.requests import (
    COMMAND_LINE,
    Answer,
    AnswerKind,
    Control,
    answer_text,
    control,
    unanswered,
)
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError
from gpu_scheduler.store import state_file
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store


def set_paused(
    location: Location, gpus: Collection[int] | None, *, paused: bool, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Keeps new jobs off these GPUs, or lets the GPUs accept them again; None means every managed GPU.

    Raises SchedulerError if a GPU is not managed.
    """
    try:
        with control(location) as store_control:
            return _request_in_store(store_control, gpus, by, paused)
    except StoreNotFoundError:
        return _write_state_file(location, gpus, paused)


def _write_state_file(location: Location, gpus: Collection[int] | None, paused: bool) -> tuple[Answer, ...]:
    """Writes the request into the state file, because no store exists before the first start.

    Raises SchedulerError if the file cannot be changed, or if the request is for all GPUs.
    """
    path = location.resolve().state_file
    verb = "pause" if paused else "resume"
    if gpus is None:
        raise SchedulerError(
            f"the GPUs are not known before the first `start`; list them, as in `{verb} 0,1`"
        )
    named = sorted(set(gpus))
    try:
        state_file.edit_pauses_in_file(path, named, paused)
    except ValueError as error:
        raise SchedulerError(f"{path}: {error}\ncorrect the file or move it away") from None
    except OSError as error:
        raise SchedulerError(f"{path} cannot be changed ({error.strerror}); no GPU was {verb}d") from None
    kind = AnswerKind.IN_STATE_FILE if path.exists() else AnswerKind.NOTHING_TO_DO
    return tuple(Answer(gpu, kind) for gpu in named)


def _request_in_store(
    store_control: Control, gpus: Collection[int] | None, by: str, paused: bool
) -> tuple[Answer, ...]:
    store = store_control.store
    chosen = _selected_gpus(store, gpus, paused)
    is_up = store_control.scheduler_pid is not None
    requests = state_file.request_pauses(store, chosen.values(), paused, by, scheduler_is_up=is_up)
    answers = store_control.carry_out(requests)
    pid = store_control.scheduler_pid
    return tuple(
        unanswered(gpu, pid, request) if reply is None else Answer(gpu, AnswerKind.CARRIED_OUT, reply)
        for gpu, (request, reply) in zip(chosen, answers.items(), strict=True)
    )


def _selected_gpus(store: Store, gpus: Collection[int] | None, paused: bool) -> dict[int, str]:
    """Returns the UUIDs of these GPUs, or of all managed GPUs if `gpus` is None, by index."""
    managed = store.managed_gpus()
    if not managed:
        raise SchedulerError(
            f"no GPUs are recorded in {store.data_dir.folder} yet; the first `start` records them"
        )
    if gpus is None:
        return managed
    named = sorted(set(gpus))
    unknown = [gpu for gpu in named if gpu not in managed]
    if unknown:
        which = f"GPU {unknown[0]} is" if len(unknown) == 1 else f"GPUs {format_gpu_list(unknown)} are"
        job = store.job(unknown[0]) if len(unknown) == 1 else None
        verb = "hold" if paused else "resume --job"
        hint = "" if job is None else f"; for job {job.id}, use `{verb} {job.id}`"
        raise SchedulerError(f"{which} not managed; the managed GPUs are {format_gpu_list(managed)}{hint}")
    return {gpu: managed[gpu] for gpu in named}


def gpu_answer_text(answer: Answer, home: DataDir, *, paused: bool) -> str:
    """Formats the answer as text that is safe to print."""
    if answer.kind is AnswerKind.NOTHING_TO_DO:
        return "not paused, because no scheduler has run here yet"
    if answer.kind is AnswerKind.IN_STATE_FILE:
        from gpu_scheduler.core.text.formatting import safe_text

        done = "paused" if paused else "resumed"
        return f"{done} in {safe_text(str(home.state_file))}, which the first `start` reads"
    return answer_text(answer, str(home.folder))
