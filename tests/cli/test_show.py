"""The `show` command prints everything about one job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.command.build import build_command
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.text.formatting import HIDDEN, hide_secrets
from gpu_scheduler.show.job_detail import job_command
from tests import changes
from tests.cli.desk import Desk
from tests.reasons import worded
from tests.waiting import wait_for


def show_json(desk: Desk, job: int) -> dict[str, Any]:
    code, out, err = desk.run("show", job, "--json")
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def test_show_prints_what_a_waiting_job_requests(desk: Desk) -> None:
    job = desk.job(
        "python t.py", share=500, allowed=(1,), conda="env", name="bert", priority=7,
        env=(("HF_TOKEN", "hf_x"), ("LR", "0.1")),
    )  # fmt: skip
    story = show_json(desk, job)
    assert (story["job"]["id"], story["job"]["state"], story["job"]["priority"]) == (job, "queued", 7)
    assert (story["kind"], story["need"], story["allowed_gpus"]) == (
        "command",
        "0.5 of a GPU (from its attributes)",
        [1],
    )
    assert story["environment"] == {
        "conda": "env", "venv": None, "cwd": str(desk.path), "env": {"HF_TOKEN": HIDDEN, "LR": "0.1"},
    }  # fmt: skip
    assert (story["attempts"], story["line"]) == ([], None)
    assert [step["state"] for step in story["history"]] == ["queued"]
    code, out, _ = desk.run("show", job)
    assert code == 0
    for words in ("bert: python t.py", "conda env", "LR=0.1", f"HF_TOKEN={HIDDEN}", "From          `cli`"):
        assert words in out
    assert "hf_x" not in out


def test_show_prints_attempts_and_history(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    desk.writer.record_log(row.id, "/logs/1.log", "gpujob_0_echo_1")
    desk.record(
        changes.run(row.id),
        changes.set_attempt(row.id, misplaced=(("SIM-1", 71),)),
        changes.end(
            row.id, Outcome.FAILED, worded("exit code 1: ValueError: x"), exit_code=1, survivors=(9,),
            started_at=1000.0, ended_at=1060.0,
        ),
    )  # fmt: skip
    [attempt] = show_json(desk, job)["attempts"]
    assert (attempt["number"], attempt["gpus"], attempt["outcome"]) == (1, [0], "failed")
    assert (attempt["exit_code"], attempt["reason"]) == (1, "exit code 1: ValueError: x")
    assert (attempt["log"], attempt["session"]) == ("/logs/1.log", "gpujob_0_echo_1")
    assert (attempt["survivors"], attempt["folder"]) == ([9], str(desk.folder(row)))
    assert attempt["ended_at"] - attempt["started_at"] == 60.0
    out = desk.run("show", job)[1]
    assert "after 1 min" in out
    assert out.count(f"job {job} was given GPU 0 but uses GPU 1 (process 71)") == 2
    assert [step["state"] for step in show_json(desk, job)["history"]] == [
        "queued", "starting", "running", "misplaced_process", "finished",
    ]  # fmt: skip


def test_show_prints_declared_memory_measured_memory_and_the_retry(desk: Desk) -> None:
    job = desk.job(vram=4096, oom_retries=3, timeout_s=7200.0)
    this = desk.record(act.Start(job, ("SIM-0", "SIM-1"), 0, vram=4096))[job]
    desk.record(
        changes.run(this),
        changes.measure(this, 5.0, ("SIM-0", 4900, 80.0), ("SIM-1", 4000, 40.0)),
        changes.measure(this, 6.0, ("SIM-0", 4800, 100.0), ("SIM-1", 4096, None)),
    )
    [attempt] = show_json(desk, job)["attempts"]
    assert (attempt["vram_declared"], attempt["peaks"]) == (4096, {"0": 4900, "1": 4096})
    assert attempt["load_percent"] == pytest.approx(220 / 3)
    assert attempt["declaration_accuracy"] is None
    desk.record(changes.fail(this, changes.OUT_OF_MEMORY))
    story = show_json(desk, job)
    assert story["attempts"][0]["declaration_accuracy"] == "under-declared (+20%)"
    assert (story["min_vram_mib"], story["oom_retries_used"], story["oom_retries"]) == (6125, 1, 3)
    assert (story["fail_retries_used"], story["fail_retries"], story["timeout_s"]) == (0, None, 7200.0)
    assert story["need"] == "6.0 GiB of a GPU (from an earlier attempt; its line declares 4.0 GiB)"
    assert [step["state"] for step in story["history"]] == [
        "queued", "starting", "running", "exceeded", "queued",
    ]  # fmt: skip
    out = desk.run("show", job)[1]
    for row in (
        "Retries       1 of 3 after running out of memory\n",
        "Time limit    2 h\n",
        "  Declared    4096 MiB per GPU\n",
        "  Peak        GPU 0: 4900 MiB, GPU 1: 4096 MiB; under-declared (+20%)\n",
        "  Load        73 % on average\n",
    ):
        assert row in out
    assert "other failures" not in out


def test_show_reports_an_overused_share_as_accuracy_and_as_a_warning(desk: Desk) -> None:
    job = desk.job(share=250)
    this = desk.record(act.Start(job, ("SIM-0",), 250))[job]
    desk.record(
        changes.run(this),
        changes.measure(this, 5.0, ("SIM-0", 16_000, 80.0)),
        changes.end(this, Outcome.COMPLETED),
    )
    [attempt] = show_json(desk, job)["attempts"]
    assert (attempt["vram_declared"], attempt["share_declared"]) == (None, 0.25)
    warning = f"job {job} declared share 0.25 (6144 MiB) but used 16000 MiB on GPU 0"
    assert (attempt["declaration_accuracy"], attempt["warnings"]) == ("under-declared (+160%)", [warning])
    assert show_json(desk, job)["job"]["warnings"] == [warning]
    out = desk.run("show", job)[1]
    assert "  Declared    share 0.25 of each GPU\n" in out
    assert "  Peak        GPU 0: 16000 MiB; under-declared (+160%)\n" in out
    assert "gpu 0: 16000 MiB used, share 0.25 (6144 MiB) declared (+160%)" in out
    told_at_end = "declared share 0.25 (6144 MiB) → under-declared (+160%)"
    assert told_at_end in desk.run("events")[1]


@pytest.mark.parametrize("values", [{"share": 500}, {"share": 0, "vram": 4096}])
def test_show_does_not_treat_a_default_need_as_a_declaration(desk: Desk, values: dict[str, Any]) -> None:
    job = desk.job()
    this = desk.record(act.Start(job, ("SIM-0",), assumed=True, **values))[job]
    desk.record(
        changes.run(this),
        changes.measure(this, 5.0, ("SIM-0", 16_000, 80.0)),
        changes.end(this, Outcome.COMPLETED),
    )
    [attempt] = show_json(desk, job)["attempts"]
    assert (attempt["vram_declared"], attempt["share_declared"], attempt["declaration_accuracy"]) == (
        None,
        None,
        None,
    )
    assert "Declared" not in desk.run("show", job)[1]
    assert "peak vram gpu0:16000 MiB | no declaration" in desk.run("events")[1]


@pytest.mark.parametrize(
    ("peak", "outcome", "verdict"),
    [
        (4000, Outcome.COMPLETED, "within ±10%"),
        (2048, Outcome.COMPLETED, "over-declared (-50%)"),
        (2048, Outcome.FAILED, None),
        (None, Outcome.COMPLETED, None),
    ],
)
def test_show_prints_the_accuracy_of_a_declaration(
    desk: Desk, peak: int | None, outcome: Outcome, verdict: str | None
) -> None:
    job = desk.job(vram=4096)
    this = desk.record(act.Start(job, ("SIM-0",), 0, vram=4096))[job]
    desk.record(
        changes.run(this),
        changes.measure(this, 5.0, ("SIM-0", peak, None)),
        changes.end(this, outcome),
    )
    assert show_json(desk, job)["attempts"][0]["declaration_accuracy"] == verdict


def test_show_prints_the_source_of_the_need(desk: Desk) -> None:
    def need(text: str, **values: Any) -> str:
        return str(show_json(desk, desk.job(text, **values))["need"])

    path = desk.path / "llm.json"
    path.write_text('{"models": {"qwen": {"vram": "9G", "gpus": 2}}}')
    desk.store.record_options(StartOptions(llm_config=str(path), exclusive=True))
    assert need("python t.py --llm qwen") == "9.0 GiB of each of 2 GPUs, each alone (model qwen)"
    assert need("true", vram=1024) == "1.0 GiB of a GPU, alone (from its attributes)"
    desk.store.record_options(StartOptions(llm_config=str(path)))
    assert need("python t.py") == "1 idle GPU (the command declares nothing)"
    desk.store.record_options(StartOptions(llm_config=str(path), learn=True))
    for peak, program in ((4000, "t.py"), (23000, "big.py")):
        job = desk.job(f"python {program}")
        this = desk.record(act.Start(job, ("SIM-0",), 0))[job]
        desk.record(
            changes.run(this),
            changes.measure(this, 5.0, ("SIM-0", peak, None)),
            changes.end(this, Outcome.COMPLETED),
        )
    assert need("python t.py --x 1") == "4.3 GiB of a GPU (learned from finished jobs of the same kind)"
    assert need("python big.py --x 1") == "1 idle GPU (the command declares nothing)"
    assert need("python t.py --llm qwen") == "9.0 GiB of each of 2 GPUs (model qwen)"


def test_show_reports_an_end_that_is_not_recorded_yet(desk: Desk) -> None:
    job = desk.run_job("echo 'ValueError: x'; exit 4")
    row = desk.store.attempts(job)[0]
    wait_for(lambda: (desk.folder(row) / "result").exists(), "result")
    story = show_json(desk, job)
    [attempt] = story["attempts"]
    assert (story["job"]["recorded"], story["job"]["outcome"], attempt["exit_code"]) == (False, "failed", 4)
    assert attempt["reason"] == "exit code 4: ValueError: x"
    assert desk.state(job) == "running"
    desk.wait_until_processes_end()


def test_show_reports_a_failed_launch_before_the_attempt_ends(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    desk.writer.record_launch_error(row.id, "fork failed")
    assert show_json(desk, job)["attempts"][0]["reason"] == "fork failed"
    assert "  Reason      fork failed\n" in desk.run("show", job)[1]


def test_show_prints_the_jobs_file_and_line_number_of_a_job(desk: Desk) -> None:
    path = str(desk.path / "jobs.txt")
    spec = JobSpec("csv", "0,t.py,,,", str(desk.path), script="/x/t.py", arguments=("--lr", "1"))
    job = desk.store.insert_job(spec, f"file:{path}")
    assert show_json(desk, job)["line"] is None
    assert f"{path}; its line was removed" in desk.run("show", job)[1]
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES (?, ?)", (path, str(desk.path)))
        db.execute(
            "INSERT INTO line (path, position, number, text, job_id) VALUES (?, 0, 12, 'x', ?)", (path, job)
        )
    story = show_json(desk, job)
    assert story["line"] == {"file": path, "line": 12}
    assert (story["script"], story["arguments"]) == ("/x/t.py", ["--lr", "1"])
    assert f"{path}:12" in desk.run("show", job)[1]


def run(desk: Desk, text: str, seconds: float) -> int:
    """Inserts a job that ran for so many seconds; returns its id."""
    job = desk.job(text)
    done = Outcome.COMPLETED
    this = desk.attempt(job).id
    desk.record(changes.end(this, done, started_at=100.0, ended_at=100.0 + seconds))
    return job


def test_show_says_how_long_a_job_usually_runs(desk: Desk) -> None:
    for seconds in (4000.0, 4800.0, 5000.0):
        finished = run(desk, "python t.py", seconds)
    run(desk, "python t.py --lr 1", 60.0)
    same, other = desk.job("python t.py"), desk.job("python t.py --lr 2")
    limited = desk.job("python t.py --lr 1", timeout_s=90.0)
    text = "usually 1 h 20 min (3 runs of this command); 9 of 10 such jobs end within 2 h 40 min"
    assert f"\nRun time      {text}\n" in desk.run("show", same)[1]
    assert show_json(desk, same)["run_time"] == {
        "median_s": 4800.0, "upper_s": 9600.0, "runs": 3, "same_command": True,
    }  # fmt: skip
    assert (
        "usually 1 min (1 run of this command); 9 of 10 such jobs end within 1 min 30 s"
        in (desk.run("show", limited)[1])
    )
    for unknown in (finished, other):
        assert show_json(desk, unknown)["run_time"] is None
        assert "Run time" not in desk.run("show", unknown)[1]
    run(desk, "python t.py --lr 3", 4000.0)
    assert "usually 1 h 6 min (5 runs of its program and model); " in desk.run("show", other)[1]


def test_show_json_has_exactly_the_documented_keys(desk: Desk) -> None:
    run(desk, "echo hello", 5.0)
    job = desk.job()
    desk.attempt(job)
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    why = json.loads(desk.run("why", job, "--json")[1])
    for title, keys in {
        "# `show --json`": show_json(desk, job).keys(),
        "## An element of `attempts`": show_json(desk, job)["attempts"][0].keys(),
        "## The value of `run_time`": show_json(desk, job)["run_time"].keys(),
        "# `why --json`": why.keys(),
    }.items():
        section = re.split(r"^#", text.partition(f"\n{title}\n")[2], flags=re.MULTILINE)[0]
        rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
        assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(keys), title


def test_show_rejects_an_unknown_job(desk: Desk) -> None:
    assert desk.store
    for command in ("show", "why"):
        code, out, err = desk.run(command, 77)
        assert (code, out) == (1, "")
        assert err.startswith("gpu-scheduler: there is no job 77 in ")


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        (JobSpec("command", "a | b", "/", command="a | b 'c d'"), "a | b 'c d'"),
        (
            JobSpec("csv", "x", "/", script="/x/t.py", arguments=("a b",)),
            "\"$python\" -u /x/t.py 'a b' --cuda 1",
        ),
    ],
)
def test_show_prints_the_command_as_bash_runs_it(desk: Desk, spec: JobSpec, command: str) -> None:
    made = build_command(spec, [1], {}, "t", 3, 1, None, "physical")
    (desk.path / "command.sh").write_text(made.command_sh)
    assert job_command(desk.path) == command
    assert job_command(desk.path / "missing") is None


def test_show_prints_a_shell_command_with_further_arguments_unchanged(desk: Desk) -> None:
    last = "bash -c 'echo $1' zero 'one two'"
    (desk.path / "command.sh").write_text(f"exec 3>&-\nexec {last}\n")
    assert job_command(desk.path) == last


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("HF_TOKEN", "x", True), ("WANDB_API_KEY", "x", True), ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("db_password", "x", True), ("GITHUB_TOKEN_FILE", "x", True), ("MY_DSN", "x", True),
        ("DATABASE_URL", "postgres://me:secret@host/db", True), ("X", f"hf_{'aB3' * 8}", True),
        ("X", "-----BEGIN PRIVATE KEY", True), ("TOKENIZERS_PARALLELISM", "false", False),
        ("KEYBOARD", "us", False), ("PWD", "/x", False), ("MAX_TOKENIZED", "3", False),
        ("PROXY", "http://host:3128", False), ("LR", "0.1", False), ("MONKEY", "x", False),
    ],
)  # fmt: skip
def test_show_masks_values_that_look_like_secrets(name: str, value: str, hidden: bool) -> None:
    assert hide_secrets([(name, value)]) == {name: HIDDEN if hidden else value}
