"""A checkpoint: the state that a job has saved, from which it can resume."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.model.stored_value import StoredValue


@dataclass(frozen=True)
class Checkpoint(StoredValue):
    """A complete checkpoint.

    path: the absolute path of its file or folder. step: the step at which it was saved; None if unknown.
    saved_at: when it was saved, in wall seconds; None if unknown.
    """

    path: str
    step: float | None = None
    saved_at: float | None = None

    @classmethod
    def unknown(cls, text: str) -> Checkpoint:
        """Returns the checkpoint whose path is this text."""
        return Checkpoint(text)

    def is_newer_than(self, other: Checkpoint | None, *, has_resumed: bool = False) -> bool:
        """Returns whether the job has progressed from the other checkpoint to this one.

        Steps decide if both are known. Otherwise, one that was saved later is newer, but not at the same path
        unless the job has resumed, because a job that began again may have saved the same one again.
        """
        if other is None:
            return True
        if self.step is not None and other.step is not None:
            return self.step > other.step
        may_be_newer = has_resumed or self.path != other.path
        return may_be_newer and (self.saved_at or 0.0) > (other.saved_at or 0.0)


@dataclass(frozen=True)
class SavedWork:
    """The work that an ended attempt has left.

    checkpoint: the newest complete checkpoint of its job; None if there is none. is_complete: whether its
    last progress was N of N; None if it reported none. may_resume: whether the scheduler may give the
    checkpoint to the next attempt by itself, because the command is known to accept one. has_place: whether
    the user may, because the command has a place for its path.
    """

    checkpoint: Checkpoint | None = None
    is_complete: bool | None = None
    may_resume: bool = False
    has_place: bool = True
