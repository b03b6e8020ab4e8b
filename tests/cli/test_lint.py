"""The `lint` command reads a jobs file as the scheduler does, but queues nothing."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.text.formatting import HIDDEN
from tests.cli.desk import Desk

CONDA = Path(__file__).resolve().parents[1] / "fakes" / "conda.sh"

FILE = """\
priority,script_path,conda_env,arguments,allowed_gpus
0,a.py,,--llm small,

# nothing
[share=0.5 name=half env:SEED=1] echo 'two words'
0,a.py,,--llm small,0
for x in 1 2
do
echo $x; done
1.5,a.py,env
"""


def write_jobs_file(desk: Desk, text: str = FILE) -> None:
    (desk.path / "a.py").touch()
    (desk.path / "llm_config.json").write_text('{"models": {"small": 0.5}}')
    (desk.path / "jobs.txt").write_text(text)


def test_lint_shows_each_line_and_exits_with_1_if_a_line_is_malformed(desk: Desk) -> None:
    write_jobs_file(desk)
    code, out, err = desk.run("lint")
    assert (code, err) == (1, "")
    assert (
        f"""\
jobs.txt:2: csv; needs 0.5 of a GPU; GPUs any; priority 0
    python -u {desk.path}/a.py --llm small --cuda IDS
    in {desk.path}
    note: script a.py is a relative path, which is looked up in {desk.path}
jobs.txt:5: command; needs 0.5 of a GPU; GPUs any; priority 200; name half; env SEED
    echo 'two words'
    in {desk.path}
jobs.txt:6: duplicate of line 2; both lines belong to one job
jobs.txt:7: malformed: bash rejects the command"""
        in out
    )
    assert "jobs.txt:8: malformed: this line belongs to line 7" in out
    assert "jobs.txt:9: malformed: this line belongs to line 7" in out
    assert "jobs.txt:10: malformed: priority '1.5'" in out
    assert out.endswith("2 jobs, 1 duplicate line, 4 malformed\n")
    assert sorted(path.name for path in desk.path.iterdir()) == ["a.py", "jobs.txt", "llm_config.json"]


def test_lint_keeps_the_order_of_lines_and_marks_cancelled_lines(desk: Desk) -> None:
    write_jobs_file(desk, "1.5,a.py,env\n[cancel] true\n")
    out = desk.run("lint")[1]
    first, second = (out.index(f"jobs.txt:{number}: ") for number in (1, 2))
    assert first < second
    assert "jobs.txt:2: command; needs 1 idle GPU; GPUs any; priority 200; cancelled by its line\n" in out


def test_lint_lists_the_accepted_formats_once(desk: Desk) -> None:
    write_jobs_file(desk, "1.5,a.py,env\n1.5,b.py,env\n0,a.py,,--x a,b,\n")
    out = desk.run("lint")[1]
    assert out.count("accepted: priority,script_path") == 1
    assert "jobs.txt:3: malformed: " in out
    assert '\n    accepted: 0,a.py,,"--x a,b",\n' in out


def test_lint_warns_about_likely_mistakes(desk: Desk) -> None:
    lines = ["pyhton train.py", "conda activate a && echo x", "torchrun --nproc-per-node 4 t.py"]
    lines += ["echo --device cuda:1", "echo fine"]
    (desk.path / "torchrun").touch()
    (desk.path / "jobs.txt").write_text("\n".join(lines) + "\n")
    code, out, err = desk.run("lint")
    assert (code, err) == (0, "")
    assert "    warning: `pyhton` is not a program on PATH, so bash will report `command not found`\n" in out
    assert "; write [conda=a] echo x\n" in out
    assert "torchrun starts 4 processes, but the line requests 1 GPU; write [gpus=4]\n" in out
    assert "warning: --device cuda:1: the job sees one GPU, always as cuda:0" in out
    assert out.endswith("5 jobs, 4 lines with a warning, 0 malformed\n")


def test_the_json_of_lint_has_the_same_content_as_the_text(desk: Desk) -> None:
    write_jobs_file(desk)
    code, out, _ = desk.run("lint", "jobs.txt", "--json")
    assert code == 1
    told = json.loads(out)
    assert [(line["line"], line["same_as_line"]) for line in told["lines"]] == [(2, None), (5, None), (6, 2)]
    assert told["lines"][0]["need"] == {
        "gpus": 1, "share": 0.5, "vram": None, "idle": False, "exclusive": False,
        "description": "0.5 of a GPU",
    }  # fmt: skip
    assert told["lines"][1]["env"] == {"SEED": "1"}
    assert [bad["line"] for bad in told["malformed"]] == [7, 8, 9, 10]
    assert all(bad["reason"] and bad["accepted"] for bad in told["malformed"])


def test_lint_shows_memory_time_limit_and_retries(desk: Desk) -> None:
    write_jobs_file(desk, "[vram=9G timeout=2h retries=3 fail-retries=1 exclusive] true\n[gpus=2] true\n")
    code, out, _ = desk.run("lint")
    assert code == 0
    assert (
        "jobs.txt:1: command; needs 9.0 GiB of a GPU, alone; GPUs any; priority 200; at most 2 h;"
        " 3 retries after running out of memory; 1 retry after a failure\n"
    ) in out
    first, second = json.loads(desk.run("lint", "--json")[1])["lines"]
    assert (first["timeout_s"], first["oom_retries"], first["fail_retries"]) == (7200.0, 3, 1)
    assert first["need"] == {
        "gpus": 1, "share": None, "vram": 9216, "idle": False, "exclusive": True,
        "description": "9.0 GiB of a GPU, alone",
    }  # fmt: skip
    assert (second["timeout_s"], second["oom_retries"], second["fail_retries"]) == (None, None, None)
    assert (second["need"]["share"], second["need"]["vram"], second["need"]["idle"]) == (None, None, True)


def test_lint_uses_the_gpu_sizes_recorded_in_the_store(desk: Desk) -> None:
    write_jobs_file(desk, "[vram=23G] true\n[vram=24G] true\n")
    assert "warning" not in desk.run("lint")[1]
    assert desk.store.gpus()
    out = desk.run("lint")[1]
    assert out.count("warning: ") == 1
    assert (
        "warning: the job needs 24.0 GiB of a GPU, but its GPUs are too small (the scheduler keeps 512 MiB"
        in out
    )
    desk.store.record_options(StartOptions(margin_mib=2048))
    assert desk.run("lint")[1].count("warning: ") == 2


def test_lint_masks_values_that_look_like_secrets(desk: Desk) -> None:
    write_jobs_file(
        desk, "[env:HF_TOKEN=hunter2 env:SEED=1] python t.py\n[env:URL=ftp://ann:hunter2@host] 0,a.py,,,\n"
    )
    for form in ((), ("--json",)):
        code, out, _ = desk.run("lint", *form)
        assert code == 0
        assert "HF_TOKEN" in out
        assert "hunter2" not in out
    hidden = [line["env"] for line in json.loads(out)["lines"]]
    assert hidden == [{"HF_TOKEN": HIDDEN, "SEED": "1"}, {"URL": HIDDEN}]


def test_lint_accepts_a_valid_file_and_checks_the_gpus_that_it_names(desk: Desk) -> None:
    write_jobs_file(desk, "[gpus=2] true\n0,a.py,,,3\n")
    assert desk.run("lint")[0] == 0
    code, out, _ = desk.run("lint", "--gpus", "2")
    assert code == 1
    assert "jobs.txt:2: malformed" in out
    assert "there is no GPU 3" in out
    code, out, _ = desk.run("lint", "--gpus", "3,")
    assert code == 0
    assert "warning: the job needs 2 idle GPUs, but may use only 1 GPU" in out


def test_lint_shows_jobs_without_a_gpu(desk: Desk) -> None:
    write_jobs_file(
        desk, "[gpus=0] torchrun --nproc_per_node=2 t.py --llm big --cuda 3\n[gpus=0 vram=1G] a\n"
    )
    code, out, _ = desk.run("lint", "--gpus", "none")
    assert code == 1
    assert "jobs.txt:1: command; needs no GPU; priority 200\n    torchrun" in out
    assert "--llm big --cuda 3" in out
    assert "starts 2 processes" not in out
    assert "jobs.txt:2: malformed: gpus=0 asks for no GPU and contradicts vram" in out
    assert "accepted: attributes that do not contradict each other\n" in out


def test_lint_uses_the_gpus_and_the_folder_recorded_in_the_store(desk: Desk) -> None:
    write_jobs_file(desk, "0,a.py,,,5\n")
    assert desk.store.gpus()
    code, out, _ = desk.run("lint")
    assert code == 1
    assert "the GPUs are 0,1" in out


def test_lint_says_which_lines_run_on_slurm_and_what_has_no_effect_there(desk: Desk) -> None:
    desk.store.record_options(StartOptions(on="slurm"))
    write_jobs_file(desk, "[gpus=1 oom-retries=2] a\n[gpus=1 exclusive] b\n[gpus=1 exclusive on=local] c\n")
    code, out, _ = desk.run("lint")
    assert code == 0
    assert "jobs.txt:1: command; needs 1 idle GPU; on Slurm; priority 200" in out
    assert "warning: oom-retries has no effect on Slurm" in out
    missing = [line for line in out.splitlines() if "is not a program on PATH" in line]
    assert [line.partition("`")[2][:1] for line in missing] == ["c"]  # nodes have programs of their own
    assert out.count("warning: Slurm cannot honour exclusive, so the job would wait; use on=local") == 1
    assert "GPUs any; priority 200" in out.partition("jobs.txt:3: ")[2]
    assert [line["engine"] for line in json.loads(desk.run("lint", "--json")[1])["lines"]] == [
        "slurm", "slurm", None,
    ]  # fmt: skip


def test_lint_reads_standard_input(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, expected, part in (
        (b"echo hi", 0, "-:1: command; needs 1 idle GPU"),
        (b"\xff\n", 1, "byte 0xff is not UTF-8"),
        (b"\xff\xfe\n", 2, "the standard input is UTF-16 text; save it as UTF-8"),
    ):
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            monkeypatch.setattr("gpu_scheduler.cli.report_commands.STDIN", file.fileno())
            code, out, err = desk.run("lint", "-")
        assert code == expected
        assert part in out + err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nowhere.txt"], "nowhere.txt: does not exist"),
        (["."], ".: is not a regular file"),
        (["--llm-config", "nowhere.json"], "--llm-config nowhere.json"),
        (["--gpus", "x"], "'x'"),
    ],
)
def test_lint_exits_with_2_for_an_unreadable_file(desk: Desk, words: list[str], part: str) -> None:
    write_jobs_file(desk)
    code, out, err = desk.run("lint", *words)
    assert (code, out) == (2, "")
    assert part in err


def test_lint_reports_a_broken_llm_config(desk: Desk) -> None:
    write_jobs_file(desk)
    (desk.path / "llm_config.json").write_text("{")
    code, _, err = desk.run("lint")
    assert code == 2
    assert "not JSON" in err


def test_lint_escapes_control_characters(desk: Desk) -> None:
    write_jobs_file(desk, "echo '\x1b]0;x\x07'\n0,\x1b[2J.py,\n")
    code, out, _ = desk.run("lint")
    assert code == 0
    assert "\x1b" not in out
    assert r"\x1b[2J" in out


def test_lint_runs_conda_only_if_a_line_names_an_environment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CONDA_ROOT", str(desk.path / "conda"))
    (desk.path / "conda" / "envs" / "good").mkdir(parents=True)
    write_jobs_file(desk, "0,a.py,good,,\n0,a.py,bad,,\n")
    out = desk.run("lint", "--conda-sh", CONDA)[1]
    assert out.count("warning: ") == 1
    assert "warning: conda environment bad does not exist; environments: base, good" in out
    monkeypatch.setattr("gpu_scheduler.health.job_checks.list_environments", None)
    write_jobs_file(desk, "0,a.py,,,\n")
    assert desk.run("lint", "--conda-sh", CONDA)[0] == 0


def test_lint_reports_references_to_unknown_jobs(desk: Desk) -> None:
    write_jobs_file(desk, "[after=prep,7] true\n[name=prep] true\n[after=pep] true\n")
    code, out, _ = desk.run("lint")
    assert code == 1
    assert "jobs.txt:1: malformed: after=7: there is no job 7" in out
    assert "jobs.txt:3: malformed: after=pep: no line of this file and no job has this name" in out
    write_jobs_file(desk, "[after=prep,1] true\n[name=prep] true\n")
    desk.job("true")
    code, out, _ = desk.run("lint")
    assert (code, "; starts after prep, 1\n" in out) == (0, True)
    assert json.loads(desk.run("lint", "--json")[1])["lines"][0]["after"] == ["prep", "1"]


SCRIPT = "#!/bin/bash\nnohup python a.py > log 2>&1 &\necho $!\n"


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("bash run.sh", True),
        ("./run.sh --seed 1", True),
        ("echo first && bash run.sh; echo last", True),
        ("[background=wait] bash run.sh", False),
        ("[background=ignore] bash run.sh", False),
        ("bash run.slurm", True),
        ("cd sub && bash sub-run.sh", True),
        ("bash missing.sh", False),
        ("bash fifo.sh", False),
        ("python3 a.py run.py", False),
    ],
)
def test_lint_looks_into_the_shell_script_that_a_line_runs(desk: Desk, line: str, warned: bool) -> None:
    (desk.path / "sub").mkdir()
    for name in ("run.sh", "run.slurm", "sub/sub-run.sh"):
        (desk.path / name).write_text(SCRIPT)
    os.mkfifo(desk.path / "fifo.sh")
    write_jobs_file(desk, f"{line}\n")
    _, out, _ = desk.run("lint")
    assert (" contains `&` without `wait`, and the job does not wait for that work: add" in out) is warned


def test_lint_warns_of_work_that_is_given_to_a_server(desk: Desk) -> None:
    write_jobs_file(desk, "[background=wait] docker run -d image\n")
    assert "the command contains `docker run -d`, and the job does not wait for that work: omit -d" in (
        " ".join(desk.run("lint")[1].split())
    )
