"""Formats what is shown or logged: hides secrets, escapes control characters, and writes times and sizes.

A value is a secret because of the name that it is assigned to, or because of its own form. Secrets are hidden
when a text is formatted: by `safe_text` in text, before it is truncated or wrapped, and by `masked_json` in
JSON. The store, `command.sh` and the job itself keep the real values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

# Secrets. The expressions are strings, because few texts need one of them, and compiling all takes 15 ms.

#: The text that replaces a secret value in everything that is shown or logged.
HIDDEN = "(hidden)"

_SECRET_WORDS = (
    "API_?KEY|KEYS?|TOKENS?|SECRETS?|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|CREDENTIALS?|AUTH|COOKIE|DSN"
)
#: Names of variables that contain one of the words above although their values are not secret.
_NOT_SECRET = (
    r"(?:OLD)?PWD|PASS_(?:AT_)?K"
    r"|(?:\w{0,128}_)?(?:MAX|MIN|NUM|N|NEW|TRAIN|EVAL|TOTAL|PAD|BOS|EOS|UNK|SEP|CLS|MASK)_TOKENS?(?:_PER_\w*)?"
    r"|(?:TOKENS?|KEYS?)_(?:DIM|LEN|LENGTH|COUNT|LIMIT|BUDGET|SIZE|PER_\w*)|TOKENS?_IDS?"
    r"|(?:\w{0,128}_)?(?:NUM|N|SORT|GROUP|PRIMARY|CACHE)_KEYS?"
)
_VARIABLE = rf"(?!(?:{_NOT_SECRET})(?:=|\Z))(?:\w{{0,128}}_)?(?:{_SECRET_WORDS})(?:_\w*)?"
#: The whole name of an option, or of a setting such as `wandb.api_key=…`, whose value is secret. The
#: lookahead captures the whole word, so that the expression is never tried on a part of it.
_SECRET_ENDS = (
    *("api[-_]key", "apikey", "secret", "password", "passwd", "passphrase", "--token"),
    *(
        f"{owner}[-_]key"
        for owner in ("access", "account", "anthropic", "auth", "openai", "secret", "storage", "wandb")
    ),
    *("accesstoken", "authtoken", "hftoken"),
    *(
        f"{owner}[-_]token"
        for owner in ("access", "api", "auth", "bearer", "bot", "discord", "gh", "github", "gitlab",
                      "hf", "hub", "huggingface", "neptune", "npm", "refresh", "session", "slack",
                      "telegram", "wandb")
    ),
)  # fmt: skip
_OPTION = (
    r"(?=(?P<word{0}>-{{0,2}}[\w.-]+))(?P=word{0})(?i:"
    + "|".join(f"(?<={end})" for end in _SECRET_ENDS) + ")"
)  # fmt: skip
#: In a command, only names in capitals count as variables: `max_tokens=5` is a setting of some program.
_ASSIGNED = rf"(?:(?=[A-Z0-9_]+=){_VARIABLE}|env:(?i:{_VARIABLE}))="

#: A piece of a word in a shell command, in POSIX quoting or in a quoted CSV field (with doubled quotes). A
#: quote at the end of a word does not belong to the word, but closes the quoted text around it.
_WORD_PIECE = (
    r"""(?:""[^"\s][^"]*""|\\"[^"\\]*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'\\]+|["'](?![\s,;:.)\]}]|\Z))"""
)  # fmt: skip
#: An unclosed quote extends to the end of the text.
_UNCLOSED_QUOTE = r"""(?:"(?!(?:[^"\\]|\\.)*")|'(?![^']*'))(?s:.*)"""
#: The match begins with the character before a name, so that a name is not found inside a longer word.
_NAMED_SECRET = (
    # An option quoted as a whole: '--api-key=…'. The word after `bash -c` is a command, not an option.
    rf"""(?P<before>[^\w.-])(?:(?<=["'])(?<!c .)(?P<quoted>{_OPTION.format(1)}=|{_ASSIGNED})"""
    rf"""(?s:(?:(?!(?P=before)).)*)(?P=before){_WORD_PIECE}*"""
    rf"""|(?P<name>{_ASSIGNED}"""
    rf"""|(?P<dash>(?=-))?{_OPTION.format(2)}(?:=|(?:""|\\?["'])\s*[:,]\s*|(?(dash)["']?\s+(?!--?[A-Za-z])|(?!))))"""
    rf"(?P<value>{_UNCLOSED_QUOTE}|{_WORD_PIECE}+))"
)
#: Values that are not secrets: the values of flags (such as true, none or 0), shell variables, and the
#: placeholders in our own texts.
_NOT_A_VALUE = re.compile(
    r"""(?:(?i:true|false|none|null|yes|no)|[01]|["']?\$\{?\w+\}?["']?|VALUES?|…|\(hidden\))[,;:.?`)\]]*"""
)

#: The value of a header with a secret, as in -H 'Authorization: Bearer X'.
_HEADER = (
    r"(?i)\b(?P<name>(?:(?:proxy-)?authorization|(?:x-)?api-key|x-auth-token|private-token)[\"']? ?[:=]"
    r" ?[\"']?(?:(?:bearer|basic|token|digest) )?)(?!(?:bearer|basic|token|digest) |[$(]|TOKEN(?![\w-]))"
    r"[^\s\"'\\]+"
)
_URL_PASSWORD = r"(?<=://)(?P<name>[^/\s:@\[]*:)(?:[^/\s]+|(?!\d{1,5}[/?#])[^\s\"']{1,200})(?=@)"
#: Applied to lower-case text. The search is fast because the expression begins with literal text and does not
#: ignore case.
_WANDB = r"wandb[\w.-]{0,64}(?:\s+login(?:\s+--[\w-]+)*)?[\s=:]+[\"']?[0-9a-f]{40}(?!\w)"
_WANDB_KEY = rf"(?i)(?P<name>{_WANDB.replace('[0-9a-f]', ')[0-9a-f]')}"
_TOKEN = (
    r"(?<![A-Za-z0-9_-])(?:hf_(?=[a-z0-9]*[A-Z])(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}"
    r"|sk-(?=[a-z0-9_-]*[A-Z])(?=[A-Za-z_-]*\d)(?:[A-Za-z0-9]+-){0,3}[A-Za-z0-9_]{16,}[\w-]*"
    r"|gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|(?:gsk_|r8_|npm_|dop_v1_)[A-Za-z0-9]{30,}|(?:nvapi-|pypi-AgE)[\w-]{30,}|A[KS]IA[A-Z0-9]{12,}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?s:.*))"
)


def masked(text: str) -> str:
    """Returns the text with every secret replaced by `(hidden)`."""
    lowered = text.lower()
    if _may_name_secret(text, lowered):
        text = re.sub(_NAMED_SECRET, _hide_value, f" {text}")[1:]
    if "authorization" in lowered or "-key" in lowered or "-token" in lowered:
        text = re.sub(_HEADER, rf"\g<name>{HIDDEN}", text)
    if "://" in text and "@" in text:
        text = re.sub(_URL_PASSWORD, rf"\g<name>{HIDDEN}", text)
    if "wandb" in lowered and re.search(_WANDB, lowered):
        text = re.sub(_WANDB_KEY, rf"\g<name>{HIDDEN}", text)
    if _may_hold_token(text):
        text = re.sub(_TOKEN, HIDDEN, text)
    return text


def masked_words(words: Sequence[str]) -> list[str]:
    """Returns a command line's words, as a program receives them, with every secret hidden."""
    masked_list: list[str] = []
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        given = re.match(_ASSIGNMENT, word) if "=" in word else None
        is_value = before.startswith("-") and not word.startswith("--") and not _NOT_A_VALUE.fullmatch(word)
        if is_value and re.fullmatch(_SECRET_OPTION, before):
            masked_list.append(HIDDEN)
        elif given and not _NOT_A_VALUE.fullmatch(word, given.end()):
            masked_list.append(f"{given[0]}{HIDDEN}")
        else:
            masked_list.append(masked(word))
    return masked_list


#: The keys of names and paths in JSON.
_IDENTIFIERS = frozenset({"name", "source", "file", "folder", "log", "state_file", "data_dir", "cwd"})


def masked_json(value: Any, indent: int | None = None) -> str:
    """Returns a value as ASCII JSON with all secrets hidden; see `masked_values`."""
    return json.dumps(masked_values(value), indent=indent)


def picked(value: object, *names: str) -> dict[str, Any]:
    """Returns these attributes of a value, as members of a JSON object with the same names."""
    return {name: getattr(value, name) for name in names}


def masked_values(value: Any, key: str = "") -> Any:
    """Returns a JSON value with all secrets hidden.

    key: the name of the value: "arguments" are the words of a command, "env" are variables. Names and paths
    stay as they are, because programs use them.
    """
    if isinstance(value, str):
        return value if key in _IDENTIFIERS else masked(value)
    if isinstance(value, Mapping):
        if key == "env":
            return hide_secrets((name, str(one)) for name, one in value.items())
        return {name: masked_values(one, name) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return masked_words(list(map(str, value))) if key == "arguments" else list(map(masked_values, value))
    return value


def hide_secrets(env: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the variables, with each value hidden that is secret because of its name or its own form."""
    return {name: HIDDEN if _is_secret(name, value) else value for name, value in env}


_ASSIGNMENT = rf"(?:{_OPTION.format('')}=|{_ASSIGNED})"
_SECRET_OPTION = rf"(?=-){_OPTION.format('')}"


# The next two functions run on every text that is shown. Few texts contain any of their strings, and
# searching for each string separately takes a tenth of the time that a regular expression or a loop would
# need.
def _may_name_secret(text: str, lowered: str) -> bool:
    """Returns whether the text may contain a name that `_NAMED_SECRET` matches."""
    return (
        "key" in lowered or "token" in lowered or "secret" in lowered or "pass" in lowered
        or "env:" in lowered or ("=" in text and (
            "PWD" in text or "CREDENTIAL" in text or "AUTH" in text or "COOKIE" in text or "DSN" in text
        ))
    )  # fmt: skip


def _may_hold_token(text: str) -> bool:
    """Returns whether the text may contain a value that `_TOKEN` matches."""
    return (
        "hf_" in text or "sk-" in text or "gho_" in text or "ghp_" in text or "ghr_" in text or "ghs_" in text
        or "ghu_" in text or "github_pat_" in text or "glpat-" in text or "xox" in text or "AKIA" in text
        or "nvapi-" in text or "gsk_" in text or "r8_" in text or "npm_" in text or "pypi-" in text
        or "dop_v1_" in text or "ASIA" in text or "AIza" in text or "eyJ" in text or "PRIVATE KEY" in text
    )  # fmt: skip


def _is_secret(name: str, value: str) -> bool:
    return re.fullmatch(_VARIABLE, name, re.IGNORECASE) is not None or masked(value) != value


def _hide_value(found: re.Match[str]) -> str:
    before, name, value = found.group("before", "name", "value")
    if name is None:
        return f"{before}{found['quoted']}{HIDDEN}{before}"
    if _NOT_A_VALUE.fullmatch(value):
        return found[0]
    behind = value[len(value.rstrip("`:,;")) :]
    if found.string.count(",", 0, found.start("name")) >= 3 and (gpus := _trailing_gpu_list(value)):
        behind = gpus
    elif value.endswith("]") and name.startswith("env:"):
        behind = "]"
    return f"{before}{name}{HIDDEN}{behind}"


def _trailing_gpu_list(value: str) -> str:
    """Returns the GPU list of a CSV line, which may directly follow a secret value and is not hidden."""
    last = value[len(value.rstrip("-0123456789,")) :]
    return last[last.index(",") :] if "," in last else ""


def hidden_password(url: str) -> str:
    """Returns a URL of Redis, with its user and its passwords hidden, as it may be shown and stored."""
    scheme, slashes, rest = url.partition("//")
    _, at, place = rest.rpartition("@")
    return re.sub(r"(?<=password=)[^&]*", HIDDEN, f"{scheme}{slashes}{HIDDEN if at else ''}{at}{place}")


# Texts of users, and sizes, times and counts.

#: Control characters, direction marks, line separators and lone surrogates.
_UNSAFE_CHARACTERS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
#: Length of the longest text, in characters, that is shown in full.
MAX_CHARACTERS = 1000
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def safe_text(text: str, *, keep_line_breaks: bool = False) -> str:
    """Returns the text with secrets hidden and all characters that could control a terminal escaped.

    keep_line_breaks: leave line breaks as they are.
    """
    if keep_line_breaks:
        return "\n".join(safe_text(line) for line in text.split("\n"))
    return _UNSAFE_CHARACTERS.sub(lambda found: _escape(found[0]), masked(text))


def limit_length(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Truncates a text that is longer than `max_characters`, and appends its length.

    Secrets in such a text are hidden first, so that none of them is cut in two.
    """
    if len(text) <= max_characters:
        return text
    return f"{masked(text)[:max_characters]}… ({len(text):,} characters)"


def without_repetition(text: str, others: Iterable[str], max_characters: int = 80) -> str:
    """Returns the text with each passage that repeats one of `others` cut to about `max_characters`.

    Secrets are hidden first, so that none of them is cut in two.
    """
    text = masked(text)
    for other in others:
        # `text` has single blanks where the other text, such as a line of a log, may have several.
        same = " ".join(masked(other).split())
        at = text.find(same[:max_characters])
        if len(same) <= max_characters or at < 0:
            continue
        end = at + max_characters
        while end < len(text) and text[end] == same[end - at : end - at + 1]:
            end += 1
        if end > at + max_characters:
            begin = text[at : at + max_characters + 1].rpartition(" ")[0] or text[at : at + max_characters]
            text = f"{text[:at]}{begin} …{text[end:].removeprefix('…')}"
    return text


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def format_duration(seconds: float) -> str:
    """Formats a duration with one or two units: "0.4 s", "35 s", "2 min 5 s", "1 h 3 min", "2 d 4 h"."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 9.95 else _in_units(round(seconds))


def format_eta(seconds: float) -> str:
    """Formats the time that is left with one or two units and no blanks: "45s", "3m20s", "1h24m", "2d4h"."""
    return _in_units(max(1, round(seconds))).replace("min", "m").replace(" ", "")


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def _in_units(seconds: int) -> str:
    """Formats whole seconds with the largest unit that fits, and with the next one unless that is 0."""
    for (unit, size), (below, smaller) in pairwise(_UNITS):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit} {rest} {below}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def format_elapsed(seconds: float) -> str:
    """Formats a duration like a clock: "0:05", "12:30", "3:04:05", "2-03:04:05"."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def format_age(at: float | None, now: float) -> str:
    """Formats how long ago a time was, in one unit: "now", "5 s ago", "2 min ago"; "" for None."""
    if at is None:
        return ""
    seconds = now - at
    unit, size = next((one for one in _UNITS[:-1] if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // size if size > 1 else seconds:.0f} {unit} ago" if seconds >= 1 else "now"


def format_memory(mib: int | None) -> str:
    """Formats a memory size: "512 MiB", "23.5 GiB", "?" for None."""
    if mib is None:
        return "?"
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def memory_text(peaks: Mapping[int, int], declared: int | None) -> str:
    """Formats the peak use of each GPU's memory next to the declared memory; "" if neither is known.

    Examples: "17910 of 18432 MiB", "GPU 0 700, GPU 1 650 MiB", "? of 18432 MiB" before the first measurement.
    """
    if not peaks and declared is None:
        return ""
    parts = [f"GPU {gpu} {mib}" for gpu, mib in sorted(peaks.items())]
    peak = ", ".join(parts) if len(parts) > 1 else str(max(peaks.values(), default="?"))
    return f"{peak} MiB" if declared is None else f"{peak} of {declared} MiB"


def count_noun(count: int, noun: str) -> str:
    """Formats a count with its noun: "1 job", "20,000 jobs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def times_text(count: int) -> str:
    """Formats how often something happened: "once", "9 times"."""
    return "once" if count == 1 else f"{count} times"


def format_jobs(job_ids: Iterable[int], noun: str = "job") -> str:
    """Formats the ids of jobs, or the indices of GPUs: "job 3", "jobs 3, 4"."""
    listed = [str(job_id) for job_id in job_ids]
    return f"{noun}{'' if len(listed) == 1 else 's'} {', '.join(listed)}"


def format_gpus(indices: Iterable[int]) -> str:
    """Formats the indices of GPUs: "GPU 3", "GPUs 3, 4"."""
    return format_jobs(indices, "GPU")


def and_more(listed: str, more: int) -> str:
    """Adds the number of further items to a list of the first ones, if there are any: "3, 4 and 2 more"."""
    return f"{listed} and {more:,} more" if more > 0 else listed


def pid_text(pid: int) -> str:
    """Formats a scheduler's pid; 0 means that the scheduler runs in another pid namespace."""
    return f"pid {pid}" if pid else "in another container"
