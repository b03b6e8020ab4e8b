"""The skill file for coding assistants names only commands and options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpu_scheduler.cli.commands import COMMANDS
from gpu_scheduler.cli.parser import parse
from gpu_scheduler.cli.program import PROGRAM
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.errors import UsageError

SKILL = Path(__file__).parents[2] / "skill" / "gpu-scheduler.md"
TEXT = SKILL.read_text("utf-8")
#: Code that is no command line: an option, a word of a command line, a file, a state or an outcome.
OTHER_CODE = re.compile(
    rf"--[a-z-]+|JOB|5-9|gpu_scheduler_state\.json|python3 scheduler\.py|submit|{PROGRAM}"
    rf"|{'|'.join((*JobState, *Outcome))}"
)


def code_of(text: str) -> list[str]:
    """Returns the lines of all code blocks and all inline code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [line for block in blocks for line in block.splitlines()] + [
        " ".join(one.split()) for one in inline
    ]


def command_lines(text: str) -> list[str]:
    return [code for code in code_of(text) if code.startswith(f"{PROGRAM} ")]


@pytest.mark.parametrize("line", dict.fromkeys(command_lines(TEXT)))
def test_every_command_line_parses(line: str) -> None:
    assert parse(shlex.split(line)[1:]).command in COMMANDS


def test_all_other_code_is_known() -> None:
    others = [code for code in code_of(TEXT) if not code.startswith(f"{PROGRAM} ")]
    assert [code for code in others if not OTHER_CODE.fullmatch(code)] == []


def test_the_file_names_the_commands_for_everyday_use() -> None:
    named = {shlex.split(line)[1] for line in command_lines(TEXT)}
    assert len(named) > 15
    assert named >= {"status", "submit", "wait", "why", "logs", "cancel", "retry", "pause", "resume", "set"}
    assert named >= {"recover", "clear", "import", "eta", "adopt", "preempt"}


def test_the_front_matter_names_and_describes_the_skill() -> None:
    found = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n\n# ", TEXT)
    assert found is not None
    assert found[1] == SKILL.stem
    assert 100 < len(found[2]) < 1024


def test_the_checks_find_code_that_is_wrong() -> None:
    lines = command_lines(f"`{PROGRAM} status --jsn` and\n```bash\n{PROGRAM} etas 3\n```\n")
    assert sorted(lines) == [f"{PROGRAM} etas 3", f"{PROGRAM} status --jsn"]
    for line in lines:
        with pytest.raises(UsageError):
            parse(shlex.split(line)[1:])
    assert not OTHER_CODE.fullmatch("pre-empt")
