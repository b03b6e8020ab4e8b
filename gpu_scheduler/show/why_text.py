"""Formats the checks that explain why a job does not start or why it failed, and what to do about it."""

from __future__ import annotations

import math
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import dropwhile
from typing import NamedTuple

from msgspec.structs import replace

from gpu_scheduler.core.model.finding import Finding, bad, from_health_issue, ok, warn
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import UNRESOLVED, Need, Parent, ParentStatus, status_of
from gpu_scheduler.core.model.reasons import FailureKind, GpuObstacle, WaitKind, WaitReason
from gpu_scheduler.core.model.states import FAILED, WAITING, JobState, Outcome
from gpu_scheduler.core.model.values import format_seconds, format_share
from gpu_scheduler.core.scheduling.forecast import AwaitedEnd, EndBasis, QueueOutlook
from gpu_scheduler.core.scheduling.history import Estimate, Prediction
from gpu_scheduler.core.scheduling.placement import Ledger, counts_as_idle, place
from gpu_scheduler.core.scheduling.preemption import NoPreemption, Preemption
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.core.text.formatting import (
    and_more,
    count_noun,
    format_age,
    format_duration,
    format_gpus,
    format_jobs,
    format_memory,
    limit_length,
    masked_json,
    memory_text,
    picked,
    pid_text,
    safe_text,
    times_text,
    without_repetition,
)
from gpu_scheduler.show.events import dated_line
from gpu_scheduler.show.gpu_text import obstacle_remedy, obstacle_text
from gpu_scheduler.show.job_findings import (
    finding_object,
    format_finding,
    queueing_command,
    unfinished_job_text,
)
from gpu_scheduler.show.job_text import (
    engine_text,
    job_warnings,
    long_text,
    origin_text,
    outcome_text,
    reason_text,
)
from gpu_scheduler.show.job_views import DependencyFacts, JobView
from gpu_scheduler.show.layout import wrap_words
from gpu_scheduler.show.wait_text import (
    current_need_text,
    held_text,
    is_by_queue_order,
    job_reason_text,
    own_reservation_text,
    parent_objects,
    parent_text,
    reserved_gpus_text,
    wait_text,
)
from gpu_scheduler.show.why import Diagnosis, LineFacts, OomCase, PlacementFacts, WaitingFacts

# Formats the findings about the jobs on which a job depends, and about those that depend on it.


#: Maximum number of parents with a finding each.
_MAX_PARENTS = 10
#: The parents of a job in the order of their findings: first those that keep the job from starting.
_ORDER = {ParentStatus.FAILED: 0, ParentStatus.PENDING: 1, ParentStatus.MET: 2}


def dependency_findings(job: JobView, facts: DependencyFacts) -> Iterator[Finding]:
    """Yields findings about a job's parents, the job because of which it cannot start, and its children."""
    parents = sorted(job.parents, key=lambda parent: (_ORDER[status_of(parent)], parent.id))
    yield from (_parent(job, parent, facts) for parent in parents[:_MAX_PARENTS])
    if len(parents) > _MAX_PARENTS:
        yield ok("parent", f"and {count_noun(len(parents) - _MAX_PARENTS, 'more job')}")
    if facts.blocker is not None:
        yield _blocker(facts.blocker)
    if facts.child_count:
        listed = and_more(", ".join(map(str, facts.children)), facts.child_count - len(facts.children))
        depend = "depends" if facts.child_count == 1 else "depend"
        yield ok("children", f"{count_noun(facts.child_count, 'job')} {depend} on it: {listed}")


def _parent(job: JobView, parent: Parent, facts: DependencyFacts) -> Finding:
    message = parent_text(parent)
    if parent.id == UNRESOLVED:
        return bad("parent", message, _change_remedy(job.record.id, facts, parent.kind.attribute))
    status = status_of(parent)
    if status is ParentStatus.MET:
        return ok("parent", message)
    if status is ParentStatus.PENDING or job.record.state is JobState.FINISHED:
        return warn("parent", message, "")
    when = " once it is queued" if job.record.state is JobState.HELD else ""
    return bad("parent", f"{message}; this job will be skipped{when}", skip_remedy(job.record.id, facts))


def _blocker(job: JobView) -> Finding:
    number = job.record.id
    if job.record.state is JobState.HELD:
        remedy = f"`{queueing_command(job.record)}` queues it"
    else:
        remedy = f"`why {number}` explains it"
    return bad("blocked by", unfinished_job_text(job), remedy)


def skip_remedy(job_id: int, facts: DependencyFacts) -> str:
    """Returns the remedy for a job that is skipped, or will be skipped."""
    change = _change_remedy(job_id, facts)
    if not facts.failed:
        return change
    command = " ".join(map(str, facts.failed))
    return f"`retry {command}` queues {format_jobs(facts.failed)} and this job again; or {change}"


def _change_remedy(job_id: int, facts: DependencyFacts, attribute: str = "after") -> str:
    """Returns how to change the dependencies of a job."""
    if facts.line is not None:
        return f"change line {facts.line.number} of {safe_text(posixpath.basename(facts.line.path))}"
    command = f"set {job_id} {attribute}="
    return f"change the dependency with `{command}JOBS`, or remove it with `{command}`"


# Explains whether a job would start now, based on the result of placement and on the values of each GPU.


def placement_finding(
    need: Need,
    allowed: tuple[int, ...] | None,
    views: Sequence[Ledger],
    *,
    where: str,
    now: float,
    is_in_queue: bool = True,
) -> Finding:
    """Returns the finding about where the job would start if the scheduler placed it now.

    where: where its request can be changed, such as "on the job's line"; now: in seconds since 1970;
    is_in_queue: whether the scheduler may place it, because it is neither held nor waits for other jobs or
    for its line.
    """
    answer = place(need, allowed, views)
    if isinstance(answer, WaitReason):
        if answer.is_infeasible:
            less = "less memory (vram=), or " if need.vram is not None else ""
            remedy = (
                f"{where}, request {less}fewer or other GPUs; or start the scheduler with more GPUs (--gpus)"
            )
            return bad("placing", wait_text(answer), remedy)
        return warn("placing", wait_text(answer, now), "")
    gpus = format_gpus(view.index for view in views if view.uuid in answer)
    if not is_in_queue:
        return ok("placing", f"{gpus} would accept the job now")
    return ok("placing", f"the job would start on {gpus} now")


_NO_PREEMPTION = {
    NoPreemption.NO_LOWER_PRIORITY: "no job of lower priority is running",
    NoPreemption.SPARED: "each running job of lower priority is stopping, was adopted, cannot be reached, or"
    " has run for less than 60 s since it was preempted",
    NoPreemption.ENDING_ANYWAY: "it can start as soon as jobs that are ending have left",
    NoPreemption.NO_HELP: "it could not start even without the jobs of lower priority that may be preempted",
}


def preemption_finding(found: Preemption | NoPreemption) -> Finding:
    """Returns the finding about the jobs that a waiting job preempts, or why it preempts none."""
    if isinstance(found, Preemption):
        return ok("preempting", "the job may preempt others, and does so next")
    return ok("preempting", f"the job may preempt others, but not now: {_NO_PREEMPTION[found]}")


def gpu_finding(
    view: Ledger,
    judged: Ledger,
    need: Need,
    allowed: tuple[int, ...] | None,
    limits: Limits,
    holders: Collection[int],
    now: float,
) -> Finding:
    """Returns the finding about whether one GPU accepts the job, with the values that are compared.

    view, judged: the GPU as it is now, and as placement judges it. holders: the ids of the scheduler's jobs
    on the GPU. now: in seconds since 1970.
    """
    measured = _measurements(view, need, limits, holders)
    if need.vram is not None:
        measured += _headroom(view, limits)
    if allowed is not None and view.index not in allowed:
        message = f"not allowed for this job, which may use only {format_gpu_list(allowed)}"
        return ok("GPU", f"{message}; {measured}", view.index)
    why = judged.obstacle(need)
    if why is None:
        return ok("GPU", f"accepts the job; {measured}", view.index)
    brief = replace(why, overtakes=None)  # another finding says why the GPU is reserved
    message = f"does not accept the job: {obstacle_text(brief, now)}; {measured}"
    return warn("GPU", message, obstacle_remedy(why), view.index)


def _measurements(view: Ledger, need: Need, limits: Limits, holders: Collection[int]) -> str:
    jobs = (
        f"share {format_share(view.allocated_share)} allocated to {format_jobs(sorted(holders))}"
        if holders
        else "not allocated"
    )
    load = "load unknown" if view.mean_load is None else f"load {view.mean_load:.0f} %"
    return f"{jobs}, {load}, {_foreign_use(view, need, limits)}"


def _foreign_use(view: Ledger, need: Need, limits: Limits) -> str:
    """Describes what foreign processes use, and the thresholds for that."""
    if view.foreign_mib is None:
        return "foreign memory unknown"
    if not view.foreign_mib:
        return "no foreign memory"
    holds = f"foreign memory {format_memory(view.foreign_mib)}"
    if counts_as_idle(view.foreign_mib, limits):
        return f"{holds}, counts as idle (idle threshold {limits.idle_threshold_mib} MiB)"
    if need.alone:
        return f"{holds} (idle threshold {limits.idle_threshold_mib} MiB)"
    if need.vram is None and view.total_mib:
        part, most = 100 * view.foreign_mib / view.total_mib, 100 * limits.mem_threshold
        holds += f", {part:.0f} % of the GPU's memory (threshold {most:.0f} %)"
    load = "unknown, so it is not checked"
    if view.mean_foreign_load is not None:
        load = f"{view.mean_foreign_load:.0f} % (threshold {100 * limits.load_threshold:.0f} %)"
    return f"{holds}, foreign load {load}"


def _headroom(view: Ledger, limits: Limits) -> str:
    """Describes how much memory one more job could declare on the GPU."""
    if view.total_mib is None or view.committed_mib is None:
        return ", allocated memory unknown"
    left = format_memory(view.left_mib or 0)
    taken = f"{format_memory(view.committed_mib)} of {format_memory(view.total_mib)} allocated or in use"
    return f", {taken}, {left} left to declare (margin {limits.margin_mib} MiB)"


# Formats the findings about the scheduler, the order of the queue, the retry and the line of a waiting job.


def _scheduler(pid: int | None, *, is_waiting: bool) -> Finding:
    """Returns the finding about the scheduler. It is bad if the job waits and no scheduler is running."""
    if pid is None and not is_waiting:
        return ok("scheduler", "not running")
    if pid is None:
        return bad("scheduler", "not running, so no job starts", "run `start`")
    return ok("scheduler", f"running, {pid_text(pid)}")


def _unmanaged(allowed: tuple[int, ...] | None, managed: Collection[int]) -> Iterator[Finding]:
    """Yields a finding if the job's line allows GPUs that the scheduler does not manage."""
    missing = [index for index in allowed or () if index not in managed]
    if missing:
        which = f"GPU {missing[0]} is" if len(missing) == 1 else f"GPUs {format_gpu_list(missing)} are"
        message = f"{which} not managed; the managed GPUs are {format_gpu_list(managed) or 'none'}"
        yield warn("allowed GPUs", message, "correct the job's line, or change `start --gpus`")


def _order(priority: int, count: int, first_ids: Sequence[int]) -> Finding:
    """Returns a finding with the number of queued jobs before the job and the ids of the first ones."""
    if not count:
        return ok("order", f"first in the queue (priority {priority})")
    listed = and_more(", ".join(map(str, first_ids)), count - len(first_ids))
    return ok(
        "order",
        f"priority {priority}; {count_noun(count, 'queued job')} before it: {listed};"
        " the scheduler tries jobs in this order, and a job that fits starts, unless it needs GPUs that are"
        " reserved",
    )


def _retry(wait_s: float | None, failures: int) -> Iterator[Finding]:
    """Yields a finding with the number of failed launches and the wait before the next launch."""
    if wait_s is not None and wait_s > 0:
        failed = f"{count_noun(failures, 'failed start')}; " if failures else ""
        yield warn("retry", f"{failed}next try in {wait_s:.0f} s", "")
    elif failures:
        yield ok("retry", f"{count_noun(failures, 'failed start')}; the next try is due")


#: Maximum number of malformed lines near the job's line with a finding each.
_MAX_NEARBY = 5


def _line(job: Job, facts: LineFacts) -> Iterator[Finding]:
    """Yields findings about the job's line in its jobs file."""
    kind, _, path = job.source.partition(":")
    if kind != "file":
        if job.line_wait is not None:
            yield warn(
                "line", f"the Redis queue has not confirmed {job.source} yet",
                "`redis-queue` shows who holds it",
            )  # fmt: skip
        else:
            yield ok(
                "line",
                f"none: {f'taken from {job.source}' if kind == 'redis' else f'submitted by `{kind}`'}",
            )
        return
    wait, where = job.line_wait, facts.location
    if wait is not None and wait.kind is WaitKind.LINE_MALFORMED:
        yield bad(
            "line",
            f"{path}:{wait.line_number} is malformed; the job waits until the line is corrected",
            "correct the line",
        )
    elif where is None or (wait is not None and wait.kind is WaitKind.LINE_REMOVED):
        yield warn("line", f"no longer in {path}", "add the line again, or `cancel` the job")
    else:
        yield ok("line", f"{where.path}:{where.number}")
    nearby = facts.nearby[:_MAX_NEARBY]
    for one in nearby:
        yield warn(
            "near it",
            f"{path}:{one.number} is malformed: {one.problem}",
            "correct that line; `status` shows the accepted form",
        )
    rest = facts.malformed - len(nearby)
    if rest > 0:
        yield warn(
            "jobs file",
            f"{count_noun(rest, 'malformed line')} elsewhere in {path}",
            "`status` lists all malformed lines",
        )


# Formats the findings of `why` about overtaken jobs and about GPUs that are reserved by queue order.


def queue_findings(
    outlook: QueueOutlook, judged: Sequence[Ledger], now: float, idle_budget: float, where: str
) -> Iterator[Finding]:
    """Yields the findings about one queued job.

    judged: the GPUs as placement judges them for the job. now: in seconds since 1970. where: where its
    attributes can be changed, such as "on the job's line".
    """
    kept = [gpu.closed for gpu in judged if gpu.closed and is_by_queue_order(gpu.closed)]
    if outlook.reservation is not None:
        own = own_reservation_text(outlook.gpus, outlook.reservation.start_at, now)
        yield ok("reserved", f"{own}, because it has been overtaken {times_text(outlook.overtakes)}")
        yield from (ok("reserved", _awaited_text(one)) for one in outlook.awaited)
    elif outlook.overtakes:
        yield ok("overtaken", f"overtaken {times_text(outlook.overtakes)}; {_then(outlook, idle_budget)}")
    if kept:
        rule = "the job may use a reserved GPU only if it leaves room for that job or ends before it starts"
        yield warn(
            "reserved",
            f"{reserved_gpus_text(kept, now)}; {rule}, and {_own_time_text(outlook.estimate)}",
            _wait_remedy(outlook.estimate, kept, now, where),
        )


def _wait_remedy(estimate: Estimate, kept: Sequence[GpuObstacle], now: float, where: str) -> str:
    """Formats the advice to give a time limit to a job about whose run time nothing is known; "" if none."""
    minutes = math.floor((min(one.reserved_from or now for one in kept) - now) / 60)
    if estimate.upper_s < math.inf or minutes < 1:
        return ""
    return f"if it surely ends before that, {where}, give it a time limit, such as timeout={minutes}m"


def _then(outlook: QueueOutlook, idle_budget: float) -> str:
    """Formats when GPUs are reserved for a job that has been overtaken, or why they are not."""
    if outlook.overtakes < outlook.needed:
        return f"after {outlook.needed}, GPUs may be reserved for it"
    if outlook.first_job is not None:
        return f"job {outlook.first_job}, which is before it in the queue, has the reserved GPUs"
    if outlook.cost_s is None:
        return "no GPUs are reserved for it, because it is not known when enough of them will be free for it"
    if outlook.budget_left_s < 0:
        return (
            "no GPUs are reserved for it, because reserved GPUs were idle for more than"
            f" {100 * idle_budget:g} % of the GPU time that jobs got in the last 7 days (--idle-budget)"
        )
    if outlook.may_begin:
        return "GPUs are reserved for it next"
    return (
        f"no GPUs are reserved for it yet, because they would be idle for about {_gpu_hours(outlook.cost_s)}:"
        f" more than the {_gpu_hours(outlook.budget_left_s)} that are left for that (--idle-budget), and more"
        f" than {100 * idle_budget:g} % of the GPU time for which it has waited"
    )


def _gpu_hours(seconds: float) -> str:
    return f"{seconds / 3600:.{1 if seconds >= 3600 else 3}f} GPU hours"


def _awaited_text(one: AwaitedEnd) -> str:
    gpus = f"GPU{'' if len(one.gpus) == 1 else 's'} {format_gpu_list(one.gpus)}"
    head = f"{gpus}: job {one.job_id}"
    if one.basis is EndBasis.ENDING:
        return f"{head} is ending"
    when = "may never end" if one.in_s == math.inf else f"is expected to end in {format_duration(one.in_s)}"
    return f"{head} {when} ({_basis_text(one)})"


def _basis_text(one: AwaitedEnd) -> str:
    ran = f"it has run for {format_duration(one.age_s)}"
    if one.basis is EndBasis.PROGRESS:
        return f"by its progress; {ran}"
    if one.basis is EndBasis.RUN_TIMES and one.prediction is not None:
        return f"{ran}{_earlier_runs_text(one.prediction, one.age_s)}"
    limit = "" if one.timeout_s is None else f", its time limit is {format_duration(one.timeout_s)}"
    return f"a guess: {ran}{limit}, and too few earlier runs are known"


def _earlier_runs_text(prediction: Prediction, age_s: float) -> str:
    """Formats the run times of earlier runs, beside the run time of a job so far, in seconds."""
    median = format_duration(prediction.seconds)
    runs = "one earlier run" if prediction.runs == 1 else f"the median of {prediction.runs} earlier runs"
    if age_s > prediction.seconds:
        return f", longer than {runs}, {median}"
    return f"; one earlier run took {median}" if prediction.runs == 1 else f"; {runs} is {median}"


def _own_time_text(estimate: Estimate) -> str:
    if estimate.upper_s == math.inf:
        return "nothing is known about how long it takes"
    if estimate.predicted_s is None:
        return f"it takes at most its time limit of {format_duration(estimate.upper_s)}"
    return f"nine of ten such jobs take at most {format_duration(estimate.upper_s)}"


# Formats the remedies for a failed job. They depend on the kind of its failure.


#: The failures that end once the script or the environment of the job exists.
_MISSING = (FailureKind.SCRIPT_MISSING, FailureKind.CONDA_MISSING, FailureKind.ENVIRONMENT_MISSING)
_FRAGMENTED = (
    "; PyTorch held much memory that it could not use: [env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True]"
    " lets it use that memory"
)


class Remedy(NamedTuple):
    """A way out of a failure. restarts: whether this runs the job again, or a new one instead."""

    text: str
    restarts: bool = False


def failure_remedy(
    kind: FailureKind | None, job_id: int | None = None, *, is_script: bool = False
) -> Remedy | None:
    """Returns the remedy for a failure; None if none is known. For CUDA_OOM, see `oom_remedy`.

    job_id: the job, if it has no line that the user can correct; is_script: whether it has no command either.
    """
    remedy = "" if kind is None else kind.remedy
    if job_id is not None and kind in _MISSING:
        remedy = "create the script or environment that the job names"
    elif job_id is not None and kind is FailureKind.WRONG_USAGE:
        remedy = "submit it again with other arguments" if is_script else "{command='…'} with other arguments"
    if not remedy:
        return None
    is_set = job_id is not None and remedy.startswith("{")
    return Remedy(_with_forms(remedy, job_id), is_set or kind is FailureKind.WRONG_USAGE)


def timeout_remedy(timeout_s: float | None, job_id: int | None) -> Remedy:
    """Returns the remedy for a job that reached its time limit. job_id: as for `failure_remedy`."""
    limit = "its time limit" if timeout_s is None else f"its time limit of {format_seconds(timeout_s)}"
    remedy = f"raise {limit}, as with <timeout=…>" if job_id is None else f"{{timeout=…}} to raise {limit}"
    return Remedy(_with_forms(remedy, job_id), job_id is not None)


def _with_forms(remedy: str, job_id: int | None) -> str:
    """Fills in how an attribute is set: {gpus=2} as an instruction, <gpus=2> as an example."""
    line, job = (r"put [\1] before its line", r"[\1]"), rf"`retry {job_id} --set \1`"
    form, example = line if job_id is None else (f"run {job}", job)
    return re.sub(r"<([\w:=…]+)>", example, re.sub(r"\{([\w='…]+)\}", form, remedy))


def oom_remedy(case: OomCase, job_id: int | None = None) -> Remedy:
    """Returns the remedy for a job that ran out of GPU memory. job_id: as for `failure_remedy`.

    Advises requesting more memory only if the GPUs that the job had can provide more.
    """
    return Remedy(_memory_remedy(case, job_id) + (_FRAGMENTED if case.is_fragmented else ""))


def _memory_remedy(case: OomCase, job_id: int | None) -> str:
    if not (case.had_gpus_alone or case.at_limit):
        how = "" if job_id is None else f", as with `retry {job_id} --set vram=…`"
        return (
            "the GPU was full, and other processes used it too: request more memory (vram= or"
            f" share={how}), let retries request more (oom-retries=), or use a smaller batch"
        )
    one = case.gpu_count == 1
    had = (
        f"its GPU{'' if one else 's'} to itself"
        if case.had_gpus_alone
        else "the most memory that a GPU can provide"
    )
    where = f" ({format_gpus(case.larger_gpus)})" if case.larger_gpus else ""
    more = "two" if one else str(case.gpu_count + 1)
    return _with_forms(
        f"the job had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs"
        f" (<gpus={case.gpu_count + 1}>) if the program can split its model",
        job_id,
    )


# Formats the explanation.


#: The checks that show how a job ended.
_END_CHECKS = ("end", "held")
#: The checks that may show another problem.
_OTHER_CHECKS = ("scheduler", "seen", "log")
#: What sets the limit of the number of jobs that run, by the wait reason of a job that it concerns.
_LIMITS = {WaitKind.GROUP_FULL: "max-running", WaitKind.CPU_JOBS_FULL: "start --cpu-jobs"}


def to_text(diagnosis: Diagnosis, width: int | None, *, verbose: bool) -> str:
    """Formats the explanation.

    For a failed job, the text contains only the remedies and any other problems. width: the maximum width of
    a line, None = unlimited; verbose: show every check of a failed job.
    """
    brief = diagnosis.has_failed and not verbose
    log = diagnosis.log_end
    lines = [*_wrapped(safe_text(limit_length(without_repetition(_headline(diagnosis), log))), width), ""]
    repeated = [*log, job_reason_text(diagnosis.job) or ""]
    found = [replace(one, message=without_repetition(one.message, repeated)) for one in findings(diagnosis)]
    if brief:
        remedies = [one.remedy for one in found if one.check in _END_CHECKS and one.remedy]
        lines += [row for remedy in remedies for row in _wrapped(f"What to do: {safe_text(remedy)}", width)]
        found = [one for one in found if one.check in _OTHER_CHECKS and one.grade != "ok"]
    lines += [format_finding(finding, width) for finding in found]
    if log:
        output = dropwhile(lambda line: line.startswith("# "), log)  # omits the header that the runner writes
        end = [f"  {safe_text(limit_length(line))}" for line in output]
        lines += ["", "End of its log:", *end] if end else ["", "It printed nothing."]
    if brief:
        lines += ["", f"`why {diagnosis.job.record.id} -v` shows every check."]
    return "\n".join(lines) + "\n"


def to_json(diagnosis: Diagnosis) -> str:
    """Formats the explanation as JSON, as docs/json.md describes."""
    job = diagnosis.job
    value = {
        "now": diagnosis.now,
        "job": job.record.id,
        **picked(job.record, "state", "outcome"),
        "reason": job_reason_text(diagnosis.job),
        "after": parent_objects(job.parents),
        "recorded": job.is_recorded,
        "scheduler": diagnosis.scheduler_pid,
        "checks": [finding_object(finding) for finding in findings(diagnosis)],
        "log_end": list(diagnosis.log_end),
    }
    return masked_json(value, 1) + "\n"


def findings(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields the findings in the order in which they are shown."""
    state = diagnosis.job.record.state
    yield _scheduler(diagnosis.scheduler_pid, is_waiting=state in WAITING)
    yield from dependency_findings(diagnosis.job, diagnosis.dependencies)
    if diagnosis.waiting is not None:
        yield from _waiting(diagnosis, diagnosis.waiting)
    elif state is JobState.FINISHED:
        yield from _end(diagnosis)
    else:
        yield from _running(diagnosis)
    yield from (warn("seen", warning, "") for warning in job_warnings(diagnosis.job))
    yield from _logs(diagnosis)


def _headline(diagnosis: Diagnosis) -> str:
    job = diagnosis.job.record
    state = outcome_text(job.outcome, job.exit_code, job.signal) if job.outcome else f"is {job.state}"
    if job.state is JobState.HELD:
        return f"job {job.id} is {held_text(diagnosis.job)}"
    more = job_reason_text(diagnosis.job)
    if diagnosis.job.wait is None and job.reason is not None:
        more = reason_text(job.reason, without_exit=True)
    return f"job {job.id} {state}{f': {more}' if more else ''}"


def _waiting(diagnosis: Diagnosis, waiting: WaitingFacts) -> Iterator[Finding]:
    job = diagnosis.job.record
    if job.state is JobState.HELD:
        reason = job_reason_text(diagnosis.job) or "the job is held"
        yield bad("held", reason, f"`{queueing_command(job)}` queues it")
    yield from map(from_health_issue, waiting.health_issues)
    if job.adopted is not None:
        # It already runs, so neither GPUs nor its environment keep it from being watched.
        yield from _retry(waiting.retry_in_s, job.launch_failures)
        return
    yield ok("need", current_need_text(waiting.need))
    yield from _placement(diagnosis, waiting.need.need, waiting.placement)
    yield from waiting.environment
    if waiting.ahead is not None and waiting.need.need.count:
        yield _order(job.priority, *waiting.ahead)
    yield from _retry(waiting.retry_in_s, job.launch_failures)
    yield from _line(job, waiting.line)


def _placement(diagnosis: Diagnosis, need: Need, facts: PlacementFacts) -> Iterator[Finding]:
    wait = diagnosis.job.wait
    limit = None if wait is None else _LIMITS.get(wait.kind)
    full = None if wait is None or limit is None else f"{wait_text(wait)} ({limit})"
    if facts.engine is not None:
        said = wait_text(wait) if wait is not None else f"{facts.engine.capitalize()} chooses its GPUs"
        infeasible = diagnosis.job.infeasible
        yield bad("placing", said, "change the job with `set`") if infeasible else ok("placing", said)
        return
    if not need.count:
        said = "the job needs no GPU, so it waits for none"
        yield ok("placing", said) if full is None else warn("placing", full, "")
        return
    if not facts.gpus:
        remedy = "`start` without `--gpus none` detects the GPUs; `doctor` shows which ones it would find"
        yield bad("GPUs", "none is managed", remedy)
        return
    allowed = diagnosis.job.record.spec.allowed
    job = diagnosis.job.record
    is_in_queue = job.state is JobState.QUEUED and not job.unmet_parents and job.line_wait is None
    where = "on the job's line" if job.is_of_file else f"with `set {job.id}`"
    if full is not None:
        yield warn("placing", full, "")
    else:
        yield placement_finding(
            need, allowed, facts.judged, where=where, now=diagnosis.now, is_in_queue=is_in_queue
        )
    if facts.queue is not None:
        yield from queue_findings(facts.queue, facts.judged, diagnosis.now, facts.idle_budget, where)
    if facts.preemption is not None:
        yield preemption_finding(facts.preemption)
    yield from _unmanaged(allowed, [gpu.index for gpu in facts.gpus])
    for gpu, judged in zip(facts.gpus, facts.judged, strict=True):
        yield gpu_finding(gpu, judged, need, allowed, facts.limits, facts.holders[gpu.uuid], diagnosis.now)
    if diagnosis.scheduler_pid is None and facts.sampled_at is not None:
        age = format_age(facts.sampled_at, diagnosis.now)
        yield warn("values", f"last sample of the GPUs: {age}", "")


def _running(diagnosis: Diagnosis) -> Iterator[Finding]:
    job = diagnosis.job
    gpus = f"on {format_gpus(job.gpus)}" if job.gpus else "without a GPU"
    if job.attempt is not None and job.engine is not None:
        gpus = engine_text(job.attempt, job.engine)
    since = "" if job.started_at is None else f", started {format_age(job.started_at, diagnosis.now)}"
    follow = f"`logs {job.record.id} -f` follows its output"
    if job.is_without_log:
        follow = "its output does not go to a file"
    if job.session:
        follow = f"`attach {job.record.id}` opens its session, {follow}"
    resumed = None if job.attempt is None else job.attempt.resumed_from
    if resumed is not None:
        since += f", resumed from {origin_text(resumed.path, resumed.step)}"
    yield ok("runs", f"{gpus}{since}; {follow}")
    if progress := long_text(job.progress, diagnosis.now):
        yield ok("progress", progress)
    if job.peaks:
        yield ok("memory", f"peak so far {memory_text(job.peaks, job.vram_declared)}")
    elif job.vram_declared is not None:
        yield ok("memory", f"not measured yet; declared {job.vram_declared} MiB per GPU")


def _end(diagnosis: Diagnosis) -> Iterator[Finding]:
    job = diagnosis.job.record
    failed = diagnosis.dependencies.failed
    again = f"`retry {' '.join(map(str, [*failed, job.id]))}` runs it again"
    if not job.spec.can_start:
        again = f"`{queueing_command(job)}` runs it again"
    if failed:
        again += f", and first {format_jobs(failed)}"
    if job.outcome is Outcome.COMPLETED:
        yield ok("end", f"the job exited with code {job.exit_code or 0}; {again}")
        return
    end = job_reason_text(diagnosis.job) or outcome_text(job.outcome or "ended", job.exit_code, job.signal)
    if job.outcome is Outcome.SKIPPED:
        yield bad("end", f"skipped: {end}", skip_remedy(job.id, diagnosis.dependencies))
        return
    if job.outcome not in FAILED:
        yield warn("end", end, again)
        return
    remedy = _remedy(diagnosis)
    if job.outcome is Outcome.TIMED_OUT and job.spec.timeout_s is not None:
        end = f"{end} after {format_seconds(job.spec.timeout_s)}"
    steps = [] if remedy is None else [remedy.text]
    steps += [] if remedy is not None and remedy.restarts else [again]
    yield bad("end", end, "; then ".join(steps))
    if diagnosis.attempt_folder is not None:
        yield ok("by hand", f"bash {shlex.quote(diagnosis.attempt_folder)}/command.sh")


def _remedy(diagnosis: Diagnosis) -> Remedy | None:
    """Returns the remedy for the failure of a job; None if none is known."""
    job = diagnosis.job.record
    without_line = None if job.is_of_file else job.id
    if diagnosis.oom is not None:
        return oom_remedy(diagnosis.oom, without_line)
    if job.outcome is Outcome.TIMED_OUT:
        return timeout_remedy(job.spec.timeout_s, without_line)
    failure = None if job.reason is None else job.reason.failure
    return failure_remedy(failure, without_line, is_script=job.spec.kind == "csv")


def _logs(diagnosis: Diagnosis) -> Iterator[Finding]:
    log = diagnosis.job.log
    if log is None and diagnosis.job.is_without_log:
        yield ok("log", "none, because the output of the process does not go to a file")
    elif log is None:
        yield ok("log", "none, because the job was never started")
    else:
        yield ok("log", log) if diagnosis.log_exists else warn("log", f"{log} no longer exists", "")
    yield from (ok("events", dated_line(event, diagnosis.tolerance)) for event in diagnosis.events)


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None else wrap_words(text, width)
