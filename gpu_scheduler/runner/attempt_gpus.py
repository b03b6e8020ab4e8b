"""Claims the GPUs of one attempt and holds the claims until the attempt's processes have ended."""

from __future__ import annotations

from .gpu_lock import LockFileError, Refusal, Wanted, claim_gpus, release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .child import Child
    from .watched_process import WatchedProcess

#: The code of a failure to use the lock file of a GPU.
CLAIM_FAILURE = "gpu_claim"


class AttemptGpus:
    """The claims of an attempt on its GPUs, as its spec describes them.

    claimed_gpu, claimed_by: the GPU that another program claimed first, and one pid of that program. Each is
    None if it is unknown or if there is no such program.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._wanted = spec.get("gpu_claims")
        self._held: list[int] = []
        self.claimed_gpu: str | None = None
        self.claimed_by: int | None = None

    def claim(self, child: Child | WatchedProcess) -> bool:
        """Claims all GPUs or none; returns whether that succeeded. After a failure, `child` has the reason.

        Until `release`, this process must not open the lock files, because closing one ends its claim.
        """
        if self._wanted is None:
            return True
        wanted = [Wanted(one["name"], one["mib"], one["total_mib"]) for one in self._wanted["gpus"]]
        try:
            answer = claim_gpus(self._wanted["folder"], wanted)
        except OSError as error:
            problem = error.strerror
            if not isinstance(error, LockFileError):
                problem = f"cannot be used: {error.strerror}; `doctor` checks its folder"
            child.fail(f"the lock file {error.filename} {problem}", CLAIM_FAILURE, error.errno)
            return False
        if isinstance(answer, Refusal):
            self.claimed_gpu, self.claimed_by = answer.name, answer.pid or None
            by = f"process {answer.pid}" if answer.pid else "another program"
            child.fail(f"{answer.name} was claimed by {by} first")
            return False
        self._held = answer
        return True

    def release(self) -> None:
        """Releases the claims."""
        release(self._held)
        self._held = []
