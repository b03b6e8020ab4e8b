"""The command `resume`: lets GPUs accept jobs again, or continues a job from a checkpoint."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.cli import request_commands, standard_streams
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.errors import UsageError


def resume(options: Namespace) -> int:
    """Resumes the given GPUs, or the job given with --job. Returns 1 if the job cannot be resumed."""
    if (options.job is None) != bool(options.ids):
        raise UsageError("give either the GPUs to resume, as in `resume 0`, or a job, as in `resume --job 3`")
    if options.job is None:
        if options.from_path is not None:
            raise UsageError("--from names the checkpoint of a job; write `resume --job JOB --from PATH`")
        code = request_commands.resume(options)
        _name_preempted_jobs(options)
        return code
    from gpu_scheduler.app.resume_job import resume_job
    from gpu_scheduler.views.resume import to_text

    location = location_of(options)
    result = resume_job(location, options.job, options.from_path)
    text = to_text(result, str(location.resolve().folder))
    if result.answer.has_failed:
        print_message(text)
        return 1
    standard_streams.print_done(text)
    return 0


def _name_preempted_jobs(options: Namespace) -> None:
    """Prints a note for each preempted job whose number is that of a GPU that was resumed."""
    from gpu_scheduler.app.resume_job import preempted_jobs

    numbers = {gpu for given in options.ids if given is not None for gpu in given}
    for job_id in preempted_jobs(location_of(options), numbers):
        print_message(f"note: job {job_id} is preempted; `resume --job {job_id}` continues it")
