"""The texts for the programs of Slurm, and what their answers mean, without a Slurm."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.engines.engine import EngineJob, Order, Resources
from gpu_scheduler.engines.slurm import (
    SlurmSettings,
    engine_env,
    has_hidden_node,
    is_final,
    job_command,
    parse_jobs,
    parse_options,
    resource_options,
    submit_options,
    words_of,
)
from gpu_scheduler.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
TOKEN = "0123456789abcdef0123456789abcdef"
PLAIN = SlurmSettings("gpu", "/usr/bin/python3", "/shared/runner-1/start.py")
SHARDED = SlurmSettings(
    "a,b", "/opt/my python/bin/python", "/shared/runner-1/start.py", ("--account=x", "--qos=y z"), 4
)
ODD = '/shared/it\'s $HOME "q"\n`x`\\%j\udcff/ü'


@pytest.mark.parametrize(
    ("name", "settings", "order"),
    [
        ("no_gpu", PLAIN, Order(TOKEN, "/shared/s/t", Resources())),
        ("gpus", PLAIN, Order(TOKEN, "/shared/s/100%j", Resources(2, time_limit_s=3601.0))),
        ("gpu_type", PLAIN, Order(TOKEN, "/shared/s/t", Resources(1, gpu_type="a100", time_limit_s=0.5))),
        ("share_of_gpu", PLAIN, Order(TOKEN, "/shared/s/t", Resources(0, 500))),
        ("shards", SHARDED, Order(TOKEN, "/shared/s/t", Resources(0, 501, time_limit_s=60.0))),
        ("odd_names", SHARDED, Order(TOKEN, ODD, Resources(0, 1, "a100"))),
    ],
)
def test_an_order_matches_the_golden_file(name: str, settings: SlurmSettings, order: Order) -> None:
    words = [*submit_options(settings, order), "--wrap", job_command(settings, order.folder)]
    text = "\n".join(map(shlex.quote, words)) + "\n"
    path = GOLDEN / f"{name}.txt"
    data = text.encode("utf-8", "surrogateescape")
    if os.environ.get("WRITE_GOLDEN"):
        path.write_bytes(data)
    assert data == path.read_bytes(), "set WRITE_GOLDEN=1 to rewrite the golden file"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_every_path_reaches_the_guard_as_it_is(path: str) -> None:
    words = shlex.split(job_command(PLAIN, path))
    python = ["/usr/bin/python3", "-B", "-I", "-S"]
    assert words == ["exec", *python, "/shared/runner-1/start.py", "--guard", path]


def test_a_shell_passes_an_odd_path_as_it_is(tmp_path: Path) -> None:
    start = tmp_path / "start.py"
    start.write_text("import os, sys\nsys.stdout.buffer.write(os.fsencode(sys.argv[2]))\n")
    script = job_command(SlurmSettings("gpu", sys.executable, str(start)), ODD)
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True)
    assert done.stdout == os.fsencode(ODD)


@pytest.mark.parametrize(
    ("limit_s", "minutes"), [(0.0, 1), (60.0, 1), (60.1, 2), (3600.0, 60), (86400.0, 1440)]
)
def test_time_limits_are_rounded_up_to_minutes(limit_s: float, minutes: int) -> None:
    assert f"--time={minutes}" in resource_options(PLAIN, Resources(time_limit_s=limit_s))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("--account=x  --qos='a b' -Cfast", ("--account=x", "--qos=a b", "-Cfast")),
        ("--comment='", "the quote ' at column 11 is not closed"),
        ("--account x", "x is not an option; write --name=VALUE or -nVALUE"),
        ("--a=1 : --b=2", ": is not an option"),
        ("--array=1-3", "each attempt is one job"),
        ("-a1-3", "each attempt is one job"),
        ("--wait", "each attempt is one job"),
    ],
)
def test_options_of_the_user_are_split_or_refused_with_a_remedy(
    text: str, words: tuple[str, ...] | str
) -> None:
    if isinstance(words, tuple):
        assert parse_options(text) == words
        return
    with pytest.raises(UsageError) as caught:
        parse_options(text)
    assert words in str(caught.value)


def job(
    state: str, reason: str = "None", node: str = "", name: str = "gpusched-a", native_id: str = "7"
) -> str:
    return f"{native_id}|{name}|{state}|{reason}|{node}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (job("PENDING", "Resources"), EngineJob("pending", "7", "", "Resources")),
        (job("PENDING"), EngineJob("pending", "7")),
        (
            job("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-3]"),
            EngineJob("pending", "7", "", "ReqNodeNotAvail, UnavailableNodes:n[1-3]"),
        ),
        (job("PENDING", "a|b"), EngineJob("pending", "7", "", "a|b")),
        (job("REQUEUED", "BeginTime"), EngineJob("pending", "7", "", "REQUEUED BeginTime")),
        (job("REQUEUE_HOLD"), EngineJob("pending", "7", "", "REQUEUE_HOLD")),
        (job("REQUEUE_FED"), EngineJob("pending", "7", "", "REQUEUE_FED")),
        (job("SPECIAL_EXIT"), EngineJob("pending", "7", "", "SPECIAL_EXIT")),
        (job("RESV_DEL_HOLD"), EngineJob("pending", "7", "", "RESV_DEL_HOLD")),
        (job("CONFIGURING", node="n1"), EngineJob("running", "7", "n1", "CONFIGURING")),
        (job("RUNNING", node="n1"), EngineJob("running", "7", "n1")),
        (job("COMPLETING", node="n1"), EngineJob("running", "7", "n1", "COMPLETING")),
        (job("SUSPENDED", node="n1"), EngineJob("running", "7", "n1", "SUSPENDED")),
        (job("STOPPED", node="n1"), EngineJob("running", "7", "n1", "STOPPED")),
        (job("SOMETHING_NEW", node="n1"), EngineJob("running", "7", "n1", "SOMETHING_NEW")),
        (job("COMPLETED", node="n1"), EngineJob("ended", "7", "n1", "COMPLETED")),
        (job("CANCELLED", "Priority"), EngineJob("ended", "7", "", "CANCELLED", True)),
        (job("FAILED", "NonZeroExitCode", "n1"), EngineJob("ended", "7", "n1", "FAILED NonZeroExitCode")),
        (job("FAILED", "BadConstraints"), EngineJob("ended", "7", "", "FAILED BadConstraints")),
        (job("TIMEOUT", "TimeLimit", "n1"), EngineJob("ended", "7", "n1", "TIMEOUT TimeLimit")),
        (job("NODE_FAIL", "NodeDown", "n2"), EngineJob("ended", "7", "n2", "NODE_FAIL NodeDown")),
        (job("PREEMPTED", node="n1"), EngineJob("ended", "7", "n1", "PREEMPTED")),
        (job("OUT_OF_MEMORY", node="n1"), EngineJob("ended", "7", "n1", "OUT_OF_MEMORY")),
        (job("BOOT_FAIL"), EngineJob("ended", "7", "", "BOOT_FAIL")),
        (job("DEADLINE"), EngineJob("ended", "7", "", "DEADLINE")),
        (job("REVOKED"), EngineJob("ended", "7", "", "REVOKED")),
        # An array or a heterogeneous job with our name is somebody's mistake, but it may run our attempt.
        (job("PENDING", native_id="7_[1-3]"), EngineJob("pending", "7_[1-3]")),
        (job("PENDING", native_id="7+0"), EngineJob("pending", "7+0")),
        (job("RUNNING", name="wrap"), None),
        (job("RUNNING", name="gpusched-"), None),
        (job("RUNNING", name="gpusched-a b"), None),
        (job("RUNNING", name="gpusched-a|x"), None),
        (job("RUNNING", name="x|gpusched-a"), None),
        ("squeue: error: something\n", None),
        ("\n", None),
    ],
)
def test_a_line_of_squeue_is_understood(line: str, expected: EngineJob | None) -> None:
    assert parse_jobs(line) == ({} if expected is None else {"a": expected})


@pytest.mark.parametrize("line", ["7|gpusched-a", "7|gpusched-a|RUNN", "7|gpusched-a|PENDING|Reso"])
def test_an_incomplete_line_is_no_answer(line: str) -> None:
    with pytest.raises(ValueError, match="gpusched-a"):
        parse_jobs(job("RUNNING", name="gpusched-b") + line)


@pytest.mark.parametrize(
    ("states", "counts"),
    [
        (["COMPLETED", "PENDING"], "2"),
        (["PENDING", "COMPLETED"], "1"),
        (["RUNNING", "PENDING"], "1"),
        (["FAILED", "CANCELLED"], "2"),
        (["FAILED", "RUNNING", "CANCELLED", "PENDING"], "2"),
    ],
)
def test_of_several_jobs_with_one_name_the_most_alive_counts(states: list[str], counts: str) -> None:
    lines = [job(state, native_id=str(number)) for number, state in enumerate(states, 1)]
    for text in ("".join(lines), "".join(reversed(lines))):
        assert parse_jobs(text)["a"].native_id == counts


PIECES = st.sampled_from(["gpusched-a", "gpusched-b", "|", "|", "\n", "17", "RUNNING", "CANCELLED", "None"])


@given(st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join))
def test_any_text_is_read_as_jobs_that_it_contains_or_refused(text: str) -> None:
    refused, found = "", {}
    try:
        found = parse_jobs(text)
    except ValueError as error:
        refused = str(error)
    assert not refused or refused in text.split("\n")
    for token, one in found.items():
        assert f"|gpusched-{token}|" in text
        assert {one.native_id, one.node} <= {*text.replace("\n", "|").split("|"), ""}


FAILED = "sbatch: error: Batch job submission failed: "
POLICY = f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("output", "words", "final"),
    [
        (
            f"sbatch: error: invalid partition specified: x\n{FAILED}Invalid partition name specified\n",
            "invalid partition specified: x; Invalid partition name specified",
            True,
        ),
        ("allocation failure: Invalid feature specification", "Invalid feature specification", True),
        (
            f"{FAILED}Requested node configuration is not available",
            "Requested node configuration is not available",
            True,
        ),
        (f"{FAILED}Invalid account or account/partition combination specified", None, True),
        ("sbatch: error: Invalid generic resource (gres) specification", None, True),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", None, True),
        (f"{FAILED}User's group not permitted to use this partition", None, True),
        (f"{FAILED}Invalid qos specification", "Invalid qos specification", True),
        (
            "sbatch: unrecognized option '--foo=1'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--foo=1'",
            True,
        ),
        ("sbatch: error: Invalid --time specification", "Invalid --time specification", True),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", None, False),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}", None, False),
        (f"sbatch: error: QOSMaxGRESPerJob\n{POLICY}", None, True),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\n" + POLICY, None, True),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", None, False),
        (f"{FAILED}Socket timed out on send/recv operation", None, False),
        (
            f"{FAILED}Unable to contact slurm controller (connect failure)",
            "Unable to contact slurm controller (connect failure)",
            False,
        ),
        (f"{FAILED}Required partition not available (inactive or drain)", None, False),
        ("allocation failure: Resource temporarily unavailable", None, False),
        (f"{FAILED}Requested nodes are busy", None, False),
        ("sbatch: fatal: Could not establish a configuration source", None, False),
        (f"{FAILED}A message of a later version", "A message of a later version", False),
        ("", "", False),
    ],
)
def test_an_answer_of_sbatch_is_final_or_not(output: str, words: str | None, final: bool) -> None:
    said = words_of(output)
    assert words is None or said == words
    assert is_final(said) is final


@pytest.mark.parametrize(
    ("resources", "nodes", "hidden"),
    [
        (
            Resources(4),
            "idle|gpu:a100:2\nalloc|gpu:a100:2\nmix|gpu:8\ncomp|gpu:8\nplnd|gpu:8\nidle~|gpu:8",
            False,
        ),
        (Resources(4), "idle|gpu:a100:2\ndown*|gpu:a100:4(S:0-1),shard:a100:8", True),
        (Resources(4), "idle|gpu:a100:2\ndrain|gpu:a100:2(S:0,1),gpu:h100:2", True),
        (Resources(4, gpu_type="h100"), "drain|gpu:a100:2,gpu:h100:2", False),
        (Resources(2, gpu_type="h100"), "drain|gpu:a100:2,gpu:h100:2", True),
        (Resources(4), "idle*|gpu:4", True),
        (Resources(4), "unk|gpu:4\n", True),
        (Resources(4), "drng|(null)\nmaint|gpu:3", False),
        (Resources(), "down|(null)", True),
        (Resources(), "idle|(null)", False),
        (Resources(0, 500), "down|gpu:1", True),
        (Resources(1), "", False),
    ],
)
def test_a_node_that_does_not_work_at_present_may_have_the_gpus(
    resources: Resources, nodes: str, hidden: bool
) -> None:
    assert has_hidden_node(PLAIN, resources, nodes) is hidden


def test_a_hidden_node_must_have_enough_shards() -> None:
    assert has_hidden_node(SHARDED, Resources(0, 1000), "down|gpu:1,shard:4")
    assert not has_hidden_node(SHARDED, Resources(0, 1000), "down|gpu:4,shard:3")


def test_slurm_and_its_jobs_inherit_only_what_they_need() -> None:
    kept = {"PATH": "/bin", "HOME": "/h", "SLURM_CONF": "/etc/s", "LD_LIBRARY_PATH": "/opt/slurm/lib"}
    lost = ("SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "HF_TOKEN")
    assert engine_env({**kept, **dict.fromkeys(lost, "x")}) == kept
