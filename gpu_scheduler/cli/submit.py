"""The commands that make jobs: `add` in a jobs file, and `submit`, `adopt` and `import` without one."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from itertools import zip_longest

from gpu_scheduler.cli.commands import given_attributes
from gpu_scheduler.cli.program import location_of, print_done, print_message
from gpu_scheduler.cli.request_commands import MAX_LINES
from gpu_scheduler.config import JOBS_FILE, STATE_FILE
from gpu_scheduler.control import submit as app
from gpu_scheduler.control.line_note import line_note_text
from gpu_scheduler.control.new_line import NewJob, expand_grid, nothing_is
from gpu_scheduler.core.model.gpu import format_ranges
from gpu_scheduler.core.text.formatting import count_noun, masked_json, safe_text
from gpu_scheduler.errors import UsageError
from gpu_scheduler.show.location import option_text
from gpu_scheduler.system.own_process import interrupts_deferred


def submit(options: Namespace) -> int:
    """Submits the jobs and prints their ids; with --wait, returns the largest of their exit codes.

    Prints notes and warnings on stderr.
    """
    location, new = location_of(options), _new_job(options)
    with nothing_is("submitted"):
        jobs = expand_grid(new, options.grid, is_zip=options.zip)
    checked = app.check_jobs(location, jobs, os.environ, os.getcwd())
    if options.dry_run:
        _announce(options, checked)
        return 0
    if not options.wait:
        with interrupts_deferred():
            _announce(options, app.insert_jobs(location, checked, os.environ))
        return 0
    from gpu_scheduler.cli.claim_commands import JobWait

    with JobWait(location) as wait:
        with interrupts_deferred():
            submission = app.insert_jobs(location, checked, os.environ)
            wait.left = list(submission.ids)
            _announce(options, submission)
        return wait.until_ended()


def _announce(options: Namespace, submission: app.Submission) -> None:
    ids, jobs, is_sweep = submission.ids, submission.jobs, bool(options.grid)
    if options.own_words:
        print_message(
            f"`submit` took {shlex.join(options.own_words)} as its own; put `--` between the script and its"
            " arguments to pass everything to the script"
        )
    if submission.venv is not None:
        use = "the jobs use" if len(ids) != 1 else f"job {ids[0]} uses"
        print_message(f"{use} the virtual environment {submission.venv}")
    for text in dict.fromkeys(map(line_note_text, submission.warnings)):
        print_message(f"warning: {text}")
    if options.json and not ids:
        print_done(masked_json({"jobs": [{"name": job.name, "command": job.text} for job in jobs]}))
    elif options.json:
        print_done(masked_json({"ids": ids} if is_sweep else {"id": ids[0]}))
    elif len(ids) > MAX_LINES:
        print_done(safe_text(f"{len(ids):,} jobs submitted, {jobs[0].name} and others: {format_ranges(ids)}"))
    else:
        for job, job_id in zip_longest(jobs, ids):
            text = safe_text(f"{job.name}: {job.text}" if is_sweep else job.text)
            print_done(f"job {job_id} submitted: {text}" if ids else text)
    if not ids:
        print_message(f"{count_noun(len(jobs), 'job')}; nothing was submitted")
    elif not submission.is_scheduler_up and (submission.is_store_new or not options.wait):
        print_message(_no_scheduler_text(options, submission))


def _new_job(options: Namespace) -> NewJob:
    if options.script is None and options.python is not None:
        raise UsageError(
            "--python chooses the interpreter of a SCRIPT; after `--`, write the interpreter into the"
            " command; nothing was submitted"
        )
    return NewJob(
        options.script,
        tuple(options.script_arguments),
        tuple(options.command_words or ()),
        given_attributes(options),
        options.python,
    )


def _no_scheduler_text(options: Namespace, submission: app.Submission) -> str:
    folder, name = os.path.split(os.path.abspath(options.state_file))
    is_default = name == STATE_FILE and options.data_dir is None
    start = "start" if is_default else f"start {option_text(name, options.data_dir)}"
    waits, is_first = ("the jobs wait", "these are the first jobs") if options.grid else _ONE_JOB
    text = f"no scheduler is running, so {waits} until `{start}` in {folder}"
    return f"{text}\n{is_first} of the new store {submission.data_dir}" if submission.is_store_new else text


_ONE_JOB = ("the job waits", "this is the first job")


def adopt(options: Namespace) -> int:
    """Adopts the process and prints its job. Prints notes on stderr."""
    from gpu_scheduler.control.adopt import Adoption, adopt_text, note_text
    from gpu_scheduler.control.adopt import adopt as adopt_process

    given, source = given_attributes(options), (options.gpu_probe, options.simulate)
    adoption = Adoption(options.pid, given, options.vram, options.gpus, *source)
    job = adopt_process(location_of(options), adoption)
    print_done(adopt_text(job).rstrip("\n"))
    for line in note_text(job):
        print_message(line)
    return 0


def import_(options: Namespace) -> int:
    """Imports a file; prints warnings on stderr. Returns 1 if the file could not be renamed."""
    from gpu_scheduler.control.import_queue import import_queue, import_text, import_warnings

    report = import_queue(location_of(options), options.file)
    print_done(import_text(report).rstrip("\n"))
    for warning in import_warnings(report):
        print_message(f"warning: {warning}")
    return int(report.rename_problem is not None)


def add(options: Namespace) -> int:
    """Checks all options, then appends the line and prints it. Prints warnings on stderr."""
    from gpu_scheduler.control.jobs_file import add as append
    from gpu_scheduler.control.jobs_file import compose

    location, new = location_of(options), _new_line(options)
    with nothing_is("added"):
        lines = expand_grid(new, options.grid, is_zip=options.zip)
    if options.output_file == "-":
        added = compose(location, lines)
        print("\n".join(one.line for one in added))  # with secrets, so that the user can use them as printed
    else:
        added = append(location, lines, options.output_file)
        print_done("\n".join(safe_text(one.line) for one in added))
        for text in dict.fromkeys(line_note_text(note) for one in added for note in one.notes):
            print_message(text)
    for text in dict.fromkeys(line_note_text(warning) for one in added for warning in one.warnings):
        print_message(f"warning: {text}")
    return 0


def _new_line(options: Namespace) -> NewJob:
    if options.script == "-":
        where = JOBS_FILE if options.output_file in (None, "-") else options.output_file
        raise UsageError(
            "`add` does not read lines from standard input, so nothing was added; append the line to the jobs"
            f" file yourself, as in `… >> {shlex.quote(where)}`"
        )
    return NewJob(
        script=options.script,
        arguments=options.args,
        command=options.command_words or (),
        priority=options.priority,
        attributes=given_attributes(options),
    )
