"""`attach` shows the terminal of a running job, and `logs` prints the log of any job."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace

from gpu_scheduler.app.logs import JobLog, LogProgress, NoLogError, attach_target, open_log
from gpu_scheduler.cli.log_printer import LogFilter, LogPrinter
from gpu_scheduler.cli.program import invocation, location_of, print_message
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.views.reason_text import reason_text

_POLL_INTERVAL_S = 0.1
#: Seconds between two printed lines of the same progress bar.
_PROGRESS_INTERVAL_S = 1.0


def attach(options: Namespace) -> int:
    """Replaces this process with `screen -x`, which opens the session of a running job."""
    target = attach_target(location_of(options), options.job)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"`attach` needs a terminal; without a terminal, use `logs {target.job_id} -f`")
    import subprocess  # which `logs` does not need

    tput = os.path.join(os.path.dirname(target.program), "tput")  # it uses the same list of terminals
    if os.access(tput, os.X_OK) and subprocess.run([tput, "clear"], capture_output=True).returncode:
        raise SchedulerError(  # Screen would end with exit code 0
            f"GNU Screen cannot draw on a terminal of the type {os.environ.get('TERM', '')!r} (TERM); run"
            f" `TERM=xterm {invocation()} attach {target.job_id}`"
        )
    if os.environ.get("STY"):
        _print_detach_keys(os.environ["STY"])
    sys.stdout.flush()
    os.execve(target.program, [target.program, "-x", target.session], target.environment)


def _print_detach_keys(outer: str) -> None:
    """Prints the keys that detach each of two nested Screen sessions, and waits for Enter.

    It waits so that the user can read the text before the job's session covers it.
    """
    print(f"This terminal is already in a Screen session: {safe_text(outer)}")
    print("With Screen's default keys, Ctrl-A a d detaches the job's session and Ctrl-A d detaches yours.")
    print("Press Enter to open the job's session. ", end="", flush=True)
    sys.stdin.readline()


def logs(options: Namespace) -> int:
    """Prints the log of an attempt of each job (by default, its latest attempt).

    With --follow, it continues until the job, or the attempt given by --attempt, has ended.
    """
    for job in options.jobs:
        with open_log(location_of(options), job, options.attempt) as log:
            printer = _open_printer(log, _log_filter(options))
            if len(options.jobs) > 1:
                print(f"==> job {log.job_id} <==", flush=True)
            printer.print_last(options.lines)
            if options.follow:
                _follow(log, printer)
            printer.finish()
            printer.close()
    return 0


def _log_filter(options: Namespace) -> LogFilter | None:
    """Returns the filter for the log; None if every byte is to be printed."""
    if options.raw:
        return None
    return LogFilter(
        draw_bars=sys.stdout.isatty(), bar_interval_s=_PROGRESS_INTERVAL_S if options.follow else None
    )


def _open_printer(log: JobLog, log_filter: LogFilter | None) -> LogPrinter:
    try:
        return LogPrinter(log.path, log_filter)
    except NoLogError as error:
        if error.reason is None:
            raise
        raise SchedulerError(f"{error}: {reason_text(error.reason)}") from None


def _follow(log: JobLog, printer: LogPrinter) -> None:
    while True:
        # Ask for the progress before reading the log, so that all output before the end is printed.
        progress = log.advance()
        printer.print_new()
        if progress is LogProgress.ENDED:
            return
        if progress in (LogProgress.QUEUED_AGAIN, LogProgress.LEFT_OPEN):
            what = "is queued again" if progress is LogProgress.QUEUED_AGAIN else "has ended"
            print_message(f"job {log.job_id} {what}; no scheduler is running")
            return
        if progress is LogProgress.NEXT_ATTEMPT:
            printer.switch_to(log.path)
        else:
            time.sleep(_POLL_INTERVAL_S)
