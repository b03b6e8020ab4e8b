"""Defines findings, which are the results of the checks of `doctor` and `why`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

#: The subject of a check, which is its name in texts and in JSON.
Check = Literal[
    # Subjects of checks of the machine and of the scheduler's files.
    "clock", "conda", "attempts", "backups", "CUDA_VISIBLE_DEVICES", "database", "driver", "file system",
    "GPU", "GPU claims", "inotify", "jobs file", "kind of GPUs", "llm_config", "lock folder", "log folder",
    "logind", "main log", "notifications", "older sessions", "packages", "probe", "ptys", "Python",
    "logind's RemoveIPC", "scheduler", "Screen", "Screen's sockets", "service", "Slurm", "state file",
    "store", "user",
    # Subjects of checks of one job.
    "allowed GPUs", "blocked by", "by hand", "children", "end", "environment", "events", "folder", "GPUs",
    "held", "line", "log", "memory", "near it", "need", "parent", "order", "overtaken", "placing",
    "preempting", "progress", "reserved", "retry", "runs", "script", "seen", "values",
]  # fmt: skip


# A health issue: a problem with a location that the scheduler writes to, and its remedy.


class HealthIssue(Struct, frozen=True):
    """A problem with one location.

    subject: the folder or file; problem: a predicate, such as "is on a full disk"; blocks_starts: whether the
    problem keeps all jobs from starting. Running jobs continue in any case.
    """

    subject: Check
    path: str
    problem: str
    remedy: str
    blocks_starts: bool

    def __str__(self) -> str:
        return f"{self.subject} {self.path} {self.problem}: {self.remedy}"


Grade = Literal["ok", "warn", "bad"]


class Finding(Struct, frozen=True):
    """The result of one check.

    grade: "bad" if something will not work; "warn" if something may go wrong, or goes wrong in some cases.
    remedy: what to do; "" if nothing needs to be done. gpu: the index of the GPU that the finding is about.
    """

    check: Check
    grade: Grade
    message: str
    remedy: str = ""
    gpu: int | None = None

    @property
    def name(self) -> str:
        """The name of the check, such as "database" or "GPU 3"."""
        return self.check if self.gpu is None else f"{self.check} {self.gpu}"


def ok(check: Check, message: str, gpu: int | None = None) -> Finding:
    """Returns a finding that needs no action."""
    return Finding(check, "ok", message, gpu=gpu)


def warn(check: Check, message: str, remedy: str, gpu: int | None = None) -> Finding:
    """Returns a finding about something that may go wrong."""
    return Finding(check, "warn", message, remedy, gpu)


def bad(check: Check, message: str, remedy: str, gpu: int | None = None) -> Finding:
    """Returns a finding about something that will not work."""
    return Finding(check, "bad", message, remedy, gpu)


def from_health_issue(issue: HealthIssue) -> Finding:
    """Returns the finding for a health issue, which is bad if the issue keeps jobs from starting."""
    judge = bad if issue.blocks_starts else warn
    return judge(issue.subject, f"{issue.path} {issue.problem}", issue.remedy)
