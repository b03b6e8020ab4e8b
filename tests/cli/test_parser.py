"""Parsing the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from gpu_scheduler.cli.commands import GROUPS
from gpu_scheduler.cli.parser import parse
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.scheduling.history import REMEMBERED_STARTS
from gpu_scheduler.core.scheduling.settings import QueueOrder
from gpu_scheduler.errors import UsageError

COMMANDS = {
    "start": [], "add": ["train.py"], "status": [], "pause": ["0"], "resume": ["all"], "attach": ["3"],
    "logs": ["3"], "cancel": ["3"], "retry": ["3"], "hold": ["3"], "release": ["3"], "stop": [],
    "eta": [], "screens": [], "priority": ["3", "5"], "lint": [], "doctor": [], "completion": ["bash"],
    "show": ["3"], "why": ["3"], "events": [], "calibrate": [], "run": [], "wait": [], "gpus": [],
    "submit": [], "adopt": ["158500"], "import": ["queue.json"], "set": ["3", "vram=1G"], "recover": ["3"],
    "clear": [], "preempt": ["3"], "plan": [], "serve": [], "token": ["list"], "mcp": [],
    "redis-submit": [], "redis-queue": [], "redis-agent": [], "notify": [], "top": [], "link": [],
    "service": ["status"],
    "engine-agent": [],
}  # fmt: skip
#: The words that must come last.
LAST = {"run": ["--", "true"], "submit": ["train.py"], "redis-submit": ["train.py"]}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["state_file", "data_dir"])
def test_state_file_and_data_dir_are_accepted_before_or_after_the_command(command: str, option: str) -> None:
    said, rest = [f"--{option.replace('_', '-')}", "x.json"], COMMANDS[command]
    last = LAST.get(command, [])
    assert getattr(parse([*said, command, *rest, *last]), option) == "x.json"
    assert getattr(parse([command, *rest, *said, *last]), option) == "x.json"
    assert getattr(parse([command, *said, *rest, *last]), option) == "x.json"
    assert getattr(parse([f"{said[0]}=a", command, *rest, *said, *last]), option) == "x.json"
    assert getattr(parse([command, *rest, *last]), option) is None


def test_the_options_of_start_have_the_schedulers_defaults() -> None:
    assert StartOptions.from_values(vars(parse(["start"]))) == StartOptions()


#: Every option of `start` with a value that is not its default, except two options that --fresh excludes.
_ALL_CHANGED = StartOptions(
    state_file="s.json", data_dir="d", gpus="0,2,3", jobs_file="", llm_config="l.json", screen=True,
    mem_threshold=0.5, load_threshold=1.0, monitor_interval_s=0.5, state_interval_s=7.0,
    max_assign_attempts=2, assign_retry_wait_s=0.0, log_dir="logs", gpu_probe="simulated", simulate="4:80G",
    cuda_ids="visible", conda_sh="c.sh", drain=True, take_over=True, margin_mib=1024, idle_threshold_mib=0,
    spike_buffer=0.2, tolerance=0.0, exclusive=True, oom_retries=3, fail_retries=1, recover=True, learn=True,
    suspect_after=5, log_limit_mib=5, start_interval_s=1.5, cpu_jobs=999,
    preempt_at_priority=100, preempt_grace_s=5.0, queue_order=QueueOrder.BACKFILL, aging=3, idle_budget=0.0,
    poll_s=0.5, verbose=True, fresh=True, ignore_old_sessions=True, trust_files=True,
    serve="[::1]:80", as_root=True, open_metrics=True, allowed_host=("a", "b:90"), tls_cert="c", tls_key="k",
    redis="redis://h", requeue_silent_after=1800.0, on="slurm", slurm="gpu", slurm_dir="shared",
    slurm_options="--qos=x", slurm_limit=7, slurm_shards=4, slurm_python="/p", notify=("ntfy://a", "json://b"),
)  # fmt: skip
#: Fields of Settings that no option sets.
_WITHOUT_OPTION = ["launch_deadline_s", "max_launches", "grace_s", "memory_release_s", "survivor_wait_s"]


def test_every_option_of_start_sets_its_field() -> None:
    words = (
        "--state-file s.json --data-dir d --gpus 0,2,3 --jobs-file  --llm-config l.json --screen"
        " --mem-threshold 0.5 --load-threshold 1 --monitor-interval 0.5 --state-interval 7"
        " --max-assign-attempts 2 --assign-retry-wait 0 --log-dir logs --gpu-probe simulated --simulate 4:80G"
        " --cuda-ids visible --conda-sh c.sh --drain --take-over --margin 1G --idle-threshold 0"
        " --spike-buffer 0.2 --tolerance 0 --exclusive --oom-retries 3 --fail-retries 1 --recover --learn"
        " --suspect-after 5 --log-limit 5 --start-interval 1.5 --cpu-jobs 999"
        " --preempt-at-priority HIGH --preempt-grace 5 --queue-order backfill --aging 3 --idle-budget 0"
        " --poll 0.5 -v --fresh --ignore-old-sessions --trust-files"
        " --serve [::1]:80 --as-root --open-metrics --allowed-host a --allowed-host b:90"
        " --tls-cert c --tls-key k"
        " --redis redis://h --requeue-silent-after 30m --on slurm --slurm gpu --slurm-dir shared"
        " --slurm-options=--qos=x --slurm-limit 7 --slurm-shards 4 --slurm-python /p"
        " --notify ntfy://a --notify json://b"
    )
    assert StartOptions.from_values(vars(parse(["start", *words.split(" ")]))) == _ALL_CHANGED


def test_the_options_of_start_survive_being_recorded() -> None:
    recorded = StartOptions.from_values(json.loads(json.dumps(asdict(_ALL_CHANGED))))
    assert recorded == _ALL_CHANGED
    assert recorded.queue_order is QueueOrder.BACKFILL


def test_so_many_overtakes_as_the_largest_aging_needs_can_be_counted() -> None:
    most = parse(["start", "--aging", "64"]).aging
    assert most <= REMEMBERED_STARTS
    with pytest.raises(UsageError, match="from 1 to 64"):
        parse(["start", "--aging", "65"])


def test_every_tested_option_of_start_differs_from_its_default() -> None:
    same = [name for name, value in asdict(StartOptions()).items() if getattr(_ALL_CHANGED, name) == value]
    assert same == [*_WITHOUT_OPTION, "keep_history", "restore"]


def test_the_options_keep_history_and_fresh_exclude_each_other() -> None:
    assert StartOptions.from_values(vars(parse(["start", "--keep-history"]))) == StartOptions(
        keep_history=True
    )
    assert StartOptions.from_values(vars(parse(["start", "--restore"]))) == StartOptions(restore=True)
    assert StartOptions.from_values(vars(parse(["start", "--restore"]))) == StartOptions(restore=True)
    with pytest.raises(UsageError, match="not allowed with"):
        parse(["start", "--keep-history", "--fresh"])


@pytest.mark.parametrize("option", ["margin", "idle-threshold"])
@pytest.mark.parametrize(
    ("text", "mib"), [("0", 0), ("512", 512), ("512M", 512), ("1G", 1024), ("1.5GiB", 1536), ("1g", 1024)]
)
def test_memory_options_accept_the_units_of_the_jobs_file(option: str, text: str, mib: int) -> None:
    assert getattr(parse(["start", f"--{option}", text]), f"{option.replace('-', '_')}_mib") == mib


@pytest.mark.parametrize("option", ["--sim", "--simulate"])
def test_sim_is_an_alias_for_simulate(option: str) -> None:
    assert parse(["start", option, "2:24G"]).simulate == "2:24G"
    assert parse(["doctor", option, "2"]).simulate == "2"


@pytest.mark.parametrize("text", ["4", "0,2,3", "3,", "0-3", "all", " 2 "])
def test_start_accepts_a_count_or_a_list_of_gpus(text: str) -> None:
    assert parse(["start", "--gpus", text]).gpus == text.strip()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["start", "--mem-threshold", "0"], ["--mem-threshold", "'0'", "greater than 0 and at most 1"]),
        (["start", "--load-threshold", "1.1"], ["--load-threshold", "'1.1'", "at most 1"]),
        (["start", "--mem-threshold", "nan"], ["--mem-threshold", "'nan'"]),
        (["start", "--monitor-interval", "0"], ["--monitor-interval", "'0'", "86400"]),
        (["start", "--state-interval", "inf"], ["--state-interval", "'inf'"]),
        (["start", "--max-assign-attempts", "0"], ["--max-assign-attempts", "'0'", "from 1 to 1000"]),
        (["start", "--max-assign-attempts", "2.5"], ["--max-assign-attempts", "'2.5'", "whole number"]),
        (["start", "--assign-retry-wait", "-1"], ["--assign-retry-wait", "from 0 to 3600"]),
        (["start", "--gpus", "0"], ["--gpus", "write `--gpus 0,` for GPU 0, or a count such as `--gpus 4`"]),
        (["start", "--gpus", "1-0"], ["--gpus", "runs backward"]),
        (["start", "--gpus", "x"], ["--gpus", "'x'", "0,2"]),
        (["start", "--gpu-probe", "magic"], ["--gpu-probe", "magic", "nvml"]),
        (["start", "--state", "x"], ["--state"]),
        (["start", "--sim", "2", "--simulate", "2"], ["--sim", "--simulate", "not allowed"]),
        (["start", "--simulate", "2", "--sim", "3"], ["--sim", "--simulate", "not allowed"]),
        (["start", "--watch", "--drain"], ["--watch", "--drain", "not allowed"]),
        (["start", "--margin", "-1"], ["--margin"]),
        (["start", "--margin", "1T"], ["--margin", "'1T'", "18G", "0 is accepted"]),
        (["start", "--idle-threshold", "x"], ["--idle-threshold", "'x'", "18000"]),
        (["start", "--tolerance", "-0.1"], ["--tolerance", "from 0 to 10"]),
        (["start", "--spike-buffer", "11"], ["--spike-buffer", "'11'", "from 0 to 10"]),
        (["start", "--oom-retries", "-1"], ["--oom-retries", "from 0 to 1000"]),
        (["start", "--fail-retries", "1.5"], ["--fail-retries", "'1.5'", "whole number"]),
        (["start", "--queue-order", "fifo"], ["--queue-order", "'fifo'", "backfill", "reserve"]),
        (["start", "--aging", "0"], ["--aging", "'0'", "from 1 to 64"]),
        (["start", "--aging", "1.5"], ["--aging", "'1.5'", "whole number"]),
        (["start", "--idle-budget", "1.1"], ["--idle-budget", "'1.1'", "from 0 to 1"]),
        (["start", "--idle-budget", "nan"], ["--idle-budget", "'nan'"]),
        (["start", "--poll", "0"], ["--poll", "'0'", "from 0.1 to 3600"]),
        (["start", "--poll", "3601"], ["--poll", "'3601'"]),
        (["start", "--serve", "box"], ["--serve", "'box'", "127.0.0.1:8000"]),
        (["start", "--serve", "::1:80"], ["--serve", "'::1:80'", "[::1]:8000"]),
        (["start", "--serve", "box:65536"], ["--serve", "'65536'", "from 0 to 65535"]),
        (["notify", "--on", "ended"], ["--on", "'ended'", "completed, failed, drained"]),
        (["serve", "--port", "x"], ["--port", "'x'", "from 0 to 65535"]),
        (["add", "a.py", "--priority", "hihg"], ["--priority", "'hihg'", "HIGH"]),
        (["add"], ["SCRIPT"]),
        (["add", "a.py", "--args"], ["--args"]),
        (["cancel", "x y"], ["JOB", "'x y'", "a range of numbers (5-9)", "a job name"]),
        (["cancel", "3,4"], ["JOB", "'3,4'", "separate several jobs with spaces"]),
        (["cancel", "9-5"], ["JOB", "'9-5'", "a range such as 5-9"]),
        (["logs", "5-9"], ["JOB", "'5-9' is a range of jobs; give a single job, such as 5"]),
        (["cancel", "0"], ["JOB", "'0'"]),
        (["hold"], ["JOB"]),
        (["attach", "\u0661"], ["JOB", "a job name"]),
        (["cancel", "3", "--grace", "-1"], ["--grace", "from 0"]),
        (["pause", "x"], ["ID", "'x'", "all", "`hold JOB` keeps a job from starting"]),
        (["resume", "x"], ["ID", "'x'", "`resume --job JOB` continues a job"]),
        (["pause", ""], ["ID", "all"]),
        (["logs", "3", "-n", "-1"], ["--lines", "'-1'"]),
        (["strat"], ["'strat'", "neither a command nor an existing file", "did you mean `start`?"]),
        (["nothing-like-it.txt"], ["'nothing-like-it.txt'", "neither a command nor an existing file"]),
        ([""], ["''", "neither a command nor an existing file"]),
        (["./start"], ["'./start'", "neither a command nor an existing file"]),
        (["--sim", "2", "start"], ["--sim: the command or the jobs file comes first", "`start --sim 2`"]),
        (["--json", "status", "a b"], ["--json", "`status --json 'a b'`"]),
        ([], ["COMMAND"]),
        (["status", "--state-file", ""], ["--state-file", "empty"]),
    ],
)
def test_errors_name_the_option_the_value_and_the_accepted_values(words: list[str], parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words)
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert text.count("\n") == 1
    assert "--help` lists the accepted arguments" in text


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["--args", "--resume"], "--resume"),
        (["--args=--resume"], "--resume"),
        (["--args", "--llm x --epochs 3"], "--llm x --epochs 3"),
        (["--args", "-v"], "-v"),
        (["--args", "--gpus"], "--gpus"),
        (["--args", ""], ""),
        (["--args", "--"], "--"),
        (["--args", "a=b"], "a=b"),
        (["--args", "--args"], "--args"),
        ([], ""),
    ],
)
def test_the_args_option_accepts_a_value_that_begins_with_a_dash(words: list[str], args: str) -> None:
    for before, after in (([], words), (words, [])):
        read = parse(["add", *before, "train.py", *after, "--priority", "-3"])
        assert (read.args, read.script, read.priority) == (args, "train.py", -3)


def test_add_accepts_a_script_whose_file_name_looks_like_an_option() -> None:
    assert parse(["add", "--conda", "e", "./--args"]).script == "./--args"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pause", "0", "2"], [(0,), (2,)]),
        (["pause", "0,2", "4-6"], [(0, 2), (4, 5, 6)]),
        (["resume", "all"], [None]),
        (["resume", "--all"], [None]),
        (["pause", "--all"], [None]),
        (["pause"], []),
    ],
)
def test_pause_accepts_single_gpus_lists_and_all(words: list[str], expected: Any) -> None:
    assert parse(words).ids == expected


@pytest.mark.parametrize(
    ("words", "jobs", "number"),
    [
        (["bert", "5-9", "5"], ["bert", range(5, 10)], 5),
        (["3", "5"], [3], 5),
        (["3", "4", "-1"], [3, 4], -1),
        (["3", "4", "0"], [3, 4], 0),
        (["30", "high"], [30], 100),
        (["30", "Critical"], [30], 0),
    ],
)
def test_priority_reads_its_last_argument_as_the_number(
    words: list[str], jobs: list[Any], number: int
) -> None:
    read = parse(["priority", *words])
    assert (read.jobs, read.number) == (jobs, number)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("status -w", "status --watch"),
        ("logs 3 --tail 5", "logs 3 -n 5"),
        ("events --json", "events --jsonl"),
        ("wait 3 bert", "wait --job 3 bert"),
        ("wait 3 --job bert", "wait --job 3 bert"),
        ("wait --allowed 0", "wait --only 0"),
        ("run --allowed 0 -- x", "run --only 0 -- x"),
        ("add --allowed 0 x.py", "add --gpus 0 x.py"),
        ("priority 3 high", "priority 3 HIGH"),
        ("add --priority low x.py", "add --priority 300 x.py"),
    ],
)
def test_both_spellings_mean_the_same(words: str, same: str) -> None:
    assert parse(words.split()) == parse(same.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_each_command_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"Example: gpu-scheduler {command}" in text
    assert "--state-file PATH" in text
    description = text.split("\n\n")[1]
    assert len(description.split()) > 3
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert f"\n  {command} " in capsys.readouterr().out


def test_the_help_lists_every_command_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for _, names in GROUPS.items() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    with pytest.raises(SystemExit):
        parse(["--help"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:3].strip()]
    assert [word for word in listed if word in COMMANDS] == grouped


def test_parsing_has_no_side_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, rest in COMMANDS.items():
        parse([command, *rest, "--state-file", "new/x.json", *LAST.get(command, [])])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "executed", "called"),
    [
        ("scheduler.py", "/usr/bin/python3", "python3 scheduler.py"),
        ("../scheduler.py", "/usr/bin/python3", "python3 ../scheduler.py"),
        ("./scheduler.py", "./scheduler.py", "./scheduler.py"),
        ("/opt/gpu_scheduler/__main__.py", "/usr/bin/python3", "python3 -m gpu_scheduler"),
        ("/usr/bin/gpu-scheduler", "/usr/bin/gpu-scheduler", "gpu-scheduler"),
    ],
)
def test_errors_name_the_program_as_the_user_invoked_it(
    path: str, executed: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.orig_argv", ["python3", path])
    monkeypatch.setenv("_", executed)
    monkeypatch.setattr("sys.argv", [path])
    with pytest.raises(UsageError, match=f"`{called} add --help` lists"):
        parse(["add", "a.py", "--priority", "x"])


def test_a_resume_flag_with_dashes_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError) as refused:
        parse(["submit", "--resume-flag", "--ckpt_path", "train.py"])
    assert "give the option without its dashes, as in --resume-flag ckpt_path\n" in str(refused.value)
