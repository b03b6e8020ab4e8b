"""Defines findings, which are the results of the checks of `doctor` and `why`."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from msgspec import Struct

# A health issue: a problem with a location that the scheduler writes to, and its remedy.


class HealthSubject(str, Enum):
    """The folder or file that a health issue is about; the value is its name in messages and in JSON."""

    LOG_FOLDER = "log folder"
    STORE = "store"
    STATE_FILE = "state file"
    MAIN_LOG = "main log"
    LLM_CONFIG = "llm_config"

    def __str__(self) -> str:
        return self.value


class HealthIssue(Struct, frozen=True):
    """A problem with one location.

    problem: a predicate, such as "is on a full disk"; blocks_starts: whether the problem keeps all jobs from
    starting. Running jobs continue in any case.
    """

    subject: HealthSubject
    path: str
    problem: str
    remedy: str
    blocks_starts: bool

    def __str__(self) -> str:
        return f"{self.subject} {self.path} {self.problem}: {self.remedy}"


Grade = Literal["ok", "warn", "bad"]


class Check(str, Enum):
    """The subject of a check; the value is its name in texts and in JSON."""

    # Subjects of checks of the machine and of the scheduler's files.
    CLOCK = "clock"
    CONDA = "conda"
    ATTEMPTS = "attempts"
    BACKUPS = "backups"
    CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
    DATABASE = "database"
    DRIVER = "driver"
    FILE_SYSTEM = "file system"
    GPU = "GPU"
    GPU_CLAIMS = "GPU claims"
    INOTIFY = "inotify"
    JOBS_FILE = "jobs file"
    KIND_OF_GPUS = "kind of GPUs"
    LLM_CONFIG = "llm_config"
    LOCK_FOLDER = "lock folder"
    LOG_FOLDER = "log folder"
    LOGIND = "logind"
    MAIN_LOG = "main log"
    OLDER_SESSIONS = "older sessions"
    PACKAGES = "packages"
    PROBE = "probe"
    PTYS = "ptys"
    PYTHON = "Python"
    REMOVE_IPC = "logind's RemoveIPC"
    SCHEDULER = "scheduler"
    SCREEN = "Screen"
    SCREEN_SOCKETS = "Screen's sockets"
    STATE_FILE = "state file"
    STORE = "store"
    USER = "user"
    # Subjects of checks of one job.
    ALLOWED_GPUS = "allowed GPUs"
    BLOCKED_BY = "blocked by"
    BY_HAND = "by hand"
    CHILDREN = "children"
    END = "end"
    ENVIRONMENT = "environment"
    EVENTS = "events"
    FOLDER = "folder"
    GPUS = "GPUs"
    HELD = "held"
    LINE = "line"
    LOG = "log"
    MEMORY = "memory"
    NEAR_IT = "near it"
    NEED = "need"
    PARENT = "parent"
    ORDER = "order"
    OVERTAKEN = "overtaken"
    PLACING = "placing"
    PREEMPTING = "preempting"
    PROGRESS = "progress"
    RESERVED = "reserved"
    RETRY = "retry"
    RUNS = "runs"
    SCRIPT = "script"
    SEEN = "seen"
    VALUES = "values"

    def __str__(self) -> str:
        return self.value


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
        return str(self.check) if self.gpu is None else f"{self.check} {self.gpu}"


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
    return judge(Check(issue.subject.value), f"{issue.path} {issue.problem}", issue.remedy)
