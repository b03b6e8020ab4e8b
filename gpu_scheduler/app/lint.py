"""Previews the effect of each line of a jobs file without queuing a job. Parses it as the scheduler does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.new_line import Preview, PreviewContext, preview, recorded_setting
from gpu_scheduler.app.store_access import job_lookup
from gpu_scheduler.config import NO_GPUS
from gpu_scheduler.core.jobsfile.diff import AcceptedLines, NewJob, ReadingDiff
from gpu_scheduler.core.jobsfile.reading import Line
from gpu_scheduler.core.jobsfile.shell_syntax import script_refusal
from gpu_scheduler.core.model.gpu import parse_gpu_list
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.errors import UsageError
from gpu_scheduler.health.doctor.job import conda_sh_of, known_environments
from gpu_scheduler.intake.bash_check import job_shell
from gpu_scheduler.intake.jobs_file_content import JobsFile, read_standard_input
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.intake.text_parser import TextParser
from gpu_scheduler.store.jobs_files import MalformedLineRecord
from gpu_scheduler.system.safe_file import FileProblem


@dataclass(frozen=True)
class LintView:
    """The preview of a jobs file. path: the path that the user gave; cwd: the folder in which lines run."""

    path: str
    cwd: str
    lines: Sequence[Preview]
    malformed: Sequence[MalformedLineRecord]


def read_jobs_file(path: str) -> bytes:
    """Returns the content of a jobs file. Raises UsageError if it cannot be read."""
    content = JobsFile(Path(path), trust=True).read()
    if isinstance(content, FileProblem):
        raise UsageError(f"{path}: {content.description}; give a jobs file, or - for the standard input")
    return content


def refuse_script(location: Location, path: str) -> None:
    """Raises UsageError if a file is a script and no jobs file, unless a scheduler has read it already."""
    content = JobsFile(Path(path), trust=True).read()
    refusal = None if isinstance(content, FileProblem) else script_refusal(path, content)
    if refusal is not None and recorded_setting(location, os.path.abspath(path)).cwd is None:
        raise UsageError(refusal)


def read_stream(fd: int) -> bytes:
    """Returns the content of standard input. Raises UsageError if it cannot be read."""
    content = read_standard_input(fd)
    if isinstance(content, FileProblem):
        raise UsageError(f"the standard input {content}; pipe a jobs file into it")
    return content


def lint(
    location: Location,
    path: str,
    content: bytes,
    *,
    llm_config: str | None = None,
    gpus: str | None = None,
    conda_sh: str | None = None,
) -> LintView:
    """Returns the effect of each line.

    path: the path of the file, whose recorded working folder is used; gpus: the value of `--gpus`, as for
    `start`; None means the scheduler's GPUs. Raises UsageError for a script, or if llm_config cannot be used.
    """
    refuse_script(location, path)
    config = LlmConfigFile(llm_config, trust=True)  # safe, because nothing in the file is executed
    config.refresh()
    recorded = recorded_setting(location, os.path.abspath(path))
    cwd = recorded.cwd or os.getcwd()
    known = recorded.known_gpus if gpus is None else _gpu_indices(gpus)
    with job_lookup(location) as exists:
        parser = TextParser(cwd, os.path.expanduser("~"), known, exists)
        lines = parser.parse(content).lines
    named = conda_sh or (recorded.options.conda_sh if recorded.options else None)
    conda_sh = conda_sh_of(recorded.scheduler_pid, named)
    envs = _conda_environments(parser, lines, conda_sh)
    limits = recorded.options or Limits()
    shell = job_shell(os.environ)
    context = PreviewContext(
        config.current, known, conda_sh, os.path.exists, envs, recorded.totals_mib, limits, shell
    )
    malformed = [
        MalformedLineRecord(path, line.number, line.text, line.problem or "", line.accepted_form)
        for line in lines
        if line.malformed
    ]
    return LintView(path, cwd, tuple(_previews(parser, lines, context)), malformed)


def _conda_environments(parser: TextParser, lines: Sequence[Line], conda_sh: str | None) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails.

    Also returns None if no line names an environment, because asking conda takes a second.
    """
    if conda_sh is None or not any(parser.spec_of(line).conda for line in lines if not line.malformed):
        return None
    return known_environments(conda_sh)


def _gpu_indices(option: str) -> frozenset[int] | None:
    """Parses the value of `--gpus`, in the format of `start`: a count means the first GPUs."""
    if re.fullmatch(r"[0-9]+", option):
        return frozenset(range(int(option)))
    if option == NO_GPUS:
        return frozenset()
    listed = parse_gpu_list(option.removesuffix(","))
    return None if listed is None else frozenset(listed)


def _previews(parser: TextParser, lines: Sequence[Line], context: PreviewContext) -> Iterator[Preview]:
    same = _duplicate_lines(lines)
    for line in lines:
        if not line.malformed:
            yield preview(line.number, parser.spec_of(line), line.notes, same.get(line.number), context)


def _duplicate_lines(lines: Sequence[Line]) -> Mapping[int, int]:
    """Returns the number of the first line with the same job, by the number of each duplicate line."""
    actions = ReadingDiff((), AcceptedLines(tuple(lines), (None,) * len(lines)), {}, {}).actions
    jobs = {action.index for action in actions if isinstance(action, NewJob)}
    first = {lines[index].identity: lines[index].number for index in sorted(jobs, reverse=True)}
    return {
        line.number: first[line.identity]
        for index, line in enumerate(lines)
        if index not in jobs and not line.malformed
    }
