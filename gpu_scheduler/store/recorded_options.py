"""Stores the options of the newest scheduler, which readers of the store need."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache

from gpu_scheduler.config import StartOptions
from gpu_scheduler.store.store import Store

_META_KEY = "started_with"


def record_options(store: Store, options: StartOptions) -> None:
    """Records the options of this scheduler; the paths that readers open are absolute."""
    store.db.set_meta(_META_KEY, json.dumps(asdict(options)))


def recorded_options(store: Store) -> StartOptions:
    """Returns the options of the scheduler that runs, or ran last; defaults where none are recorded."""
    return _parse(store.db.meta(_META_KEY) or "{}")


@lru_cache(maxsize=1)
def _parse(text: str) -> StartOptions:
    return StartOptions.from_values(json.loads(text))
