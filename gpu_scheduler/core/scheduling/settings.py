"""Defines the options of `start` that decisions depend on, with their defaults.

Times are in seconds, memory is in MiB, fractions are of 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The thresholds that decide whether a GPU accepts one more job.

    mem_threshold, load_threshold: fraction of foreign use at or above which it accepts none. margin_mib:
    memory kept free beside every declaration. idle_threshold_mib: foreign memory up to which a GPU counts as
    idle (drivers and displays use a little). spike_buffer: fraction added to observed peaks.
    """

    mem_threshold: float = 0.8
    load_threshold: float = 0.8
    margin_mib: int = 512
    idle_threshold_mib: int = 200
    spike_buffer: float = 0.10


@dataclass(frozen=True)
class Settings(Limits):
    """The limits and the other options that decisions depend on.

    exclusive: at most one of our jobs on each GPU; tolerance: the fraction by which memory use may exceed the
    declaration before it is reported; *_retries: defaults for jobs whose line sets none; max_launches: how
    often an attempt is launched before it counts as not started; grace_s: from SIGTERM to SIGKILL;
    memory_release_s: the longest wait for the memory of a released GPU; survivor_wait_s: how long the
    processes of a dead runner have to exit. No command-line option sets those from launch_deadline_s on.
    """

    exclusive: bool = False
    tolerance: float = 0.10
    oom_retries: int = 0
    fail_retries: int = 0
    max_assign_attempts: int = 5
    assign_retry_wait_s: float = 5.0
    launch_deadline_s: float = 10.0
    max_launches: int = 3
    grace_s: float = 10.0
    memory_release_s: float = 60.0
    survivor_wait_s: float = 60.0
