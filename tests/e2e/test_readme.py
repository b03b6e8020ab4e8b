"""Follows README.md and docs/running.md as a new user does.

The commands of these pages run in order. Their tables, and those of docs/jobs-file.md, list exactly what
exists.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from gpu_scheduler import config
from gpu_scheduler.cli import commands as command_list
from gpu_scheduler.cli.parser import parse
from gpu_scheduler.core.jobsfile.attributes import KNOWN_ATTRIBUTES
from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.scheduling.needs import parse_llm_config
from tests.e2e.world import World
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
JOBS_FILE = (ROOT / "docs" / "jobs-file.md").read_text()
PLACEMENT = (ROOT / "docs" / "placement.md").read_text()
#: Pages whose code blocks are run, in this order.
FOLLOWED = README + RUNNING
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [text for kind, text in FENCED.findall(FOLLOWED) if kind == "bash"]
PLAIN = [text for kind, text in FENCED.findall(README + JOBS_FILE + PLACEMENT) if kind == ""]

#: Why a block cannot run here, by the first line of the block.
NOT_RUN = {
    "make demo": "installs packages; the test suite would run itself",
    "python3 ../scheduler.py attach train": "needs a terminal: test_screen.py attaches",
}
#: What a foreground `start` prints when it is ready for commands.
UP = "scheduler up"
RUN = "python3 scheduler.py "


class Reader:
    """A reader who types each block into a shell and waits for its effect before typing the next one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder = world.folder
        for name in ("scheduler.py", "llm_config.json", "jobs.txt.example"):
            shutil.copy2(ROOT / name, self.folder)
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        (self.folder / "gpu_scheduler").symlink_to(ROOT / "gpu_scheduler")
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (tools / "python3").chmod(0o755)
        world.env["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
        self.said: dict[str, str] = {}
        self.ended_in = tools / "pwd"

    def type(self, block: str) -> None:
        """Runs a block. A foreground `start` then keeps running, as in another terminal."""
        before, start, options = block.rpartition("scheduler.py start")
        if not start or "--drain" in options:
            self._run(block)
            return
        before, _, python = before.rpartition("\n")
        self._run(before)
        self._start(f"{python}{start}{options}")

    def _run(self, block: str) -> None:
        """Runs a block. As in a real shell, the next block starts in the folder in which this one ends."""
        # Logs go to the test's folder. Pauses that give a person time to read are skipped.
        text = block.replace("--drain", "--drain --log-dir logs")
        text = text.replace("--samples 900", "--samples 120").replace("--prompts 2000", "--prompts 240")
        done = subprocess.run(
            ["bash", "-e", "-c", f"{text}\npwd > {self.ended_in}"], cwd=self.folder, env=self.world.env,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\nexit code {done.returncode}: {done.stdout}{done.stderr}"
        commands = [line for line in block.splitlines() if "scheduler.py" in line]
        self.said[commands[-1] if commands else block] = done.stdout
        self.folder = self.world.folder = Path(self.ended_in.read_text().strip())

    def _start(self, block: str) -> None:
        with open(self.world.output_file, "ab") as out:
            at = out.tell()
            self.world.process = subprocess.Popen(
                ["bash", "-c", f"exec {block.strip()} --log-dir logs"],
                cwd=self.folder, env=self.world.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        wait_for(lambda: UP in self.world.output()[at:], f"{UP!r} after {block}")


@pytest.fixture
def reader(world: World) -> Reader:
    if shutil.which("screen") is None and "CI" not in os.environ:
        pytest.skip("screen is not installed")
    return Reader(world)


def expect(world: World, **wanted: str) -> dict[int, dict[str, Any]]:
    """Waits until the jobs are in these states or have these outcomes, for example j1="running".

    Returns all jobs.
    """

    def met(jobs: dict[int, dict[str, Any]]) -> bool:
        stands = {f"j{job}": about["outcome"] or about["state"] for job, about in jobs.items()}
        return wanted.items() <= stands.items()

    world.wait_until(met, str(wanted))
    return world.jobs()


def after_append(reader: Reader) -> None:
    jobs = expect(reader.world, j1="running", j2="running", j3="running", j4="running", j5="queued")
    assert jobs[1]["gpus"] == [0]
    assert jobs[2]["gpus"] == jobs[3]["gpus"]
    assert jobs[4]["gpus"] == [3]
    assert jobs[5]["reason"].startswith("needs 2 idle GPUs")


def after_status(reader: Reader) -> None:
    said = reader.said["python3 ../scheduler.py status"]
    assert re.match(r"6 jobs: .* running.*; scheduler pid [0-9]+\n", said)
    assert re.search(r"^ +1  running +0 .* train ", said, re.MULTILINE)
    assert re.search(r"^ +5  queued +pair +needs 2 idle GPUs, ", said, re.MULTILINE)
    assert expect(reader.world, j6="failed")[6]["exit_code"] == 2


def after_retry(reader: Reader) -> None:
    said = reader.said["python3 ../scheduler.py retry typo"]
    why = r"job 6 failed, exit code 2: .*invalid int value.*correct the arguments.*job 6: queued again"
    assert re.search(why, said, re.DOTALL)
    reader.world.wait_until(
        lambda jobs: jobs[6]["attempts"] == 2 and jobs[6]["state"] == "finished", "job 6 has run again"
    )
    jobs = expect(reader.world, j1="running", j2="completed", j3="completed", j4="completed", j5="completed")
    assert len(jobs[5]["gpus"]) == 2


def after_sweep(reader: Reader) -> None:
    said = reader.said["python3 scheduler.py status train"]
    assert re.search(r"job 6 submitted: train/lr=0.001/seed=2: .*6 jobs: 6 queued.*wait", said, re.DOTALL)


def after_pause(reader: Reader) -> None:
    said = reader.said["python3 scheduler.py resume 3"]
    assert re.search("GPU 3: paused.*needs 1 free GPU.*GPU 3: paused.*GPU 3: resumed", said, re.DOTALL)
    reader.world.wait_until(lambda jobs: jobs[7]["gpus"] == [3], "job 7 is on GPU 3")
    assert reader.world.end_scheduler() == 0


def after_stop(reader: Reader) -> None:
    said = reader.said["python3 ../scheduler.py cancel train"]
    assert re.search(r"has ended.*not running.*  1  running +0 .*job 1: cancelled", said, re.DOTALL)
    assert reader.world.process is not None
    assert reader.world.process.wait(20) == 0
    # The next scheduler records the jobs that were cancelled while no scheduler ran.
    root, reader.folder = reader.folder, reader.folder / "tour"
    reader.type("python3 ../scheduler.py start --simulate 4 --screen\n")
    expect(reader.world, j1="cancelled")
    assert reader.world.end_scheduler() == 0
    reader.folder = reader.world.folder = root


def after_drain(reader: Reader) -> None:
    (said,) = (said for command, said in reader.said.items() if "once.json" in command)
    assert "[job 1] the answer is 42" in said
    assert "1 of 1 jobs completed" in said.splitlines()[-1], "the output of jobs comes first"
    # The next block pauses a GPU and needs a running scheduler.
    reader.type(f"{RUN}start --simulate 4 --screen\n")


def after_edit(reader: Reader) -> None:
    world = reader.world
    reader.type(f"{RUN}start --simulate 4 --screen\n")
    wait_for(lambda: [gpu["index"] for gpu in world.status()["gpus"] if gpu["state"] == "paused"] == [1, 3])
    # These are the six jobs of the sweep and the added job.
    assert [job["outcome"] for job in world.wait_finished().values()] == ["completed"] * 7


def after_reset(reader: Reader) -> None:
    assert reader.world.process is not None
    assert reader.world.process.wait(20) == 0
    assert "nothing has run here yet" in reader.world.cli("status").stdout


SWEEP = (
    "python3 scheduler.py submit --grid lr=0.1,0.01,0.001 --grid seed=1..2 --share 0.5 --max-running 3 -- \\"
)
#: The check of a block's effect, by the first line of the block.
THEN: dict[str, Callable[[Reader], None]] = {
    "cat >> jobs.txt <<'END'": after_append,
    "python3 ../scheduler.py status": after_status,
    "python3 ../scheduler.py why typo": after_retry,
    "python3 ../scheduler.py stop": after_stop,
    SWEEP: after_sweep,
    """printf '[share=0.5] echo "the answer is 42"\\n' > once.txt""": after_drain,
    "python3 scheduler.py pause 3": after_pause,
    "python3 - <<'END'": after_edit,
    "python3 scheduler.py stop --jobs": after_reset,
}


def test_every_block_of_the_pages_runs_in_order_with_its_documented_effect(reader: Reader) -> None:
    ran = []
    for block in BLOCKS:
        first = block.splitlines()[0]
        if first not in NOT_RUN:
            reader.type(block)  # This fails if the exit code is not 0.
            ran.append(first)
            if first in THEN:
                THEN[first](reader)
    assert len(ran) == len(BLOCKS) - len(NOT_RUN)
    assert set(THEN) <= set(ran)


def test_the_jobs_of_the_readme_tour_last_long_enough_to_be_inspected() -> None:
    (block,) = [block for block in BLOCKS if block.startswith("cat >> jobs.txt")]
    lines = [line for line in block.splitlines() if "llm" in line]
    assert len(lines) == 4
    for line in lines:
        read = parse_line(line, "/", "/")
        assert isinstance(read, ParsedJob)
        # Each step takes 0.05 s. An epoch consists of 12 steps, and a step of two prompts.
        parts = (("epochs", 12), ("samples", 1), ("prompts", 0.5))
        steps = max(int(read.spec.option(name) or 0) * each for name, each in parts)
        assert 0.05 * steps >= 45, line


def test_each_block_named_in_this_test_occurs_once_in_the_pages() -> None:
    firsts = [block.splitlines()[0] for block in BLOCKS]
    assert [first for first in [*NOT_RUN, *THEN] if firsts.count(first) != 1] == []


def commands() -> list[str]:
    """Returns the arguments of every `python3 scheduler.py …` in text, tables and blocks, in any folder."""
    inline = re.findall(rf"`{re.escape(RUN)}([^`…]+)`", FOLLOWED)
    whole_lines = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines()]
    lines = [line for line in whole_lines if line.startswith(("python3 s", "python3 ../s"))]
    return inline + [line.partition("scheduler.py ")[2] for line in lines]


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_in_the_pages_parses(command: str) -> None:
    parsed = parse(shlex.split(command))
    assert isinstance(parsed, Namespace)
    assert parsed.command in command_list.COMMANDS


def test_the_readme_shows_ten_everyday_commands() -> None:
    shown = re.findall(rf"^\| `{RUN}([a-z]+)\b[^|]*\|[^|]+\|$", README, re.MULTILINE)
    assert len(set(shown)) == len(shown) == 10
    assert set(shown) <= set(command_list.COMMANDS)


def test_documents_the_options_of_start_with_their_defaults() -> None:
    section = COMMANDS.partition("### start\n")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| (?:`-v`, )?`(--[a-z-]+)[^`]*` \| (.+) \|$", section, re.MULTILINE))
    given = vars(parse(["start"]))
    defaults = config.StartOptions.from_values(given)
    assert defaults == config.StartOptions()
    by_option = {
        f"--{re.sub('_(s|mib)$', '', name).replace('_', '-')}": value
        for name, value in asdict(defaults).items()
        if name in given and name not in ("state_file", "data_dir")  # Every command has these options.
    }
    assert set(rows) == {*by_option, "--daemon", "--watch", "--yes", "--sim"}
    for option, value in by_option.items():
        if value not in (None, False, True, ()) or option.endswith("-retries"):
            shown = value if isinstance(value, str) else f"{value:g}"
            assert re.search(rf"default: {re.escape(shown)}\b", rows[option]), option
    assert "default: /tmp/gpu_scheduler_logs" in rows["--log-dir"]
    assert f"default: {config.LLM_CONFIG}" in rows["--llm-config"]


def table(page: str) -> str:
    """Returns a page's table of attributes."""
    return page.partition("| attribute | meaning |")[2].partition("\n\n")[0]


def attributes(page: str) -> set[str]:
    """Returns the words in a page's table of attributes that look like attribute names."""
    return {re.split("[=:]", word)[0] for word in re.findall(r"`([^`]+)`", table(page))}


def test_documents_exactly_the_implemented_attributes() -> None:
    known = {re.split("[=:]", word)[0] for word in KNOWN_ATTRIBUTES.split()}
    assert known <= attributes(JOBS_FILE)
    commonest = re.findall(r"^\| `([a-z-]+)", table(README), re.MULTILINE)
    assert len(commonest) == 6
    assert set(commonest) <= known


def test_all_documented_job_lines_are_valid() -> None:
    kinds = []
    for block in PLAIN:
        if block.startswith("{"):
            parse_llm_config(block)
            continue
        for line in block.splitlines():
            read = parse_line(line, "/work", "/home/user", frozenset(range(8)))
            if line.startswith("# "):
                continue
            assert isinstance(read, ParsedJob), f"{line}: {read}"
            kinds.append(read.spec.kind)
    assert kinds.count("csv") >= 4
    assert kinds.count("command") >= 4


def test_the_readme_has_at_most_220_lines() -> None:
    assert len(README.splitlines()) <= 220
