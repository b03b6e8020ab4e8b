"""Parses one line of a jobs file, independently of other lines, into a job, a malformed line or nothing.

The parser does not run a shell (`needs_bash_check` marks the lines that bash should check) or access files.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from functools import lru_cache
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.command.shell_words import rewrite_command
from gpu_scheduler.core.jobsfile import attributes
from gpu_scheduler.core.jobsfile.attributes import MAX_GPUS, AttributeBlock, parse_conda
from gpu_scheduler.core.model.gpu import parse_gpu_items, parse_gpu_list
from gpu_scheduler.core.model.job_spec import PRIORITY_WORDS, JobSpec, parse_priority
from gpu_scheduler.core.text.parsing import BLANK, find_comment, mask_quoted, split_words

# Inspects the shell text of a line, or of a file, without running a shell.


COMMAND_FORM = "one complete shell command on one line, in the foreground; put a longer one into a script"

RESERVED = (
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select",
    "function", "time", "coproc", "{", "}", "!", "[[",
)  # fmt: skip
BUILTINS = (
    ".", ":", "[", "alias", "bg", "bind", "break", "builtin", "caller", "cd", "command", "compgen",
    "complete", "compopt", "continue", "declare", "dirs", "disown", "echo", "enable", "eval", "exec",
    "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history", "jobs", "kill", "let",
    "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read", "readarray", "readonly",
    "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true", "type",
    "typeset", "ulimit", "umask", "unalias", "unset", "wait",
)  # fmt: skip
#: Text in which bash cannot find a syntax error: plain words and simple quotes.
_PLAIN = re.compile(r"""(?:[^'"`$\\;&|<>(){}!]|'[^']*'|"[^"\\$`!]*")*""")
#: Text that bash may parse as an array subscript, which extends to its `]` even across words and lines.
SUBSCRIPT = re.compile(r"(?<![^\s;&|(){}`])[A-Za-z_]\w*\[")
#: One assignment, or builtins that do no more than change the shell that runs them, without operators and
#: substitutions.
_PIECE = r"""(?:[^\s'"`\\;&|<>()$]|\$(?!\()|\\.|'[^']*'|"(?:[^"\\`$]|\\.|\$(?!\())*")"""
_CHANGE = re.compile(
    r"(?:alias|cd|declare|export|popd|pushd|readonly|set|shopt|typeset|umask|unalias|unset)"
    rf"(?:[ \t]+{_PIECE}+)+|[A-Za-z_]\w*\+?={_PIECE}*(?:[ \t]+[A-Za-z_]\w*\+?={_PIECE}*)*"
)
#: Lines of a Python script, and parts of a compound command that stand on lines of their own.
_SCRIPT_LINE = re.compile(
    r"(?:then|else|fi|do|done|esac|\})(?:[ \t]*[;#]|$)|import \w|from [\w.]+ import "
    r"|(?:cd|pushd)(?:[ \t][^;&]*)?$"
)
SHELL_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm")
_SCRIPT_ENDINGS = (*SHELL_ENDINGS, ".py", ".ipynb")
_SETS_CUDA = re.compile(r"(?:^|[\s;&|({\"'])CUDA_VISIBLE_DEVICES=")
OR_BACKGROUND = ", or give background=wait (background=ignore if that work does not matter)"
_NO_WINDOW = "run the command itself; `start --screen` gives each job a window"
#: A pattern for each command that starts work without waiting for it, with its name and remedy. The last
#: three may give it to a server, so that the scheduler neither sees nor ends it.
_BACKGROUND = (
    (re.compile(r"&$"), "`&` without `wait`", f"add `wait` at the end{OR_BACKGROUND}"),
    (re.compile(r"disown\b"), "`disown`", f"add `wait` at the end instead{OR_BACKGROUND}"),
    (re.compile(r"\Asetsid\s(?!\s*(?:-w|--wait)\b)"), "`setsid`", f"write `setsid --wait`{OR_BACKGROUND}"),
    (re.compile(r"\Ascreen\s.*-(?:[A-Za-z]*d|d\s-)m"), "`screen -dm`", _NO_WINDOW),
    (re.compile(r"\Atmux\s+new(?:-session)?\s(?:.*\s)?-[A-Za-z]*d"), "`tmux new -d`", _NO_WINDOW),
    (re.compile(r"\A(?:docker|podman)\s.*\s(?:-[itP]*d[itP]*|--detach)\b"), "`docker run -d`", "omit -d"),
)


def background_work(text: str) -> dict[str, str]:
    """Returns the commands in a shell text that start work without waiting for it, with their remedies."""
    plain = "\n".join(line[: find_comment(line)] for line in text.splitlines())
    found: dict[str, str] = {}
    for part in re.split(r"(&&|[;&|()\n])", re.sub(r"[<>]&|&>|\|&", " ", mask_quoted(plain) or plain)):
        command = part.strip().removeprefix("sudo ").removeprefix("nohup ")
        found |= {form: remedy for pattern, form, remedy in _BACKGROUND if pattern.match(command)}
        if command.partition(" ")[0] == "wait":
            found.pop("`&` without `wait`", None)
    return found


def check_finished(text: str) -> None:
    """Raises ValueError for a command that ends in an unquoted `&` or a backslash."""
    if text.endswith("\\") and _ends_in_odd_backslashes(text):
        raise ValueError("it ends in a backslash, but a command cannot continue on the next line")
    if (
        re.search(r"(?<!&)&$", text)
        and mask_quoted(text) is not None
        and not _ends_in_odd_backslashes(text[:-1])
    ):
        raise ValueError(
            "it ends in `&`, so the job would complete at once and its processes would be ended; remove the"
            " `&`, because the scheduler runs every line in the background"
        )


def _ends_in_odd_backslashes(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


#: Quotes of a word processor in place of those of the shell: a double one, or single ones around text.
_SMART_QUOTES = re.compile(
    "(?<![^\\s=,:(])[\u201c-\u201e]|(?<=\\S)\u201d(?![^\\s,;|&)\\]])"
    "|(?<![^\\s=,:(])[\u2018-\u201a][^\u2018\u2019]*[\u2018\u2019](?![^\\s,;|&)\\]])"
)
#: A dash or a minus sign that stands where an option begins.
_LONG_DASH = re.compile("(?<!\\S)-?[\u2010-\u2015\u2212]-?([A-Za-z][\\w-]*)")
_STRAIGHT_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""")
_WINDOWS_PATH = re.compile(r"(?<![^\s=,])([A-Za-z]:\\)[\w.][^\s,:]*(?![^\s,])")


def check_characters(text: str) -> None:
    """Raises ValueError for quotes and dashes of a word processor and for Windows paths, outside quotes."""
    if text.isascii() and ":\\" not in text:
        return
    bare = mask_quoted(text) or ""
    if quote := _SMART_QUOTES.search(bare):
        raise ValueError(
            f"{quote[0][0]} is not a quote of the shell; write straight quotes (\" or '), also around text"
            " that contains it"
        )
    if dash := _LONG_DASH.search(bare):
        raise ValueError(
            f"the dash of {dash[0]} is not a hyphen; write --{dash[1]} (or -{dash[1]}), or put"
            " straight quotes around the text"
        )
    if path := _WINDOWS_PATH.search(_STRAIGHT_QUOTED.sub("_", text)):
        raise ValueError(f"{path[1]}… is a path of Windows; write the path on this machine, such as /mnt/c/…")


def check_effect(text: str) -> None:
    """Raises ValueError for a command that does no more than change the shell that runs it."""
    if _CHANGE.fullmatch(text):
        raise ValueError(
            "it only changes its own shell, which ends with the line; write it before the command that needs"
            " it, as in `cd exp && python train.py`"
        )


def script_refusal(path: str, content: bytes) -> str | None:
    """Returns why a file is no jobs file, with the command that submits it; None unless it is a script."""
    text = content.decode(errors="replace")
    lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    signs = [bool(_SCRIPT_LINE.match(line) or _CHANGE.fullmatch(line)) for line in lines]
    interpreter = re.match(r"\ufeff?#![ \t]*(\S.*)", text)
    if not (path.endswith(_SCRIPT_ENDINGS) or interpreter or any(signs[:1]) or sum(signs) >= 3):
        return None
    program = "python " if any(line.startswith(("import ", "from ")) for line in lines) else "bash "
    front = f"-- {interpreter[1].strip()} " if interpreter else f"-- {program}"
    if path.endswith(_SCRIPT_ENDINGS):
        front = "-- jupyter execute " if path.endswith(".ipynb") else ""
    return (
        f"{path} is a script, not a jobs file, of which every line would run as a job of its own;"
        f" `submit {front}{shlex.quote(path)}` runs it as one job"
    )


def needs_bash(text: str) -> bool:
    """Returns whether the command contains shell syntax that `bash -n` could reject."""
    if not _PLAIN.fullmatch(text) or SUBSCRIPT.search(text):
        return True
    return re.split(r"[ \t]", text, maxsplit=1)[0] in RESERVED


def cuda_override_note(text: str) -> str | None:
    """Returns the warning for a command that sets CUDA_VISIBLE_DEVICES itself; None for other commands."""
    if not _SETS_CUDA.search(text):
        return None
    return (
        "the command sets CUDA_VISIBLE_DEVICES itself and so ignores the GPUs allocated to it; remove the"
        " variable, and name the GPUs that the job may use at the start of the line, as in [allowed=0]"
    )


# Recognises and parses the CSV line `priority,script_path,conda_env,arguments,allowed_gpus`.
#
# A line may have a sixth column, the execution type, before the arguments. Paths are returned as written;
# other modules resolve them.


CSV_FORM = (
    "priority,script_path,conda_env,arguments,allowed_gpus, such as "
    '0,/path/train.py,myenv,--epochs 3,0-3 or 0,/path/train.py,myenv,"--layers 1,2,3","0,1"; '
    "or with the execution type python, torchrun or torchrun-Ngpu before the arguments: "
    "0,/path/train.py,myenv,torchrun-2gpu,--epochs 3,0-3"
)
_ARGUMENTS_COLUMN = 3

_QUOTED_FIRST = re.compile(r'"((?:[^"]|"")*)"[ \t]*(?=,|$)')
_INTEGER_FIRST = re.compile(r"[+-]?\d+(?=[,;\s]|$)")
_PRIORITY_WORD_FIRST = re.compile(rf"(?i:{'|'.join(PRIORITY_WORDS)})(?=[ \t]*[,;])")
_OTHER_SEPARATOR = re.compile(rf"[+-]?\d+ *([;|\t])|(?i:priority|{'|'.join(PRIORITY_WORDS)}) *;")
_FIRST_FIELD = re.compile(r"[\w.+\-/]*")
_EXECUTION_TYPE = re.compile(r"python|torchrun(?:-([0-9]+)gpu)?")
#: Text that is treated as an execution type, even if it is misspelt. Arguments that look like this must be
#: quoted.
_LOOKS_LIKE_EXECUTION_TYPE = re.compile(r"python|torchrun[^\s=]*", re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_COMMENT = re.compile(r"(?:(?<=[ \t])|^)#")
_LAST_NUMBER = re.compile(r"(?<![\w.])[0-9]{1,9}$")


class UnquotedCommas(ValueError):
    """Raised if unquoted arguments seem to contain commas. lines: the quoted lines that may be meant."""

    def __init__(self, reason: str, *lines: str) -> None:
        super().__init__(reason)
        self.suggestions = lines


class CsvLine(Struct, frozen=True):
    """The fields of a line; empty fields are None or (). note: a remark to log about an ambiguity.

    torchrun_processes: the number of processes that torchrun starts, each with its own GPU; None means that
    plain python runs the script.
    """

    priority: int | None
    script: str
    conda: str | None
    arguments: tuple[str, ...]
    allowed: tuple[int, ...] | None
    has_gpu_list: bool
    note: str | None
    torchrun_processes: int | None = None


class _Fields(Struct, frozen=True):
    """The raw fields of a line.

    leading: the fields before the arguments; execution_type: the last of them if the line has six columns;
    unsplit: the arguments and the GPU list as written.
    """

    leading: tuple[str, ...]
    execution_type: str | None
    arguments: str
    arguments_quoted: bool
    gpu_list: str
    gpu_list_quoted: bool
    unsplit: str


def first_field(text: str) -> str:
    """Returns the text before the first comma, trimmed and without enclosing quotes."""
    quoted = _QUOTED_FIRST.match(text)
    return quoted[1].replace('""', '"').strip() if quoted else text.partition(",")[0].strip()


def looks_like_csv(text: str) -> bool:
    """Returns whether a line is meant as CSV, even if it is malformed.

    text: the line without its attributes and its comment. Digits and blanks in any script count:
    "١٢,a.py" is a mistake to report, not a command.
    """
    text = text.strip()
    if _INTEGER_FIRST.match(text) or _PRIORITY_WORD_FIRST.match(text):
        return True
    quoted = _QUOTED_FIRST.match(text)
    after = text[quoted.end() :].removeprefix(",") if quoted else text.partition(",")[2]
    if "," not in text or not _FIRST_FIELD.fullmatch(first_field(text)):
        return False
    second = first_field(after)
    return text.count(",") >= 2 or (second.endswith(".py") and not re.search(r"\s", second))


def check_separator(text: str) -> None:
    """Raises ValueError for a CSV line, or a header, whose fields are not separated by commas."""
    if found := _OTHER_SEPARATOR.match(text):
        name = {"|": "bars", "\t": "tabs"}.get(found[1], "semicolons")
        raise ValueError(f"its fields are separated by {name}; separate them by commas")


def parse_csv(text: str, known_gpus: frozenset[int] | None) -> CsvLine:
    """Parses a line that is meant as CSV, and skips a comment at its end.

    Raises ValueError with the mistake and its remedy.
    """
    fields = _split_fields(text)
    priority, script, conda = fields.leading[:3]
    number = parse_priority(priority) if priority else None
    if not script:
        raise ValueError(
            "there is no script, because the second field is empty; fields are separated by commas"
        )
    torchrun = None if fields.execution_type is None else _torchrun_processes(fields.execution_type)
    if not fields.arguments_quoted and not fields.gpu_list_quoted and "," in fields.gpu_list:
        _check_unquoted_commas(fields)
    try:
        arguments = split_words(fields.arguments)
    except ValueError as error:
        raise _comma_error(
            fields,
            f"arguments {fields.arguments!r}: {error}; arguments with commas need double quotes around"
            " the whole field, and inner double quotes must be doubled",
            known_gpus,
        ) from None
    try:
        allowed = parse_gpu_list(fields.gpu_list, known_gpus)
    except ValueError as error:
        reason = f'{error}; arguments with commas need quotes: "--layers 1,2,3"'
        raise _comma_error(fields, reason, known_gpus) from None
    env = parse_conda(conda) if conda else None
    return CsvLine(
        number, script, env, arguments, allowed, bool(fields.gpu_list), _ambiguity_note(fields), torchrun
    )


def _torchrun_processes(execution_type: str) -> int | None:
    """Returns an execution type's number of torchrun processes; None for python. Raises ValueError."""
    known = _EXECUTION_TYPE.fullmatch(execution_type)
    if known is None:
        raise ValueError(
            f"execution type {execution_type!r} is not python, torchrun or torchrun-Ngpu such as"
            " torchrun-2gpu; if the field contains arguments, put quotes around it"
        )
    if execution_type == "python":
        return None
    count = known[1] or "1"
    if len(count) > 4 or not 1 <= int(count) <= MAX_GPUS:
        raise ValueError(
            f"execution type {execution_type!r}: the number of GPUs must be from 1 to {MAX_GPUS}"
        )
    return int(count)


def _ambiguity_note(fields: _Fields) -> str | None:
    """Returns a note on how the line was parsed if the last number in its arguments may be meant as a GPU."""
    if fields.arguments_quoted or not fields.arguments[-1:].isdigit():
        return None
    if fields.gpu_list:
        return f"read as arguments: {fields.arguments} | GPUs: {fields.gpu_list}"
    if fields.execution_type is not None and re.fullmatch(r"[0-9\s-]+", fields.arguments):
        return f"read as {fields.execution_type}, arguments: {fields.arguments} | GPUs: any"
    return None


def _check_unquoted_commas(fields: _Fields) -> None:
    """Raises UnquotedCommas for a GPU list that may belong to the arguments (`--layers 1,2,3`)."""
    try:
        gpus = parse_gpu_items(fields.gpu_list)
    except ValueError:
        return  # the caller rejects the list later, with a different message
    number = _LAST_NUMBER.search(fields.arguments)
    ascending = all(a < b for a, b in itertools.pairwise(gpus))
    if ascending and not (number and gpus[0] == int(number[0]) + 1):
        return
    raise UnquotedCommas(
        "it is not clear where the arguments end and the GPU list begins; quote the arguments",
        _with_quoted_arguments(fields, fields.unsplit, ""),
        _with_quoted_arguments(fields, fields.arguments, f'"{fields.gpu_list}"'),
    )


def _comma_error(fields: _Fields, reason: str, known_gpus: frozenset[int] | None) -> ValueError:
    """Returns the error for a line whose commas may belong to its arguments.

    In that case the arguments end with the last piece that is not a GPU number or range. If the line with
    quotes around these arguments is valid, the error suggests it.
    """
    pieces = fields.unsplit.split(",")
    words = [index for index, piece in enumerate(pieces) if not re.fullmatch(r"[0-9 \t-]*", piece)]
    if fields.arguments_quoted or fields.gpu_list_quoted or not words or words[-1] == 0:
        return ValueError(reason)
    end = words[-1] + 1
    line = _with_quoted_arguments(fields, ",".join(pieces[:end]), ",".join(pieces[end:]))
    try:
        parse_csv(line, known_gpus)
    except ValueError:
        return ValueError(reason)
    return UnquotedCommas(reason, line)


def _with_quoted_arguments(fields: _Fields, arguments: str, gpus: str) -> str:
    """Returns the line with quotes around its arguments."""
    begin = [*map(quote_field, fields.leading[:_ARGUMENTS_COLUMN]), *fields.leading[_ARGUMENTS_COLUMN:]]
    doubled = arguments.strip(BLANK).replace('"', '""')
    return ",".join([*begin, f'"{doubled}"', gpus.strip(BLANK)])


def _split_fields(text: str) -> _Fields:
    begin: list[str] = []
    at: int | None = 0
    while at is not None and len(begin) < _ARGUMENTS_COLUMN:
        value, _, at = _parse_field(text, at, False)
        begin.append(value)
    begin += [""] * (_ARGUMENTS_COLUMN - len(begin))
    execution, value, quoted, start = None, "", False, at or 0
    if at is not None:
        value, quoted, at = _parse_field(text, at, True)
        if not quoted and _LOOKS_LIKE_EXECUTION_TYPE.fullmatch(value):
            begin.append(value)
            execution, value = value, ""
            if at is not None:
                start = at
                value, quoted, at = _parse_field(text, at, True)
    rest, rest_quoted = ("", False) if at is None else _parse_gpu_field(text, at)
    whole = text[start : text.find(rest, at)] + rest if rest else value
    return _Fields(tuple(begin), execution, value, quoted, rest, rest_quoted, whole)


def _parse_gpu_field(text: str, at: int) -> tuple[str, bool]:
    """Returns the GPU list, which is the rest of the line, and whether it is quoted."""
    rest = text[at:].lstrip(BLANK)
    if rest.startswith('"'):
        value, _, more = _parse_field(rest, 0, False)
        if more is not None:
            raise ValueError("text follows the quoted GPU list; quote the whole list")
        return value, True
    comment = _COMMENT.search(text, at)
    return text[at : comment.start() if comment else None].strip(BLANK), False


def _parse_field(text: str, at: int, is_arguments: bool) -> tuple[str, bool, int | None]:
    """Returns the field that begins at `at`, whether it is quoted, and the index of the next one, if any."""
    while at < len(text) and text[at] in BLANK:
        at += 1
    if text[at : at + 1] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise ValueError(f"the quote at column {at + 1} is not closed; a quote cannot span lines")
        value, end = quoted[1].replace('""', '"'), quoted.end()
        after = text[end:].lstrip(BLANK)
        if not after or (after[0] == "#" and text[end] in BLANK):
            return value, True, None
        if after[0] != ",":
            raise ValueError(
                f"text follows the closing quote at column {end}; quote the whole field and double"
                " inner quotes"
            )
        return value, True, len(text) - len(after) + 1
    comma = text.find(",", at)
    piece = text[at:] if comma < 0 else text[at:comma]
    # The loop above may have skipped the blank before a `#`.
    before = text[at - 1 : at] if at else ""
    if is_arguments:
        comment = find_comment(before + piece)
    else:
        comment = found.start() if (found := _COMMENT.search(before + piece)) else None
    value = piece[: None if comment is None else comment - len(before)].strip(BLANK)
    if not is_arguments and '"' in value:
        raise ValueError(
            f"there is a double quote inside the field {value!r}; quote the whole field and double"
            " inner quotes"
        )
    return value, False, None if comment is not None or comma < 0 else comma + 1


def quote_field(field: str) -> str:
    """Returns the field as written in a CSV line, with quotes if necessary."""
    special = (
        re.search(r"[,\"'#\\]", field)
        or field != field.strip()
        or _LOOKS_LIKE_EXECUTION_TYPE.fullmatch(field)
    )
    return field if not special else '"' + field.replace('"', '""') + '"'


#: Maximum length of a line, in bytes of UTF-8.
MAX_LINE_BYTES = 64 * 1024


class ParsedJob(Struct, frozen=True):
    """A parsed job.

    notes: remarks to log about the line; needs_bash_check: whether `bash -n` may find an error in the line.
    """

    spec: JobSpec
    notes: tuple[str, ...] = ()
    needs_bash_check: bool = False


class Malformed(Struct, frozen=True):
    """A malformed line, with the reason and the accepted form.

    unfinished: whether the line may continue on the next line.
    """

    reason: str
    accepted_form: str
    unfinished: bool = False


LineResult = ParsedJob | Malformed | None


class _PathContext(Struct, frozen=True):
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
    accepted, bare, rest = COMMAND_FORM, text, text
    try:
        check_characters(text[: find_comment(text)])
        accepted = attributes.ACCEPTED_FORM
        block = attributes.parse_block(text, known_gpus) if text.startswith("[") else None
        rest = text if block is None else block.rest
        comment = find_comment(rest)
        bare = rest if comment is None else rest[:comment].strip(BLANK)
        if block is None and first_field(bare).casefold() == "priority":
            return None
        if block is not None and not bare:
            raise ValueError("nothing follows the attributes")
        if block is not None and bare.startswith("[") and block.values:
            raise ValueError(
                "a second block follows the attributes; put all attributes into one block, and write a shell"
                " test as `test …`"
            )
        given = AttributeBlock({}, rest) if block is None else block
        accepted = CSV_FORM
        check_separator(bare)
        if looks_like_csv(bare):
            return _parse_csv_job(given, bare, _PathContext(cwd, home, known_gpus))
        accepted = COMMAND_FORM
        return _parse_command_job(given, bare, _PathContext(cwd, home, known_gpus))
    except UnquotedCommas as error:
        front = text.removesuffix(rest)
        return Malformed(str(error), ", or ".join(front + line for line in error.suggestions))
    except attributes.BadAttribute as error:
        return Malformed(str(error), error.accepted)
    except ValueError as error:
        return Malformed(str(error), accepted, accepted == COMMAND_FORM and bare.endswith("\\"))


def _reject_unreadable(text: str) -> Malformed | None:
    if len(text) > MAX_LINE_BYTES // 4 and len(text.encode("utf-8", "surrogatepass")) > MAX_LINE_BYTES:
        return Malformed("the line is longer than 64 KiB", "a shorter line; put long arguments into a file")
    for bad, name in (("\0", "NUL byte"), ("\r", "carriage return"), ("\n", "line break")):
        at = text.find(bad)
        if at >= 0:
            reason = f"there is a {name} at column {at + 1}"
            return Malformed(reason, "text in UTF-8 whose lines end in LF or CRLF")
    return None


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
    line = parse_csv(block.rest, context.known_gpus)
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
    check_finished(text)
    check_effect(text)
    note = cuda_override_note(text)
    spec = JobSpec(kind="command", text=text, command=text, **_with_absolute_paths(block.values, context))
    check_cuda_option(spec)
    return ParsedJob(spec, (note,) if note else (), needs_bash(text))


def check_cuda_option(spec: JobSpec) -> None:
    """Raises ValueError for `cuda=add` if it is unclear where --cuda belongs in the job's command."""
    if spec.command is None or spec.cuda != "add":
        return
    if rewrite_command(spec.command, "0", "add") is None:
        raise ValueError(
            "cuda=add: it is unclear where --cuda belongs in this command; write --cuda 0 where it belongs"
        )
