"""The status board (status.txt)."""

from __future__ import annotations

import re
import time

from gpu_scheduler.app.status_report import GpuStatusView, JobView
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.views.status_board import MemoryUse, StatusBoard, to_text

NOW = 1_000_000.0
GPUS = (
    GpuStatusView(0, "A", "NVIDIA H200", "busy", 375, 9000, 24576, 97.0, None, NOW, (1,), 9216),
    GpuStatusView(1, "B", "NVIDIA H200", "lost", 0, None, None, None, "query failed: \x1b15", NOW,
             allocated_mib=None),
)  # fmt: skip
RUNNING = (
    JobView(1, "running", text="python a.py", gpus=(0,), started_at=NOW - 12),
    JobView(2, "stopping", text="python b.py", gpus=(0, 1), started_at=NOW - 3.21),
    JobView(3, "starting", name="bert", text="python c.py", gpus=(1,)),
)
WAITING = (
    JobView(4, "queued", reason="needs 1 free GPU, 0 free", text="evil \x1b[2J"),
    JobView(5, "queued", reason="exit code 1; OOM retry 1 of 3 with 6.6 GiB per GPU", text="python e.py"),
    JobView(6, "held", reason="interrupted; `retry 6` runs it again", text="python f.py"),
    JobView(7, "held", reason="held by its line", wait=WaitReason(WaitKind.HELD, "line"), text="python g.py"),
)
FINISHED = (
    JobView(8, "finished", "completed", text="python h.py", started_at=NOW - 100, finished_at=NOW - 80),
    JobView(9, "finished", "failed", reason="exit code 1: ValueError: bad", text="python i.py",
             started_at=NOW - 4.5, finished_at=NOW - 1),
    JobView(10, "finished", "cancelled", reason="line removed", text="python j.py"),
)  # fmt: skip


def test_formats_gpus_and_running_waiting_and_finished_jobs() -> None:
    board = StatusBoard(
        NOW, 4711, GPUS, RUNNING, WAITING, FINISHED,
        memory_use={
            1: MemoryUse((0,), (8123,), (8200,), 9216),
            2: MemoryUse((0, 1), (None, 7), (None, 9), None, 250),
            3: MemoryUse((1,), (None,), (70,), 900, 500),
        },
        retrying_after_oom=frozenset({5}),
        counts={"running": 3, "queued": 1002, "held": 2, "finished": 3},
    )  # fmt: skip
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW))
    assert (
        to_text(board)
        == f"""\
{at}  scheduler pid 4711  3 running, 1002 queued, 2 held, 3 finished

gpu0  9000/24576 MiB  load 97%  allocated 0.375, 9216 MiB  busy  NVIDIA H200
gpu1  ?/? MiB  load ?%  allocated 0, ? MiB  lost: query failed: \\x1b15  NVIDIA H200

▶ job 1  gpu [0]  12s  gpu0:8123/8200 MiB now/peak, declared 9216 — python a.py
▶ job 2  gpu [0, 1]  stopping  3.2s  gpu0:n/a, gpu1:7/9 MiB now/peak, share 0.25 — python b.py
▶ job 3  gpu [1]  starting  gpu1:n/a/70 MiB now/peak, share 0.5, declared 900 — bert: python c.py
· job 4  needs 1 free GPU, 0 free — evil \\x1b[2J
↻ job 5  exit code 1; OOM retry 1 of 3 with 6.6 GiB per GPU — python e.py
· job 6  held: interrupted; `retry 6` runs it again — python f.py
· job 7  held by its line — python g.py
… and 1000 more
✓ job 8  [OK] 20s — python h.py
✗ job 9  [FAILED] 3.5s exit code 1: ValueError: bad — python i.py
✗ job 10  [CANCELLED] line removed — python j.py
"""
    )


def test_shows_a_stopped_scheduler_and_counts_hidden_jobs() -> None:
    text = to_text(StatusBoard(NOW, None, counts={"finished": 30}))
    assert "scheduler stopped  0 running, 0 queued, 0 held, 30 finished" in text
    assert text.endswith("… and 30 more\n")


def test_truncates_long_lines() -> None:
    waits = JobView(4, "queued", reason="x" * 5000, text="y" * 5000)
    [row] = re.findall(r"^· job 4 .*$", to_text(StatusBoard(NOW, 1, waiting=(waits,))), re.MULTILINE)
    assert len(row) < 400
