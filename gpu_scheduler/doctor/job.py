"""Why one job does not start, check by check: each is given what it looks at, and answers with a finding."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Sequence

from gpu_scheduler.core.gpulist import format_gpu_list
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.linewait import LineWait
from gpu_scheduler.core.needs import Need
from gpu_scheduler.core.placement import GpuView, Limits, Reason, obstacle, place
from gpu_scheduler.core.remedies import gpu_remedy
from gpu_scheduler.core.share import format_share
from gpu_scheduler.doctor.findings import Finding, bad, ok, warn
from gpu_scheduler.views.words import pid_words, plural, size

_SHOWN = 5


def scheduler(pid: int | None, host: str | None, *, waits: bool) -> Finding:
    """Whether anything can start it. waits: whether it is to be started at all."""
    if host is not None:
        return warn(
            "scheduler", f"on host {host}; whether it runs cannot be told from here", f"ask on {host}"
        )
    if pid is None and not waits:
        return ok("scheduler", "not running")
    if pid is None:
        return bad("scheduler", "not running: nothing is started", "`start` runs it")
    return ok("scheduler", f"running, {pid_words(pid)}")


def held(job_id: int, by: str | None, reason: str | None) -> Finding:
    """Of a held job: by whom, and the way out."""
    verb = "release" if by in ("user", "line") else "retry"
    return bad("held", reason or "it is held", f"`{verb} {job_id}` queues it")


def placing(need: Need, allowed: tuple[int, ...] | None, views: Sequence[GpuView], limits: Limits) -> Finding:
    """What placement answers for it, as if it were its turn now."""
    answer = place(need, allowed, views, limits)
    if isinstance(answer, Reason):
        if answer.infeasible:
            less = "less memory (vram=), " if need.vram is not None else ""
            remedy = f"mend its line: {less}fewer GPUs, or others; or start the scheduler with more (--gpus)"
            return bad("placing", answer.text, remedy)
        return warn("placing", answer.text, "")
    chosen = ", ".join(str(view.index) for view in views if view.uuid in answer)
    return ok("placing", f"GPU {chosen} would take it now")


def gpu(
    view: GpuView,
    need: Need,
    allowed: tuple[int, ...] | None,
    limits: Limits,
    holders: Collection[int],
) -> Finding:
    """Whether one GPU takes it, and what is measured against the thresholds. holders: jobs of ours on it."""
    name = f"GPU {view.index}"
    measured = _measured(view, need, limits, holders)
    if need.vram is not None:
        measured += _headroom(view, limits)
    if allowed is not None and view.index not in allowed:
        return ok(name, f"not for this job, which may use {format_gpu_list(allowed)}; {measured}")
    why = obstacle(view, need, limits)
    if why is None:
        return ok(name, f"takes it; {measured}")
    return warn(name, f"does not take it: {why}; {measured}", gpu_remedy(view, need, limits, why))


def _measured(view: GpuView, need: Need, limits: Limits, holders: Collection[int]) -> str:
    jobs = (
        f"share {format_share(view.booked)} held by {_jobs(sorted(holders))}" if holders else "no job of ours"
    )
    load = "load unknown" if view.load is None else f"load {view.load:.0f} %"
    return f"{jobs}, {load}, {_foreign(view, need, limits)}"


def _foreign(view: GpuView, need: Need, limits: Limits) -> str:
    """Words the use by foreign processes, and the thresholds that judge it; the idle threshold goes first."""
    if view.foreign_mib is None:
        return "memory of others unknown"
    if not view.foreign_mib:
        return "others hold no memory"
    holds = f"others hold {size(view.foreign_mib)}"
    if view.foreign_mib <= limits.idle_mib:
        return f"{holds}, which counts as none (idle threshold {limits.idle_mib} MiB)"
    if need.alone:
        return f"{holds} (idle threshold {limits.idle_mib} MiB)"
    if need.vram is None and view.total_mib:
        part, most = 100 * view.foreign_mib / view.total_mib, 100 * limits.memory
        holds += f", {part:.0f} % of it (threshold {most:.0f} %)"
    made = "unknown, which keeps no job out"
    if view.foreign_load is not None:
        made = f"{view.foreign_load:.0f} % (threshold {100 * limits.load:.0f} %)"
    return f"{holds}, load of others {made}"


def _headroom(view: GpuView, limits: Limits) -> str:
    """What the memory ledger leaves to one more declaration."""
    if view.total_mib is None or view.memory_mib is None:
        return ", memory booked on it unknown"
    left = size(max(0, view.total_mib - view.memory_mib - limits.margin_mib))
    taken = f"{size(view.memory_mib)} of {size(view.total_mib)} booked or held"
    return f", {taken}, {left} to be declared beside the margin of {limits.margin_mib} MiB"


def _jobs(ids: Sequence[int]) -> str:
    return f"job{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def unmanaged(allowed: tuple[int, ...] | None, managed: Collection[int]) -> Iterator[Finding]:
    """GPUs that its line allows and the scheduler does not manage."""
    missing = [index for index in allowed or () if index not in managed]
    if missing:
        says = f"{format_gpu_list(missing)}: not managed; managed: {format_gpu_list(managed) or 'none'}"
        yield warn("allowed GPUs", says, "mend its line, or start --gpus")


def environment(spec: JobSpec, conda: str | None, conda_sh: str | None) -> Iterator[Finding]:
    """The working folder, and the conda or virtual environment. conda: the one that will be activated."""
    if not os.path.isdir(spec.cwd):
        yield bad("folder", f"{spec.cwd} does not exist", "make it, or name another with [cwd=DIR]")
    if spec.venv is not None:
        there = os.path.isfile(os.path.join(spec.venv, "bin", "activate"))
        says = f"virtual environment {spec.venv}"
        yield (
            ok("environment", says)
            if there
            else bad(
                "environment", f"{says} does not exist (no bin/activate in it)", "make it, or mend venv="
            )
        )
    elif conda is None:
        yield ok("environment", "none named, and none needed")
    elif conda_sh is None or not os.path.isfile(conda_sh):
        yield bad(
            "environment", f"conda {conda}: no conda was found", "start --conda-sh PATH/profile.d/conda.sh"
        )
    else:
        yield _conda(conda, conda_sh)


def _conda(name: str, conda_sh: str) -> Finding:
    from gpu_scheduler.doctor.conda import ask_conda, environments  # few jobs need the answer

    said = ask_conda(conda_sh)
    if not said.good:
        return bad(
            "environment", f"`conda env list`: {said.why()}", f"see what `. {conda_sh}; conda env list` says"
        )
    known = environments(said.text)
    if name in known or os.path.isdir(os.path.expanduser(name)):
        return ok("environment", f"conda {name} exists")
    return bad(
        "environment",
        f"conda environment {name} does not exist; environments: {', '.join(known) or 'none'}",
        f"conda create -n {shlex.quote(name)}, or mend the line",
    )


def script(spec: JobSpec) -> Finding:
    """Of a CSV line: whether the script is there. Of a command nothing can be told without running it."""
    path = spec.script
    if path is None:
        return ok("script", "a shell command; its programs are looked for when it runs")
    said = f"{path} (absolute)"
    if not os.path.exists(path):
        return bad("script", f"{path} does not exist", f"relative paths begin at {spec.cwd}; mend the line")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        return bad("script", f"{path} is a folder without __main__.py", "name a script")
    if not os.access(path, os.R_OK):
        return bad("script", f"{path} cannot be read", f"chmod u+r {shlex.quote(path)}")
    return ok("script", said)


def order(priority: int, count: int, first: Sequence[int]) -> Finding:
    """How many queued jobs come before it, and which."""
    if not count:
        return ok("order", f"it is the first in the queue (priority {priority})")
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    listed = ", ".join(map(str, first))
    return ok(
        "order",
        f"priority {priority}; {plural(count, 'queued job')} before it: {listed}{more};"
        " it waits for none of them: in that order every job that fits starts",
    )


def retry(job_id: int, wait_s: float | None, failures: int) -> Iterator[Finding]:
    """Launches that failed, and the wait before the next."""
    if wait_s is not None and wait_s > 0:
        failed = f"{plural(failures, 'failed start')}; " if failures else ""
        yield warn("retry", f"{failed}tried again in {wait_s:.0f} s", "")
    elif failures:
        yield ok("retry", f"{plural(failures, 'failed start')}; the next try is due")


def line(
    source: str,
    where: tuple[str, int] | None,
    wait: LineWait | None,
    near: Sequence[tuple[int, str]],
    malformed: int,
) -> Iterator[Finding]:
    """Its line of the jobs file, and what it waits for there. near: malformed lines around it; malformed: how
    many the file has."""
    kind, _, path = source.partition(":")
    if kind != "file":
        yield ok("line", f"none: it came from `{kind}`")
        return
    if wait is not None and wait.kind == "malformed":
        yield bad(
            "line", f"{path}:{wait.number} is malformed now; the job waits until it is mended", "mend it"
        )
    elif where is None or (wait is not None and wait.kind == "gone"):
        yield warn("line", f"it is not in {path} any more", "write it there again, or `cancel` the job")
    else:
        yield ok("line", f"{where[0]}:{where[1]}")
    for number, problem in near[:_SHOWN]:
        yield warn(
            "near it", f"{path}:{number} is malformed: {problem}", "mend it; `status` says what is accepted"
        )
    rest = malformed - len(near[:_SHOWN])
    if rest > 0:
        yield warn("jobs file", f"{plural(rest, 'malformed line')} elsewhere in it", "`status` lists them")


def by_hand(folder: str) -> Finding:
    """How a failed attempt is run again by hand."""
    return ok("by hand", f"bash {shlex.quote(folder)}/command.sh")
