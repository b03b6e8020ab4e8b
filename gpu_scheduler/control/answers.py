"""Formats answers to requests about jobs and GPUs, the result of `stop`, and which queue a command uses."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.app.location import Location, Verdict
from gpu_scheduler.control.requests import Answer, AnswerKind
from gpu_scheduler.core.model.request import RequestAnswer
from gpu_scheduler.core.model.states import JobState, Outcome

if TYPE_CHECKING:
    from gpu_scheduler.control.stop import StopReport, StopWait


def answer_text(answer: Answer, data_dir: str) -> str:
    """Formats the answer to a request as text that is safe to print. data_dir: the path of the store."""
    said, reply = "; ".join(filter(None, (answer.kind.sentence, answer.kind.remedy))), answer.reply
    if said:
        from gpu_scheduler.core.text.formatting import pid_text

        return said.format(target=answer.target, scheduler=pid_text(answer.scheduler_pid or 0))
    return "" if reply is None else reply.code.fill(reply, _PHRASES, answer, data_dir)


def _safe(text: str) -> str:
    from gpu_scheduler.core.text.formatting import safe_text

    return safe_text(text)


def _retries(reply: RequestAnswer, answer: Answer, _: str) -> str:
    """Formats the commands that retry a job together with the jobs because of which it would be skipped."""
    job, parents = answer.target, " ".join(map(str, answer.failed_ancestors or [reply.parent]))
    if answer.is_skipped:
        return f"`retry {parents}` first, which also queues the jobs that were skipped because of it"
    return f"`retry {parents} {job}`, or change what job {job} waits for"


def _wrong_state(reply: RequestAnswer, answer: Answer, _: str) -> str:
    """Formats the state of a job, after its name, and the states in which the request is possible."""
    job, verb, state, wanted = answer.target, reply.verb, reply.state, " or ".join(map(str, reply.accepted))
    if verb == "hold" and state is JobState.HELD:
        return f"already held; `why {job}` shows how it can be queued again"
    if verb == "set":  # the request of several commands
        remedy = f"; `retry {job} --set KEY=VALUE` changes it and queues it again"
        return f"{state}; only a job that is {wanted} can be changed{remedy * (state is JobState.FINISHED)}"
    name = "`resume --job`" if verb == "resume_job" else verb
    remedy = f"; `hold {job}` keeps it from starting" * (verb == "preempt" and state is JobState.QUEUED)
    return f"{state}; {name} needs a job that is {wanted}{remedy}"


def _cleared(reply: RequestAnswer, *_: object) -> str:
    if not reply.count:
        return "cleared" if reply.count is None else "there are no finished jobs to clear"
    return f"{reply.count:,} job{'s' * (reply.count > 1)} cleared"


def _end(reply: RequestAnswer, *_: object) -> str:
    from gpu_scheduler.views.job_text import outcome_text

    return outcome_text(reply.outcome or Outcome.ENDED, reply.exit_code, reply.signal)


def _again(reply: RequestAnswer, answer: Answer, _: str) -> str:
    is_idle = reply.state in (JobState.FINISHED, JobState.HELD)
    return f"; `retry {answer.target}` runs it again" if is_idle else ""


#: The phrases in the sentences of `AnswerCode`.
_PHRASES: Mapping[str, Callable[[RequestAnswer, Answer, str], str]] = {
    "job": lambda it, answer, _: str(answer.target),
    "data_dir": lambda it, answer, data_dir: _safe(data_dir),
    "attribute": lambda it, *_: _safe(it.attribute),
    "queued": lambda it, *_: (
        f"{_safe(it.attribute)} set, and queued again" if it.attribute else "queued again"
    ),
    "cleared": _cleared,
    "changed": lambda it, *_: "held" if it.verb == "hold" else "changed",
    "wrong_state": _wrong_state,
    "end": _end,
    "again": _again,
    "retries": _retries,
}


def stop_wait_text(wait: StopWait) -> str:
    """Formats the progress message of a waiting `stop`."""
    from gpu_scheduler.core.text.formatting import format_jobs, pid_text

    jobs, kill = format_jobs(wait.jobs), f"SIGKILL after {wait.grace_s:g} s"
    if wait.scheduler_pid is None:
        return f"waiting for {jobs} to end ({kill})"
    scheduler = f"waiting for the scheduler ({pid_text(wait.scheduler_pid)})"
    return f"{scheduler} to cancel {jobs} ({kill}) and end" if wait.jobs else f"{scheduler} to end"


def stop_text(report: StopReport, *, with_jobs: bool) -> str:
    """Formats the report as lines. with_jobs: `stop` was to end the running jobs too."""
    return "".join(f"{line}\n" for line in _stop_lines(report, with_jobs))


def _stop_lines(report: StopReport, with_jobs: bool) -> Iterator[str]:
    from gpu_scheduler.core.text.formatting import format_jobs, pid_text
    from gpu_scheduler.views.job_text import outcome_text

    if report.scheduler_pid is not None:
        yield f"the scheduler ({pid_text(report.scheduler_pid)}) has ended"
    elif not (with_jobs and set(report.running) - set(report.adopted)):
        yield f"no scheduler is running on {report.state_file}"
    continuing = report.adopted if with_jobs else report.running
    if continuing:
        how = "`cancel JOB` ends a job; the next `start` continues to manage them"
        which = "adopted" if with_jobs else "running"
        yield f"{which} jobs continue: {format_jobs(continuing)}; {how}"
    for job_id, end in report.ended.items():
        text = "" if end is None else outcome_text(end.outcome, end.exit_code, end.signal)
        yield f"job {job_id}: {text or AnswerKind.NOT_ENDED.sentence}"
    if report.shares is not None:
        yield f"{posixpath.basename(report.state_file)} updated: gpu_status {report.shares}"


# Formats which queue a command uses, or how to name the one that it should use.


_IDLE = "the queue of this folder has no scheduler, but another queue of yours has"
_TEXTS = {
    Verdict.IDLE: f"{_IDLE}:",
    Verdict.IDLE_REFUSED: f"{_IDLE}; nothing was queued; name the queue:",
    Verdict.SEVERAL: "this folder has no queue, and several queues of yours have a scheduler; name one:",
    Verdict.WHOLE_REFUSED: "this folder has no queue, and this would change all of another queue; to do so:",
}


def option_text(state_file: str, data_dir: str | None) -> str:
    """Returns the options that name a queue, as one types them into a shell."""
    behind = "" if data_dir is None else f" --data-dir {shlex.quote(data_dir)}"
    return f"--state-file {shlex.quote(state_file)}{behind}"


def choice_text(
    verdict: Verdict, running: Sequence[tuple[str, str | None, int]], before: str, behind: str
) -> str:
    """Returns the message about a choice. before, behind: the words around the options that name a queue."""
    from gpu_scheduler.core.text.formatting import pid_text

    if verdict is Verdict.FOUND:
        return f"queue of {running[0][0]}, {pid_text(running[0][2])}"
    queues = [(option_text(path, folder), pid_text(pid)) for path, folder, pid in running]
    lines = [f"  {before}{option}{behind}  ({label})" for option, label in queues]
    if verdict is Verdict.IDLE_REFUSED:
        lines.insert(0, f"  {option_text(Location().state_file, None)}  (this folder)")
    return "\n".join([_TEXTS[verdict], *lines])
