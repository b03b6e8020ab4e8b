"""Formats a status report as JSON, in the stable form that docs/json.md describes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.text.formatting import masked_json, picked
from gpu_scheduler.show.gpu_text import claim_objects
from gpu_scheduler.show.job_text import engine_object, job_warnings, progress_object
from gpu_scheduler.show.job_views import GpuView, JobView, StatusReport
from gpu_scheduler.show.wait_text import job_reason_text, parent_objects


def gpu_object(gpu: GpuView) -> dict[str, Any]:
    """Returns a GPU as an element of "gpus"."""
    record, doubt = gpu.record, gpu.record.suspicion
    return {
        **picked(record, "index", "uuid"),
        "name": record.last.name,
        "state": gpu.state,
        "allocated": gpu.share / WHOLE,
        "memory_used_mib": record.last.used_mib,
        "memory_total_mib": record.total_mib,
        "memory_allocated_mib": gpu.allocated_mib,
        "unified_memory": record.last.unified,
        "exclusive_process": record.last.exclusive,
        "load_percent": record.last.load_percent,
        "fault": None if record.fault is None else str(record.fault),
        "pause_reason": gpu.pause_reason,
        "suspicion": doubt and {**asdict(doubt), "trial_at": doubt.trial_at},
        "sampled_at": record.sampled_at,
        "jobs": list(gpu.jobs),
        "reserved_for": list(gpu.reserved_for),
        "claims": claim_objects(gpu.claims, gpu.claims_problem),
        "claims_problem": gpu.claims_problem,
    }


def job_object(job: JobView) -> dict[str, Any]:
    """Returns a job as an element of "jobs"."""
    record = job.record
    return {
        **picked(record, "id", "state", "outcome"),
        "reason": job_reason_text(job),
        "after": parent_objects(job.parents) if job.parents else [],
        "infeasible": job.infeasible,
        "interrupted": record.is_interrupted,
        "recorded": job.is_recorded,
        "cleared": record.cleared_at is not None,
        "name": record.name,
        "command": record.text,
        "gpus": list(job.gpus),
        **picked(record, "exit_code", "signal"),
        "attempts": 0 if job.attempt is None else job.attempt.number,
        **picked(job, "pid", "session", "window_closed", "log"),
        "created_at": record.created_at,
        "started_at": job.started_at,
        **picked(record, "finished_at", "priority", "source"),
        "engine": None if job.attempt is None else engine_object(job.attempt, job.engine),
        "adopted_pid": None if record.adopted is None else record.adopted.pid,
        "warnings": job_warnings(job),
        **picked(job, "vram_declared", "peaks"),
        "progress": progress_object(job.progress),
    }


def to_json(report: StatusReport) -> str:
    """Formats the report as ASCII JSON, with one line for each element of a list."""
    scheduler = {"pid": report.pid, "state_file": report.state_file, "data_dir": report.data_dir}
    malformed = (
        {"file": m.path, "line": m.number, "text": m.text, "reason": m.problem, "accepted": m.accepted_form}
        for m in report.malformed
    )
    files = ({"file": f.path, "problem": f.problem} for f in report.jobs_files)
    parts = [
        f'"scheduler": {masked_json(scheduler)}',
        f'"now": {masked_json(report.now)}',
        f'"counts": {masked_json(dict(sorted(report.counts.items())))}',
        f'"gpus": {_json_array(map(gpu_object, report.gpus))}',
        f'"jobs": {_json_array(map(job_object, report.jobs))}',
        f'"malformed": {_json_array(malformed)}',
        f'"jobs_files": {_json_array(files)}',
        f'"health_issues": {_json_array(map(asdict, report.health_issues))}',
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json_array(objects: Iterable[Mapping[str, Any]]) -> str:
    # Without indentation, `json` uses its C encoder, which is fifty times faster for a long queue.
    lines = ",\n  ".join(masked_json(element) for element in objects)
    return f"[\n  {lines}\n]" if lines else "[]"
