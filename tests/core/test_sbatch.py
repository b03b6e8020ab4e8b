"""Tests which options of `#SBATCH` lines count, and what they mean here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.attributes import parse_item
from gpu_scheduler.core.jobsfile.compose import combinations, sbatch_options


@pytest.mark.parametrize(
    ("option", "attributes"),
    [
        ("--job-name=bert", {"name": "bert"}),
        ("-J bert", {"name": "bert"}),
        ("-Jbert", {"name": "bert"}),
        ('--job-name "bert"  # the name', {"name": "bert"}),
        ("--gres=gpu:2", {"gpus": "2"}),
        ("--gres=gpu", {"gpus": "1"}),
        ("--gres gpu:a100:4", {"gpus": "4"}),
        ("--gres=gpu:a100", {"gpus": "1"}),
        ("--gres=gpu:2(S:0-1),shard:8", {"gpus": "2"}),
        ("--gpus=a100:1,v100:2", {"gpus": "3"}),
        ("-G 2", {"gpus": "2"}),
        ("--gpus-per-node=8", {"gpus": "8"}),
        ("--time=30", {"timeout": "30m"}),
        ("--time=30:15", {"timeout": "1815s"}),
        ("-t 1:30:00", {"timeout": "90m"}),
        ("--time=2-12", {"timeout": "60h"}),
        ("--time=1-0:30", {"timeout": "1470m"}),
        ("--time=1-00:00:01", {"timeout": "86401s"}),
        ("--gpus=0", {"gpus": "0"}),
        ("--gres=gpu:0", {"gpus": "0"}),
        ("-J x -t 5 -G1", {"name": "x", "timeout": "5m", "gpus": "1"}),
    ],
)
def test_an_option_with_an_equal_attribute_is_read(option: str, attributes: dict[str, str]) -> None:
    read = sbatch_options(f"#!/bin/bash\n#SBATCH {option}\npython t.py\n")
    assert read == (attributes, [], [])


@pytest.mark.parametrize(
    "option",
    [
        "--mem=32G",
        "--mem-per-gpu 16G",
        "-p gpu",
        "--nodes=2",
        "--exclusive",
        "--time=UNLIMITED",
        "--time=0",
        "--gres=shard:2",
        "--gres=none",
        "--job-name=a/",
        "--gpus-per-task=2",
        "--cpus-per-task 8",
        "--chdir=/x",
    ],
)
def test_every_other_option_is_named(option: str) -> None:
    read = sbatch_options(f"#!/bin/bash\n#SBATCH {option}\n")
    assert read == ({}, [option], [])


def test_only_lines_before_the_first_command_count_and_the_last_of_equal_options() -> None:
    head = "#!/bin/bash\n\n# a comment\n#SBATCH -G 1\n##SBATCH -G 8\n#SBATCH -G 2\n"
    assert sbatch_options(f"{head}module load x\n#SBATCH -G 4\n")[0] == {"gpus": "2"}


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0-3", [0, 1, 2, 3]),
        ("1,5,7", [1, 5, 7]),
        ("0-9:3%2", [0, 3, 6, 9]),
        ("1-2,8", [1, 2, 8]),
        ("4", [4]),
    ],
)
def test_the_indices_of_an_array_are_the_values_of_a_grid(value: str, indices: list[int]) -> None:
    words = sbatch_options(f"#SBATCH --array={value}\n")[2]
    assert [one["i"] for one in combinations([words[1]])] == list(map(str, indices))
    assert words[2:] == [
        *(["--max-running", "2"] if "%" in value else []), "--env", "SLURM_ARRAY_TASK_ID={i}"
    ]  # fmt: skip


def test_indices_that_are_no_numbers_stay_as_they_are() -> None:
    words = sbatch_options("#SBATCH --array=$(reboot),1-2;reboot,0-9:0,1-999999999:2\n")[2]
    assert words[1] == "i=$(reboot),1-2;reboot,0-9:0,1-999999999:2"


@given(st.text("#SBATCH-JtGa=gpu:gres,time 0123-()'\"\\\n", max_size=60))
def test_any_text_gives_valid_attributes(text: str) -> None:
    for script in (text, f"#SBATCH {text}", f"#SBATCH --time={text}", f"#SBATCH --gres=gpu:{text}"):
        for key, value in sbatch_options(script)[0].items():
            assert parse_item("", key, value, None)[1] is not None, f"{key}={value}"
