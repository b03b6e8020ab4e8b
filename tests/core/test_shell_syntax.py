"""Deciding which commands bash must check."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.jobsfile.job_line import (
    Malformed,
    ParsedJob,
    background_work,
    needs_bash,
    parse_line,
    script_refusal,
)


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ("python train.py --lr 1e-4", False),
        ("python train.py 'a[1' \"b[2\"", False),
        ("[ -f x ]", False),
        ("ls [ab].txt", False),
        ("python train.py | tee log", True),
        ("if x", True),
        # A subscript extends to its closing bracket, across words and lines.
        ("python[1 train.py", True),
        ("a[0]=1", True),
        ("A=1 b[ c", True),
    ],
)
def test_detects_the_commands_that_bash_must_check(command: str, asks: bool) -> None:
    assert needs_bash(command) is asks


@pytest.mark.parametrize(
    "line",
    [
        "cd scratch",
        "cd /data/exp  # the folder",
        "export WANDB_MODE=offline",
        "export A=1 B='x; y'",
        "set -e",
        "set -euo pipefail",
        "X=1",
        'OUT="out/a b" SEED=3',
        "PATH+=:/opt/bin",
        "unset HF_HOME",
        "[name=x gpus=2] cd scratch",
    ],
)
def test_a_line_that_only_changes_its_own_shell_is_malformed(line: str) -> None:
    read = parse_line(line, "/w", "/home/u")
    assert isinstance(read, Malformed)
    assert "only changes its own shell" in read.reason


@pytest.mark.parametrize(
    "line",
    [
        "cd scratch && rm -rf *.pt",
        "cd scratch; python t.py",
        "export X=$(hostname)",
        "export X=`hostname`",
        'X="$(python t.py)"',
        "X=1 python t.py",
        "X=1 >out",
        "export",
        "set | sort",
        "source env/bin/activate",
        ". ./run.env",
        "cdparanoia -B",
        "python t.py X=1",
        "true",
    ],
)
def test_a_line_that_does_more_than_change_its_shell_is_a_job(line: str) -> None:
    assert isinstance(parse_line(line, "/w", "/home/u"), ParsedJob)


@pytest.mark.parametrize("script", ["~", ".", "..", "~/", "/", "/home", "/home/u", "/w", "sub/", "/data/.."])
def test_a_csv_line_without_a_priority_whose_script_is_a_folder_is_malformed(script: str) -> None:
    """Such a line is hardly meant as CSV: `,~,-` would run the home folder."""
    read = parse_line(f",{script},-", "/w", "/home/u")
    assert isinstance(read, Malformed)
    assert read.reason == f"the script {script} is a folder; name a script, or leave out the commas"
    assert isinstance(parse_line(f"0,{script},-", "/w", "/home/u"), ParsedJob)


@pytest.mark.parametrize("script", ["t.py", "~/t.py", "/home/u2", "/w2/t", "..t"])
def test_a_csv_line_without_a_priority_may_name_any_script(script: str) -> None:
    assert isinstance(parse_line(f",{script},-", "/w", "/home/u"), ParsedJob)


@pytest.mark.parametrize(
    ("path", "content", "meant"),
    [
        ("job.sh", "python a.py\n", "submit job.sh"),
        ("my job.bash", "", "submit 'my job.bash'"),
        ("train.py", "print(1)\n", "submit train.py"),
        ("a/job.sbatch", "#SBATCH --time=1\npython a.py\n", "submit a/job.sbatch"),
        ("x.slurm", "", "submit x.slurm"),
        ("nb.ipynb", "{}", "submit -- jupyter execute nb.ipynb"),
        ("jobs", "#!/bin/bash -l\npython a.py\n", "submit -- /bin/bash -l jobs"),
        ("jobs", "#!/usr/bin/env python3\nprint(1)\n", "submit -- /usr/bin/env python3 jobs"),
        ("jobs", "\n# comment\n set -e\npython a.py\n", "submit -- bash jobs"),
        ("jobs", "\ufeffcd x\npython a.py\n", "submit -- bash jobs"),
        ("jobs", 'cd "$(dirname $0)" || exit 1\nrm -rf *.pt\n', "submit -- bash jobs"),
        ("jobs", "pushd x > /dev/null\nrm -rf *.pt\n", "submit -- bash jobs"),
        ("jobs", "cd\nrm -rf *.pt\n", "submit -- bash jobs"),
        ("jobs", "'''Trains.'''\nimport os\nx = 1\nfrom a import b\nimport c\n", "submit -- python jobs"),
        ("jobs", "X=1\r\npython a.py\r\n", "submit -- bash jobs"),
        ("jobs", "import os\nos.system('x')\n", "submit -- python jobs"),
        ("jobs", "python a.py\nexport A=1\nfor i in 1 2; do\npython b.py\ndone\nfi\n", "submit -- bash jobs"),
    ],
)
def test_a_script_is_no_jobs_file(path: str, content: str, meant: str) -> None:
    refusal = script_refusal(path, content.encode())
    assert refusal is not None
    assert f"`{meant}` runs it as one job" in refusal


@pytest.mark.parametrize(
    "content",
    [
        "",
        "# only a comment\n",
        "python a.py\ncd x\nexport A=1\npython b.py\n",
        "priority,script_path,conda_env,arguments,allowed_gpus\n0,/a.py,,\n",
        "[name=a] python a.py\nfor i in 1 2; do python b.py; done\n. x && python c.py\nA=1 python d.py\n",
        "cd a && python t.py\ncd b && python t.py\ncd c && python t.py\n",
        "\udcff",
    ],
)
def test_a_file_whose_lines_are_jobs_is_no_script(content: str) -> None:
    assert script_refusal("jobs.txt", content.encode(errors="surrogateescape")) is None


AND = "`&` without `wait`"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python a.py & python b.py & wait", []),
        ("#!/bin/bash\nfor s in 1 2; do\n  python a.py --seed $s &\ndone\nwait\n", []),
        ("for s in 1 2; do\n  python a.py --seed $s > log_$s 2>&1 &\ndone\n", [AND]),
        ("nohup python a.py > log 2>&1 &\necho $! > pid\n", [AND]),
        ("tensorboard --logdir x &\npython a.py\n", [AND]),
        ("(python a.py &) ; sleep 1", [AND]),
        ("python a.py & wait; python b.py &", [AND]),
        ("python a.py &\ndisown -a\n", [AND, "`disown`"]),
        ("setsid python a.py", ["`setsid`"]),
        ("setsid -w python a.py; setsid --wait x", []),
        ("nohup python a.py", []),
        ("python a.py && python b.py || echo failed; a |& tee log; b &> log; c >& log; d 2>&1", []),
        ("echo 'a & b' \"c & d\" # e & f\n# don't & run\npython a.py", []),
        ("screen -dmS train python a.py", ["`screen -dm`"]),
        ("screen -S train -dm python a.py", ["`screen -dm`"]),
        ("screen -d -m -S a python a.py", ["`screen -dm`"]),
        ("screen -Dm python a.py; screen -ls", []),
        ("tmux new -d -s train 'python a.py'", ["`tmux new -d`"]),
        ("tmux new-session -ds train 'python a.py'", ["`tmux new -d`"]),
        ("tmux new -s dev python a.py; tmux ls", []),
        ("docker run -d --gpus all image python a.py", ["`docker run -d`"]),
        ("sudo docker run --rm -itd image", ["`docker run -d`"]),
        ("podman run --detach image; docker compose up -d", ["`docker run -d`"]),
        ("docker run --rm --device /dev/nvidia0 -v /data:/data image python a.py -data x", []),
        ("echo 'not closed & still read\nsleep 5 &\n", [AND]),
    ],
)
def test_finds_the_work_for_which_a_shell_text_does_not_wait(text: str, found: list[str]) -> None:
    assert list(background_work(text)) == found
