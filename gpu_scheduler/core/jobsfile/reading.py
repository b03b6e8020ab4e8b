"""Defines the lines of a reading of a jobs file, and checks their references and whether their jobs can run.

`diff` compares two readings. In a reference to another job, a number is an id. A name, a group or a pattern
means all lines with such a name or, if there are none, the newest job with each such name
(`core.model.job_spec`).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import dropwhile, pairwise
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.command.shell_words import ShellWord, shell_words, simple_commands
from gpu_scheduler.core.jobsfile.attributes import is_unset, parse_conda
from gpu_scheduler.core.jobsfile.job_line import BUILTINS, RESERVED, Malformed, ParsedJob, cuda_override_note
from gpu_scheduler.core.model import job_spec
from gpu_scheduler.core.model.job_spec import JobSpec, Kind
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason


def given_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns only the attributes that a line sets.

    An attribute that a later version adds therefore does not count as a change.
    """
    given = {name: value for name, value in attributes.items() if not is_unset(value)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def attributes_to_json(attributes: Mapping[str, Any]) -> str:
    """Returns attributes as JSON for the store."""
    return _as_json(tuple(given_attributes(attributes).items()))


@lru_cache(maxsize=4096)
def _as_json(items: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(items), ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=4096)
def attributes_from_json(text: str) -> Mapping[str, Any]:
    """Parses the output of `attributes_to_json`. Lines with equal attributes share one object."""
    return given_attributes(json.loads(text))


class Line(Struct, frozen=True):
    """A line that defines a job or is malformed. It has slots because a reading can have 100,000 lines.

    number      the line number, from 1, counting every line of the file.
    raw         the whole line as in the file, including its line ending if it has one.
    identity    a digest of what the line runs; None if the line is malformed, and `problem` and
                `accepted_form` are then set.
    attributes  the attributes that the line sets.
    is_typo     True for a malformed line that has replaced a valid one. The reading also keeps the valid line
                until this one is fixed.
    job_id      the job of a line in an accepted reading. Of several equal CSV lines, only the first has it.
    spec        the job's specification, only on a line that has just been parsed; a reading does not keep it.
    notes       remarks to log about a line that has just been parsed; they may be absent if an earlier line
                has the same text.
    """

    number: int
    raw: str
    text: str
    kind: Kind | None = None
    identity: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    accepted_form: str | None = None
    is_typo: bool = False
    job_id: int | None = None
    spec: JobSpec | None = None
    notes: tuple[str, ...] = ()

    @property
    def malformed(self) -> bool:
        """True for a malformed line."""
        return self.identity is None

    @property
    def has_newline(self) -> bool:
        """True if the line has a line ending."""
        return self.raw.endswith("\n")

    @property
    def content_key(self) -> str:
        """A key that is equal for lines that differ only in their attributes."""
        return self.identity if self.identity is not None else f"malformed {self.text}"

    @property
    def key(self) -> Hashable:
        """A key that is equal for lines with the same meaning."""
        return self.content_key, tuple(sorted(self.attributes.items()))

    def is_equivalent_to(self, other: Line) -> bool:
        """Returns whether both lines have the same key."""
        return self is other or (
            self.content_key == other.content_key and self.attributes == other.attributes
        )

    def is_identical_to(self, other: Line, shift: int = 0) -> bool:
        """Returns whether both lines have the same text and parse result and are `shift` lines apart."""
        return self.number == other.number + shift and (
            self is other
            or (
                self.raw == other.raw
                and self.problem == other.problem
                and self.accepted_form == other.accepted_form
                and self.is_typo == other.is_typo
                and self.is_equivalent_to(other)
            )
        )

    def with_job(self, job_id: int | None) -> Line:
        """Returns the line with this job, and without the fields that a reading does not keep."""
        if self.job_id == job_id and self.spec is None and not self.notes:
            return self
        return replace(self, job_id=job_id, spec=None, notes=())

    def with_number(self, number: int) -> Line:
        """Returns the same line with another line number."""
        return self if number == self.number else replace(self, number=number)


Reading = tuple[Line, ...]


def line_from_result(number: int, raw: str, result: ParsedJob | Malformed) -> Line:
    """Returns the line for a result of `parse_line`."""
    if isinstance(result, Malformed):
        text = raw.strip("\ufeff \t\r\n")
        return Line(number, raw, text, problem=result.reason, accepted_form=result.accepted_form)
    spec = result.spec
    given = [(name, value) for name, value in spec.attributes.items() if not is_unset(value)]
    attributes = _interned(tuple(given))
    return Line(number, raw, spec.text, spec.kind, spec.identity, attributes, spec=spec, notes=result.notes)


@lru_cache(maxsize=4096)
def _interned(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    return dict(items)


# Finds the nodes of a graph that wait for themselves.


_Node = TypeVar("_Node", bound=Hashable)


def find_cycles(parents: Mapping[_Node, Iterable[_Node]]) -> set[_Node]:
    """Returns the nodes that lie on a cycle, or on a path from one cycle to another.

    parents: the nodes that each node waits for. Takes time in proportion to the number of edges.
    """
    above = {node: {parent for parent in of if parent in parents} for node, of in parents.items()}
    below: dict[_Node, set[_Node]] = {node: set() for node in above}
    for node, of in above.items():
        for parent in of:
            below[parent].add(node)
    _trim(above, below)
    _trim(below, above)
    return set(above)


def _trim(ahead: dict[_Node, set[_Node]], behind: dict[_Node, set[_Node]]) -> None:
    """Removes every node without nodes ahead, then those that this leaves without nodes ahead, and so on."""
    loose = [node for node, of in ahead.items() if not of]
    while loose:
        node = loose.pop()
        for other in behind.pop(node):
            ahead[other].discard(node)
            if not ahead[other]:
                loose.append(other)
        del ahead[node]


#: Maximum number of dependencies through one name. Storing a million of them takes about ten seconds.
MAX_DEPENDENCIES = 1_000_000
REFERENCE_FORM = (
    "after=JOBS with the ids of jobs, and with names or groups that lines of this file or jobs have"
)

_NAME_ITEM = re.compile(rf"\[(?:[^\]]*[ \t])?name=({job_spec.NAME_PATTERN})")


class TextReferences(Struct, frozen=True):
    """The names in a text, with their groups as in `core.model.job_spec`.

    names: those of its well-formed lines, with the number of these lines; referenced: those that its lines
    wait for, with the number of these lines; malformed: those that its malformed lines seem to have, each
    with the line number of one of them.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    referenced: Mapping[str, int] = field(default_factory=dict)
    malformed: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[Line]) -> TextReferences:
        """Returns the names in a text with these lines."""
        malformed = {
            key: line.number
            for line in lines
            if line.identity is None and (found := _NAME_ITEM.match(line.text)) is not None
            for key in job_spec.keys_of(found[1])
        }
        return cls(
            Counter(key for line in lines if "name" in line.attributes for key in name_keys(line)),
            Counter(one for line in lines for one in references_of(line)),
            malformed,
        )


def uncounted_names(
    lines: Sequence[Line], reading: Collection[Line], due_at: float | None
) -> dict[str, WaitReason]:
    """Returns the names of lines that do not count yet, each with the reason for which others wait for it.

    lines: the lines of the text; reading: those that count; due_at: when the others will count, if known.
    """
    named = [line for line in lines if "name" in line.attributes]
    counted = {line.raw for line in reading} if named else set()
    return {
        line.attributes["name"]: WaitReason(WaitKind.LINE_CHANGED, line_number=line.number, due_at=due_at)
        for line in named
        if line.raw not in counted
    }


def malformed_names(text: TextReferences) -> dict[str, WaitReason]:
    """Returns the names of malformed lines, each with the reason for which others wait for it."""
    return {
        name: WaitReason(WaitKind.LINE_MALFORMED, line_number=number)
        for name, number in text.malformed.items()
    }


def name_keys(line: Line) -> tuple[str, ...]:
    """Returns the keys of a line in a table of names; none if it has no name."""
    return job_spec.keys_of(line.attributes["name"]) if "name" in line.attributes else ()


def references_of(line: Line) -> tuple[str, ...]:
    """Returns the ids and names that a line waits for."""
    return (*line.attributes.get("after", ()), *line.attributes.get("after_any", ()))


def find_wrong_references(
    lines: Sequence[Line], exists: Callable[[str], bool], accepted: Reading = ()
) -> dict[int, str]:
    """Returns the problem of each line with a wrong reference, by its index in `lines`.

    A line that waits for a malformed line is wrong as well, because there is no job for it to wait for yet.
    lines: those of the whole text; exists: returns whether a reference is the id or the name of a job;
    accepted: the last reading, whose lines are not checked again.
    """
    known = {line.raw for line in accepted if references_of(line)}
    checked = [i for i, line in enumerate(lines) if references_of(line) and line.raw not in known]
    return _ReferenceCheck(lines, cache(exists), checked).problems() if checked else {}


class _ReferenceCheck:
    """Checks the lines with the indices `checked`."""

    def __init__(self, lines: Sequence[Line], exists: Callable[[str], bool], checked: Sequence[int]) -> None:
        self._lines, self._exists, self._checked = lines, exists, checked
        self._text = TextReferences.of(lines)
        self._patterns = [one for one in self._text.referenced if job_spec.is_pattern(one)]
        keys = {*self._text.names, *self._text.malformed}
        self._meant_by = cache(lambda reference: job_spec.meant_by(reference, keys))

    def problems(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for index in self._checked:
            problem = self._wrong_reference(self._lines[index])
            if problem is not None:
                found[index] = problem
        self._add_cycles(found)
        self._add_children(found)
        return found

    def _wrong_reference(self, line: Line) -> str | None:
        for item, reference in _items(line):
            if reference.isdigit():
                if self._exists(reference):
                    continue
                return f"{item}: there is no job {reference}; `status --all` lists the jobs"
            meant = self._meant_by(reference)
            for name in meant:
                if name in self._text.malformed:
                    return _malformed_parent(item, self._text.malformed[name])
            named = sum(self._text.names.get(name, 0) for name in meant)
            waiting = self._text.referenced[reference]
            if named * waiting > MAX_DEPENDENCIES:
                return (
                    f"{item}: {waiting:,} lines wait for {named:,} lines with this name, which is too many;"
                    f" let them wait for a single line `[name=NAME after={reference}] true`"
                )
            if named or self._exists(reference):
                continue
            if job_spec.is_pattern(reference):
                return f"{item}: no line of this file and no job has such a name; correct the pattern"
            return (
                f"{item}: no line of this file and no job has this name; correct it, or add a line with"
                f" [name={reference}]"
            )
        return None

    def _add_cycles(self, found: dict[int, str]) -> None:
        """Adds the lines that wait for themselves, through a line with one of their names or directly."""
        if not any("name" in self._lines[index].attributes for index in self._checked):
            return
        # A name waits for the references of all lines that have it. `intake` finds a cycle through a group.
        graph: dict[str, set[str]] = defaultdict(set)
        for line in self._lines:
            name, references = line.attributes.get("name"), references_of(line)
            if name is not None and references:  # no other line can be on a cycle
                graph[name].update(one for one in references if not one.isdigit())
        cyclic = find_cycles(graph)
        for index in self._checked if cyclic else ():
            line = self._lines[index]
            for item, reference in _items(line):
                if line.attributes.get("name") in cyclic and reference in cyclic and index not in found:
                    number = next(
                        one.number
                        for one in self._lines
                        if one.attributes.get("name") == reference
                        and not cyclic.isdisjoint(references_of(one))
                    )
                    found[index] = _cycle(item, line.number, number)

    def _add_children(self, found: dict[int, str]) -> None:
        """Adds the lines that wait for a line that was found to be wrong."""
        children: dict[str, list[int]] = defaultdict(list)
        for index in self._checked if found else ():
            for reference in references_of(self._lines[index]):
                if not reference.isdigit():
                    children[reference].append(index)
        parents = list(found)
        while parents:
            parent = self._lines[parents.pop()]
            name = parent.attributes.get("name")
            meaning = [] if name is None else job_spec.references_to(name, self._patterns)
            for reference in meaning:
                if set(self._meant_by(reference)).isdisjoint(name_keys(parent)):
                    continue
                for index in children.pop(reference, ()):
                    if index not in found:
                        item = next(item for item, one in _items(self._lines[index]) if one == reference)
                        found[index] = _malformed_parent(item, parent.number)
                        parents.append(index)


def _items(line: Line) -> Iterator[tuple[str, str]]:
    """Yields each reference of a line, as an attribute such as "after=prep" and alone."""
    return ((f"{kind.attribute}={one}", one) for kind, one in job_spec.references(line.attributes))


def _cycle(item: str, number: int, through: int) -> str:
    if number == through:
        return f"{item}: the job would wait for itself; remove this reference, or change the name of the line"
    return (
        f"{item}: the job would wait for itself, through line {through}; remove one of the references between"
        " these lines"
    )


def _malformed_parent(item: str, number: int) -> str:
    return f"{item}: line {number}, which has this name, is malformed; correct line {number} first"


# Warns about well-formed lines whose jobs will certainly fail or will not run as expected.
#
# The checks only parse the line, and give no warning when they cannot be sure. The caller determines which
# programs are on the PATH of a job's shell.


class JobShell(Struct, frozen=True):
    """The bash that runs a command.

    can_find: takes a name and the working folder, and returns whether a program with that name is on the
    shell's PATH or a file with that name is in the folder. functions: the shell functions that bash inherits.
    """

    can_find: Callable[[str, str], bool]
    functions: Collection[str] = ()


#: A command that contains none of these needs no further check.
_SUSPECT = re.compile(r"activate|torchrun|torch\.distributed|accelerate|deepspeed|cuda:[0-9]|docker|podman")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=.*", re.DOTALL)
_PLAIN_WORD = re.compile(r"[\w.+:@%,-]+")
_FIRST_WORD = re.compile(r"[\w.+:@%,-]+(?=[ \t]|$)")
_ACTIVATE = re.compile(r"(?:conda|mamba|micromamba)[ \t]+activate(?=[ \t]|$)")
_CONDA_PROGRAMS = ("conda", "mamba", "micromamba")
#: Programs that run another program, whose name follows theirs.
_WRAPPERS = ("time", "exec", "nohup", "env", "nice", "command", "sudo", "uv", "poetry", "pixi", "run")
_PYTHON = re.compile(r"python[0-9.]*")
_PROCESS_COUNT_OPTIONS = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "accelerate launch": ("--num_processes", "--num-processes"),
    "deepspeed": ("--num_gpus",),
}
#: The option for the port of each launcher that ignores MASTER_PORT.
_PORT_OPTIONS = {"accelerate launch": "main_process_port", "deepspeed": "master_port"}
_MACHINE_COUNT_OPTIONS = ("--num_machines", "--num-machines", "--nnodes", "--num_nodes")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_DEVICE = re.compile(r"cuda:([0-9]{1,3})")
#: A command that gives a container every GPU, and the option of each program that gives it those of the job.
_ALL_GPUS = re.compile(r"(docker|podman) run .*(?:--gpus[= ]all|nvidia\.com/gpu=all)\b")
_GPU_OPTIONS = {
    "docker": r'--gpus "\"device=$CUDA_VISIBLE_DEVICES\""',
    "podman": '--device "nvidia.com/gpu=$CUDA_VISIBLE_DEVICES"',
}
#: Text that commands treat as a job id or a range of ids, and never as a name.
_JOB_ID = re.compile(r"[0-9]+(?:-[0-9]+)?")


def line_warnings(spec: JobSpec, gpus: int, shell: JobShell | None) -> Iterator[str]:
    """Yields warnings about a job. gpus: its number of GPUs; shell: the job's shell, None if unknown."""
    text = spec.command or ""
    if spec.name is not None and _JOB_ID.fullmatch(spec.name):
        yield f"name={spec.name}: commands such as `cancel {spec.name}` treat it as a job id; add a letter"
    if spec.kind == "command" and shell is not None:
        yield from _check_first_word(spec, text, shell)
    if spec.kind == "csv":
        yield from _check_device(spec, spec.arguments, gpus)
        return
    if not _SUSPECT.search(text):
        return
    commands = [command.words for command in simple_commands(text) or ()]
    if shell is not None and "conda" not in shell.functions:
        yield from _check_conda_activate(text, commands)
    words = [[word.unquoted for word in command] for command in commands]
    for command in words:
        run = list(dropwhile(_is_prefix_word, command))
        yield from _check_launcher(run, gpus)
        yield from _check_container(run)
    if cuda_override_note(text) is None:
        yield from _check_device(spec, [word for command in words for word in command], gpus)


def _check_first_word(spec: JobSpec, text: str, shell: JobShell) -> Iterator[str]:
    if spec.conda is not None or spec.venv is not None or "PATH" in dict(spec.env):
        return
    if _ACTIVATE.match(text):
        return  # `_check_conda_activate` warns about it
    name = _first_program(text)
    known = name is None or name in BUILTINS or name in RESERVED or name in shell.functions
    if name is not None and not known and not shell.can_find(name, spec.cwd):
        yield f"`{name}` is not a program on PATH, so bash will report `command not found`"


def _first_program(text: str) -> str | None:
    """Returns the first word that bash would look up as a program; None if there is none or it is unclear."""
    found = _FIRST_WORD.match(text)
    if found is not None:
        return None if text[found.end() :].lstrip().startswith("(") else found[0]
    if not _ASSIGNMENT.match(text):
        return None
    done = 0
    for word in shell_words(text):
        raw = text[word.start : word.end]
        if text[done : word.start].strip(" \t"):
            return None  # an operator comes before the word
        done = word.end
        assigned = _ASSIGNMENT.fullmatch(raw)
        if assigned is None:
            follows = text[word.end : word.end + 1] in ("", " ", "\t")
            return raw if follows and _PLAIN_WORD.fullmatch(raw) else None
        if assigned[1] == "PATH":
            return None
    return None


def _check_conda_activate(text: str, commands: Sequence[Sequence[ShellWord]]) -> Iterator[str]:
    for command in commands:
        words = [word.unquoted for word in command]
        if words[0] in ("source", ".", "eval"):
            return  # this command may set up conda
        if words[0] not in _CONDA_PROGRAMS or words[1:2] != ["activate"]:
            continue
        name, rest = " ".join(words[2:3]) or "base", text[command[-1].end :].lstrip(" \t;&")
        try:
            parse_conda(name)
        except ValueError:
            name = "ENV"
        first = command[0].start == 0 and rest
        remedy = f"[conda={name}] {rest}" if first else f"[conda={name}] in front of the line instead"
        yield f"`{words[0]} activate` fails in a job, because its shell is not set up for it; write {remedy}"
        return


def _check_launcher(words: Sequence[str], gpus: int) -> Iterator[str]:
    launcher, options = _find_launcher(words)
    if (
        launcher is None
        or not gpus
        or "--cpu" in options
        or any(_option_value(options, (name,)) for name in _MACHINE_COUNT_OPTIONS)
    ):
        return
    count = _option_value(options, _PROCESS_COUNT_OPTIONS[launcher])
    if count is not None and count > gpus:
        requested = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        yield f"{launcher} starts {count} processes, but the line requests {requested}; write [gpus={count}]"
    elif launcher == "deepspeed" or (launcher == "accelerate launch" and gpus > 1):
        name = _PORT_OPTIONS[launcher]
        if not any(option[2:].partition("=")[0].replace("-", "_") == name for option in options):
            yield f'{launcher} takes port 29500, as in any other job; add --{name} "$MASTER_PORT"'


def _check_container(words: Sequence[str]) -> Iterator[str]:
    found = _ALL_GPUS.match(" ".join(words))
    if found is not None:
        option = _GPU_OPTIONS[found[1]]
        yield f"`{found[1]} run` with all GPUs ignores which GPUs the job has; write {option}"


def _find_launcher(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Returns the launcher that starts a command's processes, if any, and the launcher's own options."""
    program, options = "".join(words[:1]).rpartition("/")[2], words[1:]
    if _PYTHON.fullmatch(program):
        module = next((i for i, word in enumerate(options) if word in _TORCHRUN_MODULES), None)
        if not module or options[module - 1] != "-m":
            return None, ()
        program, options = "torchrun", options[module + 1 :]
    if program == "accelerate" and options[:1] == ["launch"]:
        program = "accelerate launch"
    if program not in _PROCESS_COUNT_OPTIONS:
        return None, ()
    script = next((i for i, word in enumerate(options) if word.endswith(".py")), len(options))
    return program, options[:script]


def _is_prefix_word(word: str) -> bool:
    """Returns whether the word may precede the actual program of a command."""
    return word in _WRAPPERS or word.startswith("-") or _ASSIGNMENT.fullmatch(word) is not None


def _option_value(options: Sequence[str], names: Sequence[str]) -> int | None:
    """Returns the largest number above 1 that is given to an option with one of these names, if any."""
    values = [option.partition("=")[2] for option in options if option.partition("=")[0] in names]
    values += [value for name, value in pairwise(options) if name in names]
    numbers = [int(value) for value in values if re.fullmatch("[0-9]{1,4}", value)]
    return max((number for number in numbers if number > 1), default=None)


def _check_device(spec: JobSpec, words: Sequence[str], gpus: int) -> Iterator[str]:
    values = [word.removeprefix("--device=") for word in words if word.startswith("--device=")]
    values += [value for name, value in pairwise(words) if name == "--device"]
    for value in values:
        device = _DEVICE.fullmatch(value)
        if device is None or int(device[1]) < gpus:
            continue
        number = int(device[1])
        visible = "one GPU, always as cuda:0"
        if gpus > 1:
            visible = f"{gpus} GPUs, always as cuda:0 to cuda:{gpus - 1}"
        pinned = f", and [allowed={number}] for GPU {number}" if gpus == 1 and spec.allowed is None else ""
        yield f"--device cuda:{number}: the job sees {visible}; write cuda:0{pinned}"
        return
