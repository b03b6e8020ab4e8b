"""`submit`: queues one job without a jobs file, prints its id and, with --wait, waits for its end."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from functools import partial

from gpu_scheduler.app import submit as app
from gpu_scheduler.cli.arguments import given_attributes
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.cli.standard_streams import print_done
from gpu_scheduler.config import STATE_FILE
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import UsageError
from gpu_scheduler.views.line_notes import line_note_text
from gpu_scheduler.views.queue_choice import option_text


def submit(options: Namespace) -> int:
    """Submits the job and prints its id; with --wait, returns its exit code.

    Prints notes and warnings on stderr.
    """
    location, new = location_of(options), _new_job(options)
    if not options.wait:
        app.submit(location, new, os.environ, partial(_announce, options))
        return 0
    from gpu_scheduler.cli.job_wait import JobWait

    with JobWait(location) as wait:

        def on_submitted(job: app.SubmittedJob) -> None:
            wait.left = [job.id]
            _announce(options, job)

        app.submit(location, new, os.environ, on_submitted)
        return wait.until_ended()


def _announce(options: Namespace, job: app.SubmittedJob) -> None:
    if options.own_words:
        print_message(
            f"`submit` took {shlex.join(options.own_words)} as its own; put `--` between the script and its"
            " arguments to pass everything to the script"
        )
    if job.venv is not None:
        print_message(f"job {job.id} uses the virtual environment {job.venv}")
    for warning in job.warnings:
        print_message(f"warning: {line_note_text(warning)}")
    if options.json:
        print_done(json.dumps({"id": job.id}))
    else:
        print_done(f"job {job.id} submitted: {safe_text(job.text)}")
    if not job.is_scheduler_up and (job.is_store_new or not options.wait):
        print_message(_no_scheduler_text(options, job))


def _new_job(options: Namespace) -> app.NewJob:
    if options.script is None and options.python is not None:
        raise UsageError(
            "--python chooses the interpreter of a SCRIPT; after `--`, write the interpreter into the"
            " command; nothing was submitted"
        )
    return app.NewJob(
        options.script,
        tuple(options.script_arguments),
        tuple(options.command_words or ()),
        options.python,
        given_attributes(options),
    )


def _no_scheduler_text(options: Namespace, job: app.SubmittedJob) -> str:
    folder, name = os.path.split(os.path.abspath(options.state_file))
    is_default = name == STATE_FILE and options.data_dir is None
    start = "start" if is_default else f"start {option_text(name, options.data_dir)}"
    text = f"no scheduler is running, so the job waits until `{start}` in {folder}"
    return f"{text}\nthis is the first job of the new store {job.data_dir}" if job.is_store_new else text
