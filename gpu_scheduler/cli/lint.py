"""`lint`: shows what each line of a jobs file will do, read as the scheduler reads it. Nothing is queued."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.cli.add import from_record
from gpu_scheduler.cli.record import opened
from gpu_scheduler.core.environment import find_conda_sh
from gpu_scheduler.core.gpulist import parse_gpu_list
from gpu_scheduler.core.lines import Line
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.core.preview import Preview, Setting, preview
from gpu_scheduler.core.reading import Accepted, NewJob, diff
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.filelook import JobsFile, look_at_input
from gpu_scheduler.intake.filetext import FileText, TextParser
from gpu_scheduler.intake.jobshell import job_shell
from gpu_scheduler.llmconfig import LlmConfigFile
from gpu_scheduler.store.started import started_with
from gpu_scheduler.views.lint import Linted, to_json, to_text
from gpu_scheduler.views.report import MalformedShown

STDIN = 0


def lint(options: Namespace) -> int:
    """Prints every line with what it will do; returns 1 if one is malformed."""
    config = LlmConfigFile(options.llm_config, trust=True)  # nothing in it is executed
    config.look()
    content = _content(options.file)
    known, recorded = from_record(options, os.path.abspath(options.file))
    cwd = recorded or os.getcwd()
    if options.gpus is not None:
        known = _gpus(options.gpus)
    parser = TextParser(cwd, os.path.expanduser("~"), known)
    lines = parser.parse(content, FileText(), ()).lines
    conda_sh = options.conda_sh or find_conda_sh(os.environ, os.path.exists)
    envs = _environments(parser, lines, conda_sh)
    totals, limits = _from_record(options)
    setting = Setting(
        config.current, known, conda_sh, os.path.exists, envs, totals, limits, job_shell(os.environ)
    )
    good = tuple(_previews(parser, lines, setting))
    bad = [
        MalformedShown(options.file, line.number, line.text, line.problem or "", line.accepted)
        for line in lines
        if line.malformed
    ]
    linted = Linted(options.file, cwd, good, bad)
    sys.stdout.write(to_json(linted) if options.json else to_text(linted))
    return 1 if bad else 0


def _from_record(options: Namespace) -> tuple[dict[int, int], Limits]:
    """Returns GPU index -> total MiB, where known, and the limits of the scheduler that was started last."""
    try:
        with opened(options, foreign=True) as store:
            totals = {row["idx"]: row["total_mib"] for row in store.gpus() if row["total_mib"] is not None}
            return totals, started_with(store).limits
    except SchedulerError:
        return {}, Limits()


def _content(path: str) -> bytes:
    if path == "-":
        look = look_at_input(STDIN)
        if look.state != "present":
            raise UsageError(f"the standard input {look.problem}; pipe a jobs file into it")
        return look.content
    look = JobsFile(Path(path), trust=True).look()
    if look.state != "present":
        raise UsageError(f"{path}: {look.problem}; give a jobs file, or - for the standard input")
    return look.content


def _environments(parser: TextParser, lines: Sequence[Line], conda_sh: str | None) -> list[str] | None:
    """Returns the environments that conda lists; None if it fails.

    Also None if no line names an environment, because asking conda takes a second.
    """
    if conda_sh is None or not any(parser.spec_of(line).conda for line in lines if not line.malformed):
        return None
    from gpu_scheduler.doctor.conda import ask_conda, environments

    said = ask_conda(conda_sh)
    return environments(said.text) if said.good else None


def _gpus(option: str) -> frozenset[int] | None:
    """Returns the GPU indices of `--gpus`, in the format of `start`: a count means the first ones."""
    if re.fullmatch(r"[0-9]+", option):
        return frozenset(range(int(option)))
    listed = parse_gpu_list(option.removesuffix(","))
    return None if listed is None else frozenset(listed)


def _previews(parser: TextParser, lines: Sequence[Line], setting: Setting) -> Iterator[Preview]:
    same = _same(lines)
    for line in lines:
        if not line.malformed:
            yield preview(line.number, parser.spec_of(line), line.notes, same.get(line.number), setting)


def _same(lines: Sequence[Line]) -> Mapping[int, int]:
    """Returns, for each line that adds no job, line number -> number of the line with the same job."""
    actions = diff((), Accepted(tuple(lines), (None,) * len(lines)), {}, {}).actions
    jobs = {action.index for action in actions if isinstance(action, NewJob)}
    first = {lines[index].identity: lines[index].number for index in sorted(jobs, reverse=True)}
    return {
        line.number: first[line.identity]
        for index, line in enumerate(lines)
        if index not in jobs and not line.malformed
    }
