"""`status`: prints the status as text or JSON."""

from __future__ import annotations

import gc
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpu_scheduler.app import status as app
from gpu_scheduler.app.status import StatusQuery
from gpu_scheduler.cli.program import location_of, no_store_message, stdout_screen
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import StoreNotFoundError

if TYPE_CHECKING:
    from gpu_scheduler.app.status import ProgressReader
    from gpu_scheduler.app.status_report import StatusReport
    from gpu_scheduler.views.layout import Viewport

#: Number of finished jobs shown, unless --all is given or the terminal has more rows.
DEFAULT_FINISHED = 20
#: Maximum number of queued jobs, and of held jobs, that are read for the text. Similar jobs share a row.
MAX_GROUPED = 1000


def status(options: Namespace) -> int:
    """Prints the status; changes nothing."""
    if options.watch is not None:
        from gpu_scheduler.cli.watch import watch

        return watch(options)
    gc.disable()  # the collector would search 100,000 jobs for cycles again and again, and there are none
    try:
        if options.json:
            _print_json(options)
        else:
            _print_text(options)
    except StoreNotFoundError:
        print(safe_text(no_store_message(location_of(options)), keep_line_breaks=True))
    finally:
        gc.enable()
    return 0


def _print_json(options: Namespace) -> None:
    finished = None if options.all else DEFAULT_FINISHED
    query = StatusQuery(
        max_finished=finished,
        only_failed=options.failed,
        with_cleared=options.all,
        progress=True,
        checkpoints=True,
        jobs=tuple(options.jobs),
    )
    try:
        report = app.status(location_of(options), query)
    except StoreNotFoundError:
        report = app.empty_status(location_of(options))
    from gpu_scheduler.views.status_json import to_json

    sys.stdout.write(to_json(report))


def _print_text(options: Namespace) -> None:
    screen = stdout_screen()
    report = report_for_screen(options, screen)
    from gpu_scheduler.views.status_text import to_text

    # If the user asked for the full output, it may scroll. One row is left for the shell's prompt.
    has_no_end = options.all or options.verbose or screen.rows is None
    fitted = replace(screen, rows=None if has_no_end else (screen.rows or 0) - 1)
    sys.stdout.write(to_text(report, fitted, show_all=options.all, verbose=options.verbose))


def report_for_screen(
    options: Namespace, screen: Viewport, progress_reader: ProgressReader | None = None
) -> StatusReport:
    """Returns the report with as many jobs as a text on this screen can show.

    progress_reader: the reader of the last report, which makes this one cheaper.
    """
    query = StatusQuery(
        max_queued=None if options.all else MAX_GROUPED,
        max_finished=None if options.all else max(DEFAULT_FINISHED, screen.rows or 0),
        only_failed=options.failed,
        with_cleared=options.all,
        last_lines=True,
        progress=True,
        jobs=tuple(options.jobs),
    )
    return app.status(location_of(options), query, progress_reader)
