"""Formats the details of one job as text and JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.secrets import masked_values
from gpu_scheduler.core.verdict import Verdict
from gpu_scheduler.views.as_json import job_object
from gpu_scheduler.views.report import JobShown
from gpu_scheduler.views.words import ago, duration, outcome_words, visible

_WIDTH = 14


@dataclass(frozen=True)
class AttemptShown:
    """One attempt. Times in wall seconds; command: as its command.sh runs it, None = there is no command.sh.

    vram_declared: MiB on each GPU; share_declared: of each GPU, 1 = all of it; peaks: GPU index -> MiB;
    load_percent: mean over its GPUs and all samples; declaration_accuracy: as text.
    """

    number: int
    gpus: tuple[int, ...]
    outcome: str | None
    reason: str | None
    exit_code: int | None
    signal: int | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    log: str | None
    session: str | None
    folder: str
    command: str | None
    survivors: tuple[int, ...]
    launches: int
    warnings: tuple[str, ...]
    vram_declared: int | None
    share_declared: float | None
    peaks: Mapping[int, int]
    load_percent: float | None
    verdict: str | None


@dataclass(frozen=True)
class Story:
    """Details of one job at `now`. line: (file, number) of its line now; origin and need: as text.

    arguments, env: without secrets; history: (time, state, reason).
    min_vram_mib: memory per GPU that it needs since it ran out of memory; *_used: retries used;
    *_retries: how many its line allows, None = the default.
    """

    now: float
    job: JobShown
    kind: str
    identity: str
    origin: str
    line: tuple[str, int] | None
    script: str | None
    arguments: tuple[str, ...]
    need: str
    raised_mib: int | None
    oom_used: int
    oom_retries: int | None
    fail_used: int
    fail_retries: int | None
    timeout_s: float | None
    allowed: tuple[int, ...] | None
    conda: str | None
    venv: str | None
    cwd: str
    env: Mapping[str, str]
    attempts: tuple[AttemptShown, ...]
    history: tuple[tuple[float, str, str | None], ...]


def to_json(story: Story) -> str:
    """Formats a job as one ASCII JSON object, as docs/json.md describes."""
    return json.dumps(
        {
            "now": story.now,
            "job": job_object(story.job),
            "kind": story.kind,
            "identity": story.identity,
            "line": None if story.line is None else {"file": story.line[0], "line": story.line[1]},
            "script": story.script,
            "arguments": list(story.arguments),
            "need": story.need,
            "min_vram_mib": story.raised_mib,
            "oom_retries_used": story.oom_used,
            "oom_retries": story.oom_retries,
            "fail_retries_used": story.fail_used,
            "fail_retries": story.fail_retries,
            "timeout_s": story.timeout_s,
            "allowed_gpus": None if story.allowed is None else list(story.allowed),
            "environment": {
                "conda": story.conda, "venv": story.venv, "cwd": story.cwd, "env": dict(story.env),
            },
            "attempts": masked_values([_attempt_object(attempt) for attempt in story.attempts]),
            "history": masked_values(
                [{"at": at, "state": state, "reason": why} for at, state, why in story.history]
            ),
        },
        indent=1,
    ) + "\n"  # fmt: skip


def _attempt_object(attempt: AttemptShown) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "gpus": attempt.gpus,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "created_at": attempt.created_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "log": attempt.log,
        "session": attempt.session,
        "folder": attempt.folder,
        "command": attempt.command,
        "survivors": attempt.survivors,
        "launches": attempt.launches,
        "warnings": attempt.warnings,
        "vram_declared": attempt.vram_declared,
        "share_declared": attempt.share_declared,
        "peaks": attempt.peaks,
        "load_percent": attempt.load_percent,
        "declaration_accuracy": attempt.verdict,
    }


def to_text(story: Story) -> str:
    """Formats a job as text, one fact per line."""
    blocks = ["\n".join(_facts(story))]
    blocks += ["\n".join(_attempt(attempt, story.now)) for attempt in story.attempts]
    blocks.append("\n".join(["History", *_history(story)]))
    return "\n\n".join(blocks) + "\n"


def _row(title: str, value: str) -> str:
    return f"{title:<{_WIDTH}}{visible(value)}"


def _facts(story: Story) -> Iterator[str]:
    job = story.job
    state = outcome_words(job.outcome, job.exit_code, job.signal) if job.outcome else job.state
    yield _row(f"Job {job.id}", f"{job.name}: {job.text}" if job.name else job.text)
    yield _row("State", state)
    if job.reason:
        yield _row("Reason", job.reason)
    yield from (_row("Warning", warning) for warning in job.warnings)
    yield _row("From", story.origin)
    yield _row("Kind", f"{story.kind}, identity {story.identity}")
    if story.script is not None:
        yield _row("Script", story.script)
        yield _row("Arguments", " ".join(story.arguments) or "none")
    yield _row("Need", story.need)
    yield from _retries(story)
    if story.timeout_s is not None:
        yield _row("Time limit", duration(story.timeout_s))
    yield _row("Allowed GPUs", "any" if story.allowed is None else ", ".join(map(str, story.allowed)))
    yield _row("Priority", str(job.priority))
    yield _row("Environment", _environment(story))
    yield _row("Folder", story.cwd)
    yield from (_row("Variable", f"{name}={value}") for name, value in story.env.items())
    yield _row("Submitted", _at(job.created_at, story.now))


def _retries(story: Story) -> Iterator[str]:
    for after, used, allowed in (
        ("out of memory", story.oom_used, story.oom_retries),
        ("other failures", story.fail_used, story.fail_retries),
    ):
        if used or allowed is not None:
            of = "" if allowed is None else f" of {allowed}"
            yield _row("Retries", f"{used}{of} after {after}")


def verdict_words(verdict: Verdict | None, tolerance: float) -> str | None:
    """Formats an accuracy: "within ±10%", "over-declared (-59%)", "under-declared (+47%)"."""
    if verdict is None:
        return None
    if verdict.kind == "within":
        return f"within ±{100 * tolerance:g}%"
    return f"{verdict.kind}-declared ({verdict.percent:+d}%)"


def _memory(attempt: AttemptShown) -> Iterator[str]:
    """Yields the declaration, peaks and load of an attempt."""
    if attempt.vram_declared is not None:
        yield _row("  Declared", f"{attempt.vram_declared} MiB per GPU")
    elif attempt.share_declared is not None:
        yield _row("  Declared", f"share {attempt.share_declared:g} of each GPU")
    if attempt.peaks:
        peaks = ", ".join(f"GPU {gpu}: {mib} MiB" for gpu, mib in sorted(attempt.peaks.items()))
        yield _row("  Peak", f"{peaks}; {attempt.verdict}" if attempt.verdict else peaks)
    if attempt.load_percent is not None:
        yield _row("  Load", f"{attempt.load_percent:.0f} % on average")


def _environment(story: Story) -> str:
    if story.venv is not None:
        return f"venv {story.venv}"
    if story.conda:
        return f"conda {story.conda}"
    return "conda base, if conda is installed" if story.kind == "csv" else "none specified"


def _attempt(attempt: AttemptShown, now: float) -> Iterator[str]:
    gpus = ", ".join(map(str, attempt.gpus)) or "none"
    yield f"Attempt {attempt.number}"
    yield _row("  GPUs", gpus)
    if attempt.started_at is None:
        yield _row("  Started", f"not yet; requested at {_at(attempt.created_at, now)}")
    else:
        yield _row("  Started", _at(attempt.started_at, now))
    if attempt.outcome is not None:
        took = ""
        if attempt.started_at is not None and attempt.ended_at is not None:
            took = f", after {duration(attempt.ended_at - attempt.started_at)}"
        yield _row("  Ended", f"{_at(attempt.ended_at, now)}{took}")
        yield _row("  Outcome", outcome_words(attempt.outcome, attempt.exit_code, attempt.signal))
    if attempt.reason:
        yield _row("  Reason", attempt.reason)
    yield from _memory(attempt)
    yield from (_row("  Warning", warning) for warning in attempt.warnings)
    if attempt.launches > 1:
        yield _row("  Launches", str(attempt.launches))
    if attempt.survivors:
        yield _row("  Still running", "processes " + ", ".join(map(str, attempt.survivors)))
    for title, value in (
        ("  Command", attempt.command), ("  Log", attempt.log), ("  Session", attempt.session),
        ("  Files", attempt.folder),
    ):  # fmt: skip
        if value:
            yield _row(title, value)


def _history(story: Story) -> Iterator[str]:
    for at, state, reason in story.history:
        suffix = f": {visible(reason)}" if reason else ""
        yield f"  {_clock(at)}  {state}{suffix}"


def _at(at: float | None, now: float) -> str:
    return "?" if at is None else f"{_clock(at)} ({ago(at, now)})"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
