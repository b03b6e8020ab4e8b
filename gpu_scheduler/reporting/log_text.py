"""Formats the values in log lines of rooms that may not import views."""

from __future__ import annotations

from gpu_scheduler.views.wait_text import wait_text

__all__ = ["wait_text"]
