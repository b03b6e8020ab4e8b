"""Finds the words that complete an argument in a shell. Runs no program, because the user waits for them."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.core.model.job_name import group_of
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.store.job_lists import newest_names

_MAX_JOBS = 1000


def completion_words(location: Location, kind: str) -> list[str]:
    """Returns the words for "jobs" (numbers, names and groups), "gpus" or conda "environments".

    There are no jobs and no GPUs without a store.
    """
    if kind == "environments":
        try:  # conda lists the folders of all environments in this file
            paths = (Path.home() / ".conda" / "environments.txt").read_text().split("\n")
        except (OSError, ValueError):
            paths = []
        return ["base", *(Path(path).name for path in paths if Path(path).parent.name == "envs")]
    try:
        with open_store(location, read_only=True) as store:
            if kind == "gpus":
                return ["all", *map(str, store.managed_gpus())]
            names = newest_names(store, _MAX_JOBS)
    except StoreNotFoundError:
        return []
    named = [name for name in names.values() if name is not None]
    return list(dict.fromkeys([*map(str, names), *named, *filter(None, map(group_of, named))]))
