"""Parses one line of a jobs file, independently of other lines, into a job, a malformed line or nothing.

The parser does not run a shell (`needs_bash_check` marks the lines that bash should check) or access files.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpu_scheduler.core.command import cuda
from gpu_scheduler.core.jobsfile import attributes, csv_line, shell_syntax
from gpu_scheduler.core.jobsfile.attributes import AttributeBlock
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.text.quoting import BLANK, find_comment

#: Maximum length of a line, in bytes of UTF-8.
MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class ParsedJob:
    """A parsed job.

    notes: remarks to log about the line; needs_bash_check: whether `bash -n` may find an error in the line.
    """

    spec: JobSpec
    notes: tuple[str, ...] = ()
    needs_bash_check: bool = False


@dataclass(frozen=True)
class Malformed:
    """A malformed line, with the reason and the accepted form.

    unfinished: whether the line may continue on the next line.
    """

    reason: str
    accepted_form: str
    unfinished: bool = False


LineResult = ParsedJob | Malformed | None


@dataclass(frozen=True)
class _PathContext:
    cwd: str
    home: str
    known_gpus: frozenset[int] | None


def parse_line(
    text: str, cwd: str, home: str, known_gpus: frozenset[int] | None = None
) -> ParsedJob | Malformed | None:
    """Parses a line; returns None for a blank line, a comment or the header.

    cwd: the absolute working folder for the lines of the file; home: the folder that `~` stands for;
    known_gpus: the indices of the existing GPUs; None to accept any index. The text may contain a BOM and a
    line ending.
    """
    text = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r").strip(BLANK)
    if not text or text.startswith("#"):
        return None
    wrong = _reject_unreadable(text)
    if wrong is not None:
        return wrong
    accepted, bare, rest = shell_syntax.ACCEPTED_FORM, text, text
    try:
        shell_syntax.check_characters(text[: find_comment(text)])
        accepted = attributes.ACCEPTED_FORM
        block = attributes.parse_block(text, known_gpus) if text.startswith("[") else None
        rest = text if block is None else block.rest
        comment = find_comment(rest)
        bare = rest if comment is None else rest[:comment].strip(BLANK)
        if block is None and csv_line.first_field(bare).casefold() == "priority":
            return None
        _check_after_block(block, bare)
        given = AttributeBlock({}, rest, True) if block is None else block
        accepted = csv_line.ACCEPTED_FORM
        csv_line.check_separator(bare)
        if csv_line.looks_like_csv(bare):
            return _parse_csv_job(given, bare, _PathContext(cwd, home, known_gpus))
        accepted = shell_syntax.ACCEPTED_FORM
        return _parse_command_job(given, bare, _PathContext(cwd, home, known_gpus))
    except csv_line.UnquotedCommas as error:
        front = text.removesuffix(rest)
        return Malformed(str(error), ", or ".join(front + line for line in error.suggestions))
    except attributes.BadAttribute as error:
        return Malformed(str(error), error.accepted)
    except ValueError as error:
        return Malformed(str(error), accepted, accepted == shell_syntax.ACCEPTED_FORM and bare.endswith("\\"))


def _reject_unreadable(text: str) -> Malformed | None:
    if len(text) > MAX_LINE_BYTES // 4 and len(text.encode("utf-8", "surrogatepass")) > MAX_LINE_BYTES:
        return Malformed("the line is longer than 64 KiB", "a shorter line; put long arguments into a file")
    for bad, name in (("\0", "NUL byte"), ("\r", "carriage return"), ("\n", "line break")):
        at = text.find(bad)
        if at >= 0:
            reason = f"there is a {name} at column {at + 1}"
            return Malformed(reason, "text in UTF-8 whose lines end in LF or CRLF")
    return None


def _check_after_block(block: AttributeBlock | None, command: str) -> None:
    if block is None:
        return
    if not command:
        raise ValueError("nothing follows the attributes")
    if command.startswith("[") and not block.is_empty:
        raise ValueError(
            "a second block follows the attributes; put all attributes into one block, and write a shell test"
            " as `test …`"
        )


@lru_cache(maxsize=1024)
def _absolute(path: str, cwd: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return joined[1:] if joined.startswith("//") else joined


def _with_absolute_paths(values: dict[str, Any], context: _PathContext) -> dict[str, Any]:
    """Returns the attributes with absolute paths, always including `cwd`. Raises ValueError for conflicts."""
    try:
        attributes.check_conflicts(values)
    except ValueError as error:
        raise attributes.BadAttribute(str(error), "attributes that do not contradict each other") from None
    settled = dict(values)
    settled["cwd"] = _absolute(values.get("cwd", context.cwd), context.cwd, context.home)
    if "venv" in values:
        settled["venv"] = _absolute(values["venv"], settled["cwd"], context.home)
    conda = values.get("conda")
    if conda is not None and conda.startswith(("/", "~")):
        settled["conda"] = _absolute(conda, context.cwd, context.home)
    return settled


def _parse_csv_job(block: AttributeBlock, text: str, context: _PathContext) -> ParsedJob:
    line = csv_line.parse_csv(block.rest, context.known_gpus)
    values = dict(block.values)
    fields = (
        ("priority", line.priority is not None, line.priority),
        ("conda", line.conda is not None, line.conda),
        ("allowed", line.has_gpu_list, line.allowed),
    )
    for name, given, value in fields:
        if given and name in values:
            raise ValueError(f"{name} is given both in the attributes and in its CSV field; give it once")
        if given:
            values[name] = value
    if line.torchrun_processes is not None:
        _check_torchrun(values)
    settled = _with_absolute_paths(values, context)
    script = _absolute(line.script, settled["cwd"], context.home)
    if line.priority is None:
        _check_script(script, line.script, settled["cwd"], context.home)
    spec = JobSpec(
        kind="csv",
        text=text,
        script=script,
        arguments=line.arguments,
        torchrun=line.torchrun_processes,
        **settled,
    )
    return ParsedJob(spec, (line.note,) if line.note else ())


def _check_script(script: str, written: str, *folders: str) -> None:
    """Raises ValueError for a script that is certainly a folder: one of these, or above one, or `x/`."""
    above = script.rstrip("/") + "/"
    if written.endswith(("/", "/.", "/..")) or any(f"{folder}/".startswith(above) for folder in folders):
        raise ValueError(f"the script {written} is a folder; name a script, or leave out the commas")


def _check_torchrun(values: dict[str, Any]) -> None:
    for name in ("gpus", "share"):
        if name in values:
            raise ValueError(
                f"{name} is given in the attributes, but the execution type sets the number of GPUs; leave"
                f" out {name}, and write torchrun-Ngpu for N whole GPUs"
            )


def _parse_command_job(block: AttributeBlock, text: str, context: _PathContext) -> ParsedJob:
    shell_syntax.check_finished(text)
    shell_syntax.check_effect(text)
    note = shell_syntax.cuda_override_note(text)
    spec = JobSpec(kind="command", text=text, command=text, **_with_absolute_paths(block.values, context))
    check_cuda_option(spec)
    return ParsedJob(spec, (note,) if note else (), shell_syntax.needs_bash(text))


def check_cuda_option(spec: JobSpec) -> None:
    """Raises ValueError for `cuda=add` if it is unclear where --cuda belongs in the job's command."""
    if spec.command is None or spec.cuda != "add":
        return
    if cuda.rewrite_command(spec.command, "0", "add") is None:
        raise ValueError(
            "cuda=add: it is unclear where --cuda belongs in this command; write --cuda 0 where it belongs"
        )
