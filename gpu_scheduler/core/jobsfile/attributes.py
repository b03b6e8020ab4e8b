"""Parses the attribute block that may begin a line: `[gpus=2 share=0.5 env:SEED=1 hold]`.

Determines where the block ends and what its items mean. The rest of the line is not parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.model import job_spec
from gpu_scheduler.core.model.gpu import format_gpu_list, parse_gpu_list
from gpu_scheduler.core.model.job_spec import STOP_SIGNALS, parse_priority
from gpu_scheduler.core.model.units import (
    WHOLE,
    format_mib,
    format_seconds,
    format_share,
    parse_mib,
    parse_seconds,
    parse_share,
)
from gpu_scheduler.core.text.quoting import BLANK, split_words

#: The attribute that each synonym stands for.
SYNONYMS = {"retries": "oom-retries"}
#: The form of each attribute's value (None for an attribute without a value) and its help text.
ATTRIBUTE_HELP: dict[str, tuple[str | None, str]] = {
    "vram": ("MEM", "Memory that the job needs on each GPU, such as 18G or 18000 (MiB)"),
    "gpus": ("N", "Number of GPUs that the job needs; 0: it needs none, and waits for none"),
    "share": ("X", "Fraction of a GPU that the job needs, such as 0.5, or a number of whole GPUs"),
    "allowed": ("LIST", "GPUs that the job may use"),
    "exclusive": (None, "Do not share the job's GPUs with other jobs"),
    "oom-retries": (
        "N",
        "Number of times to retry the job after it runs out of CUDA memory, each time with more memory",
    ),
    "fail-retries": ("N", "Number of times to retry the job after any failure"),
    "timeout": ("TIME", "End the job after this time, such as 90s, 15m, 2h or 1d"),
    "after": (
        "JOBS",
        "Start the job after these jobs (ids, names, groups or patterns, separated by commas) have completed",
    ),
    "after-any": ("JOBS", "Start the job after these jobs have ended, whatever their outcome"),
    "name": (
        "NAME",
        "Name for the job, which commands accept; the part before the first / is its group",
    ),
    "max-running": ("N", "Number of jobs of the group of this job that may run at the same time"),
    "priority": (
        "N",
        "Priority of the job: CRITICAL, HIGH, NORMAL, LOW (0, 100, 200, 300) or a number; lower numbers start"
        " first",
    ),
    "conda": ("ENV", "Conda environment"),
    "venv": ("DIR", "Virtual environment to use instead of a conda environment"),
    "cwd": ("DIR", "Working folder of the job"),
    "env": ("KEY=VALUE", "Environment variable of the job; the option may be repeated"),
    "preempt": (None, "Let the job preempt running jobs of lower priority if it finds no free GPU"),
    "preempt-signal": (
        "SIGNAL",
        "Signal that asks the job to save its work and end when it is preempted, such as USR1; default TERM",
    ),
    "resume-flag": (
        "FLAG",
        "Option with which the program resumes from a checkpoint, without its dashes, such as ckpt_path;"
        " default resume_from_checkpoint",
    ),
    "checkpoints": ("GLOB", "Pattern for the checkpoints of the job, such as 'out/model_epoch_*.pt'"),
    "pipefail": (
        "HOW",
        "Whether a pipe in the command fails if any of its programs fails: on (default) or off",
    ),
    "background": ("HOW", "How to handle processes that the command leaves: wait for their ends, or ignore"),
    "cuda": ("HOW", "How to handle --cuda in the command: add, rewrite or off"),
    "cuda-ids": ("IDS", "Kind of GPU ids to pass with --cuda: physical or visible"),
    "hold": (None, "Hold the job until it is released"),
    "cancel": (None, "Cancel the job"),
}


def _spellings(key: str) -> tuple[str, ...]:
    return (
        ("env:KEY",) if key == "env" else (key, *(word for word, meant in SYNONYMS.items() if meant == key))
    )


KNOWN_ATTRIBUTES = " ".join(name for key in ATTRIBUTE_HELP for name in _spellings(key))
FLAGS = ("hold", "cancel", "exclusive", "preempt")
#: Fields of JobSpec whose attributes have different names.
_FIELD_TO_KEY = {"timeout_s": "timeout"}
#: Attributes whose values are lists.
_LISTS = ("after", "after-any", "allowed")
#: Fields of JobSpec that say something about the GPUs of a job.
_OF_GPUS = ("vram", "share", "allowed", "exclusive", "preempt", "cuda")
MAX_RETRIES = 1000
MAX_RUNNING = 1000
ACCEPTED_FORM = (
    f"one block of known attributes, a blank, then the command or CSV line; known: {KNOWN_ATTRIBUTES}"
)
MAX_GPUS = 64
#: Names that Slurm and other programs give to options, with the attributes that the user may mean.
FOREIGN_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mem", "memory", "mem-per-gpu", "gpu-mem"), ("vram",)),
    **dict.fromkeys(("time", "t", "time-limit"), ("timeout",)),
    **dict.fromkeys(("depends", "depends-on", "dependency", "d"), ("after",)),
    **dict.fromkeys(
        ("gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres", "G", "ntasks", "n"), ("gpus", "allowed")
    ),
    **dict.fromkeys(("job-name", "J", "label", "L"), ("name",)),
    **dict.fromkeys(("only", "gpu-ids", "devices"), ("allowed",)),
    **dict.fromkeys(("chdir", "D", "workdir"), ("cwd",)),
    **dict.fromkeys(("nodes", "N", "nodelist", "w", "partition", "p", "account", "A", "qos", "q"), ()),
    **dict.fromkeys(("cpus-per-task", "c", "ntasks-per-node", "mem-per-cpu"), ()),
    "export": ("env",),
    "requeue": ("fail-retries",),
    "nice": ("priority",),
}
NOT_NEEDED = "leave it out, because every job runs on this machine"

_KEY_TO_FIELD = {key: field for field, key in _FIELD_TO_KEY.items()}
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_VARIABLE = re.compile(r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_SCHEDULER_.*")
_CONDA = re.compile(r"[A-Za-z0-9._-]+|~?/.*")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_BLOCK_PIECE = re.compile(
    r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|(?P<open>["'\\])|(?P<end>\])|[^'"\\\]]+""", re.DOTALL
)


class BadAttribute(ValueError):
    """Raised for an attribute that is unknown or has a bad value. accepted: what to write instead."""

    def __init__(self, reason: str, accepted: str) -> None:
        super().__init__(reason)
        self.accepted = accepted


@dataclass(frozen=True)
class AttributeBlock:
    """A parsed block.

    values: the attributes, by the names of the JobSpec fields, with paths as written in the file; rest: the
    text after the block.
    """

    values: dict[str, Any]
    rest: str
    is_empty: bool


def parse_block(text: str, known_gpus: frozenset[int] | None) -> AttributeBlock:
    """Parses the block at the start of `text`. Raises ValueError with the mistake and its remedy."""
    end = find_block_end(text)
    items = None if end is None else _split_items(text[1:end])
    if end is None or items is None:
        raise ValueError(f"the `[` at the start is not closed by a `]`{_shell_test_hint(text)}")
    values: dict[str, Any] = {}
    env: dict[str, str] = {}
    for item in items:
        key, given, value = item.partition("=")
        if key.startswith("env:"):
            _parse_env(key[4:], bool(given), value, env)
            continue
        meant = SYNONYMS.get(key, key)
        field = field_of(meant)
        if field in values:
            also = "" if meant == key else f" (it means {meant})"
            raise ValueError(f"attribute {key} is given twice{also}; give it once")
        try:
            values[field] = parse_item(text, key, value if given else None, known_gpus)
        except ValueError as error:
            apart = _split_at_commas(item)
            if apart:
                raise ValueError(f"attributes must be separated by blanks; write [{apart}]") from None
            keys = (meant,) if meant in ATTRIBUTE_HELP else meant_attributes(key)
            described = (f"[{_form(key)}] {ATTRIBUTE_HELP[key][1]}" for key in keys)
            raise BadAttribute(str(error), "; or ".join(described) or ACCEPTED_FORM) from None
    if env:
        values["env"] = tuple(sorted(env.items()))
    rest = text[end + 1 :]
    if rest.strip(BLANK) and rest[0] not in BLANK:
        raise ValueError(f"a blank must follow the `]` of the attributes{_shell_test_hint(text)}")
    return AttributeBlock(values, rest.strip(BLANK), not items)


def meant_attributes(name: str) -> tuple[str, ...]:
    """Returns the attributes that a user may mean by an unknown name."""
    from difflib import get_close_matches

    return FOREIGN_NAMES.get(name) or tuple(get_close_matches(name, ATTRIBUTE_HELP, 1, 0.75))


def _form(key: str) -> str:
    """Returns how an attribute is written in a block, such as "vram=MEM"."""
    form = ATTRIBUTE_HELP[key][0]
    return key if form is None else f"{key}:{form}" if key == "env" else f"{key}={form}"


def unknown_attribute(key: str, value: str | None) -> str | None:
    """Returns the message about an unknown attribute with what the user may mean; None if that is unclear."""
    variable = re.match(r"env[.=](\w+)[:=]", f"{key}={value or ''}")
    forms = [f"env:{variable[1]}=…"] if variable else list(map(_form, meant_attributes(key)))
    remedy = f"write {' or '.join(forms)}" if forms else NOT_NEEDED
    return f"attribute {key!r} is unknown; {remedy}" if forms or key in FOREIGN_NAMES else None


def find_block_end(text: str) -> int | None:
    """Returns the index of the `]` that closes the block at the start of `text`; None if it is not closed."""
    for piece in _BLOCK_PIECE.finditer(text, 1):
        if piece.lastgroup == "end":
            return piece.start()
        if piece.lastgroup == "open":
            return None
    return None


def _split_items(text: str) -> tuple[str, ...] | None:
    try:
        return split_words(text)
    except ValueError:
        return None


def _split_at_commas(item: str) -> str | None:
    """Returns an item that joins attributes with commas, rewritten with blanks; None for any other item."""
    first, *parts = re.split("[,;]", item)
    if first.partition("=")[0] in _LISTS and not any(parts):  # the rest of the list follows after a blank
        return None
    apart = [first]
    for part in parts:
        key = part.partition("=")[0]
        if not part or key in (*_PARSERS, *FLAGS, "allowed") or key.startswith("env:"):
            apart.append(part)
        else:
            apart[-1] += f",{part}"
    return " ".join(part for part in apart if part) if len(apart) > 1 else None


def _shell_test_hint(text: str) -> str:
    """Returns the remedy for a shell test, which looks like a block; "" for any other text."""
    if text.startswith(("[[", "[ ", "[\t")):
        return f"; a line that begins with a shell test needs an empty block before it: `[] {text}`"
    return ""


def _parse_env(key: str, given: bool, value: str, env: dict[str, str]) -> None:
    if not given or not _ENV_KEY.fullmatch(key):
        raise ValueError(
            f"env:{key} is not a variable; write env:KEY=VALUE with a KEY of letters, digits and _"
        )
    if _RESERVED_VARIABLE.fullmatch(key):
        raise ValueError(f"env:{key} is set by the scheduler; to choose GPUs, write [allowed=0]")
    if key in env:
        raise ValueError(f"attribute env:{key} is given twice; give it once")
    env[key] = value


def parse_item(text: str, key: str, value: str | None, known_gpus: frozenset[int] | None) -> Any:
    """Parses an attribute's value. key: the attribute as written, possibly a synonym. Raises ValueError."""
    if key in FLAGS:
        if value is not None:
            raise ValueError(f"attribute {key} takes no value; write [{key}]")
        return True
    reader = _PARSERS.get(key)
    if reader is None and key != "allowed":
        hint = _shell_test_hint(text)
        known = f"attribute {key!r} is unknown; known attributes: {KNOWN_ATTRIBUTES}{hint}"
        raise ValueError(known if hint else unknown_attribute(key, value) or known)
    if not value:
        raise ValueError(f"attribute {key} has no value; write {key}=…")
    return parse_gpu_list(value, known_gpus) if reader is None else reader(value)


def parse_conda(text: str) -> str:
    """Validates the name or absolute path of a conda environment. Raises ValueError."""
    if not _CONDA.fullmatch(text):
        raise ValueError(f"conda environment {text!r} is neither a name nor an absolute path")
    return text


def _quantity_parser(key: str, parse: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None

    return read


def _count_parser(key: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,4}", text) or not least <= int(text) <= most:
            raise ValueError(f"{key}={text} is not a whole number from {least} to {most}")
        return int(text)

    return read


def _parse_name(text: str) -> str:
    if not job_spec.is_name(text):
        raise ValueError(f"name {text!r} must consist of {job_spec.ACCEPTED}")
    return text


def parse_job_references(key: str, text: str) -> tuple[str, ...]:
    """Parses a list of job ids, names, groups and patterns, separated by commas. Raises ValueError."""
    found = tuple(dict.fromkeys(text.split(",")))
    if "" in found:
        raise ValueError(f"{key}={text} is not a list of jobs; write it without blanks, as in {key}=prep,7")
    for one in found:
        if not job_spec.is_reference(one) or one == "0":
            raise ValueError(f"{key}={text}: {one!r} is neither the id nor the name of a job")
    return tuple(str(int(one)) if one.isdigit() else one for one in found)


def _references_parser(key: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        return parse_job_references(key, text)

    return read


def _parse_signal(text: str) -> str:
    name = text.upper().removeprefix("SIG")
    if name not in STOP_SIGNALS:
        raise ValueError(f"preempt-signal={text} is not one of {', '.join(STOP_SIGNALS)}")
    return name


def _parse_resume_flag(text: str) -> str:
    # On a command line, `--resume-flag --ckpt` would be two options, so the dashes may be left out.
    option = text if text.startswith("-") else f"--{text}"
    if not _OPTION.fullmatch(option):
        raise ValueError(f"resume-flag={text} is not an option such as --ckpt_path")
    return option


def _choice_parser(key: str, *choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{key}={text} is not one of {', '.join(choices)}")
        return text

    return read


_PARSERS: dict[str, Callable[[str], Any]] = {
    "vram": _quantity_parser("vram", parse_mib),
    "gpus": _count_parser("gpus", 0, MAX_GPUS),
    **{key: _count_parser(key, 0, MAX_RETRIES) for key in ("oom-retries", "retries", "fail-retries")},
    "timeout": _quantity_parser("timeout", parse_seconds),
    "share": parse_share,
    "after": _references_parser("after"),
    "after-any": _references_parser("after-any"),
    "name": _parse_name,
    "max-running": _count_parser("max-running", 1, MAX_RUNNING),
    "priority": parse_priority,
    "conda": parse_conda,
    "venv": str,
    "cwd": str,
    "preempt-signal": _parse_signal,
    "resume-flag": _parse_resume_flag,
    "checkpoints": str,
    "pipefail": _choice_parser("pipefail", "on", "off"),
    "background": _choice_parser("background", "wait", "ignore"),
    "cuda": _choice_parser("cuda", "add", "rewrite", "off"),
    "cuda-ids": _choice_parser("cuda-ids", "physical", "visible"),
}


def field_of(key: str) -> str:
    """Returns the field of JobSpec that an attribute sets."""
    return _KEY_TO_FIELD.get(key, key.replace("-", "_"))


def key_of(field: str) -> str:
    """Returns the attribute that sets a field of JobSpec."""
    return _FIELD_TO_KEY.get(field, field.replace("_", "-"))


def is_unset(value: Any) -> bool:
    """Returns whether a field of JobSpec with this value is not set. The value may come from JSON."""
    return value is None or value is False or value in ((), [])


def format_attribute(name: str, value: Any) -> str:
    """Formats a field of JobSpec as in a block, such as "share=0.5" or "hold"; "no share" if not set."""
    key = key_of(name)
    if is_unset(value):
        return f"no {key}"
    if value is True or key == "command":  # a command is long, and may contain a secret
        return key
    if name == "share":
        return f"{key}={format_share(value)}"
    if name == "vram":
        return f"{key}={format_mib(value)}"
    if name == "timeout_s":
        return f"{key}={format_seconds(value)}"
    if name in ("after", "after_any"):
        return f"{key}={','.join(value)}"
    return f"{key}={format_gpu_list(value) if name == 'allowed' else value}"


def check_conflicts(values: dict[str, Any]) -> None:
    """Raises ValueError for attributes that contradict each other."""
    if values.get("conda") is not None and values.get("venv") is not None:
        raise ValueError("both a conda environment and a venv are given; give only one")
    if values.get("max_running") is not None and values.get("name") is None:
        raise ValueError("max-running counts the jobs of a group; give a name too, such as name=train/1")
    given = [name for name in _OF_GPUS if not is_unset(values.get(name)) and values[name] != "off"]
    if values.get("gpus") == 0 and given:
        others = " and ".join(map(key_of, given))
        raise ValueError(f"gpus=0 asks for no GPU and contradicts {others}; leave out one or the other")
    if (values.get("share") or 0) > WHOLE and values.get("gpus") is not None:
        raise ValueError("a share above 1 is a number of whole GPUs; leave out gpus, or give a share up to 1")
    if (values.get("share") or 0) > WHOLE and values.get("vram") is not None:
        raise ValueError("a share above 1 is a number of whole GPUs; with vram, give gpus=N instead")
