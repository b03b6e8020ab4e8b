"""Stores the options of the newest scheduler that readers need."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from gpu_scheduler.core.scheduling.placement import Limits
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import CudaIds

_META_KEY = "started_with"


@dataclass(frozen=True)
class RecordedOptions:
    """Options of the scheduler that runs, or ran last, on this store.

    llm_config, conda_sh, jobs_file: absolute paths; None = none was found, "" = none is watched. *_mib and
    spike_buffer: as in Limits; tolerance, exclusive: as in Settings.
    """

    mem_threshold: float = Limits.mem_threshold
    load_threshold: float = Limits.load_threshold
    cuda_ids: CudaIds = "physical"
    llm_config: str | None = None
    conda_sh: str | None = None
    jobs_file: str | None = None
    margin_mib: int = Limits.margin_mib
    idle_mib: int = Limits.idle_threshold_mib
    spike_buffer: float = Limits.spike_buffer
    tolerance: float = 0.10
    exclusive: bool = False
    oom_retries: int = 0
    fail_retries: int = 0
    trust_files: bool = False

    @property
    def limits(self) -> Limits:
        """The limits for placement."""
        return Limits(
            self.mem_threshold, self.load_threshold, self.margin_mib, self.idle_mib, self.spike_buffer
        )


def record_options(store: Store, options: RecordedOptions) -> None:
    """Records the options of this scheduler."""
    store.db.set_meta(_META_KEY, json.dumps(asdict(options)))


def recorded_options(store: Store) -> RecordedOptions:
    """Returns the options of the newest scheduler; defaults where none are recorded."""
    values = json.loads(store.db.meta(_META_KEY) or "{}")
    known = {field.name for field in fields(RecordedOptions)}
    return RecordedOptions(**{name: value for name, value in values.items() if name in known})
