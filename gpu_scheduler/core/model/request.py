"""A request from a front end to the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

#: The verbs of the requests that queue a finished job again.
QUEUEING = frozenset({"retry", "requeue", "resume_job"})
#: The cause of a pause or resume that no command requested.
PauseCause = Literal["state_file_edited", "state_file_removed"]


class Request(Struct, frozen=True):
    """A request from a front end (docs/design.md, Store and requests).

    target: a job id or the UUID of a GPU, as text; "" for the scheduler itself or for all jobs. args, by
    verb: cancel {grace_s, line: whether the job's line requests the cancel}, preempt {stop_id, grace_s,
    on_timeout}, resume_job {checkpoint: a Checkpoint,
    min_vram_mib, completed: whether a completed job may be resumed too}, retry {changes: the args of the
    changes that it makes first, parents: those of all of them}, requeue {added_to: the file to
    which the line was added again}, pause and resume {cause: a PauseCause; null if a command requested it},
    set {name, value, line: whether the jobs file sets the value, parents: [[parent id, reference], …] if a
    command sets "after" or "after_any"}, confirm and unconfirm {}, places {places:
    [[job id, queue position], …]}. The target of recover and clear is "" for all interrupted or finished
    jobs.
    """

    request_id: int
    verb: str
    target: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
