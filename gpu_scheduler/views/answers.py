"""Formats the answers to requests that concern jobs and GPUs, and the result of `stop`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_scheduler.app.control import Answer, AnswerKind
from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.states import JobState

if TYPE_CHECKING:
    from gpu_scheduler.app.stop import StopReport, StopWait

#: The end of a job that a command was to end without a scheduler, and that has not ended in time.
NOT_ENDED = "not ended yet; the next `start` ends it"


def answer_text(answer: Answer, data_dir: str) -> str:
    """Formats the answer to a request as text that is safe to print. data_dir: the path of the store."""
    if answer.kind is AnswerKind.RECORDED:
        return "recorded; takes effect when the scheduler starts"
    if answer.kind is AnswerKind.UNANSWERED:
        from gpu_scheduler.core.text.formatting import pid_text

        return f"recorded; the scheduler ({pid_text(answer.scheduler_pid or 0)}) has not answered yet"
    if answer.kind is AnswerKind.SPARED:
        return f"continues, because it was adopted; `cancel {answer.target}` ends it"
    if answer.kind is AnswerKind.NOT_ENDED:
        return f"{NOT_ENDED}; see `why {answer.target}`"
    if answer.reply is None:
        return ""
    if answer.reply.code is AnswerCode.PARENT_FAILED:
        return _parent_failed_text(answer, answer.reply.parent or 0)
    return _reply_text(answer.reply, answer.target, data_dir)


#: The texts of the codes whose text is not the code itself.
_REPLY_TEXTS = {
    AnswerCode.STOPPING: "being stopped",
    AnswerCode.QUEUED: "queued again",
    AnswerCode.GPU_NOT_MANAGED: "this GPU is no longer managed",
    AnswerCode.SCHEDULER_ENDED: "the scheduler had already ended",
    AnswerCode.UNKNOWN: "this version cannot interpret the answer, because the scheduler's version differs",
}


def _parent_failed_text(answer: Answer, parent: int) -> str:
    """Formats the refusal of a retry, with the jobs that must be retried as well."""
    first = " ".join(map(str, answer.failed_ancestors or [parent]))
    text = f"job {answer.target} would be skipped, because job {parent} did not complete; run `retry {first}"
    if answer.is_skipped:
        return f"{text}` first, which also queues the jobs that were skipped because of it"
    return f"{text} {answer.target}`, or change what job {answer.target} waits for"


def _reply_text(reply: RequestAnswer, job_id: int, data_dir: str) -> str:
    job = f"job {job_id}"
    if reply.code is AnswerCode.NO_SUCH_JOB:
        from gpu_scheduler.core.text.formatting import safe_text

        return f"there is no {job} in {safe_text(data_dir)}; `status --all` lists the jobs"
    if reply.code is AnswerCode.NOT_INTERRUPTED:
        return _not_interrupted_text(reply, job_id)
    if reply.code is AnswerCode.UNFINISHED_WORK:
        return (
            f"{job} is {reply.outcome}; `resume --job {job_id}` continues it from a checkpoint, and"
            f" `retry {job_id}` starts it from its beginning"
        )
    if reply.code is AnswerCode.ALREADY_COMPLETED:
        return f"{job} has completed; `resume --job {job_id} --from PATH` continues it nevertheless"
    if reply.code is AnswerCode.NO_COMMAND:
        return f"it is not known how to start {job}; `retry {job_id} --set command='…'` sets its command"
    if reply.code is AnswerCode.RECOVERED:
        return "no job is interrupted"
    if reply.code is AnswerCode.CLEARED and reply.count is not None:
        return _cleared_text(reply.count)
    if reply.code is AnswerCode.WRONG_STATE:
        wanted = " or ".join(map(str, reply.accepted))
        if reply.verb == "set":  # the request of several commands
            text = f"{job} is {reply.state}; only a job that is {wanted} can be changed"
            if reply.state is not JobState.FINISHED:
                return text
            return f"{text}; `retry {job_id} --set KEY=VALUE` changes it and queues it again"
        if reply.verb == "hold" and reply.state is JobState.HELD:
            return f"{job} is already held; `why {job_id}` shows how it can be queued again"
        if reply.verb == "resume_job":
            return f"{job} is {reply.state}; `resume --job` needs a job that is {wanted}"
        remedy = ""
        if reply.verb == "preempt" and reply.state is JobState.QUEUED:
            remedy = f"; `hold {job_id}` keeps it from starting"
        return f"{job} is {reply.state}; {reply.verb} needs a job that is {wanted}{remedy}"
    if reply.code is AnswerCode.NOT_WATCHED:
        able = "held" if reply.verb == "hold" else "changed"
        return f"{job} is an adopted process, which already runs, so it cannot be {able}"
    if reply.code is AnswerCode.BEING_CANCELLED:
        return f"{job} is already being cancelled"
    if reply.code is AnswerCode.CYCLE:
        return f"{job} would wait for itself; its dependencies were not changed"
    if reply.code is AnswerCode.ATTRIBUTE_SET or (reply.code is AnswerCode.QUEUED and reply.attribute):
        from gpu_scheduler.core.text.formatting import safe_text

        more = ", and queued again" if reply.code is AnswerCode.QUEUED else ""
        return f"{safe_text(reply.attribute)} set{more}"
    if reply.code is AnswerCode.ATTRIBUTE_REMOVED:
        return f"{reply.attribute} removed"
    if reply.outcome is None:
        return _REPLY_TEXTS.get(reply.code) or str(reply.code.value)
    from gpu_scheduler.views.job_text import outcome_text

    end = outcome_text(reply.outcome.value, reply.exit_code, reply.signal)
    return f"{job} is already finished ({end})"


def _cleared_text(count: int) -> str:
    if not count:
        return "there are no finished jobs to clear"
    from gpu_scheduler.core.text.formatting import count_noun

    return f"{count_noun(count, 'job')} cleared"


def _not_interrupted_text(reply: RequestAnswer, job_id: int) -> str:
    text = f"job {job_id} is {reply.state}, not interrupted"
    if reply.state is JobState.FINISHED or reply.state is JobState.HELD:
        return f"{text}; `retry {job_id}` runs it again"
    return text


def stop_wait_text(wait: StopWait) -> str:
    """Formats the progress message of a waiting `stop`."""
    jobs = f"job{'s' * (len(wait.jobs) > 1)} {', '.join(map(str, wait.jobs))}"
    kill = f"SIGKILL after {wait.grace_s:g} s"
    if wait.scheduler_pid is None:
        return f"waiting for {jobs} to end ({kill})"
    from gpu_scheduler.core.text.formatting import pid_text

    scheduler = f"waiting for the scheduler ({pid_text(wait.scheduler_pid)})"
    return f"{scheduler} to cancel {jobs} ({kill}) and end" if wait.jobs else f"{scheduler} to end"


def stop_text(report: StopReport, *, with_jobs: bool) -> str:
    """Formats the report as lines. with_jobs: `stop` was to end the running jobs too."""
    return "".join(f"{line}\n" for line in _stop_lines(report, with_jobs))


def _stop_lines(report: StopReport, with_jobs: bool) -> Iterator[str]:
    from gpu_scheduler.core.text.formatting import pid_text
    from gpu_scheduler.views.job_text import outcome_text

    if report.scheduler_pid is not None:
        yield f"the scheduler ({pid_text(report.scheduler_pid)}) has ended"
    elif not (with_jobs and set(report.running) - set(report.adopted)):
        yield f"no scheduler is running on {report.state_file}"
    continuing = report.adopted if with_jobs else report.running
    if continuing:
        jobs = ", ".join(map(str, continuing))
        how = "`cancel JOB` ends a job; the next `start` continues to manage them"
        which = "adopted" if with_jobs else "running"
        yield f"{which} jobs continue: job{'s' * (len(continuing) > 1)} {jobs}; {how}"
    for job_id, end in report.ended.items():
        text = NOT_ENDED if end is None else outcome_text(end.outcome, end.exit_code, end.signal)
        yield f"job {job_id}: {text}"
    if report.shares is not None:
        yield f"{posixpath.basename(report.state_file)} updated: gpu_status {report.shares}"
