"""Warns about well-formed lines whose jobs will certainly fail or will not run as expected.

The checks only parse the line, and give no warning when they cannot be sure. The caller determines which
programs are on the PATH of a job's shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from gpu_scheduler.core.command.shell_words import ShellWord, shell_words, simple_commands
from gpu_scheduler.core.jobsfile.attributes import parse_conda
from gpu_scheduler.core.jobsfile.shell_syntax import BUILTINS, RESERVED, cuda_override_note
from gpu_scheduler.core.model.job_spec import JobSpec


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
        yield from _check_launcher(command, gpus)
        yield from _check_container(command)
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
    first = next((at for at, word in enumerate(words) if not _is_prefix_word(word)), 0)
    found = _ALL_GPUS.match(" ".join(words[first:]))
    if found is not None:
        option = _GPU_OPTIONS[found[1]]
        yield f"`{found[1]} run` with all GPUs ignores which GPUs the job has; write {option}"


def _find_launcher(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Returns the launcher that starts a command's processes, if any, and the launcher's own options."""
    at = next((i for i, word in enumerate(words) if not _is_prefix_word(word)), len(words))
    program, options = words[at].rpartition("/")[2] if at < len(words) else "", words[at + 1 :]
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
