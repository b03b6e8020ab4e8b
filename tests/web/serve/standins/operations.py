"""Stands in for the operations: what a request needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Context:
    location: Any
    cwd: str
    source: str
    may_preempt: bool = True
    details: bool = True
