"""A job: its row in the store."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.attempt_status import AdoptedProcess, Checkpoint, StopRequest
from gpu_scheduler.core.model.job_spec import DEFAULT_STOP_SIGNAL, NORMAL_PRIORITY, JobSpec
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import WAITING, JobState, Outcome
from gpu_scheduler.core.model.units import Now
from gpu_scheduler.core.model.wait_reason import WaitReason

#: The outcomes for which a job is held until the user resumes it or starts it again.
UNFINISHED = (Outcome.INTERRUPTED.value, Outcome.PREEMPTED.value)


class Job(Struct, frozen=True):
    """A job.

    Fields named `*_at` are wall times in seconds since 1970. not_before_boot is in seconds since the boot
    that boot_id identifies.

    source: "file:PATH", "import:DIGEST" or the front end that added it; text: its line or command as written;
    spec_json: its JobSpec as JSON; spec_key: the key of its resource spec; jobs with the same key wait for
    the same thing; priority, position: the queue order, lowest first.

    held_by: "user", "line" or the outcome that caused the hold. stop: the open request to stop its attempt.
    not_before_boot: the earliest time of the next start. source_missing: whether its line in the jobs file,
    or the Redis queue that it comes from, keeps it from starting; line_wait: why. min_vram_mib: the memory
    that it needs, raised after an attempt ran out of memory. unmet_parents: the number of its dependencies
    whose condition is not met; failed_parents: the number of those whose parent has finished; failed_parent:
    the first of these. recoveries: how many times the scheduler itself has queued it again since the user
    last did. cleared_at: when `clear` took it out of the lists. checkpoint: the newest complete one when its
    last attempt ended. resume_from: the one with which its next attempt starts. queued_at: when it last began
    to wait for GPUs. submitted_at: when it was submitted, the last time if it was submitted again.
    adopted: the process, started elsewhere, that the job is; None for an ordinary job. has_attempt: whether
    it was ever started.
    """

    id: int
    state: JobState = JobState.QUEUED
    outcome: Outcome | None = None
    held_by: str | None = None
    source: str = ""
    identity: str = ""
    name: str | None = None
    text: str = ""
    spec_json: str = "{}"
    spec_key: str = ""
    priority: int = 0
    position: int = 0
    exit_code: int | None = None
    signal: int | None = None
    reason: StateReason | None = None
    stop: StopRequest | None = None
    launch_failures: int = 0
    not_before_boot: float | None = None
    boot_id: str | None = None
    source_missing: bool = False
    line_wait: WaitReason | None = None
    min_vram_mib: int | None = None
    oom_retries_used: int = 0
    fail_retries_used: int = 0
    unmet_parents: int = 0
    failed_parents: int = 0
    failed_parent: int | None = None
    recoveries: int = 0
    cleared_at: float | None = None
    checkpoint: Checkpoint | None = None
    resume_from: Checkpoint | None = None
    adopted: AdoptedProcess | None = None
    queued_at: float = 0.0
    submitted_at: float = 0.0
    created_at: float = 0.0
    finished_at: float | None = None
    has_attempt: bool = False

    @property
    def spec(self) -> JobSpec:
        """The parsed job specification."""
        return JobSpec.from_json(self.spec_json)

    @property
    def preempt_signal(self) -> str:
        """The name of the signal with which the job is preempted, without "SIG"."""
        return json.loads(self.spec_json).get("preempt_signal") or DEFAULT_STOP_SIGNAL

    @property
    def is_waiting(self) -> bool:
        """True if the job waits: in the queue, on hold, or skipped until its failed parent is retried."""
        return self.state in WAITING or self.outcome is Outcome.SKIPPED

    @property
    def is_unwatched(self) -> bool:
        """True if the job is an adopted process that no runner watches now."""
        return self.adopted is not None and self.state is JobState.QUEUED

    @property
    def has_unfinished_work(self) -> bool:
        """True if the job is held because its last attempt was interrupted or preempted."""
        return self.state is JobState.HELD and self.held_by in UNFINISHED

    @property
    def is_interrupted(self) -> bool:
        """True if the job is held because its last attempt was interrupted."""
        return self.state is JobState.HELD and self.held_by == Outcome.INTERRUPTED.value

    @property
    def is_of_file(self) -> bool:
        """True if the job comes from a line of a jobs file, which may have been removed since."""
        return self.source.startswith("file:")

    # The changes of its state.

    def finished(self, outcome: Outcome, reason: StateReason | None, now: Now) -> Job:
        """Returns the job after it finished without an attempt. It is no longer adopted."""
        return replace(
            self, state=JobState.FINISHED, outcome=outcome, reason=reason, finished_at=now.wall, held_by=None,
            adopted=None, stop=None,
        )  # fmt: skip

    def held(self, by: str, reason: StateReason) -> Job:
        """Returns the job on hold. by: "user", "line" or the outcome that is the cause. It is not adopted."""
        return replace(self, state=JobState.HELD, reason=reason, held_by=by, adopted=None, stop=None)

    def queued_again(
        self, now: Now, *, recoveries: int = 0, checkpoint: Checkpoint | None = None, keeps: bool = False
    ) -> Job:
        """Returns the held or finished job in the queue again, without failed launches.

        recoveries: how many times the scheduler itself has then queued it again; 0 if the user did.
        checkpoint: the one with which its next attempt starts; keeps: whether that stays as it is.
        """
        is_skipped = self.outcome is Outcome.SKIPPED
        # Only the user gives a job additional retries, and not by releasing one that waited for a retry.
        keeps_retries = self.held_by in ("user", "line") or is_skipped or recoveries > 0
        is_submitted = self.state is JobState.FINISHED and not is_skipped
        return replace(
            self, state=JobState.QUEUED, outcome=None, exit_code=None, signal=None, reason=None, held_by=None,
            launch_failures=0, not_before_boot=None, finished_at=None, cleared_at=None, stop=None,
            adopted=None, resume_from=self.resume_from if keeps else checkpoint, recoveries=recoveries,
            queued_at=now.wall, submitted_at=now.wall if is_submitted else self.submitted_at,
            oom_retries_used=self.oom_retries_used if keeps_retries else 0,
            fail_retries_used=self.fail_retries_used if keeps_retries else 0,
        )  # fmt: skip

    def with_attribute(self, name: str, value: Any) -> Job:
        """Returns the job with this attribute (a name in job_spec.COMPARED_ATTRIBUTES)."""
        changed = {name: value}
        if name == "command":
            changed["text"] = value
        spec = JobSpec.from_json(json.dumps({**json.loads(self.spec_json), **changed}))
        return replace(
            self, spec_json=spec.to_json(), name=spec.name, text=spec.text, identity=spec.identity,
            priority=NORMAL_PRIORITY if spec.priority is None else spec.priority,
            # Memory that the user sets overrides the memory that an earlier attempt needed.
            min_vram_mib=None if name == "vram" else self.min_vram_mib,
        )  # fmt: skip
