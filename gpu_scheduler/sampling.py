"""When the GPUs are asked, what comes of an answer, and which of them this scheduler manages."""

from __future__ import annotations

import logging
import os

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.gpu import GpuSample, Snapshot
from gpu_scheduler.errors import GpuStateError, UsageError
from gpu_scheduler.gpus import GpuWatch, choose
from gpu_scheduler.probes.asked import AskedProbe, ProbeFailure
from gpu_scheduler.probes.visible import restrict
from gpu_scheduler.store.recorder import Recorder
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds between two samples of the GPUs (DESIGN §4).
SAMPLE_EVERY_S = 5.0
#: Seconds for the first answer, and where the GPUs are on the record already and jobs may want to be settled.
FIRST_SAMPLE_S = 20.0
KNOWN_SAMPLE_S = 5.0


class Sampler:
    """Asks the probe every few seconds, and at once when wanted; a question that hangs holds up nothing."""

    def __init__(self, probe: AskedProbe, watch: GpuWatch, clock: Clock) -> None:
        self._probe = probe
        self._watch = watch
        self._clock = clock
        self._ask_at = 0.0

    @property
    def fd(self) -> int:
        """Readable when an answer is there."""
        return self._probe.fileno()

    @property
    def due_at(self) -> float | None:
        """The boot time of the next question, or by which the open one must be answered."""
        return self._ask_at if self._probe.asked_at is None else self._probe.deadline

    def begin(self, option: str | None, store: Store, recorder: Recorder) -> None:
        """The first sample, and the GPUs that `--gpus` and CUDA_VISIBLE_DEVICES leave to manage.

        Raises GpuStateError if the GPUs cannot be read and none are on the record, UsageError for a bad
        option.
        """
        known = bool(store.gpus())
        try:
            snapshot = self._probe.first_sample(KNOWN_SAMPLE_S if known else FIRST_SAMPLE_S)
        except GpuStateError as error:
            if not known:
                raise
            log.warning(
                "%s; going on with the GPUs on the record, nothing is placed until they answer", error
            )
            self._watch.fail(str(error).splitlines()[0])
            recorder.note_blind(str(error).splitlines()[0])
            return
        samples, note = restrict(snapshot.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if note is not None and not samples:
            raise UsageError(note)
        if note is not None:
            log.warning("%s", note)
        managed = choose(samples, option)
        if not managed:
            raise GpuStateError("no GPU found; install the NVIDIA driver, or try --simulate 4")
        self._watch.take(snapshot)
        recorder.note_gpus(_named(snapshot), [gpu.uuid for gpu in managed], self._clock.now())
        names = ", ".join(f"{gpu.index} {gpu.name}" for gpu in managed)
        log.info("%d GPU%s: %s", len(managed), "" if len(managed) == 1 else "s", names)

    def ask(self, at_once: bool) -> bool:
        """Ask if it is time, or at once; False while an earlier question is open."""
        now = self._clock.now().boot
        if self._probe.asked_at is not None or not (at_once or now >= self._ask_at):
            return False
        self._probe.ask()
        self._ask_at = now + SAMPLE_EVERY_S
        return True

    def read(self, recorder: Recorder) -> None:
        """Take in an answer that has come, or that has not come in time."""
        now = self._clock.now()
        for answer in (self._probe.read(), self._probe.expire(now.boot)):
            if isinstance(answer, Snapshot):
                if self._watch.failure is not None:
                    log.info("the GPUs answer again")
                self._watch.take(answer)
                recorder.note_gpus(_named(answer), None, now)
            elif isinstance(answer, ProbeFailure):
                if self._watch.failure is None:
                    log.warning("the GPUs cannot be read: %s; jobs go on, nothing is placed", answer.text)
                    recorder.note_blind(answer.text)
                self._watch.fail(answer.text)

    def close(self) -> None:
        """End the probe's process."""
        self._probe.close()


def _named(snapshot: Snapshot) -> list[GpuSample]:
    # A GPU that was lost before it ever told its UUID is shown, and never recorded under a made-up one.
    return [gpu for gpu in snapshot.gpus if not gpu.uuid.startswith("unknown-")]
