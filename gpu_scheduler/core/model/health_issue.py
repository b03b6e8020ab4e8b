"""A health issue: a problem with a location that the scheduler writes to, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HealthSubject(str, Enum):
    """The folder or file that a health issue is about; the value is its name in messages and in JSON."""

    LOG_FOLDER = "log folder"
    STORE = "store"
    STATE_FILE = "state file"
    MAIN_LOG = "main log"
    LLM_CONFIG = "llm_config"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class HealthIssue:
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
