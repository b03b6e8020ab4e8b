"""Warnings about lines whose jobs will fail. Ordinary lines do not cause warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.jobsfile.reading import JobShell, line_warnings
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, resolve

PROGRAMS = (
    "python python3 torchrun accelerate deepspeed bash sh env sudo nohup nice conda make srun tee uv grep"
    " nvidia-smi docker podman apptainer"
)
FILES = ("train.py", "Makefile")
NOT_ON_PATH = "`{}` is not a program on PATH, so bash will report `command not found`"
CONDA_ACTIVATE = "`conda activate` fails in a job, because its shell is not set up for it; write"
ASKS_FOR_ONE = "the line requests 1 GPU; write"
PORT = '{} takes port 29500, as in any other job; add {} "$MASTER_PORT"'
NUMERIC_NAME = "name={0}: commands such as `cancel {0}` treat it as a job id; add a letter"
SEES_ONE_GPU = "the job sees one GPU, always as cuda:0;"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROOT = Path(__file__).parents[2]


def finds(name: str, cwd: str) -> bool:
    return name in (*PROGRAMS.split(), *FILES)


SHELL = JobShell(finds, frozenset({"activate_env"}))


def warnings_of(line: str, shell: JobShell | None = SHELL) -> list[str]:
    read = parse_line(line, "/w", "/home/u")
    assert isinstance(read, ParsedJob), read
    return list(line_warnings(read.spec, resolve(ResourceSpec.of(read.spec), LlmConfig()).count, shell))


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("[name=12] true", NUMERIC_NAME.format("12")),
        ("[name=5-9] 0,train.py", NUMERIC_NAME.format("5-9")),
        ("pyhton train.py --epochs 3", NOT_ON_PATH.format("pyhton")),
        ("Done: 3 jobs", NOT_ON_PATH.format("Done:")),
        ("SEED=1 NAME='a b' pyhton train.py", NOT_ON_PATH.format("pyhton")),
        ("pyhton", NOT_ON_PATH.format("pyhton")),
        ("[share=0.5 name=x] pyhton train.py", NOT_ON_PATH.format("pyhton")),
        ("conda activate bert && python t.py --x 1", f"{CONDA_ACTIVATE} [conda=bert] python t.py --x 1"),
        ("conda activate /opt/envs/a; python t.py", f"{CONDA_ACTIVATE} [conda=/opt/envs/a] python t.py"),
        (
            "cd x && conda activate $ENV && python t.py",
            f"{CONDA_ACTIVATE} [conda=ENV] in front of the line instead",
        ),
        (
            "mamba activate a && python t.py",
            f"{CONDA_ACTIVATE.replace('conda', 'mamba')} [conda=a] python t.py",
        ),
        (
            "docker run --rm --gpus all image python t.py",
            "`docker run` with all GPUs ignores which GPUs the job has; write"
            r' --gpus "\"device=$CUDA_VISIBLE_DEVICES\""',
        ),
        (
            "cd x && sudo -E podman run --device=nvidia.com/gpu=all image",
            "`podman run` with all GPUs ignores which GPUs the job has; write"
            ' --device "nvidia.com/gpu=$CUDA_VISIBLE_DEVICES"',
        ),
        ("torchrun --nproc-per-node 4 t.py", f"torchrun starts 4 processes, but {ASKS_FOR_ONE} [gpus=4]"),
        (
            "[gpus=2] torchrun --standalone --nproc_per_node=4 train.py",
            "torchrun starts 4 processes, but the line requests 2 GPUs; write [gpus=4]",
        ),
        (
            "cd x && OMP_NUM_THREADS=4 python -m torch.distributed.run --nproc-per-node=2 train.py",
            f"torchrun starts 2 processes, but {ASKS_FOR_ONE} [gpus=2]",
        ),
        (
            "accelerate launch --num_processes 2 train.py",
            f"accelerate launch starts 2 processes, but {ASKS_FOR_ONE} [gpus=2]",
        ),
        (
            "uv run accelerate launch --multi_gpu --num_processes=2 train.py > log 2>&1",
            f"accelerate launch starts 2 processes, but {ASKS_FOR_ONE} [gpus=2]",
        ),
        ("deepspeed train.py", PORT.format("deepspeed", "--master_port")),
        ("[gpus=2] deepspeed --num_gpus=2 t.py --master_port 3", PORT.format("deepspeed", "--master_port")),
        ("[gpus=2] accelerate launch t.py", PORT.format("accelerate launch", "--main_process_port")),
        (
            "python train.py --device cuda:1",
            f"--device cuda:1: {SEES_ONE_GPU} write cuda:0, and [allowed=1] for GPU 1",
        ),
        ("0,train.py,,--device=cuda:3,3", f"--device cuda:3: {SEES_ONE_GPU} write cuda:0"),
        (
            "[gpus=2] python train.py --device cuda:2 --x",
            "--device cuda:2: the job sees 2 GPUs, always as cuda:0 to cuda:1; write cuda:0",
        ),
    ],
)
def test_warns_about_lines_whose_jobs_will_fail(line: str, warning: str) -> None:
    assert warnings_of(line) == [warning]


@pytest.mark.parametrize(
    "line",
    [
        "python train.py", "VAR=1 python train.py", "A=$(date) python train.py",
        "A=(1 2); echo $A", "PATH=/opt/x:$PATH tool --x", "cd x && python train.py",
        "if [ -f x ]; then python t.py; fi", "for i in 1 2; do python t.py $i; done",
        "while read x; do echo $x; done < list", "{ echo a; echo b; }", "( cd x; make )",
        "((i = 1)) && echo $i", "[] [[ -f x ]] && echo x", "[] [ -f x ] && echo x", "! false",
        "time python t.py", "source venv/bin/activate && python t.py", ". ./env.sh; run_all", "./x --a",
        "~/bin/x", "$HOME/x", "${TOOL} x", '"my prog" x', "'x' y", "\\python x", "sudo nvidia-smi", "*.sh",
        "f() { echo a; }; f", "f () { echo a; }; f", "function f { echo a; }; f", "> out echo x", "eval x",
        "train.py --epochs 3", "activate_env x", "bin/tool", "exec python t.py", "export A=1; python t.py",
        "`which python` t.py", "$(which python) t.py", "case x in x) echo;; esac", "coproc cat",
        "[conda=a] anything t.py", "[venv=/v] anything t.py", "[env:PATH=/opt] anything t.py",
        "source /c/conda.sh && conda activate a && python t.py",
        'eval "$(conda shell.bash hook)" && conda activate a', "conda run -n a python t.py", "conda info",
        "echo conda activate a", "source activate a", "[gpus=4] torchrun --nproc-per-node 4 train.py",
        "torchrun --nproc-per-node gpu train.py", "torchrun --nproc-per-node $N train.py",
        "torchrun --nproc-per-node 1 train.py", "torchrun train.py", "torchrun train.py --nproc-per-node 4",
        r'docker run --gpus "\"device=$CUDA_VISIBLE_DEVICES\"" image', "echo docker run --gpus all",
        "apptainer exec --nv image.sif python train.py --gpus all", "docker build .",
        "echo torchrun --nproc-per-node 4", "grep accelerate log",
        "accelerate launch --cpu --num_processes 4 train.py", "accelerate launch train.py",
        "accelerate config", 'deepspeed --master_port "$MASTER_PORT" t.py', "deepspeed --num_nodes 2 t.py",
        "[gpus=2] accelerate launch --main-process-port=0 t.py", "[gpus=2] torchrun t.py",
        "accelerate launch --num_machines 2 --num_processes 4 t.py",
        "python -m torch.distributed.run t.py", "python -m tool torch.distributed.run --nproc-per-node 4",
        "0,train.py,,torchrun-4gpu,--x 3,", "python t.py --device cuda:0", "python t.py --device cuda",
        "[gpus=2] python t.py --device cuda:1", "python t.py --device $D", "python t.py --note 'cuda:1'",
        "0,train.py,,--device cuda:0,3", "CUDA_VISIBLE_DEVICES=0,1 python t.py --device cuda:1",
        "0,train.py,,--cuda 1,1", "[name=5-9-1] true", "[name=v12] true",
    ],
)  # fmt: skip
def test_does_not_warn_about_ordinary_lines(line: str) -> None:
    assert warnings_of(line) == []


def test_does_not_warn_about_missing_programs_if_the_shell_is_unknown() -> None:
    assert warnings_of("pyhton train.py", None) == []
    assert warnings_of("conda activate a && python t.py", None) == []
    assert warnings_of("conda activate a", JobShell(finds, frozenset({"conda"}))) == []


def test_does_not_warn_about_the_lines_in_the_documentation() -> None:
    pages = [ROOT / "README.md", ROOT / "docs" / "jobs-file.md", ROOT / "docs" / "placement.md"]
    texts = [page.read_text() for page in pages]
    blocks = [text for page in texts for kind, text in FENCED.findall(page) if not kind]
    (tour,) = re.findall(r"<<'END'\n(\[.*?)^END$", texts[0], re.DOTALL | re.MULTILINE)
    lines = [*(ROOT / "jobs.txt.example").read_text().splitlines(), *tour.splitlines()]
    lines += [line for block in blocks for line in block.splitlines()]
    checked = 0
    for line in lines:
        read = parse_line(line, "/w", "/home/u")
        if isinstance(read, ParsedJob):
            checked += 1
            assert warnings_of(line) == [], line
    assert checked >= 25
