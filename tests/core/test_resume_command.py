"""The path of a checkpoint goes where the command of a job expects it, and nowhere else."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.command.shell_words import stands_in, with_checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec

FLAG = "--resume_from_checkpoint"
PATH = "/w/out put/checkpoint-150"
QUOTED = shlex.quote(PATH)


def command(text: str, flag: str | None = None) -> JobSpec:
    return JobSpec("command", text, "/w", command=text, resume_flag=flag)


def resumed(text: str, flag: str | None = None, path: str = PATH) -> str | None:
    changed = with_checkpoint(command(text, flag), path)
    return None if changed is None else changed.command


def script(*arguments: str, flag: str | None = None) -> JobSpec:
    return JobSpec("csv", "x", "/w", script="/w/t.py", arguments=arguments, resume_flag=flag)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), (FLAG, PATH)),
        (("--lr", "1"), (FLAG, PATH, "--lr", "1")),
        (("--lr", "1", FLAG, "old"), ("--lr", "1", FLAG, PATH)),
        ((f"{FLAG}=old", "x"), (f"{FLAG}={PATH}", "x")),
        ((FLAG,), (FLAG, PATH)),
        ((FLAG, "--lr", "1"), (FLAG, PATH, "--lr", "1")),
        ((FLAG, "a", "x", f"{FLAG}=b"), (FLAG, PATH, "x", f"{FLAG}={PATH}")),
        (("--resume-from-checkpoint", "old"), ("--resume-from-checkpoint", PATH)),
        ((f"{FLAG}s", "old"), (FLAG, PATH, f"{FLAG}s", "old")),
        (("fit", "--config", "c"), ("fit", FLAG, PATH, "--config", "c")),
        (("--config", "c", "fit", "-x"), ("--config", "c", "fit", FLAG, PATH, "-x")),
        (("--config=c", "fit"), ("--config=c", "fit", FLAG, PATH)),
        (("--split", "test"), (FLAG, PATH, "--split", "test")),
    ],
)
def test_replaces_or_adds_the_flag_in_the_arguments_of_a_script(
    arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    for torchrun in (None, 2):
        changed = with_checkpoint(replace(script(*arguments), torchrun=torchrun), PATH)
        assert changed == replace(script(*expected), torchrun=torchrun)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"python t.py {FLAG} old --lr 1", f"python t.py {FLAG} {QUOTED} --lr 1"),
        (f"python t.py {FLAG}=old --lr 1", f"python t.py {FLAG}={QUOTED} --lr 1"),
        (f"python t.py {FLAG} True|tee log", f"python t.py {FLAG} {QUOTED}|tee log"),
        (f"python t.py {FLAG}", f"python t.py {FLAG} {QUOTED}"),
        (f"python t.py {FLAG} --lr 1", f"python t.py {FLAG} {QUOTED} --lr 1"),
        (f"python t.py {FLAG} 2>log", f"python t.py {FLAG} {QUOTED} 2>log"),
        (f"python t.py {FLAG}; echo done", f"python t.py {FLAG} {QUOTED}; echo done"),
        (f"python t.py  {FLAG}   '5 6'  x", f"python t.py  {FLAG} {QUOTED}  x"),
        (f'python t.py {FLAG}="$OUT/last" x', f"python t.py {FLAG}={QUOTED} x"),
        (f"python t.py {FLAG} ${{CKPT:-none}} x", f"python t.py {FLAG} {QUOTED} x"),
        ("python t.py --resume-from-checkpoint=x", f"python t.py --resume-from-checkpoint={QUOTED}"),
        (f"python a.py && python b.py {FLAG} x", f"python a.py && python b.py {FLAG} {QUOTED}"),
        (f"./train {FLAG} x", f"./train {FLAG} {QUOTED}"),
        (f"python t.py {FLAG} a {FLAG} b", f"python t.py {FLAG} {QUOTED} {FLAG} {QUOTED}"),
    ],
)
def test_replaces_the_flag_where_it_stands_in_a_command(text: str, expected: str) -> None:
    assert resumed(text) == expected
    assert stands_in(command(text))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python t.py", ""),
        ("python t.py", " --lr 1 --config other.py"),
        ("python3.11 -u -W ignore t.py", " | tee log"),
        ("/opt/env/bin/python -X dev t.py", " > log 2>&1"),
        ("cd exp && CUDA_LAUNCH_BLOCKING=1 nohup python t.py", " || exit 3"),
        ("python -m pkg.train", " --lr 1"),
        ("python -um pkg.train", ""),
        ("python train", " --lr 1"),
        ("python 'my train.py'", " x"),
        ("python $SCRIPT", " x"),
        ("python t.py", " --name $(date +%s)"),
        ('python "$HOME/t.py"', ""),
        ("./t.py", " --lr 1"),
        ("SEED=1 ./t.py", ""),
        ("source env/bin/activate && my-launcher --gpus 2 t.py", " x"),
        ("torchrun --nproc_per_node 2 t.py", " --lr 1"),
        ("torchrun --nproc_per_node 2 -m pkg.train", " --lr 1"),
        ("python -m torch.distributed.run --nproc_per_node=2 t.py", " x"),
        ("python -m torch.distributed.launch -m pkg.train", " x"),
        ("accelerate launch --config_file c.yaml t.py", " --lr 1"),
        ("accelerate launch --module pkg.train", " --lr 1"),
        ("deepspeed --num_gpus 2 t.py", " --deepspeed ds.json"),
        ("uv run t.py", " x"),
        ("conda run -n python310 python t.py", ""),
        ("(cd exp; python t.py", ")"),
        ("echo python a.py; python t.py", ""),
        ("2>log python t.py", ""),
        ("python gen", " < in.py"),
        ("bash run.sh; python t.py", ""),
        ("accelerate-launch --num_processes 2 t.py", " --lr 1"),
        ("trl sft", " --model_name_or_path m"),
        ("python -m trl.cli sft", " --model_name_or_path m"),
        ("python main.py fit", " --config c.yaml"),
        ("python main.py -c c.yaml fit", " --trainer.max_epochs 3 2>&1 | tee log"),
        ("torchrun --nproc_per_node 2 main.py fit", " --config c.yaml"),
        ("python -m pkg.main fit", ""),
        ("python main.py", " --split test"),
        ("python main.py", " --mode fit && echo fit"),
        ("python /env/bin/train", " --lr 1"),
        ("python /env/bin/train", ""),
    ],
)  # fmt: skip
def test_adds_the_flag_directly_after_the_script(before: str, after: str) -> None:
    assert resumed(before + after) == f"{before} {FLAG} {QUOTED}{after}"
    assert not stands_in(command(before + after))
    assert stands_in(command(before + after, "--ckpt"))


@pytest.mark.parametrize(
    "line",
    [
        "accelerate launch --config_file c.yaml t.py --lr 1",
        "accelerate launch --module pkg.train --lr 1",
        "accelerate-launch t.py",
        "torchrun --nproc_per_node 2 t.py --lr 1",
        "torchrun --nproc_per_node 2 -m pkg.train",
        "torchrun --no-python ./t",
        "deepspeed --num_gpus 2 t.py --deepspeed ds.json",
        "trl sft --model_name_or_path m",
        "trl --help",
        "fabric run --devices 2 t.py --lr 1",
        "horovodrun -np 2 python t.py --lr 1",
        "llamafactory-cli train config.yaml",
        f"trl sft {FLAG} old",
    ],
)
def test_a_program_run_by_python_gets_the_flag_where_the_program_alone_gets_it(line: str) -> None:
    """An adopted process shows the interpreter and the path of a program, which its user did not type."""
    for front in ("python /env/bin/", "/env/bin/python3.11 -u .venv/bin/"):
        alone = resumed(line)
        assert resumed(front + line) == (None if alone is None else front + alone)


@pytest.mark.parametrize(
    "text",
    [
        "./train --lr 1",
        "bash train.sh",
        "bash train.sh t.py",
        "python",
        "python -c 'import t' t.py",
        "python - t.py",
        "python - <<EOF",
        "python a.py && python b.py",
        "python a.py | python b.py",
        "for s in 1 2; do python t.py --seed $s; done",
        f"for s in 1 2; do python t.py {FLAG} out/$s; done",
        "ls *.yaml | xargs -n 1 python t.py",
        "bash -c 'python t.py'",
        f"bash -c 'python t.py {FLAG} x'",
        f"python a.py {FLAG} x && python b.py {FLAG} y",
        f"python t.py {FLAG} $(ls -t out | head -1)",
        f'python t.py {FLAG}="$(ls -t "a b" | head -1)"',
        f"python t.py {FLAG} `ls`",
        f"python t.py {FLAG} ${{CKPT:-a b}}",
        "python $(which t.py)",
        "python ${SCRIPT:-a b}",
        "python -m",
        "torchrun --no-python ./t",
        "torchrun -m --nnodes 1 pkg",
        "cp t.py out && ./run",
        "",
    ],
)
def test_a_command_without_a_clear_place_is_refused(text: str) -> None:
    assert resumed(text) is None
    assert not stands_in(command(text))


@pytest.mark.parametrize(
    ("text", "flag", "expected"),
    [
        ("python t.py x", "--ckpt", f"python t.py --ckpt {QUOTED} x"),
        ("python t.py --ckpt_path y x", "--ckpt-path", f"python t.py --ckpt_path {QUOTED} x"),
        (f"python t.py {FLAG} y", "--ckpt", f"python t.py --ckpt {QUOTED} {FLAG} y"),
        ("bash train.sh x", "--ckpt", f"bash train.sh --ckpt {QUOTED} x"),
        ("./train.sh x", "--ckpt", f"./train.sh --ckpt {QUOTED} x"),
        ("bash -c 'x'", "--ckpt", None),
        ("./train x", "--ckpt", None),
    ],
)
def test_a_flag_of_the_job_takes_the_place_of_the_default_one(
    text: str, flag: str, expected: str | None
) -> None:
    assert resumed(text, flag) == expected
    assert stands_in(command(text, flag)) is (expected is not None)


def test_a_command_that_mentions_the_variable_stays_as_it_is() -> None:
    text = "for s in 1 2; do python t.py --load $GPU_SCHEDULER_CHECKPOINT; done"
    assert with_checkpoint(command(text), PATH) == command(text)
    assert stands_in(command(text))


def test_a_script_stands_for_itself_only_with_the_flag() -> None:
    assert not stands_in(script("--lr", "1"))
    assert stands_in(script(FLAG))
    assert stands_in(script("--lr", "1", flag="--ckpt"))


WORDS = st.lists(
    st.text("ab ='\"$\\|;&()<>`*#-", max_size=6).filter(
        lambda word: not word.endswith(".py") and not word.startswith("--ck")
    ),
    max_size=6,
)


@given(words=WORDS, at=st.none() | st.integers(0, 6), path=st.text("a/ '\"$`\\", min_size=1))
def test_quoted_arguments_stay_as_they_are(words: list[str], at: int | None, path: str) -> None:
    """Whatever the other words contain, the command keeps them, and the flag gets exactly the path."""
    path = f"/{path}"
    given_words = list(words) if at is None else [*words[:at], "--ckpt=old", *words[at:]]
    changed = resumed(shlex.join(["python", "t.py", *given_words]), "--ckpt", path)
    assert changed is not None
    expected = ["--ckpt", path, *words] if at is None else [*words[:at], f"--ckpt={path}", *words[at:]]
    assert shlex.split(changed) == ["python", "t.py", *expected]


@given(words=WORDS, value=st.none() | st.text("ab '$"), path=st.text("a/ '\"$`\\", min_size=1))
def test_resuming_again_replaces_the_path(words: list[str], value: str | None, path: str) -> None:
    text = shlex.join(["python", "t.py", *([] if value is None else ["--ckpt", f"x{value}"]), *words])
    once = with_checkpoint(command(text, "--ckpt"), "/first")
    assert once is not None
    assert with_checkpoint(once, f"/{path}") == replace(once, command=resumed(text, "--ckpt", f"/{path}"))
