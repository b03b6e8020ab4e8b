"""The command `preempt`: asks a running job to save its work and end, waits, and prints what it has saved."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app import preempt as app
from gpu_scheduler.cli import standard_streams
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.views.preempt import failure_text, interrupted_text, to_text, wait_text


def preempt(options: Namespace) -> int:
    """Preempts a job. Returns 1 if the job cannot be preempted, or if it has not ended in time."""
    location, waits = location_of(options), list[app.PreemptWait]()

    def print_wait(wait: app.PreemptWait) -> None:
        waits.append(wait)
        try:
            print(wait_text(wait), flush=True)
        except OSError:  # the output cannot be written, but the job must still be preempted
            standard_streams.discard_output()

    try:
        report = app.preempt(location, options.job, options.timeout, force=options.force, on_wait=print_wait)
    except KeyboardInterrupt:
        for wait in waits:
            print_message(interrupted_text(wait))
        raise
    failure = failure_text(report, waits[0] if waits else None, str(location.resolve().folder))
    if failure is not None:
        print_message(failure)
        return 1
    standard_streams.print_done(to_text(report).rstrip("\n"))
    return 0
