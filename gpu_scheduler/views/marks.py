"""Marks of jobs on the status board and in the lines of `start`."""

from __future__ import annotations

RUNNING, WAITING, RETRY, SUCCESS, FAILURE = "▶", "·", "↻", "✓", "✗"
WARNING, NONE = "!", " "
