"""The JSON, identity, program and mode of job specifications."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec

CSV = JobSpec("csv", "0,a.py,,--lr 1 --bs 2", "/w", "/w/a.py", ("--lr", "1", "--bs", "2"))
COMMAND = JobSpec("command", "python a.py", "/w", command="python a.py")

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(deadline=None)
@given(
    st.builds(
        JobSpec,
        st.sampled_from(["csv", "command"]),
        WORDS,
        WORDS,
        script=st.none() | WORDS,
        arguments=st.lists(WORDS, max_size=3).map(tuple),
        env=st.lists(st.tuples(WORDS, WORDS), max_size=2).map(tuple),
        priority=st.none() | st.integers(0, 300),
        allowed=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
        share=st.none() | st.integers(1, 1000),
        vram=st.none() | st.integers(1, 1 << 30),
        exclusive=st.booleans(),
        oom_retries=st.none() | st.integers(0, 3),
        fail_retries=st.none() | st.integers(0, 3),
        timeout_s=st.none() | st.floats(0.001, 1e7),
        hold=st.booleans(),
    )
)
def test_a_job_spec_survives_a_json_round_trip(spec: JobSpec) -> None:
    back = JobSpec.from_json(spec.to_json())
    # No line can express an empty list of GPUs.
    assert back == (replace(spec, allowed=None) if spec.allowed == () else spec)


def test_the_json_of_a_job_spec_keeps_zero_values() -> None:
    zero = JobSpec.from_json(replace(CSV, priority=0, oom_retries=0, fail_retries=0).to_json())
    assert (zero.priority, zero.oom_retries, zero.fail_retries) == (0, 0, 0)


@pytest.mark.parametrize(
    ("spec", "program"),
    [
        (CSV, "/w/a.py"),
        (COMMAND, "a.py"),
        (replace(COMMAND, command="SEED=1 python -u /x/train.py --lr 1"), "/x/train.py"),
        (replace(COMMAND, command="python -m pkg.train --config a.py"), "pkg.train"),
        (replace(COMMAND, command="bash run.sh a.py"), "run.sh"),
        (replace(COMMAND, command="./train --lr 1"), "./train"),
        (replace(COMMAND, command="A=1 B=2"), ""),
        (replace(COMMAND, command="echo 'unbalanced t.py"), "t.py"),
    ],
)
def test_the_program_name_excludes_arguments(spec: JobSpec, program: str) -> None:
    assert spec.program == program


@pytest.mark.parametrize(
    "other",
    [
        replace(CSV, arguments=("--lr", "2", "--bs", "1")),
        replace(CSV, arguments=("--bs", "2", "--lr", "1")),
        replace(CSV, conda="torch"),
        replace(CSV, venv="/v"),
        replace(CSV, cwd="/elsewhere"),
        replace(CSV, env=(("SEED", "1"),)),
        replace(CSV, script="/w/b.py"),
        COMMAND,
    ],
)
def test_jobs_with_different_commands_or_environments_have_different_identities(other: JobSpec) -> None:
    assert other.identity != CSV.identity


def test_attributes_do_not_change_the_identity() -> None:
    changed = replace(
        CSV,
        text="else",
        name="n",
        priority=3,
        allowed=(1,),
        share=5,
        gpus=2,
        vram=9000,
        exclusive=True,
        oom_retries=2,
        fail_retries=0,
        timeout_s=90.0,
        cuda="off",
        cuda_ids="visible",
        hold=True,
    )
    assert changed.identity == CSV.identity
    assert set(changed.attributes) == set(COMPARED_ATTRIBUTES)
    one, two = replace(CSV, env=(("A", "1"), ("B", "2"))), replace(CSV, env=(("B", "2"), ("A", "1")))
    assert one.identity == two.identity


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        (CSV, "a"),
        (replace(CSV, arguments=("--mode", "train")), "train"),
        (replace(CSV, arguments=("--mode=eval",)), "eval"),
        (COMMAND, "a"),
        (replace(COMMAND, command="SEED=1 ./run x"), "run"),
        (replace(COMMAND, command="python3 'my dir/t.py' --mode m"), "m"),
        (replace(COMMAND, command="echo 'unbalanced"), "echo"),
    ],
)
def test_derives_the_mode_of_a_job_from_its_spec(spec: JobSpec, mode: str) -> None:
    assert spec.mode == mode


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("python t.py --output_dir out; echo done", "out"),
        ("for s in 1 2; do python t.py --output_dir=out; done", "out"),
        ("python t.py --output_dir out && echo", "out"),
    ],
)
def test_the_operator_after_an_option_is_no_part_of_its_value(text: str, value: str) -> None:
    assert JobSpec("command", text, "/w", command=text).option("output_dir") == value
    assert JobSpec("csv", "x", "/w", script="/t.py", arguments=("--name", "a;")).option("name") == "a;"


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("python t.py 2>&1 | tee log", ("python", "tee")),
        ("a && /usr/bin/python t.py |& grep loss | tail -1; b || c", ("python", "grep", "tail")),
        ("python t.py > 'a | b' || echo \"c | d\" >| log", ()),
        ("python t.py", ()),
    ],
)
def test_names_the_programs_in_the_pipes_of_a_command(text: str, programs: tuple[str, ...]) -> None:
    spec = JobSpec("command", text, "/w", command=text)
    assert spec.pipe_programs == programs
    assert replace(spec, pipefail="off").pipe_programs == ()
    assert replace(spec, pipefail="on").pipe_programs == programs


@pytest.mark.parametrize(
    ("text", "is_end"),
    [
        ("yes | head -1", True),
        ("cd x && python t.py | head -1", True),
        ("for i in 1 2; do python t.py | head -1; done", True),
        ("(cd x; python t.py) | head -1", True),
        ("yes | pip install x && python t.py", False),
        ("yes | pip install x && python t.py | tee log", False),
        ("set -e; yes | pip install x; python t.py", False),
        ("(yes | pip install x && python t.py) | tee log", False),
        ("echo a | cat; python t.py", False),
        ("python t.py", False),
    ],
)
def test_knows_whether_anything_was_to_run_after_a_pipe(text: str, is_end: bool) -> None:
    spec = JobSpec("command", text, "/w", command=text)
    assert spec.ends_in_pipe == is_end
    assert not replace(spec, pipefail="off").ends_in_pipe


def test_the_handling_of_pipes_and_background_work_is_no_part_of_the_identity() -> None:
    text = "python t.py | tee log"
    spec = JobSpec("command", text, "/w", command=text)
    other = replace(spec, pipefail="off", background="wait")
    assert spec.identity == other.identity
    assert spec.attributes != other.attributes
    assert JobSpec.from_json(other.to_json()) == other
