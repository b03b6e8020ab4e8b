"""`pause` and `resume`: record requests about GPUs and print the answers."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app.store_access import open_store, scheduler_pid_of, unanswered_message, wake_and_wait
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.model.gpu_list import format_gpu_list
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError
from gpu_scheduler.intake import pauses
from gpu_scheduler.store.store import Store


def pause(options: Namespace) -> int:
    """Keeps new jobs off these GPUs."""
    return _send_requests(options, paused=True)


def resume(options: Namespace) -> int:
    """Lets these GPUs accept new jobs again."""
    return _send_requests(options, paused=False)


def _send_requests(options: Namespace, *, paused: bool) -> int:
    try:
        return _request_in_store(options, paused=paused)
    except StoreNotFoundError:
        return _write_state_file(options, paused=paused)


def _write_state_file(options: Namespace, *, paused: bool) -> int:
    """Writes the request into the state file, the only place for it before the first start.

    Raises SchedulerError if the file cannot be changed, or if the GPUs are given as `all`.
    """
    path = location_of(options).resolve().state_file
    verb = "pause" if paused else "resume"
    if None in options.ids:
        raise SchedulerError(
            f"the GPUs are not known before the first `start`; name them, as in `{verb} 0,1`"
        )
    named = sorted({gpu for given in options.ids for gpu in given or ()})
    try:
        pauses.edit_pauses_in_file(path, named, paused)
    except ValueError as error:
        raise SchedulerError(f"{path}: {error}\nfix the file or move it away") from None
    except OSError as error:
        raise SchedulerError(f"{path} cannot be changed ({error.strerror}); nothing is {verb}d") from None
    told = f"{verb}d in {path}, which the first `start` reads"
    if not path.exists():
        told = "not paused; no scheduler has run here yet"
    for gpu in named:
        print(safe_text(f"GPU {gpu}: {told}"))
    return 0


def _request_in_store(options: Namespace, *, paused: bool) -> int:
    with open_store(location_of(options)) as store:
        chosen = _selected_gpus(store, options.ids)
        wishes = dict(
            zip(
                pauses.request_pauses(
                    store, chosen.values(), paused, "cli", scheduler_is_up=scheduler_pid_of(store) is not None
                ),
                chosen,
                strict=True,
            )
        )
        for wish, answer in wake_and_wait(store, wishes).items():
            print(f"GPU {wishes[wish]}: {answer or unanswered_message(store)}")
    return 0


def _selected_gpus(store: Store, ids: list[tuple[int, ...] | None]) -> dict[int, str]:
    """Returns index -> UUID of the named GPUs, in order; of every managed GPU for `all`."""
    managed = {row["idx"]: row["uuid"] for row in store.gpus()}
    if not managed:
        raise SchedulerError(
            f"no GPUs are recorded in {store.data_dir.folder} yet; the first `start` records them"
        )
    if None in ids:
        return managed
    named = sorted({gpu for given in ids for gpu in given or ()})
    unknown = [gpu for gpu in named if gpu not in managed]
    if unknown:
        said = f"GPU {unknown[0]} is" if len(unknown) == 1 else f"GPUs {format_gpu_list(unknown)} are"
        raise SchedulerError(f"{said} not managed; the managed GPUs are {format_gpu_list(managed)}")
    return {gpu: managed[gpu] for gpu in named}
