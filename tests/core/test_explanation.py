"""One-line explanations of failed jobs, and their remedies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.explain.explanation import explain_failure, explain_launch_failure, is_failure
from gpu_scheduler.core.explain.log_end import is_fragmented
from gpu_scheduler.core.model.job import AttemptResult, FailureContext
from gpu_scheduler.core.model.reasons import FailureKind
from gpu_scheduler.show.job_text import reason_text
from gpu_scheduler.show.why import OomCase
from gpu_scheduler.show.why_text import failure_remedy, oom_remedy

HANDLED_TRACEBACK = """\
Traceback (most recent call last):
  File "/x/t.py", line 12, in <module>
    main()
ValueError: handled
"""
BROKEN_PIPE = (
    'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    "BrokenPipeError: [Errno 32] Broken pipe\n"
)
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"
ADVICE = (
    "; it was given --cuda 2,3, but its visible GPUs are numbered from 0: put [cuda-ids=visible] before"
    " its line, or start the scheduler with --cuda-ids visible"
)


def result(
    exit_code: int | None = None, signal: int | None = None, oom: int | None = None, cause: str | None = None
) -> AttemptResult:
    return AttemptResult(cause, exit_code, signal, True, None, (), 1.0, 2.0, oom)


def explain(how: AttemptResult, context: FailureContext | None = None) -> str:
    """Returns the explanation as text."""
    return reason_text(explain_failure(how, context))


def remedy(how: AttemptResult, tail: str = "", ids: tuple[int, ...] = ()) -> str | None:
    """Returns the remedy for a failed command whose log ends with `tail`."""
    return remedy_text(explain_failure(how, FailureContext(tail, ids)).failure)


def remedy_text(kind: FailureKind | None, job: int | None = None, *, is_script: bool = False) -> str | None:
    found = failure_remedy(kind, job, is_script=is_script)
    return None if found is None else found.text


@pytest.mark.parametrize(
    ("exit_code", "signal", "oom", "words"),
    [
        (3, None, 0, "exit code 3"),
        (126, None, 0, "exit code 126 (found, but cannot be executed)"),
        (127, None, 0, "exit code 127 (command not found)"),
        (137, None, 0, "exit code 137 (a program it ran was killed by SIGKILL)"),
        (
            137,
            None,
            1,
            "exit code 137 (a program it ran was killed by SIGKILL), probably because memory ran out",
        ),
        (139, None, 5, "exit code 139 (a program it ran was killed by SIGSEGV)"),
        (128, None, 0, "exit code 128"),
        (160, None, 0, "exit code 160"),
        (255, None, 0, "exit code 255"),
        (None, 9, 0, "killed by SIGKILL"),
        (None, 9, None, "killed by SIGKILL"),
        (None, 9, 2, "killed by SIGKILL, probably because memory ran out"),
        (None, 11, 2, "killed by SIGSEGV (invalid memory access)"),
        (None, 40, 0, "killed by signal 40"),
        (None, None, None, "nothing was started"),
    ],
)
def test_describes_how_a_command_ended_by_exit_code_or_signal(
    exit_code: int | None, signal: int | None, oom: int | None, words: str
) -> None:
    assert explain(result(exit_code, signal, oom)) == words


@pytest.mark.parametrize(
    ("how", "evidence", "text"),
    [
        (result(1), None, "exit code 1"),
        (result(1), FailureContext(), "exit code 1"),
        (result(1), FailureContext("ValueError: x\n"), "exit code 1: ValueError: x"),
        (result(1), FailureContext(f"{ORDINAL}\n"), f"exit code 1: {ORDINAL}"),
        (result(1), FailureContext(f"{ORDINAL}\n", (2, 3)), f"exit code 1: {ORDINAL}{ADVICE}"),
        (result(1), FailureContext("ValueError: x\n", (2, 3)), "exit code 1: ValueError: x"),
        (
            result(1, oom=1),
            FailureContext("Killed\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"),
            "exit code 1: RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.;"
            " one of its processes was killed by SIGKILL, probably because memory ran out",
        ),
        # Processes of other jobs share the OOM counter, so it is mentioned only if the log shows signs of a
        # kill.
        (result(1, oom=1), FailureContext("ValueError: x\n"), "exit code 1: ValueError: x"),
        (result(1, oom=0), FailureContext("Killed\n"), "exit code 1"),
        (result(1), FailureContext(f"ValueError: {'x' * 900}\n"), f"exit code 1: ValueError: {'x' * 287}…"),
        (result(1), FailureContext("ValueError: a\tb\x07\u202ec\n"), "exit code 1: ValueError: a b c"),
        (result(3), FailureContext("ValueError: handled\n" + "on\n" * 50), "exit code 3"),
        (result(3), FailureContext(HANDLED_TRACEBACK), "exit code 3: ValueError: handled"),
        (result(3), FailureContext(HANDLED_TRACEBACK + "on\n" * 50), "exit code 3"),
        (result(1), FailureContext(HANDLED_TRACEBACK + "on\n" * 50), "exit code 1: ValueError: handled"),
    ],
)
def test_explains_a_failure_in_one_line(
    how: AttemptResult, evidence: FailureContext | None, text: str
) -> None:
    assert explain(how, evidence) == text


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: invalid device ordinal",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "RuntimeError: cuda runtime error (10) : invalid device ordinal at torch/csrc/cuda/Module.cpp:32",
        "AssertionError: Invalid device id",
        "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
        "InvalidArgumentError: Invalid device ordinal value (1). Valid range is [0, 0].",
        "InvalidArgumentError: 'visible_device_list' listed an invalid GPU id '3' but visible device count",
        "InvalidArgumentError: /job:localhost/replica:0/task:0/device:GPU:3 unknown device.",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorInvalidDevice: invalid device ordinal",
    ],
)
def test_suggests_a_remedy_for_invalid_gpu_numbers(error: str) -> None:
    assert explain(result(1), FailureContext(f"{error}\n", (2, 3))).endswith(ADVICE)


#: The end of the log of torchrun after one of its processes has failed.
CHILD_FAILED = """\
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 2 (pid: 2630)
============================================================
"""
#: A log of PyTorch 2 under torchrun, with two processes on one GPU. The error has several lines.
NCCL = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/x/t.py", line 9, in <module>
[rank1]:     dist.all_reduce(x)
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, invalid usage
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
E1122 07:00:01.000 41 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) rank: 1
"""


def test_explains_an_error_caused_by_two_processes_on_one_gpu() -> None:
    text = explain(result(1), FailureContext(NCCL))
    assert text == (
        "exit code 1: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970,"
        " invalid usage; NCCL: Duplicate GPU detected"
    )
    assert "request one GPU for each process" in (remedy(result(1), NCCL) or "")


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        (result(1), True),
        (result(None, 9), True),
        (result(0), False),
        (result(None, 15, cause="cancelled"), False),
        (AttemptResult(None, 1, None, False, "no script", (), None, 2.0), False),
    ],
)
def test_only_a_command_that_failed_without_being_stopped_counts_as_a_failure(
    how: AttemptResult, failed: bool
) -> None:
    assert is_failure(how) is failed


@given(
    st.integers(-1000, 1000) | st.none(),
    st.integers(-10, 1000) | st.none(),
    st.integers(0, 3) | st.none(),
    st.text() | st.text().map(lambda text: f"Traceback (most recent call last):\nE: {text}"),
    st.lists(st.integers(0, 99), max_size=3).map(tuple),
)
def test_an_explanation_is_always_one_printable_line(
    exit_code: int | None, signal: int | None, oom: int | None, tail: str, ids: tuple[int, ...]
) -> None:
    text = explain(result(exit_code, signal, oom), FailureContext(tail, ids))
    assert text
    assert text.isprintable()
    assert len(text) <= 700


@pytest.mark.parametrize(
    ("how", "tail", "words"),
    [
        (result(1), ORDINAL, None),
        (result(2), "t.py: error: unrecognized arguments: --cuda 0", "[cuda=off]"),
        # Running out of GPU memory has its own remedy, `oom_remedy`.
        (result(1), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", None),
        (result(1), "MemoryError: x", "fewer workers"),
        (result(signal=9, oom=1), "", "fewer workers"),
        (result(1), "ModuleNotFoundError: No module named 'torch'", "conda=NAME"),
        (result(127), "", "check the spelling"),
        (result(126), "", "chmod +x"),
        (result(1), "FileNotFoundError: [Errno 2] No such file or directory: 'a'", "[cwd=DIR]"),
        (result(1), "OSError: [Errno 28] No space left on device", "free some space"),
        (result(signal=9), "", "killed it: `journalctl -k | grep -i oom` shows whether the kernel killed it"),
        (result(137), "", "killed it: `journalctl"),
        (result(signal=11), "", "native code crashed"),
        (result(139), "", "native code crashed"),
        (result(signal=7), "", "/dev/shm is full"),
        (result(signal=15), "", "terminated it"),
        (result(1), "DistBackendError: NCCL error in: a.cpp:9\nDuplicate GPU detected", "[gpus=2]"),
        (result(3), "", None),
    ],
)
def test_finds_the_remedy_for_a_known_error(how: AttemptResult, tail: str, words: str | None) -> None:
    found = remedy(how, f"{tail}\n", (2, 3) if tail == ORDINAL else ())
    assert (found is None) if words is None else (found is not None and words in found)


#: Ends of logs from public issue threads by their cause, with words of its remedy; "none" for no cause.
ERRORS = json.loads((Path(__file__).parents[1] / "data" / "errors.json").read_text())


@pytest.mark.parametrize(
    ("kind", "words", "log"),
    [(kind, told["remedy"], log) for kind, told in ERRORS.items() for log in told["logs"]],
)
def test_names_the_cause_and_the_remedy_of_a_known_error(kind: str, words: str, log: str) -> None:
    reason = explain_failure(result(1), FailureContext(f"{log}\n"))
    assert ("none" if reason.failure is None else reason.failure.value) == kind
    assert reason.error
    for job in (None, 7):
        assert words in (remedy_text(reason.failure, job) or "")


@pytest.mark.parametrize(
    ("code", "tail"),
    [
        (2, "usage: t.py [-h] [--lr LR]\nt.py: error: argument --lr: invalid float value: 'x'"),
        (2, "Usage: t.py [OPTIONS]\nTry 't.py --help' for help.\n\nError: No such option: --foo"),
        (1, "usage: t.py [-h]\nt.py: error: unrecognized arguments: --foo\n" + CHILD_FAILED),
        (1, "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--foo']"),
    ],
)
def test_a_wrong_call_is_corrected_and_not_only_repeated(code: int, tail: str) -> None:
    failure = explain_failure(result(code), FailureContext(f"{tail}\n")).failure
    assert failure is FailureKind.WRONG_USAGE
    assert remedy_text(failure) == "correct the arguments on its line, which adds a new job"
    assert remedy_text(failure, 7) == "run `retry 7 --set command='…'` with other arguments"
    assert remedy_text(failure, 7, is_script=True) == "submit it again with other arguments"
    assert all(
        found is not None and found.restarts for found in map(failure_remedy, [failure] * 2, [None, 7])
    )
    assert (
        explain_failure(result(2), FailureContext("make: *** [a.o] Error 1\n")).failure is FailureKind.PROGRAM
    )


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (OomCase(), "the GPU was full, and other processes used it too: request more memory (vram= or"
                    " share=), let"),
        (OomCase(had_gpus_alone=True),
         "the job had its GPU to itself: use a smaller batch, a larger GPU, or two GPUs"),
        (OomCase(had_gpus_alone=True, larger_gpus=(1,)),
         "to itself: use a smaller batch, a larger GPU (GPU 1), or two"),
        (OomCase(had_gpus_alone=True, larger_gpus=(1, 3)),
         "a larger GPU (GPUs 1, 3), or two GPUs ([gpus=2])"),
        (OomCase(2, had_gpus_alone=True),
         "the job had its GPUs to itself: use a smaller batch, a larger GPU, or 3"),
        (OomCase(had_gpus_alone=True, is_fragmented=True),
         "can split its model; PyTorch held much memory that it could not use:"
         " [env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True] lets it use that memory"),
        (OomCase(at_limit=True), "the job had the most memory that a GPU can provide: use a smaller batch"),
    ],
)  # fmt: skip
def test_the_oom_remedy_depends_on_gpu_use_and_the_declaration(case: OomCase, words: str) -> None:
    assert words in oom_remedy(case).text
    assert ("request more" in oom_remedy(case).text) == (case == OomCase())


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ("18.31 GiB is allocated by PyTorch, and 3.92 GiB is reserved by PyTorch but unallocated.", True),
        ("18.31 GiB is allocated by PyTorch, with 20.00 MiB allocated in private pools (e.g., CUDA Graphs),"
         " and 1.84 GiB is reserved by PyTorch but unallocated.", True),
        ("18.31 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.", False),
        ("0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.", False),
        ("If reserved but unallocated memory is large try setting expandable_segments:True", False),
    ],
)  # fmt: skip
def test_memory_is_fragmented_if_much_of_it_is_reserved_but_unallocated(figures: str, expected: bool) -> None:
    other = "1.00 GiB is allocated by PyTorch, and 64.00 MiB is reserved by PyTorch but unallocated.\n"
    assert is_fragmented(f"{other}CUDA out of memory. Of the allocated memory {figures}\n") is expected


def test_reports_an_oom_error_that_the_program_caught() -> None:
    tail = "epoch 1\nCUDA out of memory, try a smaller batch\n"
    assert explain(result(1), FailureContext(tail)) == "exit code 1: CUDA out of memory, try a smaller batch"
    assert explain(result(3), FailureContext(tail)) == "exit code 3: CUDA out of memory, try a smaller batch"
    assert explain(result(1), FailureContext(f"{tail}ValueError: bad\n")) == "exit code 1: ValueError: bad"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (FailureKind.SCRIPT_MISSING, "correct the line (this creates a new job)"),
        (FailureKind.CONDA_MISSING, "correct the line (this creates a new job)"),
        (FailureKind.ENVIRONMENT_MISSING, "correct the line (this creates a new job)"),
        (FailureKind.FILE_MISSING, "relative paths are looked up in the job's working folder"),
        (FailureKind.PERMISSION, "check the owner"),
        (FailureKind.ENVIRONMENT_BROKEN, ""),
        (FailureKind.PYTHON_MISSING, ""),
    ],
)
def test_a_launch_failure_has_a_remedy_for_its_cause(failure: FailureKind, words: str) -> None:
    result = AttemptResult(
        None, 1, None, False, "script a: command not found", (), None, 2.0, failure=failure
    )
    reason = explain_launch_failure(result)
    assert reason_text(reason) == "script a: command not found"
    assert (remedy_text(reason.failure) or "").startswith(words)
    assert bool(remedy_text(reason.failure)) is bool(words)


def test_remedies_do_not_depend_on_the_text_of_the_message() -> None:
    result = AttemptResult(None, 1, None, False, "killed by SIGKILL: command not found", (), None, 2.0)
    assert explain_launch_failure(result).failure is None
    silent = explain_launch_failure(replace(result, message=None, exit_code=127))
    assert silent.failure is FailureKind.COMMAND_NOT_FOUND
    assert reason_text(silent) == "its command could not be started (exit code 127 (command not found))"


@pytest.mark.parametrize(
    ("programs", "code", "tail", "kind"),
    [
        (("python", "head"), 1, BROKEN_PIPE, FailureKind.BROKEN_PIPE),
        (("python", "head"), 120, BROKEN_PIPE, FailureKind.BROKEN_PIPE),
        ((), 1, BROKEN_PIPE, None),
        (("yes", "pip"), 141, "", FailureKind.BROKEN_PIPE),
        ((), 141, "", None),
        (("python", "grep"), 1, "", FailureKind.GREP_IN_PIPE),
        (("python", "egrep"), 1, "", FailureKind.GREP_IN_PIPE),
        (("python", "grep"), 1, "ValueError: bad", None),
        (("python", "grep"), 3, "", None),
        (("python", "tee"), 1, "", None),
    ],
)
def test_names_the_failures_that_only_a_pipe_causes(
    programs: tuple[str, ...], code: int, tail: str, kind: FailureKind | None
) -> None:
    reason = explain_failure(result(code), FailureContext(tail, pipe_programs=programs))
    assert reason.failure is kind
    if kind is not None:
        assert (
            remedy_text(kind)
            == "put [pipefail=off] before its line if only the last program of the pipe matters"
        )
        assert (remedy_text(kind, 7) or "").startswith("run `retry 7 --set pipefail=off` if")
