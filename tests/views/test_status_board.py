"""The status board (status.txt)."""

from __future__ import annotations

import re
import time

from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.gpu import FaultKind, GpuFault
from gpu_scheduler.core.model.job import Progress, ProgressUnit
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.show.job_views import StatusReport
from gpu_scheduler.show.status_text import board_text
from tests.reasons import worded
from tests.records import gpu_view, job_view

NOW = 1_000_000.0
GPUS = (
    gpu_view("busy", 375, total_mib=24576, used_mib=9000, load_percent=97.0, jobs=(1,), allocated_mib=9216,
             name="NVIDIA H200"),
    gpu_view("lost", 0, index=1, name="NVIDIA H200", total_mib=None, used_mib=None, load_percent=None,
             fault=GpuFault(FaultKind.QUERY_FAILED, "\x1b15"), allocated_mib=None),
)  # fmt: skip
JOBS = (
    job_view(1, "running", text="python a.py", gpus=(0,), started_at=NOW - 12, vram_declared=9216,
            memory_used={0: 8123}, peaks={0: 8200},
            progress=JobProgress(Progress(53, 100, ProgressUnit.PERCENT), None, 5040.0, NOW + 5040)),
    job_view(2, "stopping", text="python b.py", gpus=(0, 1), started_at=NOW - 3.21, share_declared=250,
            memory_used={1: 7}, peaks={1: 9}),
    job_view(3, "starting", name="bert", text="python c.py", gpus=(1,), share_declared=500, vram_declared=900,
            peaks={1: 70}),
    job_view(4, "queued", reason=worded("needs 1 free GPU, 0 free"), text="evil \x1b[2J"),
    job_view(5, "queued", reason=worded("exit code 1; OOM retry 1 of 3 with 6.6 GiB per GPU"),
            text="python e.py", oom_retries_used=1),
    job_view(6, "held", reason=worded("interrupted; `retry 6` runs it again"), text="python f.py"),
    job_view(7, "held", reason=worded("held by its line"), wait=WaitReason(WaitKind.HELD, "line"),
            text="python g.py"),
    job_view(8, "finished", "completed", text="python h.py", started_at=NOW - 100, finished_at=NOW - 80),
    job_view(9, "finished", "failed", reason=worded("exit code 1: ValueError: bad"), text="python i.py",
            started_at=NOW - 4.5, finished_at=NOW - 1),
    job_view(10, "finished", "cancelled", reason=worded("line removed"), text="python j.py"),
)  # fmt: skip


def test_the_status_board_shows_gpus_and_running_waiting_and_finished_jobs() -> None:
    counts = {"running": 1, "stopping": 1, "starting": 1, "queued": 1002, "held": 2, "finished": 3}
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW))
    assert (
        board_text(StatusReport(NOW, 4711, "s", "d", GPUS, JOBS, counts))
        == f"""\
{at}  scheduler pid 4711  3 running, 1,002 queued, 2 held, 3 finished

GPU  State  Share  Allocated          Memory  Load  Jobs  Name
  0  busy   0.375    9.0 GiB  8.8 / 24.0 GiB  97 %  1     NVIDIA H200
  1  lost       0          ?           ? / ?     ?  -     query failed: \\x1b15 (NVIDIA H200)

   Job  State      GPUs  Time  What               Progress, memory now/peak, or reason
▶    1  running    0     0:12  python a.py        53% ETA 1h24m; GPU 0: 8123/8200 MiB; declared 9216 MiB
▶    2  stopping   0, 1  0:03  python b.py        GPU 0: ?/?, GPU 1: 7/9 MiB; declared share 0.25
▶    3  starting   1           bert: python c.py  GPU 1: ?/70 MiB; declared share 0.5, 900 MiB
·    4  queued                 evil \\x1b[2J       needs 1 free GPU, 0 free
↻    5  queued                 python e.py        exit code 1; OOM retry 1 of 3 with 6.6 GiB per GPU
        … and 1,000 more queued (status --all)
·    6  held                   python f.py        interrupted; `retry 6` runs it again
·    7  held                   python g.py        held by its line
✓    8  completed        0:20  python h.py        1 min ago
✗    9  failed           0:03  python i.py        exit code 1: ValueError: bad
✗   10  cancelled              python j.py        line removed
"""
    )


def test_the_status_board_shows_a_stopped_scheduler_and_counts_hidden_jobs() -> None:
    text = board_text(StatusReport(NOW, None, "s", "d", counts={"finished": 30}))
    assert "scheduler stopped  0 running, 0 queued, 0 held, 30 finished" in text
    assert text.endswith("… 30 finished (status --all)\n")


def test_the_status_board_truncates_long_lines() -> None:
    waits = job_view(4, "queued", reason=worded("x" * 5000), text="y" * 5000)
    text = board_text(StatusReport(NOW, 1, "s", "d", jobs=(waits,), counts={"queued": 1}))
    [row] = re.findall(r"^·    4  queued .*$", text, re.MULTILINE)
    assert len(row) == 203
