"""`lint`: shows what each line of a jobs file will do, read as the scheduler reads it. Nothing is queued."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.app.preview import Preview, PreviewContext, preview
from gpu_scheduler.app.status_report import MalformedLineView
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.cli.add import recorded_gpus_and_folder
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.command.environment import find_conda_sh
from gpu_scheduler.core.jobsfile.diff import AcceptedLines, NewJob, diff_reading
from gpu_scheduler.core.jobsfile.reading import Line
from gpu_scheduler.core.model.gpu_list import parse_gpu_list
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.file_snapshot import JobsFile, read_standard_input
from gpu_scheduler.intake.job_shell import job_shell
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.intake.text_parser import ParsedText, TextParser
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.views.lint import LintView, to_json, to_text

STDIN = 0


def lint(options: Namespace) -> int:
    """Prints every line with what it will do; returns 1 if one is malformed."""
    config = LlmConfigFile(options.llm_config, trust=True)  # nothing in it is executed
    config.refresh()
    content = _read_input(options.file)
    known, recorded = recorded_gpus_and_folder(options, os.path.abspath(options.file))
    cwd = recorded or os.getcwd()
    if options.gpus is not None:
        known = _gpu_indices(options.gpus)
    parser = TextParser(cwd, os.path.expanduser("~"), known)
    lines = parser.parse(content, ParsedText(), ()).lines
    conda_sh = options.conda_sh or find_conda_sh(os.environ, os.path.exists)
    envs = _conda_environments(parser, lines, conda_sh)
    totals, limits = _gpu_totals_and_limits(options)
    setting = PreviewContext(
        config.current, known, conda_sh, os.path.exists, envs, totals, limits, job_shell(os.environ)
    )
    good = tuple(_previews(parser, lines, setting))
    bad = [
        MalformedLineView(options.file, line.number, line.text, line.problem or "", line.accepted_form)
        for line in lines
        if line.malformed
    ]
    linted = LintView(options.file, cwd, good, bad)
    sys.stdout.write(to_json(linted) if options.json else to_text(linted))
    return 1 if bad else 0


def _gpu_totals_and_limits(options: Namespace) -> tuple[dict[int, int], Limits]:
    """Returns GPU index -> total MiB, where known, and the limits of the scheduler that was started last."""
    try:
        with open_store(location_of(options), allow_other_host=True) as store:
            totals = {row["idx"]: row["total_mib"] for row in store.gpus() if row["total_mib"] is not None}
            return totals, recorded_options(store)
    except SchedulerError:
        return {}, Limits()


def _read_input(path: str) -> bytes:
    if path == "-":
        look = read_standard_input(STDIN)
        if look.state != "present":
            raise UsageError(f"the standard input {look.problem}; pipe a jobs file into it")
        return look.content
    look = JobsFile(Path(path), trust=True).read()
    if look.state != "present":
        raise UsageError(f"{path}: {look.problem}; give a jobs file, or - for the standard input")
    return look.content


def _conda_environments(parser: TextParser, lines: Sequence[Line], conda_sh: str | None) -> list[str] | None:
    """Returns the environments that conda lists; None if it fails.

    Also None if no line names an environment, because asking conda takes a second.
    """
    if conda_sh is None or not any(parser.spec_of(line).conda for line in lines if not line.malformed):
        return None
    from gpu_scheduler.health.doctor.conda import list_environments, parse_environments

    said = list_environments(conda_sh)
    return parse_environments(said.output) if said.succeeded else None


def _gpu_indices(option: str) -> frozenset[int] | None:
    """Returns the GPU indices of `--gpus`, in the format of `start`: a count means the first ones."""
    if re.fullmatch(r"[0-9]+", option):
        return frozenset(range(int(option)))
    listed = parse_gpu_list(option.removesuffix(","))
    return None if listed is None else frozenset(listed)


def _previews(parser: TextParser, lines: Sequence[Line], setting: PreviewContext) -> Iterator[Preview]:
    same = _duplicate_lines(lines)
    for line in lines:
        if not line.malformed:
            yield preview(line.number, parser.spec_of(line), line.notes, same.get(line.number), setting)


def _duplicate_lines(lines: Sequence[Line]) -> Mapping[int, int]:
    """Returns, for each line that adds no job, line number -> number of the line with the same job."""
    actions = diff_reading((), AcceptedLines(tuple(lines), (None,) * len(lines)), {}, {}).actions
    jobs = {action.index for action in actions if isinstance(action, NewJob)}
    first = {lines[index].identity: lines[index].number for index in sorted(jobs, reverse=True)}
    return {
        line.number: first[line.identity]
        for index, line in enumerate(lines)
        if index not in jobs and not line.malformed
    }
