"""`pause` and `resume`: wishes about GPUs."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.cli.record import home_of, opened, pid_of, ring_and_wait, unanswered
from gpu_scheduler.core.gpulist import format_gpu_list
from gpu_scheduler.errors import NoRecordError, SchedulerError
from gpu_scheduler.intake import pauses
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.words import visible


def pause(options: Namespace) -> int:
    """Keep new jobs off these GPUs."""
    return _wish(options, paused=True)


def resume(options: Namespace) -> int:
    """Let these GPUs take new jobs again."""
    return _wish(options, paused=False)


def _wish(options: Namespace, *, paused: bool) -> int:
    try:
        return _wish_on_record(options, paused=paused)
    except NoRecordError:
        return _write_for_first_start(options, paused=paused)


def _write_for_first_start(options: Namespace, *, paused: bool) -> int:
    """Before the first start the state file alone can say it. Raises SchedulerError where it cannot."""
    path = home_of(options).state_file
    verb = "pause" if paused else "resume"
    if None in options.ids:
        raise SchedulerError(
            f"which GPUs there are is known after the first `start`; name them: `{verb} 0,1`"
        )
    named = sorted({gpu for given in options.ids for gpu in given or ()})
    try:
        pauses.pause_in_file(path, named, paused)
    except ValueError as error:
        raise SchedulerError(f"{path}: {error}\nmend the file, or move it away") from None
    except OSError as error:
        raise SchedulerError(f"{path} cannot be changed ({error.strerror}); nothing is {verb}d") from None
    told = f"{verb}d in {path}, which the first `start` reads"
    if not path.exists():
        told = "not paused; nothing has run here yet"
    for gpu in named:
        print(visible(f"GPU {gpu}: {told}"))
    return 0


def _wish_on_record(options: Namespace, *, paused: bool) -> int:
    with opened(options) as store:
        chosen = _chosen(store, options.ids)
        wishes = dict(
            zip(
                pauses.pause(
                    store, chosen.values(), paused, "cli", scheduler_is_up=pid_of(store) is not None
                ),
                chosen,
                strict=True,
            )
        )
        for wish, answer in ring_and_wait(store, wishes).items():
            print(f"GPU {wishes[wish]}: {answer or unanswered(store)}")
    return 0


def _chosen(store: Store, ids: list[tuple[int, ...] | None]) -> dict[int, str]:
    """Index -> UUID of the GPUs that are named, in order; every managed one for `all`."""
    managed = {row["idx"]: row["uuid"] for row in store.gpus()}
    if not managed:
        raise SchedulerError(f"{store.home.folder} knows no GPUs yet; they are known after the first `start`")
    if None in ids:
        return managed
    named = sorted({gpu for given in ids for gpu in given or ()})
    unknown = [gpu for gpu in named if gpu not in managed]
    if unknown:
        said = f"GPU {unknown[0]} is" if len(unknown) == 1 else f"GPUs {format_gpu_list(unknown)} are"
        raise SchedulerError(f"{said} not managed; the managed GPUs are {format_gpu_list(managed)}")
    return {gpu: managed[gpu] for gpu in named}
