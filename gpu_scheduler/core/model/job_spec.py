"""Defines the specification of a job: what it runs and the attributes that the user gave it.

`identity` covers what the job runs; `attributes` covers everything else that the user can set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.states import JobState, Outcome, TextEnum
from gpu_scheduler.core.model.values import StoredValue
from gpu_scheduler.core.text.parsing import mask_quoted, split_words

Kind = Literal["csv", "command"]
CudaMode = Literal["add", "rewrite", "off"]
CudaIds = Literal["physical", "visible"]

#: The signal that asks a command to end, unless its job names another one.
DEFAULT_STOP_SIGNAL = "TERM"
#: The signals that a job may name instead.
STOP_SIGNALS = (DEFAULT_STOP_SIGNAL, "INT", "USR1", "USR2", "HUP", "QUIT")
#: The engines on which a job can run instead of on this machine, and the value of `on` for this machine.
ENGINES = ("slurm",)
#: The fields of a JobSpec that no engine honours, because it chooses the GPUs itself.
NOT_ON_ENGINES = ("allowed", "exclusive", "preempt")
LOCAL = "local"
#: The fields of JobSpec that say what the job runs.
_OF_IDENTITY = (
    "kind", "text", "cwd", "script", "arguments", "command", "conda", "venv", "env", "torchrun",
)  # fmt: skip


class JobSpec(Struct, frozen=True, dict=True):
    """A job as the user specified it.

    kind       "csv" runs `python -u script arguments`; "command" runs `bash -o pipefail -c command`. A
               command is None if it is not known, because an adopted process had changed its title.
    text       the line as a user recognises it, without its attribute block and comment.
    cwd        the absolute working folder.
    torchrun   CSV lines only: the number of processes that torchrun starts, one per GPU; None means python.

    The other fields are attributes, which the table in `core.jobsfile.attributes` describes. None, False or
    () means that an attribute was not given. share is in thousandths of a GPU, vram in MiB on each GPU.
    preempt_signal lacks its "SIG", and checkpoints is relative to cwd.
    """

    kind: Kind
    text: str
    cwd: str
    script: str | None = None
    arguments: tuple[str, ...] = ()
    command: str | None = None
    conda: str | None = None
    venv: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    max_running: int | None = None
    priority: int | None = None
    allowed: tuple[int, ...] | None = None
    share: int | None = None
    gpus: int | None = None
    vram: int | None = None
    exclusive: bool = False
    oom_retries: int | None = None
    fail_retries: int | None = None
    timeout_s: float | None = None
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    torchrun: int | None = None
    cuda: CudaMode | None = None
    cuda_ids: CudaIds | None = None
    preempt: bool = False
    preempt_signal: str | None = None
    resume_flag: str | None = None
    checkpoints: str | None = None
    pipefail: Literal["on", "off"] | None = None
    background: Literal["wait", "ignore"] | None = None
    on: str | None = None
    gpu_type: str | None = None
    hold: bool = False
    cancel: bool = False

    @cached_property
    def identity(self) -> str:
        """A digest of what the job runs, independent of its front end (docs/design.md, Jobs file)."""
        runs: list[Any] = [self.kind, self.cwd, self.conda, self.venv, sorted(self.env)]
        runs += [self.script, self.arguments] if self.kind == "csv" else [self.command]
        runs += [] if self.torchrun is None else [f"torchrun-{self.torchrun}gpu"]
        return hashlib.sha256(json.dumps(runs, ensure_ascii=True).encode()).hexdigest()[:32]

    @property
    def can_start(self) -> bool:
        """True if it is known what the job runs."""
        return self.kind == "csv" or self.command is not None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name, as compared between readings."""
        return {name: getattr(self, name) for name in COMPARED_ATTRIBUTES}

    def words(self) -> tuple[str, ...]:
        """Returns the words of the command line, as far as they can be known without running a shell."""
        if self.kind == "csv":
            return self.arguments
        try:
            return split_words(self.command or "")
        except ValueError:
            return tuple((self.command or "").split())

    def option(self, name: str) -> str | None:
        """Returns the value of the last `--name X` or `--name=X` in the arguments; None if there is none.

        In a shell command, the operator that ends the simple command is no part of the value.
        """
        found = None
        words = self.words()
        for i, word in enumerate(words):
            if word == f"--{name}" and i + 1 < len(words):
                found = words[i + 1]
            elif word.startswith(f"--{name}="):
                found = word[len(name) + 3 :]
        return found.rstrip(";") if found is not None and self.kind == "command" else found

    @property
    def _pipes(self) -> list[list[list[str]]]:
        """The words of each program in each part of a command that may be a pipe."""
        text = self.command or ""
        masked = mask_quoted(text) if "|" in text and self.pipefail != "off" else None
        parts = re.split(r"\|\||&&|[;()\n]", masked or "")
        return [[one.split() for one in re.split(r"(?<!>)\|&?", part)] for part in parts]

    @property
    def pipe_programs(self) -> tuple[str, ...]:
        """The programs in the pipes of a command; empty if the last program alone gives the exit code."""
        pipes = [pipe for pipe in self._pipes if pipe[1:]]
        return tuple(words[0].rsplit("/", 1)[-1] for pipe in pipes for words in pipe if words)

    @property
    def ends_in_pipe(self) -> bool:
        """True if the last part of a command is its only pipe, so that nothing was to run after a pipe."""
        parts = [pipe for pipe in self._pipes if pipe not in ([[]], [["done"]], [["fi"]], [["}"]])]
        return [len(pipe) > 1 for pipe in parts[-1:]] == [True] and not any(pipe[1:] for pipe in parts[:-1])

    @property
    def llm(self) -> str | None:
        """The model that `--llm` names; None if there is no such option."""
        return self.option("llm")

    @property
    def program(self) -> str:
        """The program that the job runs, without arguments.

        For a CSV line, this is the script. For a command, it is the first of these that the command contains:
        the module of `python -m`, the first word that names a script, the first word.
        """
        if self.script is not None:
            return self.script
        words = [w for w in self.words() if not re.fullmatch(r"[A-Za-z_]\w*=.*", w)]
        modules = [after for word, after in pairwise(words) if word == "-m"]
        scripts = [w for w in words if re.search(r"\.(?:py|sh)$", w)]
        return (modules or scripts or words or [""])[0]

    @property
    def mode(self) -> str:
        """The word in the session name.

        This is the value of `--mode` or, without that option, the name of the script or program.
        """
        given = self.option("mode")
        if given:
            return given
        word = self.script
        if word is None:
            words = [w for w in self.words() if not re.fullmatch(r"[A-Za-z_]\w*=.*", w)]
            word = next((w for w in words if w.endswith(".py")), (words or ["job"])[0])
        return re.sub(r"\.py$", "", word.rsplit("/", 1)[-1])

    def to_json(self) -> str:
        """Returns one line of JSON from which `from_json` builds an equal value."""
        return self._json

    @cached_property
    def _json(self) -> str:
        values = [(name, getattr(self, name)) for name in _FIELDS]
        return _JSON.encode({k: v for k, v in values if v is not None and v is not False and v != ()})

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Returns the value that `to_json` wrote."""
        raw = json.loads(text)
        values = {k: v for k, v in raw.items() if k in _FIELDS and v is not None}
        for key, value in values.items():
            if isinstance(value, list):
                values[key] = tuple(map(tuple, value) if key == "env" else value)
        return cls(**values)


#: Created only once, because `json.dumps` with options creates a new encoder at every call.
_JSON = json.JSONEncoder(ensure_ascii=False)
_FIELDS = JobSpec.__struct_fields__
#: Attributes that are compared one by one between readings; they are not part of the identity.
COMPARED_ATTRIBUTES = tuple(name for name in _FIELDS if name not in _OF_IDENTITY)


# The names of jobs, the groups that they form, and what a reference to jobs by name means.
#
# A group is the part of a name before the first `/`. A reference is a name, a group or a pattern with `*`,
# `?` or `[…]`. An exact name wins over a group, and a group over a pattern. A table of names has a group
# under its name with a final `/`, which no job's name can have.


MAX_NAME_LENGTH = 128
NAME_FORM = f"1 to {MAX_NAME_LENGTH} letters, digits, _ . = or -, in parts that are separated by /"
#: A regular expression for names of any length.
NAME_PATTERN = "[A-Za-z0-9_.=-]+(?:/[A-Za-z0-9_.=-]+)*"
_WILDCARD_PATTERN = re.compile(rf"[A-Za-z0-9_.=/*?\[\]!-]{{1,{MAX_NAME_LENGTH}}}")


def is_name(text: str) -> bool:
    """Returns whether a job may have this name."""
    return len(text) <= MAX_NAME_LENGTH and re.fullmatch(NAME_PATTERN, text) is not None


def is_pattern(reference: str) -> bool:
    """Returns whether a reference is a pattern."""
    return any(special in reference for special in "*?[")


def is_reference(text: str) -> bool:
    """Returns whether a text is a name, a group or a pattern."""
    return is_name(text) or (is_pattern(text) and _WILDCARD_PATTERN.fullmatch(text) is not None)


def parse_job_ref(text: str) -> int | range | str:
    """Reads a reference to jobs: a number, a range of numbers such as 5-9, a name, a group or a pattern.

    Raises ValueError.
    """
    number = re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", text, re.ASCII)
    if number is not None:
        first, last = int(number[1]), int(number[2] or number[1])
        if not 1 <= first <= last:
            raise ValueError(f"{text!r} is neither a job number such as 3 nor a range such as 5-9")
        return first if number[2] is None else range(first, last + 1)
    if not is_reference(text):
        raise ValueError(
            f"{text!r} is neither a job number (3), a range of numbers (5-9) nor a job name; `status` lists"
            " the jobs; separate several jobs with spaces"
        )
    return text


def group_of(name: str) -> str | None:
    """Returns the group of a job with this name; None if it belongs to none."""
    group, slash, _ = name.partition("/")
    return group if slash else None


def keys_of(name: str) -> tuple[str, ...]:
    """Returns the keys under which a table of names has a job: its name, and its group with a final `/`."""
    group = group_of(name)
    return (name,) if group is None else (name, f"{group}/")


def meant_by(reference: str, keys: Collection[str]) -> list[str]:
    """Returns the keys of a table of names that a reference means; an empty list if it means nothing."""
    if reference in keys:
        return [reference]
    if f"{reference}/" in keys:
        return [f"{reference}/"]
    if not is_pattern(reference):
        return []
    return [key for key in keys if not key.endswith("/") and fnmatchcase(key, reference)]


def references_to(key: str, patterns: Iterable[str]) -> list[str]:
    """Returns the references that may mean a key of a table of names. patterns: those that exist."""
    group = group_of(key)
    found = [key] if group is None else [key, group]
    return [*found, *(pattern for pattern in patterns if fnmatchcase(key, pattern))]


# Parses the priority of a job: a whole number, or a word that stands for one.


#: The words that are accepted wherever a priority is given.
PRIORITY_WORDS = {"CRITICAL": 0, "HIGH": 100, "NORMAL": 200, "LOW": 300}
#: Priority of a job whose line sets none (docs/design.md, Queue order).
NORMAL_PRIORITY = PRIORITY_WORDS["NORMAL"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def parse_priority(text: str) -> int:
    """Returns the number of a priority; lower numbers run first. Raises ValueError with the remedy."""
    if text.upper() in PRIORITY_WORDS:
        return PRIORITY_WORDS[text.upper()]
    if _INTEGER.fullmatch(text):
        return int(text)
    *others, last = PRIORITY_WORDS
    words = f"{', '.join(others)} or {last}"
    raise ValueError(f"priority {text!r} is not a whole number such as 0 or 200, nor {words}")


# The GPU need of a job.


class Need(StoredValue, frozen=True):
    """The need of a job on each of `count` distinct GPUs: `share` thousandths, `vram` MiB, or both.

    A count of 0 means that the job needs no GPU. A share of 0 or a vram of None means that it was not
    declared. exclusive: no other job of this scheduler may use the GPUs; alone: foreign processes may not use
    them either. learned: vram is the observed use of the job's workload class. assumed: neither the line nor
    the model's entry sets share or vram, so the job gets the default or an idle GPU; this is not a
    declaration, and its accuracy is never judged.
    """

    count: int
    share: int = 0
    alone: bool = False
    vram: int | None = None
    exclusive: bool = False
    learned: bool = False
    assumed: bool = False

    @property
    def whole(self) -> bool:
        """True if no other job of this scheduler may use the same GPUs."""
        return self.alone or self.exclusive


# A dependency: one job, the parent, must end before another job may start.


#: The parent id of a dependency whose reference names no job, or would make the job wait for itself.
UNRESOLVED = 0


class DependencyKind(TextEnum):
    """The condition that a parent must meet. `after` requires COMPLETED, `after-any` requires FINISHED."""

    COMPLETED = "completed"
    FINISHED = "finished"

    @property
    def attribute(self) -> str:
        """The attribute that names such parents."""
        return "after" if self is DependencyKind.COMPLETED else "after-any"


#: The fields of JobSpec that name other jobs, with the condition that these must meet.
REFERENCES = {"after": DependencyKind.COMPLETED, "after_any": DependencyKind.FINISHED}


def references(attributes: Mapping[str, Any]) -> Iterator[tuple[DependencyKind, str]]:
    """Yields the references to other jobs, with their conditions. attributes: those of a job or a line."""
    return ((kind, one) for name, kind in REFERENCES.items() for one in attributes.get(name, ()))


class Dependency(Struct, frozen=True):
    """One parent of a job. reference: the id or name that the user gave; a name may mean several jobs."""

    parent_id: int
    kind: DependencyKind
    reference: str


class Parent(NamedTuple):
    """A parent of a job in its current state. Named tuples are fast to create.

    id: UNRESOLVED if the reference could not be resolved; name, state, outcome: those of the parent, None if
    there is no such job; kind, reference: as in `Dependency`.
    """

    id: int
    name: str | None
    state: JobState | None
    outcome: Outcome | None
    kind: DependencyKind
    reference: str


#: Outcomes that meet the condition of the kind COMPLETED. `ended` is the outcome of an adopted process.
COMPLETED_OUTCOMES = frozenset({Outcome.COMPLETED, Outcome.ENDED})


class ParentStatus(Enum):
    """The effect of a parent on the job that waits for it."""

    MET = "met"
    PENDING = "pending"
    #: The job is skipped, unless the parent is queued again.
    FAILED = "failed"


def parent_status(kind: DependencyKind, state: JobState | None, outcome: Outcome | None) -> ParentStatus:
    """Returns the effect of a parent in this state. state: None if the parent is unknown.

    The triggers of the store apply the same rule to count the parents of each job (store/migrations).
    """
    if state is not JobState.FINISHED:
        return ParentStatus.PENDING
    if kind is DependencyKind.FINISHED or outcome in COMPLETED_OUTCOMES:
        return ParentStatus.MET
    return ParentStatus.FAILED


def status_of(parent: Parent) -> ParentStatus:
    """Returns the effect of a parent on the job."""
    return parent_status(parent.kind, parent.state, parent.outcome)
