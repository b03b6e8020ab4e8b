"""Finding the error at the end of a log, whatever surrounds it, and returning it as one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.explain.log_end import LogEnd, rendered_lines


def last_error(tail: str, max_lines_after: int | None = None) -> str | None:
    return LogEnd(tail).error(max_lines_after)


PLAIN = """\
epoch 1
Traceback (most recent call last):
  File "/x/train.py", line 12, in <module>
    main()
  File "/x/train.py", line 8, in main
    raise ValueError("bad learning rate: -1")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: bad learning rate: -1
"""
CHAINED = """\
Traceback (most recent call last):
  File "/x/a.py", line 2, in <module>
    {}["k"]
KeyError: 'k'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/a.py", line 4, in <module>
    raise RuntimeError("no such model") from e
RuntimeError: no such model
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x/g.py", line 7, in <module>
  |     raise ExceptionGroup("eg", [es[0], ExceptionGroup("in", [es[1]])])
  | ExceptionGroup: eg (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/g.py", line 1, in f
    |     def f(): raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | ExceptionGroup: in (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/x/g.py", line 2, in g
      |     def g(): raise TypeError("two")
      | TypeError: two
      +------------------------------------
"""
RANKS = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank0]:   File "/x/t.py", line 3, in <module>
[rank1]:   File "/x/t.py", line 3, in <module>
[rank1]:     dist.barrier()
[rank0]:     raise ValueError("root")
[rank0]: ValueError: root
[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1234
"""
#: The same log, except that the last traceback is not from the process that failed first.
SWAPPED = "".join([*reversed(RANKS.splitlines(keepends=True)[:2]), *RANKS.splitlines(keepends=True)[2:]])
TORCHRUN = """\
E0325 20:57:27.620000 2606 elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 2630)
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/env/lib/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
t.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-25_20:57:27
  host      : box
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 2630)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
SEE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
POOL = '''\
multiprocessing.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "/lib/multiprocessing/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
  File "/x/mp.py", line 2, in f
    return 1 // x
ZeroDivisionError: integer division or modulo by zero
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/mp.py", line 4, in <module>
    p.map(f, [0])
ZeroDivisionError: integer division or modulo by zero
'''
LOADER = """\
Traceback (most recent call last):
  File "/x/t.py", line 9, in <module>
    for batch in loader:
RuntimeError: Caught OSError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/lib/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
OSError: [Errno 5] Input/output error: 'a.jpg'
"""
THREAD = (
    PLAIN.replace("ValueError: bad", "KeyError: main").replace("epoch 1\n", "")
    + """\
Exception in thread Thread-1 (watch):
Traceback (most recent call last):
  File "/lib/threading.py", line 1045, in _bootstrap_inner
    self.run()
RuntimeError: thread only
"""
)
IGNORED = (
    PLAIN
    + """\
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "/lib/pool.py", line 268, in __del__
ResourceWarning: unclosed running pool
"""
)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(PLAIN, "ValueError: bad learning rate: -1", id="plain"),
        pytest.param(PLAIN.replace("\n", "\r\n"), "ValueError: bad learning rate: -1", id="crlf"),
        pytest.param(PLAIN + "--- failed: exit code 1, after 3.0 s\n", "ValueError: bad learning rate: -1",
                     id="our own last line"),
        pytest.param(PLAIN + "wandb: run finished\nwandb: synced 5 files\n",
                     "ValueError: bad learning rate: -1", id="output after it"),
        pytest.param(
            "\r 10%|#         | 1/10\r 20%|##        | 2/10" + PLAIN.removeprefix("epoch 1\n"),
            "ValueError: bad learning rate: -1", id="after a progress bar",
        ),
        pytest.param(
            PLAIN.replace("ValueError: bad", "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad")
            .replace("Traceback", "\x1b]0;title\x07Traceback"),
            "ValueError: bad learning rate: -1", id="colours",
        ),
        pytest.param(CHAINED, "RuntimeError: no such model", id="chained"),
        pytest.param(GROUP, "ExceptionGroup: eg (2 sub-exceptions): ValueError: one", id="group"),
        pytest.param(GROUP + PLAIN, "ValueError: bad learning rate: -1", id="after a group"),
        pytest.param(RANKS + TORCHRUN.format(code=1, traceback=SEE), "ValueError: root", id="root cause"),
        pytest.param(
            TORCHRUN.format(code=-9, traceback="Signal 9 (SIGKILL) received by PID 2630"),
            "ChildFailedError: rank 0 (local_rank: 0): exit code -9 (pid: 2630):"
            " Signal 9 (SIGKILL) received by PID 2630", id="torchrun without a traceback",
        ),
        pytest.param(
            PLAIN + CHAINED.partition("KeyError")[0] + "subprocess.CalledProcessError: 'x' returned 1\n",
            "ValueError: bad learning rate: -1", id="accelerate",
        ),
        pytest.param(POOL, "ZeroDivisionError: integer division or modulo by zero", id="pool"),
        pytest.param(LOADER, "OSError: [Errno 5] Input/output error: 'a.jpg'", id="loader"),
        pytest.param(THREAD, "KeyError: main learning rate: -1", id="skips a thread's error"),
        pytest.param(IGNORED, "ValueError: bad learning rate: -1", id="skips an ignored error"),
        pytest.param(
            'Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\nmod.f.<locals>.Odd: x\n',
            "mod.f.<locals>.Odd: x", id="a local class",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\nKeyboardInterrupt\n',
            "KeyboardInterrupt", id="no message",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\n    raise\nValueError: x\n',
            "ValueError: x", id="a source line that has the form of an error",
        ),
        pytest.param(SWAPPED + TORCHRUN.format(code=1, traceback=SEE), "ValueError: root",
                     id="root cause, not the last traceback"),
        pytest.param(
            IGNORED + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + PLAIN.replace("bad", "worse").removeprefix("epoch 1\n"),
            "ValueError: bad learning rate: -1", id="skips what an ignored error led to",
        ),
        pytest.param(THREAD.replace("(watch):\n", "(watch):\n\n"), "KeyError: main learning rate: -1",
                     id="skips a thread's error after a blank line"),
        pytest.param("a: error: one\nb: error: two\n", "b: error: two", id="the last of several messages"),
        pytest.param(
            'Traceback (most recent call last):\n  File "/x/a.py", line 1\nmy.Error:\n\n  the model is odd\n',
            "my.Error: the model is odd", id="message on a later line",
        ),
        pytest.param('  File "/x/a.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n',
                     "SyntaxError: invalid syntax", id="syntax"),
        pytest.param("bash: line 1: pyhton: command not found\n", "bash: line 1: pyhton: command not found",
                     id="shell"),
        pytest.param("usage: t.py [-h]\nt.py: error: unrecognized arguments: --cuda 0\n",
                     "t.py: error: unrecognized arguments: --cuda 0", id="argparse"),
        pytest.param("python: can't open file '/x/a.py': [Errno 2] No such file\n",
                     "python: can't open file '/x/a.py': [Errno 2] No such file", id="no script"),
        pytest.param("terminate called after throwing 'c10::Error'\n  what():  CUDA error: x\n",
                     "what():  CUDA error: x", id="C++"),
        pytest.param("Traceback (most recent call last):\n  File \"/x\n", None, id="cut off"),
        pytest.param("epoch 1, loss 0.3\nepoch 2, loss nan\n", None, id="no error"),
        pytest.param("", None, id="nothing"),
    ],
)  # fmt: skip
def test_finds_the_error_that_ended_the_program_in_a_log(tail: str, expected: str | None) -> None:
    assert last_error(tail) == expected


def test_ignores_an_error_far_from_the_end_of_the_log() -> None:
    handled = PLAIN + "going on\n" * 50
    assert last_error(handled) == "ValueError: bad learning rate: -1"
    assert last_error(handled, max_lines_after=40) is None
    assert last_error(PLAIN, max_lines_after=40) == "ValueError: bad learning rate: -1"


def test_returns_each_line_as_a_terminal_would_finally_show_it() -> None:
    assert rendered_lines("a\r\n10%\r20%\nb\x1b[31mc\x1b[0m\n--- completed: exit code 0, after 1 s\n") == [
        "a", "20%", "bc",
    ]  # fmt: skip


PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):\n", '  File "x", line 1, in f\n', "ValueError: x\n", "[rank0]: ",
        "  + Exception Group Traceback (most recent call last):\n", "  | ", "    | ", "\r", "\x1b[",
        "ChildFailedError:\n", "Root Cause (first observed failure):\n", "  exitcode  : 1\n", "\n", "E: \n",
        "\x1b]0;",
    ]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=8), max_size=30).map("".join))
def test_returns_at_most_one_line_for_any_log(tail: str) -> None:
    found = last_error(tail)
    assert found is None or (found.strip() and "\n" not in found)
