"""The CSV line `priority,script_path,conda_env,arguments,allowed_gpus`: which line is meant as one, and its
five fields. It knows nothing of folders: the script path is returned as written."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from gpu_scheduler.core.attributes import parse_conda, parse_priority
from gpu_scheduler.core.gpulist import gpu_items, parse_gpu_list
from gpu_scheduler.core.words import BLANK, comment_at, split_words

ACCEPTED = (
    "priority,script_path,conda_env,arguments,allowed_gpus, such as "
    '0,/path/train.py,myenv,--epochs 3,0-3 or 0,/path/train.py,myenv,"--layers 1,2,3","0,1"'
)
_ARGUMENTS = 3

_QUOTED_FIRST = re.compile(r'"((?:[^"]|"")*)"[ \t]*(?=,|$)')
_INTEGER_FIRST = re.compile(r"[+-]?\d+(?=[,;\s]|$)")
_FIRST_FIELD = re.compile(r"[\w.+\-/]*")
_SIX_COLUMNS = re.compile(r"python|torchrun(-[0-9]+gpu)?")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_COMMENT = re.compile(r"(?:(?<=[ \t])|^)#")
_LAST_NUMBER = re.compile(r"(?<![\w.])[0-9]{1,9}$")


@dataclass(frozen=True)
class CsvLine:
    """The fields of a line; empty ones are None or (). note: what should be logged as read."""

    priority: int | None
    script: str
    conda: str | None
    arguments: tuple[str, ...]
    allowed: tuple[int, ...] | None
    names_gpus: bool
    note: str | None


@dataclass(frozen=True)
class _Fields:
    values: tuple[str, ...]
    quoted: tuple[bool, ...]
    rest: str | None
    rest_quoted: bool


def first_field(text: str) -> str:
    """The text before the first comma, trimmed, without quotes around it."""
    quoted = _QUOTED_FIRST.match(text)
    return quoted[1].replace('""', '"').strip() if quoted else text.partition(",")[0].strip()


def meant_as_csv(text: str) -> bool:
    """Whether a line (trimmed, attributes and comment apart) is meant as CSV, well formed or not.

    Digits and blanks of every script count here: "١٢,a.py" is a mistake to be told, not a command to be run.
    """
    text = text.strip()
    if _INTEGER_FIRST.match(text):
        return True
    quoted = _QUOTED_FIRST.match(text)
    behind = text[quoted.end() :].removeprefix(",") if quoted else text.partition(",")[2]
    if "," not in text or not _FIRST_FIELD.fullmatch(first_field(text)):
        return False
    second = first_field(behind)
    return text.count(",") >= 2 or (second.endswith(".py") and not re.search(r"\s", second))


def parse_csv(text: str, known_gpus: frozenset[int] | None) -> CsvLine:
    """The fields of a line that is meant as CSV; a comment at its end is skipped.

    Raises ValueError with what is wrong and the remedy.
    """
    fields = _split(text)
    values = [*fields.values, "", "", "", ""][:4]
    priority = parse_priority(values[0]) if values[0] else None
    if not values[1]:
        raise ValueError("there is no script: the second field is empty; fields are separated by commas")
    arguments_quoted = len(fields.quoted) > _ARGUMENTS and fields.quoted[_ARGUMENTS]
    if not arguments_quoted and _SIX_COLUMNS.fullmatch(values[_ARGUMENTS]):
        raise ValueError(
            f"the fourth field is {values[_ARGUMENTS]!r}: six-column and torchrun lines are not carried out"
            " by this version; leave that field out, or quote it if it is an argument"
        )
    rest = fields.rest or ""
    if not arguments_quoted and not fields.rest_quoted and "," in rest:
        _check_commas(values, rest)
    try:
        arguments = split_words(values[_ARGUMENTS])
    except ValueError as error:
        raise ValueError(
            f"arguments {values[_ARGUMENTS]!r}: {error}; arguments that hold commas need double quotes around"
            " the whole field, inner double quotes doubled"
        ) from None
    try:
        allowed = parse_gpu_list(rest, known_gpus)
    except ValueError as error:
        raise ValueError(f'{error}; arguments that hold commas need quotes: "--layers 1,2,3"') from None
    note = None
    if rest and not arguments_quoted and values[_ARGUMENTS][-1:].isdigit():
        note = f"read as arguments: {values[_ARGUMENTS]} | GPUs: {rest}"
    conda = parse_conda(values[2]) if values[2] else None
    return CsvLine(priority, values[1], conda, arguments, allowed, bool(rest), note)


def _check_commas(values: list[str], rest: str) -> None:
    """Refuse a list that may as well be the rest of the arguments (`--layers 1,2,3`)."""
    try:
        gpus = gpu_items(rest)
    except ValueError:
        return  # the list itself is refused, with its own text
    number = _LAST_NUMBER.search(values[_ARGUMENTS])
    ascending = all(a < b for a, b in itertools.pairwise(gpus))
    if ascending and not (number and gpus[0] == int(number[0]) + 1):
        return
    begin = ",".join(values[:3])
    arguments = values[_ARGUMENTS].replace('"', '""')
    raise ValueError(
        f"it is not clear where the arguments end and the GPU list begins; write "
        f'{begin},"{arguments},{rest}", or {begin},"{arguments}","{rest}"'
    )


def _split(text: str) -> _Fields:
    values: list[str] = []
    quoted: list[bool] = []
    at: int | None = 0
    while at is not None and len(values) < 4:
        value, is_quoted, at = _field(text, at, len(values) == _ARGUMENTS)
        values.append(value)
        quoted.append(is_quoted)
    if at is None:
        return _Fields(tuple(values), tuple(quoted), None, False)
    rest = text[at:].lstrip(BLANK)
    if rest.startswith('"'):
        value, _, more = _field(rest, 0, False)
        if more is not None:
            raise ValueError("text follows the quoted GPU list; quote the whole list")
        return _Fields(tuple(values), tuple(quoted), value, True)
    comment = _COMMENT.search(text, at)
    return _Fields(
        tuple(values), tuple(quoted), text[at : comment.start() if comment else None].strip(BLANK), False
    )


def _field(text: str, at: int, arguments: bool) -> tuple[str, bool, int | None]:
    """The field that begins at `at`, whether quotes are around it, and where the next begins, if any."""
    while at < len(text) and text[at] in BLANK:
        at += 1
    if text[at : at + 1] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise ValueError(f"the quote at column {at + 1} is not closed; every line stands alone")
        value, end = quoted[1].replace('""', '"'), quoted.end()
        behind = text[end:].lstrip(BLANK)
        if not behind or (behind[0] == "#" and text[end] in BLANK):
            return value, True, None
        if behind[0] != ",":
            raise ValueError(
                f"text follows the closing quote at column {end}; quote the whole field, inner quotes doubled"
            )
        return value, True, len(text) - len(behind) + 1
    comma = text.find(",", at)
    piece = text[at:] if comma < 0 else text[at:comma]
    # The blank before a `#` may be the one that was trimmed above.
    before = text[at - 1 : at] if at else ""
    comment = _comment(before + piece, arguments)
    if comment is not None:
        return piece[: comment - len(before)].strip(BLANK), False, None
    return piece.strip(BLANK), False, None if comma < 0 else comma + 1


def _comment(text: str, arguments: bool) -> int | None:
    if "#" not in text:
        return None
    if arguments:
        return comment_at(text)
    found = _COMMENT.search(text)
    return found.start() if found else None


def quote_field(field: str) -> str:
    """The field as it is written in a line, in quotes where it needs them."""
    special = re.search(r"[,\"'#\\]", field) or field != field.strip() or _SIX_COLUMNS.fullmatch(field)
    return field if not special else '"' + field.replace('"', '""') + '"'
