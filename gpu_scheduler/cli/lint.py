"""`lint`: prints the effect of each line of a jobs file."""

from __future__ import annotations

import sys
from argparse import Namespace

from gpu_scheduler.app import lint as app
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.views.lint import to_json, to_text

STDIN = 0


def lint(options: Namespace) -> int:
    """Prints every line with its effect; returns 1 if one is malformed."""
    content = app.read_stream(STDIN) if options.file == "-" else app.read_jobs_file(options.file)
    view = app.lint(
        location_of(options),
        options.file,
        content,
        llm_config=options.llm_config,
        gpus=options.gpus,
        conda_sh=options.conda_sh,
    )
    sys.stdout.write(to_json(view) if options.json else to_text(view))
    return 1 if view.malformed else 0
