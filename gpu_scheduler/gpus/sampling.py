"""Samples the GPUs at intervals, stores the result, and selects the GPUs that this scheduler manages."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence

from msgspec.structs import replace

from gpu_scheduler.clock import Clock
from gpu_scheduler.config import NO_GPUS
from gpu_scheduler.core.model.gpu import (
    GOOD_SAMPLES_NEEDED,
    UNKNOWN_UUID_PREFIX,
    UNLISTED,
    FaultKind,
    GpuFault,
    GpuSample,
    Snapshot,
    is_simulated,
)
from gpu_scheduler.core.scheduling.gpu_faults import GpuChange, update_faults
from gpu_scheduler.errors import GpuStateError, UsageError
from gpu_scheduler.gpus.probes.probe_process import (
    ProbeClient,
    ProbeFailure,
    UnreadableError,
    count_note,
    restrict_to_visible,
    select_gpus,
)
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.store.new_store import change_gpu_kind
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter

log = logging.getLogger(__name__)

#: Seconds between two samples of the GPUs, and from a failed query to the next one.
SAMPLE_EVERY_S = 5.0
RETRY_S = 2.0
#: After a job has started, samples are taken more often for this many seconds, at this interval in seconds.
FREQUENT_S, FREQUENT_EVERY_S = 60.0, 1.0
#: Seconds that `start` waits for the first answer if the store already has GPUs. It does not wait longer,
#: because jobs on these GPUs may need attention.
FIRST_SAMPLE_S = 5.0


class Sampler:
    """Queries the probe every few seconds, and at once on request. A hanging query never blocks the loop."""

    def __init__(
        self, probe: ProbeClient, watch: GpuWatch, clock: Clock, every_s: float = SAMPLE_EVERY_S
    ) -> None:
        self._every_s = every_s
        self._frequent_until = 0.0
        self._probe = probe
        self._watch = watch
        self._clock = clock
        self._store: Store | None = None
        self._next_query_at = 0.0
        #: Indices of managed GPUs that are not in the store, because their UUID is still unknown.
        self._without_uuid: set[int] = set()

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when an answer has arrived."""
        return self._probe.fileno()

    @property
    def due_at(self) -> float | None:
        """The time of the next query, or the deadline of the open one, in seconds since boot."""
        return self._next_query_at if self._probe.queried_at is None else self._probe.deadline

    def begin(
        self, option: str | None, store: Store, recorder: StoreWriter, *, simulated: bool = False
    ) -> None:
        """Takes the first sample and selects the GPUs that `--gpus` and CUDA_VISIBLE_DEVICES allow.

        With NO_GPUS, no GPU is managed or sampled. simulated: whether the sampled GPUs are simulated; GPUs of
        the other kind are removed from the store. Raises GpuStateError if the GPUs cannot be read and the
        store has none of this kind, and UsageError for an invalid option.
        """
        self._store = store
        if option == NO_GPUS:
            self._next_query_at = math.inf
            self._watch.accept_sample(Snapshot(self._clock.now().boot, ()))
            recorder.record_gpus((), (), self._clock.now())
            log.info("no GPUs (--gpus none): only jobs without a GPU (gpus=0) start")
            return
        recorded = _stored_gpus(store)
        known = [gpu for gpu in recorded if is_simulated(gpu.uuid) is simulated]
        try:
            snapshot = self._probe.sample(FIRST_SAMPLE_S if known else None)
        except UnreadableError as error:
            if not known:
                raise
            log.warning(
                "%s; continuing with the stored GPUs, but no job starts there until they respond", error
            )
            self._watch.record_failure(error.why)
            recorder.record_probe_failure(error.why)
            return
        self._log_note(snapshot)
        settled, _ = update_faults(snapshot.gpus, _still_managed(known, snapshot.gpus))
        samples, note = restrict_to_visible(settled, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if note is not None and not samples:
            raise UsageError(note)
        if note is not None:
            log.warning("%s", note)
        managed = select_gpus(samples, option)
        if not managed:
            raise GpuStateError("no GPU found; install the NVIDIA driver, or try --simulate 4 or --gpus none")
        leaving = [gpu.uuid for gpu in recorded if is_simulated(gpu.uuid) is not simulated]
        if leaving:
            change_gpu_kind(store, leaving, self._clock.now())
            log.info("removed the %s GPUs from the store", "real" if simulated else "simulated")
        self._without_uuid = {gpu.index for gpu in managed if gpu.uuid.startswith(UNKNOWN_UUID_PREFIX)}
        self._watch.accept_sample(replace(snapshot, gpus=settled))
        recorder.record_gpus(_with_uuid(settled), [gpu.uuid for gpu in managed], self._clock.now())
        names = ", ".join(f"{gpu.index} {gpu.name}" for gpu in managed)
        log.info("%d GPU%s: %s", len(managed), "" if len(managed) == 1 else "s", names)
        if (counted := count_note(samples, option)) is not None:
            log.info("%s", counted)
        if simulated:
            log.info(
                "only the GPUs are simulated: the commands really run, and their jobs count as completed"
            )
        for gpu in managed:
            if gpu.fault is not None:
                self._log_change(GpuChange(gpu, recovered=False))

    def query(self, at_once: bool) -> bool:
        """Queries the probe if a query is due or `at_once` is set; returns whether it sent a query."""
        now = self._clock.now().boot
        if self._next_query_at == math.inf:
            return at_once  # there are no GPUs
        if self._probe.queried_at is not None or not (at_once or now >= self._next_query_at):
            return False
        self._probe.query()
        frequently = now < self._frequent_until
        self._next_query_at = now + (min(self._every_s, FREQUENT_EVERY_S) if frequently else self._every_s)
        return True

    def sample_frequently(self) -> None:
        """Samples more often for a while. Called when a job has started."""
        now = self._clock.now().boot
        self._frequent_until = now + FREQUENT_S
        if self._next_query_at < math.inf:
            self._next_query_at = min(self._next_query_at, now + FREQUENT_EVERY_S)

    def read(self, recorder: StoreWriter) -> None:
        """Processes an answer that has arrived, or the timeout of the open query."""
        now = self._clock.now()
        for answer in (self._probe.read(), self._probe.expire(now.boot)):
            if isinstance(answer, Snapshot):
                self._accept(answer, recorder)
            elif isinstance(answer, ProbeFailure):
                # Repeat a query soon if it failed at once. After a query that hung, the next one is already
                # due.
                self._next_query_at = min(self._next_query_at, now.boot + RETRY_S)
                if self._watch.failure is None:
                    log.warning(
                        "%s; running jobs continue, but no job starts on a GPU",
                        GpuFault(FaultKind.UNREADABLE, answer.text),
                    )
                    recorder.record_probe_failure(answer.text)
                self._watch.record_failure(answer.text)

    def close(self) -> None:
        """Ends the probe process."""
        self._probe.close()

    def _accept(self, snapshot: Snapshot, recorder: StoreWriter) -> None:
        assert self._store is not None
        known = _stored_gpus(self._store)
        managed = {gpu.uuid for gpu in known}
        # If a GPU was lost before its UUID was known and now reports it, it recovers like any other GPU.
        found = [
            gpu
            for gpu in _with_uuid(snapshot.gpus)
            if gpu.uuid not in managed and gpu.index in self._without_uuid
        ]
        known += [replace(gpu, fault=UNLISTED) for gpu in found]
        settled, changes = update_faults(snapshot.gpus, known)
        if self._watch.failure is not None:
            log.info("the GPUs respond again")
        self._log_note(snapshot)
        self._watch.accept_sample(replace(snapshot, gpus=settled))
        now = self._clock.now()
        recorder.record_gpus(_with_uuid(settled), [gpu.uuid for gpu in known] if found else None, now)
        self._without_uuid -= {gpu.index for gpu in found}
        for change in changes:
            self._log_change(change)

    def _log_note(self, snapshot: Snapshot) -> None:
        if snapshot.note and (self._watch.snapshot is None or self._watch.snapshot.note != snapshot.note):
            log.warning("%s", snapshot.note)

    def _log_change(self, change: GpuChange) -> None:
        gpu = change.gpu
        name = f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})"
        if change.recovered:
            log.info(
                "%s is back after %d good samples in a row; it accepts jobs again", name, GOOD_SAMPLES_NEEDED
            )
            return
        jobs = self._jobs_on(gpu.uuid)
        listed = f"job{'' if len(jobs) == 1 else 's'} {', '.join(jobs)}"
        rest = f"; jobs running on it continue and keep their share ({listed})" if jobs else ""
        log.warning("%s: %s; it accepts no new jobs%s", name, gpu.fault, rest)

    def _jobs_on(self, uuid: str) -> list[str]:
        assert self._store is not None
        allocated = [attempt for attempt in self._store.active_attempts() if attempt.state.holds_gpus]
        return [str(attempt.job_id) for attempt in allocated if uuid in attempt.gpus]


def _stored_gpus(store: Store) -> list[GpuSample]:
    return [GpuSample(gpu.uuid, gpu.index, gpu.last.name, fault=gpu.fault) for gpu in store.gpus()]


def _still_managed(known: Sequence[GpuSample], samples: Sequence[GpuSample]) -> list[GpuSample]:
    """Returns the stored GPUs that remain managed after `start`.

    A real GPU that the driver does not list is kept, because it has been lost and may come back. A simulated
    GPU is kept only if `--simulate` still includes it.
    """
    sampled = {gpu.uuid for gpu in samples}
    real = any(_is_real(gpu.uuid) for gpu in samples)
    return [gpu for gpu in known if gpu.uuid in sampled or (real and _is_real(gpu.uuid))]


def _is_real(uuid: str) -> bool:
    return uuid.startswith("GPU-")


def _with_uuid(samples: Sequence[GpuSample]) -> list[GpuSample]:
    # If a GPU was lost before its UUID was known, it has only a placeholder, which is never stored.
    return [gpu for gpu in samples if not gpu.uuid.startswith(UNKNOWN_UUID_PREFIX)]
