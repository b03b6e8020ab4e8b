"""Splits the text of a shell command into words, and rewrites its options for GPUs and checkpoints.

Expands nothing.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import CudaIds, CudaMode, JobSpec

_WHITESPACE = " \t\n"


class ShellWord(Struct, frozen=True):
    """A word in a shell text, with its position. unquoted: the word without its quotes."""

    start: int
    end: int
    unquoted: str


_WORD = re.compile(rf"""(?:[^'"\\{_WHITESPACE}|&;()<>`]|\\.?|'[^']*'?|"(?:[^"\\]|\\.)*"?)+""", re.DOTALL)
_QUOTED = re.compile(r"""\\(.?)|'([^']*)'?|"((?:[^"\\]|\\.)*)"?""", re.DOTALL)


def shell_words(command: str) -> list[ShellWord]:
    """Splits a shell text into words, at blanks and operators."""
    return [
        ShellWord(found.start(), found.end(), _QUOTED.sub(_unquoted, found[0]))
        for found in _WORD.finditer(command)
    ]


def _unquoted(found: re.Match[str]) -> str:
    escaped, single, double = found.groups()
    if double is not None:
        return re.sub(r'\\([$`"\\])', r"\1", double)
    return single if escaped is None else escaped


def is_value_of(command: str, option: ShellWord, value: ShellWord) -> bool:
    """Returns whether a word is the value of the option before it.

    Another option is not, nor is the number of a redirected descriptor, as in `--cuda 2>log`.
    """
    between = command[option.end : value.start]
    if between.strip(_WHITESPACE) or "\n" in between or value.unquoted.startswith("-"):
        return False
    return not (value.unquoted.isdigit() and command[value.end : value.end + 1] in ("<", ">"))


# Finds the place directly after the script that a shell command runs, where an option of the script may go.
#
# The place is unclear, and therefore None, in a command that runs several scripts, a loop, a here-document,
# or code without a script. No shell is run and no file is read.


_PYTHON = re.compile(r"(?:python|pypy)(?:[0-9](?:\.[0-9]+)*)?")
_SHELL = re.compile(r"(?:ba|da|z|k)?sh")
#: Programs and modules that run the first Python script, or the module after -m, among their arguments.
_LAUNCHERS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "coverage", "ipython"})
#: Programs and modules that train themselves. Their first word chooses how, and their options follow it.
_TRAINERS = frozenset({"trl", "trl.cli"})
#: The subcommands of LightningCLI, which follow the script and perhaps its --config.
_SUBCOMMANDS = frozenset({"fit", "validate", "test", "predict"})
_LAUNCHER_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed",
    "deepspeed.launcher.runner", "accelerate.commands.accelerate_cli", "pdb", "cProfile", "profile", "trace",
    "coverage", "debugpy",
})  # fmt: skip
_MODULE_OPTIONS = ("-m", "--module")
#: Programs that run something for each word that they get, so that one checkpoint cannot be meant for all.
_REPEATING = frozenset({"for", "while", "until", "select", "xargs", "parallel"})
#: Commands that run no script. A script beside them is the one that the job is about, whatever runs it.
PASSIVE = frozenset({
    ".", ":", "cd", "date", "echo", "export", "hostname", "mkdir", "module", "nvidia-smi", "set", "sleep",
    "source", "tee", "ulimit", "umask", "unset",
})  # fmt: skip
_CONSOLE_SCRIPT = re.compile(r"/bin/[\w-]+$")
_REDIRECTION = re.compile(r"&>>?|>&|>>|>\||<<<|<&|<>|<|>")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_EXPANSION = r"\$\w|\$\{[^{}()'\"`$\s]*\}"
_CLEAR_WORD = re.compile(
    rf"""(?:[^$`'"\\(){{}}]|{_EXPANSION}|'[^']*'|"(?:[^"\\$`]|\\.|{_EXPANSION})*"|\\.)+""", re.DOTALL
)


class SimpleCommand(Struct, frozen=True):
    """A part of a shell text between operators, with its words but without redirections."""

    words: tuple[ShellWord, ...]

    @property
    def first(self) -> str:
        """The word that names the program; "" if there is none."""
        return next((word.unquoted for word in self.words if not _ASSIGNMENT.fullmatch(word.unquoted)), "")


def simple_commands(command: str) -> list[SimpleCommand] | None:
    """Splits a shell text at its operators; None for a loop or a here-document.

    The commands of a substitution count as well.
    """
    found: list[list[ShellWord]] = [[]]
    done = 0
    for word in shell_words(command):
        gap, done = command[done : word.start], word.end
        if "<<" in gap.replace("<<<", ""):
            return None
        operators = _REDIRECTION.sub(">", gap).strip(" \t")
        if operators.strip("> \t"):
            found.append([])
        is_descriptor = word.unquoted.isdigit() and command[done : done + 1] in ("<", ">")
        if not operators.endswith(">") and not is_descriptor:
            found[-1].append(word)
    parts = [SimpleCommand(tuple(words)) for words in found if words]
    repeats = any(word.unquoted in _REPEATING for part in parts for word in part.words)
    return None if repeats or "<<" in command[done:] else parts


def is_clear(command: str, word: ShellWord) -> bool:
    """Returns whether the whole of a word is known: it contains no substitution, and none touches its end."""
    text = command[word.start : word.end]
    return bool(_CLEAR_WORD.fullmatch(text)) and command[word.end : word.end + 1] not in ("(", "`")


def after_subcommand(arguments: Sequence[str]) -> int:
    """Returns the number of arguments up to a subcommand of LightningCLI; 0 if there is none.

    The program accepts most options, such as --ckpt_path, only after the subcommand.
    """
    for index, word in enumerate(arguments):
        is_value = index > 0 and arguments[index - 1].startswith("-") and "=" not in arguments[index - 1]
        if word in _SUBCOMMANDS and not is_value:
            return index + 1
    return 0


def find_script_end(command: str, *, shell_scripts: bool = False) -> int | None:
    """Returns the index after the one script that a command runs; None if its place is unclear.

    If a subcommand of LightningCLI follows the script, the index is the one after the subcommand.
    shell_scripts: whether to look for a script that a shell runs, such as `bash train.sh`, as well.
    """
    parts = simple_commands(command)
    if parts is None:
        return None
    active = [part for part in parts if part.first not in PASSIVE]
    finder = _ScriptFinder(shell_scripts, len(active) == 1)
    found = [(word, part) for part in active if (word := finder.in_command(part)) is not None]
    if len(found) != 1:
        return None
    place, part = found[0]
    following = [word for word in part.words if word.start >= place.end]
    subcommand = after_subcommand([word.unquoted for word in following])
    place = following[subcommand - 1] if subcommand and is_clear(command, place) else place
    return place.end if is_clear(command, place) else None


class _ScriptFinder(Struct, frozen=True):
    """Finds the script of a simple command. is_alone: whether no other part of the shell text can run one."""

    shell_scripts: bool
    is_alone: bool

    def in_command(self, command: SimpleCommand) -> ShellWord | None:
        """Returns the word that names the script of a simple command; None if it has none."""
        words = command.words
        for index, word in enumerate(words):
            program, rest = word.unquoted.rsplit("/", 1)[-1], words[index + 1 :]
            if _PYTHON.fullmatch(program):
                return self._of_python(rest)
            if _SHELL.fullmatch(program):
                return self._first_script(rest[:1]) if self.shell_scripts else None
            if program in _LAUNCHERS | _TRAINERS:
                return self._of_launcher(program, rest)
        scripts = [word for word in words if self._is_script(word)]
        if scripts and scripts[0].unquoted == command.first:
            return scripts[0]
        return scripts[0] if self.is_alone and len(scripts) == 1 else None

    def _is_script(self, word: ShellWord) -> bool:
        text, endings = word.unquoted, (".py", ".sh", ".bash") if self.shell_scripts else ".py"
        return text.endswith(endings) and not re.search(r"\s", text) and not _ASSIGNMENT.fullmatch(text)

    def _first_script(self, words: Sequence[ShellWord]) -> ShellWord | None:
        return next((word for word in words if self._is_script(word)), None)

    def _of_python(self, words: Sequence[ShellWord]) -> ShellWord | None:
        """Returns the script or module that `python` with these words runs."""
        index = 0
        while index < len(words):
            text, rest = words[index].unquoted, words[index + 1 :]
            if re.fullmatch(r"-[a-zA-Z]*m", text):
                module = rest[0].unquoted if rest else ""
                launches = module in _LAUNCHER_MODULES | _TRAINERS
                return self._of_launcher(module, rest[1:]) if launches else next(iter(rest), None)
            if re.fullmatch(r"-[a-zA-Z]*c|-", text):
                return None
            if _CONSOLE_SCRIPT.search(text):
                # An installed program: `python /env/bin/NAME …` does the same as `NAME …`.
                found = self.in_command(SimpleCommand(tuple(words[index:])))
                starts_others = text.rsplit("/", 1)[-1] in _LAUNCHERS | _TRAINERS
                has_subcommand = bool(rest) and not rest[0].unquoted.startswith("-")
                return found if starts_others or has_subcommand else found or words[index]
            if not text.startswith("-"):
                return words[index]
            index += 2 if text in ("-W", "-X") else 1
        return None

    def _of_launcher(self, program: str, words: Sequence[ShellWord]) -> ShellWord | None:
        """Returns the script or module that a launcher runs, or the subcommand of a trainer."""
        if program in _TRAINERS:
            return next((word for word in words[:1] if not word.unquoted.startswith("-")), None)
        for index, word in enumerate(words):
            if word.unquoted in _MODULE_OPTIONS:
                module = next(iter(words[index + 1 :]), None)
                return None if module is None or module.unquoted.startswith("-") else module
            if self._is_script(word):
                return word
        return None


# Finds the folder in which a job's command runs its program, after each `cd` at its beginning.


def program_folder(spec: JobSpec) -> str | None:
    """Returns the folder in which the program of a job runs; None if only a shell knows it.

    It is the job's working folder unless the command begins like `cd DIR && python train.py`. A folder that
    begins with "~" is returned as it is written.
    """
    if spec.kind == "csv" or spec.command is None or "cd" not in spec.command:
        return spec.cwd
    parts = simple_commands(spec.command)
    if parts is None:
        return None
    folder = spec.cwd
    for part in parts:
        if part.first not in PASSIVE:
            break
        if part.first == "cd":
            target = _target(spec.command, part)
            if target is None:
                return None
            folder = target if target.startswith("~") else posixpath.join(folder, target)
    return folder


def _target(command: str, part: SimpleCommand) -> str | None:
    """Returns the folder that is the only word after `cd`; None if it is not known."""
    words = [word for word in part.words[1:] if word.unquoted != "--"]
    if part.words[0].unquoted != "cd" or len(words) != 1 or not is_clear(command, words[0]):
        return None
    text = words[0].unquoted
    return None if text.startswith("-") or any(each in text for each in "$`*?[\0") else text


# Rewrites `--cuda IDS` in a job's command, or adds it if the job requests that.
#
# In shell text, only whole words are changed, never part of a quoted text.


_OPTION = "--cuda"


def format_cuda_ids(gpus: Sequence[int], ids: CudaIds) -> str:
    """Returns the value of `--cuda`: the indices of the GPUs, or 0..n-1 for scripts that use visible ids."""
    return ",".join(map(str, gpus if ids == "physical" else range(len(gpus))))


def rewrite_arguments(arguments: Sequence[str], ids: str, mode: CudaMode) -> tuple[str, ...]:
    """Returns a script's arguments with `--cuda IDS`. A `--cuda` flag without a value is unchanged."""
    if mode == "off":
        return tuple(arguments)
    present = [word.partition("=")[0] == _OPTION for word in arguments]
    if mode == "add" and not any(present):
        end = arguments.index("--") if "--" in arguments else len(arguments)
        return (*arguments[:end], _OPTION, ids, *arguments[end:])
    return _with_value(arguments, present, ids)


def _with_value(
    arguments: Sequence[str], is_option: Sequence[bool], value: str, *, is_needed: bool = False
) -> tuple[str, ...]:
    """Returns the arguments with this value for each word that is the option.

    is_needed: whether to add the value to an option that has none.
    """
    changed: list[str] = []
    has_value = False  # whether the value of the last word, an option, has been written
    for word, following, is_one in zip_longest(arguments, arguments[1:], is_option):
        if has_value:
            has_value = False
            continue
        name, joined, _ = word.partition("=")
        changed.append(f"{name}={value}" if is_one and joined else word)
        if is_one and not joined:
            has_value = following is not None and not following.startswith("-")
            changed += [value] if has_value or is_needed else []
    return tuple(changed)


def rewrite_command(command: str, ids: str, mode: CudaMode) -> str | None:
    """Returns the shell text with `--cuda IDS`; None if it must be added but its place is unclear.

    The option is added to the last command of a list (`a && b`), never to a pipeline, a group or a
    here-document.
    """
    if mode == "off":
        return command
    words = shell_words(command)
    changed, done, present = [], 0, False
    for word, following in zip_longest(words, words[1:]):
        if word.unquoted.startswith(f"{_OPTION}="):
            changed += [command[done : word.start], f"{_OPTION}={ids}"]
            done, present = word.end, True
        elif word.unquoted == _OPTION:
            present = True
            if following is not None and is_value_of(command, word, following):
                changed += [command[done : following.start], ids]
                done = following.end
    if mode == "add" and not present:
        return f"{command.rstrip()} {_OPTION} {ids}" if _can_append(command, words) else None
    return "".join(changed) + command[done:]


def _can_append(command: str, words: Sequence[ShellWord]) -> bool:
    """Returns whether words appended to the text would become arguments of its last command."""
    outside, done = [], 0
    for word in words:
        outside.append(command[done : word.start])
        done = word.end
    outside.append(command[done:])
    operators = "".join(outside).replace("||", "")
    ends_in_word = bool(words) and command[words[-1].end :].strip() == ""
    group = any(word.unquoted in ("}", "fi", "done", "esac", "]]") for word in words)
    return ends_in_word and not group and not re.search(r"[|()`]|<<|\n", operators)


# Puts the checkpoint from which a job resumes into the command of the job.
#
# The value of the job's resume flag is replaced where the flag stands; otherwise, the flag is added directly
# after the script, or after a subcommand of LightningCLI. A command that mentions GPU_SCHEDULER_CHECKPOINT
# reads the path from its environment, so it stays as it is. Nothing here looks for checkpoints or checks that
# a path exists.


DEFAULT_RESUME_FLAG = "--resume_from_checkpoint"
#: The variable that contains the path in every resumed attempt.
CHECKPOINT_VARIABLE = "GPU_SCHEDULER_CHECKPOINT"


def with_checkpoint(spec: JobSpec, path: str) -> JobSpec | None:
    """Returns the job as it resumes from the checkpoint at `path`; None if there is no place for the path."""
    flag = spec.resume_flag or DEFAULT_RESUME_FLAG
    if spec.kind == "csv":
        return replace(spec, arguments=_in_arguments(spec.arguments, flag, path))
    command = spec.command or ""
    if CHECKPOINT_VARIABLE in command:
        return spec
    changed = _in_command(command, flag, path, shell_scripts=spec.resume_flag is not None)
    return None if changed is None else replace(spec, command=changed)


def has_place(spec: JobSpec) -> bool:
    """Returns whether the command of a job has a place for the path of a checkpoint."""
    return with_checkpoint(spec, "/") is not None


def stands_in(spec: JobSpec) -> bool:
    """Returns whether the scheduler itself may resume the job, because the user has said how.

    The user has said so with resume-flag=, or if the flag or the variable stands in the command.
    """
    flag = spec.resume_flag or DEFAULT_RESUME_FLAG
    if spec.kind == "csv":
        named = any(_is_flag(word, flag) for word in spec.arguments)
    else:
        parts = simple_commands(spec.command or "") or []
        named = any(_is_flag(word.unquoted, flag) for part in parts for word in part.words)
        named = named or CHECKPOINT_VARIABLE in (spec.command or "")
    return (spec.resume_flag is not None or named) and has_place(spec)


def _is_flag(word: str, flag: str) -> bool:
    """Returns whether a word is the flag, with or without a value.

    `-` and `_` count as equal, because the argument parsers of training scripts accept both: of two spellings
    in a command, the last one would win.
    """
    return word.partition("=")[0].replace("-", "_") == flag.replace("-", "_")


def _in_arguments(arguments: Sequence[str], flag: str, path: str) -> tuple[str, ...]:
    present = [_is_flag(word, flag) for word in arguments]
    at = after_subcommand(arguments)
    if not any(present):
        return (*arguments[:at], flag, path, *arguments[at:])
    return _with_value(arguments, present, path, is_needed=True)


def _in_command(command: str, flag: str, path: str, *, shell_scripts: bool) -> str | None:
    parts = simple_commands(command)
    if parts is None:
        return None
    holders = [part.words for part in parts if any(_is_flag(word.unquoted, flag) for word in part.words)]
    if len(holders) == 1:
        return _replace_flag(command, holders[0], flag, shlex.quote(path))
    if holders:
        return None
    end = find_script_end(command)
    if end is None and shell_scripts:
        end = find_script_end(command, shell_scripts=True)
    return None if end is None else f"{command[:end]} {shlex.join([flag, path])}{command[end:]}"


def _replace_flag(command: str, words: Sequence[ShellWord], flag: str, value: str) -> str | None:
    """Returns the shell text with this value for the flag; None if the value there is not wholly known."""
    changed, done = "", 0
    for word, following in zip(words, [*words[1:], None], strict=True):
        if not _is_flag(word.unquoted, flag):
            continue
        last = word
        name, joined, _ = word.unquoted.partition("=")
        if not joined and following is not None and is_value_of(command, word, following):
            last = following
        if not (is_clear(command, word) and is_clear(command, last)):
            return None
        if not joined and command[last.end :].lstrip(" \t").startswith("`"):
            return None
        changed += f"{command[done : word.start]}{shlex.quote(name)}{'=' if joined else ' '}{value}"
        done = last.end
    return changed + command[done:]
