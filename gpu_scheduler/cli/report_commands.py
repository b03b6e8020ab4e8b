"""The commands that print a report about jobs, events, files or the machine as text or JSON.

Each command imports only the modules that it needs.
"""

from __future__ import annotations

import io
import select
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_scheduler.cli.program import (
    follow_simulation,
    location_of,
    no_store_message,
    print_message,
    stdout_screen,
)
from gpu_scheduler.errors import StoreNotFoundError

if TYPE_CHECKING:
    from gpu_scheduler.core.model.event import Event
    from gpu_scheduler.show.events import EventReader

STDIN = 0


def show(options: Namespace) -> int:
    """Prints everything known about one job."""
    from gpu_scheduler.show.job_detail import job_detail, to_json, to_text

    detail = job_detail(location_of(options), options.job)
    sys.stdout.write(to_json(detail) if options.json else to_text(detail))
    return 0


def why(options: Namespace) -> int:
    """Explains why a job does not start, or why it failed and what to do."""
    from gpu_scheduler.show.why import diagnose
    from gpu_scheduler.show.why_text import to_json, to_text

    diagnosis = diagnose(location_of(options), options.job)
    if options.json:
        sys.stdout.write(to_json(diagnosis))
    else:
        sys.stdout.write(to_text(diagnosis, stdout_screen().width, verbose=options.verbose))
    return 0


def eta(options: Namespace) -> int:
    """Prints how far running jobs are; returns 1 if nothing is known of the job that was asked for."""
    from gpu_scheduler.show import status as app
    from gpu_scheduler.show.plan import eta_json, eta_text, unknown_text

    location = location_of(options)
    if options.job is not None:
        report = app.job_progress(location, options.job)
        unknown = [job for job in report.jobs if job.progress is None or job.progress.progress is None]
    else:
        try:
            report = app.running_progress(location)
        except StoreNotFoundError:
            report = app.ProgressReport(time.time(), ())
        unknown = []
    if options.json:
        sys.stdout.write(eta_json(report))
    elif unknown:
        print_message(unknown_text(unknown[0]))
    else:
        sys.stdout.write(eta_text(report, stdout_screen().width))
    return 1 if unknown else 0


def plan(options: Namespace) -> int:
    """Prints when the running and waiting jobs are expected to start and end."""
    from gpu_scheduler.show import plan as app
    from gpu_scheduler.show.plan import to_json, to_text

    try:
        view = app.forecast_queue(location_of(options), all_jobs=options.all)
    except StoreNotFoundError:
        view = app.ForecastView(time.time())
    sys.stdout.write(to_json(view) if options.json else to_text(view, stdout_screen().width))
    return 0


def screens(options: Namespace) -> int:
    """Prints the Screen sessions of running jobs."""
    from gpu_scheduler.core.text.formatting import safe_text
    from gpu_scheduler.show import logs as app
    from gpu_scheduler.show.logs import to_json, to_text

    location = location_of(options)
    try:
        sessions = app.screens(location)
    except StoreNotFoundError:
        if not options.json:
            print(safe_text(no_store_message(location), keep_line_breaks=True))
            return 0
        sessions = app.SessionsView(time.time(), ())
    sys.stdout.write(to_json(sessions) if options.json else to_text(sessions, stdout_screen().width))
    return 0


def lint(options: Namespace) -> int:
    """Prints what each line of a jobs file would do; returns 1 if a line is malformed."""
    from gpu_scheduler.control import jobs_file as app
    from gpu_scheduler.control.jobs_file import lint_json, lint_text

    content = app.read_stream(STDIN) if options.file == "-" else app.read_jobs_file(options.file)
    view = app.lint(
        location_of(options),
        options.file,
        content,
        llm_config=options.llm_config,
        gpus=options.gpus,
        conda_sh=options.conda_sh,
    )
    sys.stdout.write(lint_json(view) if options.json else lint_text(view))
    return 1 if view.malformed else 0


def calibrate(options: Namespace) -> int:
    """Prints the memory use of finished jobs next to their declarations, and suggested entries."""
    from gpu_scheduler.show import calibrate as app
    from gpu_scheduler.show.calibrate import to_json, to_text

    view = app.calibrate(location_of(options), options.llm_config)
    sys.stdout.write(to_json(view) if options.json else to_text(view, stdout_screen().width))
    return 0


def doctor(options: Namespace) -> int:
    """Prints each check of this machine as soon as it is done; returns 1 if a check is bad."""
    from gpu_scheduler.config import StartOptions
    from gpu_scheduler.show import doctor as app
    from gpu_scheduler.show.job_findings import findings_to_json, format_finding, summary_text

    follow_simulation(options)
    found = []
    for finding in app.doctor(StartOptions.from_values(vars(options)), _print_progress):
        found.append(finding)
        if not options.json:
            print(format_finding(finding, stdout_screen().width), flush=True)
    print(findings_to_json(found) if options.json else f"\n{summary_text(found)}")
    return int(any(finding.grade == "bad" for finding in found))


def _print_progress(text: str) -> None:
    """On a terminal, prints what is being checked. The next finding overwrites this text."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        print(f"{text} …", end="\r", file=sys.stderr, flush=True)


#: Seconds between two checks for new events.
_POLL_INTERVAL_S = 0.2


def events(options: Namespace) -> int:
    """Prints the events, oldest first; with --follow, continues with new events until interrupted."""
    from gpu_scheduler.show.events import dated_line, open_events, to_json

    with open_events(location_of(options), options.lines) as reader:
        format_event: Callable[[Event], str] = (
            to_json if options.jsonl else lambda event: dated_line(event, reader.tolerance)
        )
        _print_new(reader, format_event)
        while options.follow:
            _wait_for_next_poll()
            _print_new(reader, format_event)
    return 0


def _print_new(reader: EventReader, format_event: Callable[[Event], str]) -> None:
    sys.stdout.writelines(f"{format_event(event)}\n" for event in reader.new_events())
    sys.stdout.flush()


def _wait_for_next_poll() -> None:
    """Waits until the next poll. Raises BrokenPipeError if nobody reads the output any more."""
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:
        time.sleep(_POLL_INTERVAL_S)
        return
    gone = select.poll()
    gone.register(fd, 0)
    if gone.poll(_POLL_INTERVAL_S * 1000):
        raise BrokenPipeError
