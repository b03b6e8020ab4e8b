"""Defines the attributes of jobs in one table, and parses and formats them.

They are written in the block that may begin a line, `[gpus=2 share=0.5 env:SEED=1 hold]`, as options of `add`
and `submit`, and as changes for `set`. The rest of a line is not parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.model import job_spec
from gpu_scheduler.core.model.gpu import format_gpu_list, parse_gpu_list
from gpu_scheduler.core.model.job_spec import STOP_SIGNALS, parse_priority
from gpu_scheduler.core.model.values import (
    WHOLE,
    format_mib,
    format_seconds,
    format_share,
    parse_mib,
    parse_seconds,
    parse_share,
)
from gpu_scheduler.core.text.parsing import BLANK, split_words

MAX_RETRIES = 1000
MAX_RUNNING = 1000
MAX_GPUS = 64
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_VARIABLE = re.compile(r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_SCHEDULER_.*")
_CONDA = re.compile(r"[A-Za-z0-9._-]+|~?/.*")
_GPU_TYPE = re.compile(r"[A-Za-z0-9_.-]+")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_BLOCK_PIECE = re.compile(
    r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|(?P<open>["'\\])|(?P<end>\])|[^'"\\\]]+""", re.DOTALL
)


def parse_conda(text: str) -> str:
    """Validates the name or absolute path of a conda environment. Raises ValueError."""
    if not _CONDA.fullmatch(text):
        raise ValueError(f"conda environment {text!r} is neither a name nor an absolute path")
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


def _parse_quantity(parse: Callable[[str], float], key: str, text: str) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _parse_count(least: int, most: int, key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not least <= int(text) <= most:
        raise ValueError(f"{key}={text} is not a whole number from {least} to {most}")
    return int(text)


def _parse_choice(choices: Sequence[str], key: str, text: str) -> str:
    if text not in choices:
        raise ValueError(f"{key}={text} is not one of {', '.join(choices)}")
    return text


def _parse_gpu_type(key: str, text: str) -> str:
    if not _GPU_TYPE.fullmatch(text):
        raise ValueError(
            f"{key}={text} is not a type of GPUs such as a100; `sinfo -o %G` lists those of Slurm"
        )
    return text


def _parse_name(key: str, text: str) -> str:
    if not job_spec.is_name(text):
        raise ValueError(f"name {text!r} must consist of {job_spec.NAME_FORM}")
    return text


def _parse_signal(key: str, text: str) -> str:
    name = text.upper().removeprefix("SIG")
    if name not in STOP_SIGNALS:
        raise ValueError(f"{key}={text} is not one of {', '.join(STOP_SIGNALS)}")
    return name


def _parse_resume_flag(key: str, text: str) -> str:
    # On a command line, `--resume-flag --ckpt` would be two options, so the dashes may be left out.
    option = text if text.startswith("-") else f"--{text}"
    if not _OPTION.fullmatch(option):
        raise ValueError(f"{key}={text} is not an option such as --ckpt_path")
    return option


class Attribute(Struct, frozen=True):
    """An attribute of a job.

    key        the name in a block and, after `--`, the option.
    form       the form of the value; None for a flag, which has no value.
    help       the help text of the option, which errors quote.
    parse      takes the name as written and the text, and returns the value of the field. Raises ValueError.
    format     the inverse of `parse`.
    unit       what the name of the field of JobSpec adds to the key, such as "_s".
    synonym    another name.
    foreign    names that Slurm and other programs give to such an option, separated by blanks.
    command    what changes the attribute in place of `set`.
    of_gpus    whether it says something about the GPUs of the job.
    of_restart whether it says how the job starts again, so that `set` may change it in a finished job.
    of_process whether it makes sense for a process that the scheduler has not started (`adopt`).
    """

    key: str
    form: str | None
    help: str
    parse: Callable[[str, str], Any] = lambda key, text: text
    format: Callable[[Any], str] = str
    unit: str = ""
    synonym: str | None = None
    foreign: str = ""
    command: str | None = None
    of_gpus: bool = False
    of_restart: bool = False
    of_process: bool = False

    @property
    def field(self) -> str:
        """The field of JobSpec that the attribute sets."""
        return self.key.replace("-", "_") + self.unit

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the attribute may have in a block."""
        return (self.key,) if self.synonym is None else (self.key, self.synonym)

    @property
    def pattern(self) -> str:
        """The attribute as in a block, such as "vram=MEM"."""
        separator = ":" if self.key == "env" else "="
        return self.key if self.form is None else f"{self.key}{separator}{self.form}"


#: Foreign names that may mean the number of GPUs or the GPUs themselves.
_OF_DEVICES = "gpu gpus gpus-per-node gpus-per-task gres G ntasks n"
#: All attributes, in the order of the help. `parse_item` parses `allowed`, because it knows which GPUs exist,
#: and `parse_block` parses `env:KEY=VALUE`.
_ROWS = (
    Attribute("vram", "MEM", "Memory that the job needs on each GPU, such as 18G or 18000 (MiB)",
              partial(_parse_quantity, parse_mib), format_mib, foreign="mem memory mem-per-gpu gpu-mem",
              of_gpus=True),
    Attribute("gpus", "N", "Number of GPUs that the job needs; 0: it needs none, and waits for none",
              partial(_parse_count, 0, MAX_GPUS), foreign=_OF_DEVICES),
    Attribute("share", "X", "Fraction of a GPU that the job needs, such as 0.5, or a number of whole GPUs",
              lambda key, text: parse_share(text), format_share, of_gpus=True),
    Attribute("allowed", "LIST",
              "GPUs that the job may use, such as 2 for GPU number 2, or 0,2 or 0-3 (default: any)",
              format=format_gpu_list, foreign=f"{_OF_DEVICES} only gpu-ids devices", of_gpus=True),
    Attribute("exclusive", None, "Do not share the job's GPUs with other jobs", of_gpus=True),
    Attribute("on", "WHERE", "Where the job runs: local (this machine) or slurm (default: `start --on`)",
              partial(_parse_choice, (job_spec.LOCAL, *job_spec.ENGINES))),
    Attribute("gpu-type", "TYPE", "Type of the GPUs on Slurm, such as a100, with on=slurm",
              _parse_gpu_type, of_gpus=True, foreign="constraint C"),
    Attribute("oom-retries", "N",
              "Number of times to retry the job after it runs out of CUDA memory, each time with more"
              " memory", partial(_parse_count, 0, MAX_RETRIES), synonym="retries"),
    Attribute("fail-retries", "N", "Number of times to retry the job after any failure",
              partial(_parse_count, 0, MAX_RETRIES), foreign="requeue"),
    Attribute("timeout", "TIME", "End the job after this time, such as 90s, 15m, 2h or 1d",
              partial(_parse_quantity, parse_seconds), format_seconds, unit="_s",
              foreign="time t time-limit"),
    Attribute("after", "JOBS",
              "Start the job after these jobs (ids, names, groups or patterns, separated by commas) have"
              " completed", parse_job_references, ",".join, foreign="depends depends-on dependency d"),
    Attribute("after-any", "JOBS", "Start the job after these jobs have ended, whatever their outcome",
              parse_job_references, ",".join),
    Attribute("name", "NAME",
              "Name for the job, which commands accept; the part before the first / is its group",
              _parse_name, foreign="job-name J label L", of_process=True),
    Attribute("max-running", "N", "Number of jobs of the group of this job that may run at the same time",
              partial(_parse_count, 1, MAX_RUNNING)),
    Attribute("priority", "N",
              "Priority of the job: CRITICAL, HIGH, NORMAL, LOW (0, 100, 200, 300) or a number; lower"
              " numbers start first (default: 200)",
              lambda key, text: parse_priority(text), foreign="nice", of_process=True),
    Attribute("conda", "ENV",
              "Conda environment (default: base for the script of a CSV line, none for a command)",
              lambda key, text: parse_conda(text)),
    Attribute("venv", "DIR", "Virtual environment to use instead of a conda environment"),
    Attribute("cwd", "DIR", "Working folder of the job", foreign="chdir D workdir"),
    Attribute("env", "KEY=VALUE", "Environment variable of the job; the option may be repeated",
              foreign="export"),
    Attribute("preempt", None,
              "Let the job preempt running jobs of lower priority if it finds no free GPU", of_gpus=True),
    Attribute("preempt-signal", "SIGNAL",
              "Signal that asks the job to save its work and end when it is preempted, such as USR1;"
              " default TERM", _parse_signal, of_process=True),
    Attribute("resume-flag", "FLAG",
              "Option with which the program resumes from a checkpoint, without its dashes, such as"
              " ckpt_path; default resume_from_checkpoint",
              _parse_resume_flag, of_restart=True, of_process=True),
    Attribute("checkpoints", "GLOB", "Pattern for the checkpoints of the job, such as 'out/model_epoch_*.pt'",
              of_restart=True, of_process=True),
    Attribute("pipefail", "HOW",
              "Whether a pipe in the command fails if any of its programs fails: on (default) or off",
              partial(_parse_choice, ("on", "off")), of_restart=True),
    Attribute("background", "HOW",
              "How to handle processes that the command leaves: wait for their ends, or ignore",
              partial(_parse_choice, ("wait", "ignore")), of_restart=True),
    Attribute("cuda", "HOW", "How to handle --cuda in the command: add, rewrite or off",
              partial(_parse_choice, ("add", "rewrite", "off")), of_gpus=True),
    Attribute("cuda-ids", "IDS", "Kind of GPU ids to pass with --cuda: physical or visible",
              partial(_parse_choice, ("physical", "visible"))),
    Attribute("hold", None, "Hold the job until it is released", command="`hold JOB` and `release JOB`"),
    Attribute("cancel", None, "Cancel the job", command="`cancel JOB`"),
)  # fmt: skip
ATTRIBUTES = {row.key: row for row in _ROWS}
#: The attributes by all of their names.
NAMED = {name: row for row in _ROWS for name in row.names}
_OF_FIELD = {row.field: row for row in _ROWS}
FLAGS = tuple(key for key, row in ATTRIBUTES.items() if row.form is None)
#: The fields of JobSpec that `set` may change in a finished job as well.
RESTART_FIELDS = {"command", *(row.field for row in _ROWS if row.of_restart)}
KNOWN_ATTRIBUTES = " ".join("env:KEY" if name == "env" else name for name in NAMED)
ACCEPTED_FORM = (
    f"one block of known attributes, a blank, then the command or CSV line; known: {KNOWN_ATTRIBUTES}"
)
#: Options of Slurm that no job needs here.
NEEDLESS = (
    "nodes", "N", "nodelist", "w", "partition", "p", "account", "A", "qos", "q", "cpus-per-task", "c",
    "ntasks-per-node", "mem-per-cpu",
)  # fmt: skip
NOT_NEEDED = "leave it out, because every job runs on this machine"


class BadAttribute(ValueError):
    """Raised for an attribute that is unknown or has a bad value. accepted: what to write instead."""

    def __init__(self, reason: str, accepted: str) -> None:
        super().__init__(reason)
        self.accepted = accepted


class AttributeBlock(Struct, frozen=True):
    """A parsed block.

    values: the attributes, by the names of the JobSpec fields, with paths as written in the file; rest: the
    text after the block.
    """

    values: dict[str, Any]
    rest: str


def parse_block(text: str, known_gpus: frozenset[int] | None) -> AttributeBlock:
    """Parses the block at the start of `text`. Raises ValueError with the mistake and its remedy."""
    end = find_block_end(text)
    if end is None:
        raise ValueError(f"the `[` at the start is not closed by a `]`{_shell_test_hint(text)}")
    values: dict[str, Any] = {}
    env: dict[str, str] = {}
    for item in split_words(text[1:end]):
        key, given, value = item.partition("=")
        if key.startswith("env:"):
            _parse_env(key[4:], bool(given), value, env)
            continue
        row = NAMED.get(key)
        if row is not None and row.field in values:
            also = "" if row.key == key else f" (it means {row.key})"
            raise ValueError(f"attribute {key} is given twice{also}; give it once")
        try:
            field, parsed = parse_item(text, key, value if given else None, known_gpus)
        except ValueError as error:
            apart = _split_at_commas(item)
            if apart:
                raise ValueError(f"attributes must be separated by blanks; write [{apart}]") from None
            described = (f"[{one.pattern}] {one.help}" for one in ([row] if row else meant_attributes(key)))
            raise BadAttribute(str(error), "; or ".join(described) or ACCEPTED_FORM) from None
        values[field] = parsed
    if env:
        values["env"] = tuple(sorted(env.items()))
    rest = text[end + 1 :]
    if rest.strip(BLANK) and rest[0] not in BLANK:
        raise ValueError(f"a blank must follow the `]` of the attributes{_shell_test_hint(text)}")
    return AttributeBlock(values, rest.strip(BLANK))


def meant_attributes(name: str, *, may_be_misspelt: bool = True) -> list[Attribute]:
    """Returns the attributes that a user may mean by an unknown name, which may be that of a Slurm option."""
    rows = [row for row in _ROWS if name in row.foreign.split()]
    if rows or not may_be_misspelt:
        return rows
    from difflib import get_close_matches

    return [ATTRIBUTES[key] for key in get_close_matches(name, ATTRIBUTES, 1, 0.75)]


def unknown_attribute(key: str, value: str | None) -> str | None:
    """Returns the message about an unknown attribute with what the user may mean; None if that is unclear."""
    variable = re.match(r"env[.=](\w+)[:=]", f"{key}={value or ''}")
    forms = [f"env:{variable[1]}=…"] if variable else [row.pattern for row in meant_attributes(key)]
    remedy = f"write {' or '.join(forms)}" if forms else NOT_NEEDED
    return f"attribute {key!r} is unknown; {remedy}" if forms or key in NEEDLESS else None


def find_block_end(text: str) -> int | None:
    """Returns the index of the `]` that closes the block at the start of `text`; None if it is not closed."""
    for piece in _BLOCK_PIECE.finditer(text, 1):
        if piece.lastgroup == "end":
            return piece.start()
        if piece.lastgroup == "open":
            return None
    return None


def _split_at_commas(item: str) -> str | None:
    """Returns an item that joins attributes with commas, rewritten with blanks; None for any other item."""
    first, *parts = re.split("[,;]", item)
    row = NAMED.get(first.partition("=")[0])
    if row and row.form in ("JOBS", "LIST") and not any(parts):  # the rest of the list follows after a blank
        return None
    apart = [first]
    for part in parts:
        key = part.partition("=")[0]
        if not part or (key in NAMED and key != "env") or key.startswith("env:"):
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


def parse_item(text: str, key: str, value: str | None, known_gpus: frozenset[int] | None) -> tuple[str, Any]:
    """Returns the field of JobSpec that an attribute sets, and its value. Raises ValueError.

    key: the attribute as written, possibly a synonym; value: None if only the key was written.
    """
    row = NAMED.get(key)
    if row is None or key == "env":
        hint = _shell_test_hint(text)
        known = f"attribute {key!r} is unknown; known attributes: {KNOWN_ATTRIBUTES}{hint}"
        raise ValueError(known if hint else unknown_attribute(key, value) or known)
    if row.form is None:
        if value is not None:
            raise ValueError(f"attribute {key} takes no value; write [{key}]")
        return row.field, True
    if not value:
        raise ValueError(f"attribute {key} has no value; write {key}=…")
    return row.field, parse_gpu_list(value, known_gpus) if key == "allowed" else row.parse(key, value)


def key_of(field: str) -> str:
    """Returns the name of the attribute that sets a field of JobSpec, or "command"."""
    return _OF_FIELD[field].key if field in _OF_FIELD else field


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
    return f"{key}={_OF_FIELD[name].format(value)}"


def format_change(name: str, value: Any) -> str:
    """Formats the new value of a field of JobSpec as `parse_changes` accepts it: "vram=18G", "vram="."""
    return f"{key_of(name)}=" if is_unset(value) else format_attribute(name, value)


def check_conflicts(values: dict[str, Any]) -> None:
    """Raises ValueError for attributes that contradict each other."""
    if values.get("conda") is not None and values.get("venv") is not None:
        raise ValueError("both a conda environment and a venv are given; give only one")
    if values.get("max_running") is not None and values.get("name") is None:
        raise ValueError("max-running counts the jobs of a group; give a name too, such as name=train/1")
    of_gpus = {row.key: values.get(row.field) for row in _ROWS if row.of_gpus}
    given = [key for key, value in of_gpus.items() if not is_unset(value) and value != "off"]
    if values.get("gpus") == 0 and given:
        others = " and ".join(given)
        raise ValueError(f"gpus=0 asks for no GPU and contradicts {others}; leave out one or the other")
    on_engine = values.get("on") in job_spec.ENGINES
    refused = [key for key in job_spec.NOT_ON_ENGINES if on_engine and not is_unset(values.get(key))]
    if refused:
        raise ValueError(f"{' and '.join(refused)}: on={values['on']} chooses the GPUs itself; leave it out")
    if values.get("gpu_type") is not None and not on_engine:
        raise ValueError("gpu-type names GPUs of Slurm and needs on=slurm; here, allowed=LIST names GPUs")
    if (values.get("share") or 0) > WHOLE and values.get("gpus") is not None:
        raise ValueError("a share above 1 is a number of whole GPUs; leave out gpus, or give a share up to 1")
    if (values.get("share") or 0) > WHOLE and values.get("vram") is not None:
        raise ValueError("a share above 1 is a number of whole GPUs; with vram, give gpus=N instead")
