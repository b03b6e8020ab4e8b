"""The `why` command: the checks of a job that does not start, and the explanation of a failed job."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import FailureKind, ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.gpus.watch import ProcessOwners
from gpu_scheduler.store.requests import add_request
from tests import changes
from tests.cli.desk import Desk
from tests.cli.test_logs import on_terminal
from tests.waiting import wait_for

CONDA = Path(__file__).resolve().parents[1] / "fakes" / "conda.sh"


def why_json(desk: Desk, job: int) -> dict[str, Any]:
    code, out, err = desk.run("why", job, "--json")
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def checks(desk: Desk, job: int) -> dict[str, tuple[str, str, str]]:
    """Returns (grade, text, remedy) by check name. If several checks share a name, the first one counts."""
    found: dict[str, tuple[str, str, str]] = {}
    for one in why_json(desk, job)["checks"]:
        found.setdefault(one["check"], (one["grade"], one["message"], one["remedy"]))
    return found


def test_why_shows_whether_a_scheduler_is_running(desk: Desk) -> None:
    job = desk.job()
    assert checks(desk, job)["scheduler"][0] == "bad"
    assert "run `start`" in desk.run("why", job)[1]
    assert checks(desk, job)["values"][1].startswith("last sample of the GPUs: ")
    with desk.scheduler("deaf") as pid:
        found = checks(desk, job)
        assert found["scheduler"] == ("ok", f"running, pid {pid}", "")
        assert "values" not in found


def test_why_shows_for_each_gpu_whether_it_accepts_the_job(desk: Desk) -> None:
    holder = desk.job(share=600)
    desk.record(act.Start(holder, ("SIM-0",), 600))
    desk.record(changes.pause("SIM-1"))
    job = desk.job(share=500)
    found = checks(desk, job)
    assert found["GPU 0"][:2] == (
        "warn",
        f"does not accept the job: share 0.4 free; share 0.6 allocated to job {holder}, load 0 %,"
        " no foreign memory",
    )
    assert found["GPU 1"][0] == "warn"
    assert found["GPU 1"][1].startswith("does not accept the job: paused; not allocated")
    assert found["GPU 1"][2] == "`resume 1` makes it available again"
    assert found["placing"][:2] == (
        "warn",
        "needs 0.5 of a GPU, 0 free (GPU 0: share 0.4 free; GPU 1: paused)",
    )
    add_request(desk.store, "resume", "SIM-1")
    assert checks(desk, job)["GPU 1"][1].startswith("accepts the job; ")
    assert checks(desk, job)["placing"][:2] == ("ok", "the job would start on GPU 1 now")


def test_why_shows_thresholds_and_measured_values(desk: Desk) -> None:
    foreign = GpuSample("SIM-0", 0, "card", 1000, 600, 55.0, (GpuProcess(os.getpid(), 600),))
    job = desk.job(share=500, allowed=(0,))
    desk.writer.record_gpus([foreign], None, Clock().now())
    assert checks(desk, job)["GPU 0"][1] == (
        "accepts the job; not allocated, load 28 %, foreign memory 600 MiB, 60 % of the GPU's memory"
        " (threshold 80 %), foreign load unknown, so it is not checked"
    )
    desk.store.record_options(StartOptions(mem_threshold=0.5))
    grade, says, remedy = checks(desk, job)["GPU 0"]
    assert (grade, remedy[-15:]) == ("warn", "--mem-threshold")
    begin = f"does not accept the job: foreign process {os.getpid()} uses 600 MiB; not allocated"
    assert says.startswith(begin)
    assert "60 % of the GPU's memory (threshold 50 %), foreign load " in says
    # The memory threshold does not apply to jobs that declare memory or need an idle GPU.
    assert " % of the GPU's memory" not in checks(desk, desk.job(vram=1000, allowed=(0,)))["GPU 0"][1]
    idle = checks(desk, desk.job(allowed=(0,)))["GPU 0"]
    assert idle[1].endswith("load 28 %, foreign memory 600 MiB (idle threshold 200 MiB)")
    assert idle[2].endswith("such as [vram=8G] or [share=0.5]")
    desk.store.record_options(StartOptions(load_threshold=0.2))
    desk.record(changes.set_gpu("SIM-0", foreign_loads=(None, 10.0, 40.0), foreign_load_boot=7.0))
    grade, says, remedy = checks(desk, job)["GPU 0"]
    assert (grade, remedy[-16:]) == ("warn", "--load-threshold")
    assert f"foreign process {os.getpid()}, load 25 %" in says
    assert says.endswith("foreign load 25 % (threshold 20 %)")
    assert checks(desk, job)["GPU 1"][1].startswith("not allowed for this job, which may use only 0; ")


def test_why_reports_that_a_job_can_never_fit(desk: Desk) -> None:
    grade, says, remedy = checks(desk, desk.job(gpus=9))["placing"]
    assert (grade, says) == ("bad", "infeasible: needs 9 idle GPUs, but only 2 are managed")
    assert remedy.startswith("with `set 1`, request fewer or other GPUs")
    assert (
        checks(desk, desk.job(allowed=(0, 5)))["allowed GPUs"][1]
        == "GPU 5 is not managed; the managed GPUs are 0,1"
    )


def test_why_shows_the_memory_available_to_a_declaration(desk: Desk) -> None:
    holder = desk.job(vram=16384)
    desk.record(act.Start(holder, ("SIM-0",), 0, vram=16384))
    job = desk.job(vram=8192)
    found = checks(desk, job)
    assert found["need"][1] == "8.0 GiB of a GPU (from its attributes)"
    grade, says, remedy = found["GPU 0"]
    assert (grade, remedy) == ("warn", "")
    assert says.startswith("does not accept the job: room for 7.5 GiB; share 0.667 allocated to job ")
    assert says.endswith(
        ", 16.0 GiB of 24.0 GiB allocated or in use, 7.5 GiB left to declare (margin 512 MiB)"
    )
    assert found["placing"][:2] == ("ok", "the job would start on GPU 1 now")
    desk.store.record_options(StartOptions(margin_mib=16384))
    told = "needs 8.0 GiB of a GPU, 0 free (GPU 0: full; GPU 1: room for 7.4 GiB"
    assert checks(desk, job)["placing"][1].startswith(told)
    assert "booked" not in checks(desk, desk.job(share=100))["GPU 0"][1]


def test_why_respects_the_schedulers_exclusive_option(desk: Desk) -> None:
    desk.record(act.Start(desk.job(share=100), ("SIM-0",), 100))
    job = desk.job(share=100)
    assert checks(desk, job)["GPU 0"][1].startswith("accepts the job; ")
    desk.store.record_options(StartOptions(exclusive=True))
    assert checks(desk, job)["GPU 0"][1].startswith("does not accept the job: busy; ")


def test_why_counts_a_foreign_process_at_its_peak(desk: Desk) -> None:
    job = desk.job(vram=12288, allowed=(0,))
    foreign = GpuSample("SIM-0", 0, "card", 24576, 1000, 5.0, (GpuProcess(os.getpid(), 1000),))
    desk.writer.record_gpus([foreign], None, Clock().now())
    assert checks(desk, job)["placing"][0] == "ok"
    owned = ProcessOwners()
    owned.begin_sample({os.getpid()})
    start = owned.ownership_of(foreign, {}).starts[os.getpid()]
    desk.record(
        changes.set_gpu("SIM-0", foreign_peaks={(os.getpid(), start): 12000, (999_999_999, 1.0): 12000})
    )
    grade, says, _ = checks(desk, job)["GPU 0"]
    assert grade == "warn"
    assert "12.9 GiB of 24.0 GiB allocated or in use, 10.6 GiB left to declare" in says


def test_why_reports_a_need_that_exceeds_the_memory_of_every_gpu(desk: Desk) -> None:
    grade, says, remedy = checks(desk, desk.job(vram=24576))["placing"]
    assert (grade, says) == (
        "bad",
        "infeasible: needs 24.0 GiB of a GPU, but the largest managed GPU has 24.0 GiB, of which 23.5 GiB"
        " can be allocated to jobs (margin 512 MiB)",
    )
    assert remedy.startswith("with `set 1`, request less memory (vram=), or fewer")


def test_why_shows_the_declaration_of_a_running_job_before_its_first_measurement(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done", vram=1000)
    assert checks(desk, job)["memory"][:2] == ("ok", "not measured yet; declared 1000 MiB per GPU")
    (desk.path / "go").touch()
    desk.wait_until_processes_end()


def test_why_shows_the_memory_of_a_running_job(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done")
    assert "memory" not in checks(desk, job)
    this = desk.store.attempts(job)[0].id
    desk.record(changes.measure(this, 5.0, ("SIM-0", 1000, 5.0)))
    assert checks(desk, job)["memory"][:2] == ("ok", "peak so far 1000 MiB")
    (desk.path / "go").touch()
    desk.wait_until_processes_end()


def test_why_checks_the_environment_and_the_script(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CONDA_ROOT", str(desk.path / "conda"))
    os.makedirs(desk.path / "conda" / "envs" / "good" / "bin")
    script = desk.path / "t.py"
    script.write_text("pass\n")

    def csv(conda: str | None, path: str, **values: Any) -> dict[str, tuple[str, str, str]]:
        spec = JobSpec("csv", f"0,{path},,,", str(desk.path), script=path, conda=conda, **values)
        return checks(desk, desk.store.insert_job(spec, "cli"))

    assert csv("good", str(script))["environment"][1] == (
        "the job needs the conda environment good, but conda was not found"
    )
    desk.store.record_options(StartOptions(conda_sh=str(CONDA)))
    found = csv("good", str(script))
    assert found["environment"][:2] == ("ok", "conda environment good exists")
    assert found["script"][:2] == ("ok", f"{script} exists")
    found = csv("nope", "/nowhere/t.py")
    assert found["environment"][0] == "bad"
    assert found["environment"][1].startswith("conda environment nope does not exist; environments: ")
    assert "good" in found["environment"][1]
    assert found["script"][:2] == ("bad", "/nowhere/t.py does not exist")
    assert csv(None, str(desk.path))["script"][0] == "bad"
    assert csv(None, str(script), venv="/no/venv")["environment"][0] == "bad"
    assert checks(desk, desk.job(cwd="/no/folder"))["folder"][:2] == ("bad", "/no/folder does not exist")


def test_why_shows_the_queue_order_and_the_next_retry(desk: Desk) -> None:
    jobs = [desk.job(priority=1) for _ in range(8)]
    job = desk.job(priority=5)
    assert checks(desk, jobs[0])["order"][1] == "first in the queue (priority 1)"
    listed = ", ".join(map(str, jobs[:5]))
    assert f"8 queued jobs before it: {listed} and 3 more;" in checks(desk, job)["order"][1]
    for _ in range(2):
        desk.record(changes.end(desk.attempt(job).id, Outcome.NOT_STARTED))
    grade, says, _ = checks(desk, job)["retry"]
    assert grade == "warn"
    assert says.startswith("2 failed starts; next try in ")


def test_why_explains_a_held_job(desk: Desk) -> None:
    job = desk.job(hold=True)
    assert f"job {job} is held by the user\n" in desk.run("why", job)[1]
    assert checks(desk, job)["held"] == ("bad", "held by the user", f"`release {job}` queues it")


def test_why_shows_the_line_of_a_job_and_malformed_lines_near_it(desk: Desk) -> None:
    path = str(desk.path / "jobs.txt")
    job = desk.store.insert_job(JobSpec("command", "true", str(desk.path), command="true"), f"file:{path}")
    assert checks(desk, job)["line"][1] == f"no longer in {path}"
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES (?, ?)", (path, str(desk.path)))
        for position, (number, job_id, problem) in enumerate(
            [(3, None, "two commas"), (5, job, None), (40, None, "far")]
        ):
            db.execute(
                "INSERT INTO line (path, position, number, text, job_id, problem)"
                " VALUES (?, ?, ?, 'x', ?, ?)",
                (path, position, number, job_id, problem),
            )
    found = checks(desk, job)
    assert found["line"][1] == f"{path}:5"
    assert found["near it"][1] == f"{path}:3 is malformed: two commas"
    assert found["jobs file"][1] == f"1 malformed line elsewhere in {path}"


def test_why_explains_a_failed_job(desk: Desk) -> None:
    job = desk.run_job("seq 20; echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1")
    row = desk.store.attempts(job)[0]
    wait_for(lambda: (desk.folder(row) / "result").exists(), "result")
    desk.wait_until_processes_end()
    told = why_json(desk, job)
    reason = "exit code 1: ModuleNotFoundError: No module named 'torch'"
    assert (told["state"], told["outcome"], told["reason"]) == ("finished", "failed", reason)
    found = checks(desk, job)
    assert found["end"][:2] == ("bad", reason)
    assert found["end"][2].startswith("install the module in the job's environment")
    assert found["by hand"][1] == f"bash {desk.folder(row)}/command.sh"
    assert told["log_end"] == [*map(str, range(12, 21)), "ModuleNotFoundError: No module named 'torch'"]
    out = desk.run("why", job)[1]
    assert out.startswith(f"job {job} failed, exit code 1: ModuleNotFoundError: No module named 'torch'\n")
    assert "End of its log:\n  12\n" in out


def test_why_shows_only_events_of_its_own_store(desk: Desk) -> None:
    """The main log may contain lines about another scheduler's job with the same id."""
    job = desk.job("echo a")
    desk.data_dir.main_log.write_text(f"[other.json] job {job} starts on gpu [0] — echo other\n")
    [told] = [one["message"] for one in why_json(desk, job)["checks"] if one["check"] == "events"]
    assert told.endswith(f"  job {job} queued: echo a")
    assert "echo other" not in desk.run("why", job)[1]


def run_to_end(desk: Desk, script: str) -> int:
    """Runs the script as a job until it ends. Returns the job's id."""
    job = desk.run_job(script)
    row = desk.store.attempts(job)[0]
    wait_for(lambda: (desk.folder(row) / "result").exists(), "result")
    desk.wait_until_processes_end()
    return job


def test_why_shows_reason_advice_and_log_end_and_with_v_every_check(desk: Desk) -> None:
    job = run_to_end(desk, "echo before; echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1")
    assert desk.run("why", job)[1].splitlines()[1:] == [
        "",
        "What to do: install the module in the job's environment, or name the right environment"
        f" (conda=NAME or venv=PATH); then `retry {job}` runs it again",
        "",
        "End of its log:",
        "  before",
        "  ModuleNotFoundError: No module named 'torch'",
        "",
        f"`why {job} -v` shows every check.",
    ]
    out = desk.run("why", job, "-v")[1]
    assert all(f"  {check}  " in out for check in ("scheduler", "end", "by hand", "events"))
    assert out.endswith("  ModuleNotFoundError: No module named 'torch'\n")


def test_why_advises_to_correct_a_wrong_call(desk: Desk) -> None:
    job = run_to_end(desk, "echo usage: t.py [--lr LR]; echo 't.py: error: argument --lr: bad'; exit 2")
    advice = f"run `retry {job} --set command='…'` with other arguments"
    assert f"\nWhat to do: {advice}\n" in desk.run("why", job)[1]
    assert checks(desk, job)["end"][2] == advice
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET source = 'file:/jobs.txt'")
    assert checks(desk, job)["end"][2] == "correct the arguments on its line, which adds a new job"


def test_why_states_the_exit_code_of_a_missing_program_once(desk: Desk) -> None:
    job = run_to_end(desk, "no-such-program")
    head = desk.run("why", job)[1].splitlines()[0]
    assert head.startswith(f"job {job} failed, exit code 127: ")
    assert (head.count("exit code"), "command not found (" in head) == (1, False)


def test_why_names_the_time_limit_that_a_job_reached(desk: Desk) -> None:
    job = desk.job(timeout_s=5400.0)
    row = desk.attempt(job)
    desk.record(changes.end(row.id, Outcome.TIMED_OUT))
    assert checks(desk, job)["end"][1:] == (
        "timed out after 90m", f"run `retry {job} --set timeout=…` to raise its time limit of 90m",
    )  # fmt: skip
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET source = 'file:/jobs.txt'")
    assert checks(desk, job)["end"][2] == (
        f"raise its time limit of 90m, as with [timeout=…]; then `retry {job}` runs it again"
    )


def test_why_shows_a_long_error_only_once(desk: Desk) -> None:
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity"
        " of 23.64 GiB of which 1.91 GiB is free.  Process 12 has 21.73 GiB memory in use. If reserved but"
        " unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
        " fragmentation.  See documentation for Memory Management"
    )
    job = run_to_end(desk, f'echo "{oom}"; exit 1')
    told = why_json(desk, job)
    row = desk.store.attempts(job)[0]
    error = told["reason"].removeprefix("exit code 1: ")
    reason = StateReason(ReasonKind.COMMAND_FAILED, FailureKind.CUDA_OOM, 1, error=error)
    desk.record(
        changes.end(row.id, Outcome.FAILED, reason, exit_code=1)
    )  # fmt: skip
    assert any(one["message"].count("total capacity") for one in told["checks"] if one["check"] == "end")
    for words in (("why", job), ("why", job, "-v")):
        out = desk.run(*words)[1]
        assert (out.count("total capacity"), out.count(f"  {oom}\n")) == (1, 1), out
        head = out.splitlines()[0]
        assert "exit code 1" in head
        assert head.endswith("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 …")
    assert told["reason"] in {one["message"] for one in told["checks"]}
    assert told["log_end"] == [oom]
    # If the log is missing, only the reason contains the error.
    (desk.path / f"job_{job}.log").unlink()
    assert "no longer exists" in desk.run("why", job)[1]


def test_why_wraps_the_advice_at_words_on_a_terminal(desk: Desk) -> None:
    job = run_to_end(desk, "echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1")
    rows = on_terminal("why", job).decode().splitlines()
    begin = rows.index("What to do: install the module in the job's environment, or name the right")
    assert rows[begin + 1 : begin + 3] == [
        f"environment (conda=NAME or venv=PATH); then `retry {job}` runs it again",
        "",
    ]


def test_why_wraps_the_checks_at_words_on_a_terminal(desk: Desk) -> None:
    holder = desk.job(share=600)
    desk.record(act.Start(holder, ("SIM-0",), 600))
    rows = on_terminal("why", desk.job(share=500)).decode().splitlines()
    begin = next(at for at, row in enumerate(rows) if row.startswith("warn  GPU 0 "))
    assert rows[begin] == f"{'warn  GPU 0':<28}does not accept the job: share 0.4 free; share 0.6"
    assert rows[begin + 1] == f"{'':<28}allocated to job {holder}, load 0 %, no foreign memory"
    assert all(len(row) <= 80 for row in rows if str(desk.path) not in row)


def test_why_does_not_show_the_header_of_a_log_as_output(desk: Desk) -> None:
    job = run_to_end(desk, "exit 3")
    log = desk.path / f"job_{job}.log"
    header, end = "# job 1, attempt 1: exit 3\n# GPUs: 0\n", "--- failed: exit code 3, after 0.1 s\n"
    log.write_text(f"{header}{end}")
    assert desk.run("why", job)[1].endswith(f"\n\nIt printed nothing.\n\n`why {job} -v` shows every check.\n")
    log.write_text(f"{header}one\n# two\n{end}")
    assert "End of its log:\n  one\n  # two\n\n" in desk.run("why", job)[1]


OOM = 'echo "CUDA out of memory, try a smaller batch"; exit 1'


def advice(desk: Desk, job: int) -> str:
    return checks(desk, job)["end"][2].partition(";")[0]


def test_oom_advice_does_not_suggest_more_memory_for_a_job_alone_on_its_gpu(desk: Desk) -> None:
    job = run_to_end(desk, OOM)
    assert why_json(desk, job)["reason"] == "exit code 1: CUDA out of memory, try a smaller batch"
    alone = (
        "the job had its GPU to itself: use a smaller batch, a larger GPU, or two GPUs"
        f" (`retry {job} --set gpus=2`) if the program can split its model"
    )
    assert advice(desk, job) == alone
    assert f"What to do: {alone}; then `retry {job}`" in desk.run("why", job)[1]
    with desk.store.db.transaction() as db:
        db.execute("UPDATE gpu SET total_mib = 81920 WHERE uuid = 'SIM-1'")
    assert "a larger GPU (GPU 1), or two GPUs" in advice(desk, job)


def test_oom_advice_suggests_more_memory_for_a_job_that_shared_its_gpu(desk: Desk) -> None:
    neighbor = desk.attempt(desk.job())
    job = run_to_end(desk, OOM)
    shared = (
        "the GPU was full, and other processes used it too: request more memory (vram= or share=, as with"
        f" `retry {job} --set vram=…`)"
    )
    assert advice(desk, job).startswith(shared)
    with desk.store.db.transaction() as db:
        # A neighbor counts only if it was on the same GPU at the same time.
        db.execute("UPDATE allocation SET gpu = 'SIM-1' WHERE attempt_id = ?", (neighbor.id,))
    assert advice(desk, job).startswith("the job had its GPU to itself")
    with desk.store.db.transaction() as db:
        db.execute("UPDATE allocation SET gpu = 'SIM-0' WHERE attempt_id = ?", (neighbor.id,))
        db.execute("UPDATE attempt SET ended_at = 5.0 WHERE id = ?", (neighbor.id,))
    assert advice(desk, job).startswith("the job had its GPU to itself")


def test_oom_advice_ignores_the_previous_job_on_the_gpu(desk: Desk) -> None:
    before = desk.attempt(desk.job())
    job = run_to_end(desk, OOM)
    began = desk.store.attempts(job)[0].created_at
    for ended_at, alone in ((began - 0.1, True), (began + 0.001, False)):
        with desk.store.db.transaction() as db:
            db.execute("UPDATE attempt SET ended_at = ? WHERE id = ?", (ended_at, before.id))
        assert advice(desk, job).startswith("the job had its GPU to itself") is alone


@pytest.mark.parametrize(
    ("held", "processes", "alone"),
    [
        ([[77, 1.0, 9000]], [[77, 9000, False]], False),
        ([[77, 1.0, 9000]], [[77, 9000, True]], True),
        ([[77, 1.0, 100]], [[77, 100, False]], True),
    ],
)
def test_oom_advice_counts_foreign_processes(
    desk: Desk, held: list[Any], processes: list[Any], alone: bool
) -> None:
    job = run_to_end(desk, OOM)
    with desk.store.db.transaction() as db:
        db.execute(
            "UPDATE gpu SET foreign_peaks = ?, processes = ? WHERE uuid = 'SIM-0'",
            (json.dumps(held), json.dumps(processes)),
        )
    assert advice(desk, job).startswith("the job had its GPU to itself") is alone


def test_oom_advice_does_not_suggest_more_memory_than_a_gpu_has(desk: Desk) -> None:
    desk.attempt(desk.job())
    job = run_to_end(desk, OOM)
    for vram, most in ((23_863, False), (23_864, True)):
        with desk.store.db.transaction() as db:
            db.execute(
                "UPDATE allocation SET vram = ? WHERE attempt_id = ?", (vram, desk.store.attempts(job)[0].id)
            )
        assert (
            advice(desk, job).startswith("the job had the most memory that a GPU can provide: use a") is most
        )


def test_why_shows_the_warnings_of_a_failed_job_next_to_its_end(desk: Desk) -> None:
    job = desk.job(vram=8192)
    row = desk.attempt(job, vram=8192)
    desk.record(changes.run(row.id), changes.measure(row.id, 9.0, ("SIM-0", 12034, None)))
    desk.record(changes.end(row.id, Outcome.FAILED, exit_code=7))
    out = desk.run("why", job)[1]
    assert out.startswith(f"job {job} failed, exit code 7\n")
    assert "but used" in out
    assert "by hand" not in out


def test_why_describes_running_and_completed_jobs(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done")
    assert checks(desk, job)["runs"][1].startswith("on GPU 0")
    (desk.path / "go").touch()
    row = desk.store.attempts(job)[0]
    wait_for(lambda: (desk.folder(row) / "result").exists(), "result")
    desk.wait_until_processes_end()
    os.chmod(desk.path / f"job_{job}.log", stat.S_IWUSR)
    assert checks(desk, job)["scheduler"] == ("ok", "not running", "")
    assert checks(desk, job)["end"] == ("ok", f"the job exited with code 0; `retry {job}` runs it again", "")
    assert why_json(desk, job)["log_end"] == []


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        (
            "file:/jobs.txt",
            "correct the line (this creates a new job), or create the script or environment that it names",
        ),
        ("submit", "create the script or environment that the job names"),
    ],
)
def test_why_shows_a_missing_script(desk: Desk, source: str, remedy: str) -> None:
    spec = JobSpec("csv", "0,/no.py,,,", str(desk.path), script="/no.py")
    job = desk.store.insert_job(spec, source)
    row = desk.attempt(job)
    reason = StateReason(ReasonKind.LAUNCH_FAILED, FailureKind.SCRIPT_MISSING)
    desk.record(changes.set_job(job, launch_failures=4), changes.end(row.id, Outcome.NOT_STARTED, reason))
    assert checks(desk, job)["end"][2] == f"{remedy}; then `retry 1` runs it again"


@pytest.mark.parametrize(
    ("source", "placing", "other"),
    [
        ("file:/jobs.txt", "on the job's line, request fewer", "correct [venv=DIR] on the line"),
        (
            "submit",
            "with `set 1`, request fewer",
            "cancel the job and submit it again with another",
        ),
    ],
)
def test_why_speaks_of_a_line_only_if_the_job_has_one(
    desk: Desk, source: str, placing: str, other: str
) -> None:
    spec = JobSpec("command", "true", str(desk.path), command="true", venv="/none", gpus=9)
    found = checks(desk, desk.store.insert_job(spec, source))
    assert found["placing"][2].startswith(placing)
    assert found["environment"][2] == f"create it, or {other}"


def test_a_very_long_line_is_truncated_in_text_but_not_in_json(desk: Desk) -> None:
    text = f"echo {'x' * 60_000}"
    job = desk.job(text, share=100)
    jobs = desk.path / "jobs.txt"
    jobs.write_text(f"{text}\n1.5,{text},\n")
    for words in (("status",), ("why", job), ("lint",)):
        out = desk.run(*words)[1]
        assert len(out) < 8_000, words
        assert words[0] == "why" or "x… (60,005 characters)" in out
    assert json.loads(desk.run("status", "--json")[1])["jobs"][0]["command"] == text
    told = json.loads(desk.run("lint", "--json")[1])
    assert (told["lines"][0]["text"], told["malformed"][0]["text"]) == (text, f"1.5,{text},")
