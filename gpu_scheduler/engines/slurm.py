"""Runs attempts on Slurm with its programs sbatch, squeue, scancel and sinfo.

The functions at the top are pure: the texts for these programs, and what their answers mean. Nothing here
looks at the shared folder, or at the accounting (sacct), which many clusters do not have.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gpu_scheduler.core.text.parsing import split_words
from gpu_scheduler.engines.engine import (
    NAME_PREFIX,
    EngineJob,
    EngineUnavailableError,
    Order,
    RefusedError,
    Resources,
)
from gpu_scheduler.errors import UsageError
from gpu_scheduler.system.run_program import ProgramResult, run_program

#: Seconds after which a program of Slurm is given up. Against a dead controller, it takes up to 20 s.
DEADLINE_S = 20.0
#: Name of the file in the attempt folder with what the guard and Slurm itself write.
LOG_NAME = "engine.log"
_MAX_OUTPUT_BYTES = 1 << 23  # squeue about 100,000 jobs
_NAME = re.compile(NAME_PREFIX + "[0-9A-Za-z_-]+")

#: States in which a job has ended. A state that is in neither set counts as running: CONFIGURING has its
#: node, COMPLETING and SUSPENDED still have it, and from one of a later version nothing may be concluded.
_ENDED = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
])  # fmt: skip
#: States in which a job waits for its (next) start.
_PENDING = frozenset(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
#: Of several jobs with one name, the one with the highest rank counts.
_RANKS = {"running": 2, "pending": 1, "ended": 0}

#: The variables that Slurm's programs and the guard need. sbatch hands them on to the job, and Slurm keeps
#: them. All others would change what the programs do, may be secrets, or come from the node.
_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "SLURM_CONF", "GPU_SCHEDULER_TIME_SCALE",
)  # fmt: skip

#: How sbatch begins the lines of its messages.
_PREFIXES = re.compile("^(sbatch: )?(error: |fatal: )?(Batch job submission failed: |allocation failure: )?")
#: How sinfo begins the line of a node that runs jobs or would; * would mean that it does not respond.
_WORKING = re.compile(r"(alloc|comp|idle|mix|plnd)[~#!-]?\|")
#: What scancel says of jobs that have ended since it looked.
_HAS_JUST_ENDED = re.compile("completing or completed|Invalid job id")
#: What --test-only says if no node can run the job, but also if all that could are drained or down.
_NO_NODE = "Requested node configuration is not available"
#: Answers of sbatch that stay the same, as slurm_strerror and its option parser word them. All others may be
#: different the next time, so that a message of a later version costs no job.
_FINAL = re.compile(
    _NO_NODE + "|Invalid partition name|No partition specified|group not permitted to use this partition"
    "|nodes not in this partition|More processors requested than permitted|[Cc]ount specification invalid"
    "|Invalid feature|Memory required by task|Invalid account|Invalid qos|Invalid wckey|Invalid license"
    "|[Tt]ime limit is invalid|Invalid generic resource|Invalid GRES|Invalid Trackable"
    "|GRES option unsupported|Access denied to requested reservation|[Rr]eservation is invalid"
    "|Invalid node name|too long|unrecognized option|invalid option|is ambiguous|requires an argument"
    "|Invalid -"
    # The limit that a job violates, if it holds for each job. One for all jobs of a user leaves room later.
    r"|(Assoc|QOS)M(ax|in)\w{0,40}PerJob"
)


#: Options with which one attempt would not be one job that squeue and scancel find by its name.
_NOT_POSSIBLE = re.compile(
    r"--(array|wait|wrap|test-only|clusters?|het-group|parsable|quiet|uid|job-name)\b|-[aWMQJ]"
)


class SlurmSettings(Struct, frozen=True):
    """The options of `start` for Slurm.

    python: path of Python on the nodes. runner_start: path of the runner's start.py in the shared folder.
    options: further options of sbatch. shards: the number of shards of each GPU; 0 if Slurm has none.
    """

    partition: str
    python: str
    runner_start: str
    options: tuple[str, ...] = ()
    shards: int = 0


def parse_options(text: str) -> tuple[str, ...]:
    """Splits the options of sbatch that the user gives. Raises UsageError with the remedy."""
    try:
        words = tuple(split_words(text))
    except ValueError as error:
        raise UsageError(f"--slurm-options: {error}; quote as in a shell: {text}") from None
    for word in words:
        if not word.startswith("-"):
            raise UsageError(f"--slurm-options: {word} is not an option; write --name=VALUE or -nVALUE")
        if _NOT_POSSIBLE.match(word):
            raise UsageError(
                f"--slurm-options: {word} is not possible, because each attempt is one job; remove it"
            )
    return words


def job_command(settings: SlurmSettings, folder: str) -> str:
    """Returns the batch script without its first line.

    `exec` makes the guard the process that gets Slurm's SIGTERM. A shell would not pass it on.
    """
    return "exec " + shlex.join([settings.python, "-B", "-I", "-S", settings.runner_start, "--guard", folder])


def resource_options(settings: SlurmSettings, resources: Resources) -> list[str]:
    """Returns the options of sbatch that say what a job needs and where. Ours come last and so count."""
    gres, limit_s = _gres(settings, resources), resources.time_limit_s
    return [
        *settings.options,
        f"--partition={settings.partition}",
        "--nodes=1",
        "--ntasks=1",
        *([f"--gres={':'.join(filter(None, gres[:2]))}:{gres[2]}"] if gres else []),
        *([] if limit_s is None else [f"--time={max(1, math.ceil(limit_s / 60))}"]),
        "--no-requeue",
        # Not NONE: an `srun` of the command would get no variables, even no PATH (SLURM_EXPORT_ENV), and the
        # node would run a login shell of the user before the script (SLURM_GET_USER_ENV).
        "--export=ALL",
    ]


def submit_options(settings: SlurmSettings, order: Order) -> list[str]:
    """Returns all options of sbatch for an order, except the script."""
    log = os.path.join(order.folder, LOG_NAME)
    # Slurm replaces %j and the like, unless there is a backslash, which it takes as an escape.
    log = log.replace("\\", "\\\\") if "\\" in log else log.replace("%", "%%")
    return [
        *resource_options(settings, order.resources),
        f"--job-name={NAME_PREFIX}{order.token}",
        f"--chdir={order.folder}",
        # Absolute, because Slurm changes to /tmp if the node lacks the folder. stderr goes there, too.
        f"--output={log}",
        "--open-mode=append",
    ]


def parse_jobs(text: str) -> dict[str, EngineJob]:
    """Returns the jobs with our names in the output of squeue, by token.

    Of several jobs with one name, the running one counts, else the pending one, else the latest. Raises
    ValueError if a line with such a name is incomplete.
    """
    found: dict[str, tuple[tuple[int, int], EngineJob]] = {}
    for line in text.split("\n"):
        native_id, _, rest = line.partition("|")
        name, _, rest = rest.partition("|")
        if not _NAME.fullmatch(name):
            continue
        fields = rest.split("|")
        if len(fields) < 3:
            raise ValueError(line)
        if len(fields) > 3 and fields[0] not in _ENDED | _PENDING | {"RUNNING"}:
            continue  # a name of somebody else that contains a bar
        job = _job(native_id, fields[0], "|".join(fields[1:-1]), fields[-1])
        order = _RANKS[job.state], int(re.sub("[^0-9].*", "", native_id) or 0)
        token = name.removeprefix(NAME_PREFIX)
        found[token] = max(found.get(token, (order, job)), (order, job), key=lambda pair: pair[0])
    return {token: job for token, (_, job) in found.items()}


def words_of(output: str) -> str:
    """Returns what sbatch says, on one line and without the prefixes of its messages."""
    lines = (_PREFIXES.sub("", line.strip()) for line in output.splitlines())
    return "; ".join(line for line in lines if line and not line.startswith("Try "))


def is_final(words: str) -> bool:
    """Returns whether an answer of sbatch would be the same at any later time."""
    return _FINAL.search(words) is not None


def has_hidden_node(settings: SlurmSettings, resources: Resources, nodes: str) -> bool:
    """Returns whether a node that does not work at present has the GPUs. nodes: the output of sinfo."""
    gres = _gres(settings, resources)
    hidden = (line.partition("|")[2] for line in nodes.splitlines() if not _WORKING.match(line))
    return any(gres is None or _offers(offered, *gres) for offered in hidden)


def engine_env(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the programs, which Slurm gives to the job, too."""
    return {name: env[name] for name in _INHERITED if name in env}


def _job(native_id: str, state: str, reason: str, node: str) -> EngineJob:
    kind: Literal["pending", "ended", "running"] = (
        "pending" if state in _PENDING else "ended" if state in _ENDED else "running"
    )
    # A cancelled job keeps the reason for which it has waited.
    reason = "" if reason in ("None", "(null)") or state == "CANCELLED" else reason
    if state not in ("PENDING", "RUNNING"):
        reason = f"{state} {reason}".rstrip()
    return EngineJob(kind, native_id, "" if node == "(null)" else node, reason, state == "CANCELLED")


def _gres(settings: SlurmSettings, resources: Resources) -> tuple[str, str | None, int] | None:
    """Returns the name, type and number of the generic resources that a job needs; None if it needs none."""
    if resources.share is not None and settings.shards:
        return "shard", resources.gpu_type, max(1, math.ceil(resources.share * settings.shards / 1000))
    gpus = resources.gpus if resources.share is None else 1
    return ("gpu", resources.gpu_type, gpus) if gpus else None


def _offers(offered: str, name: str, gpu_type: str | None, number: int) -> bool:
    """Returns whether a node's generic resources suffice. offered: such as gpu:a100:2(S:0),shard:a100:4."""
    total = 0
    for item in re.sub(r"\([^()]*\)", "", offered).split(","):
        kind, _, rest = item.partition(":")
        middle, _, count = rest.rpartition(":")
        if kind == name and count.isdigit() and (gpu_type is None or gpu_type in middle.split(":")):
            total += int(count)
    return total >= number


class SlurmEngine:
    """Implements Engine with the programs of Slurm. env: the environment of this process."""

    def __init__(
        self, settings: SlurmSettings, env: Mapping[str, str], deadline_s: float = DEADLINE_S
    ) -> None:
        self._settings, self._env = settings, engine_env(env)
        self._deadline_s = deadline_s
        self._mine = f"--user={os.getuid()}"  # older versions have no --me

    def submit(self, order: Order) -> None:
        words = self._refusal("--parsable", *submit_options(self._settings, order), folder=order.folder)
        if words is not None:
            raise RefusedError(words)

    def jobs(self) -> Mapping[str, EngineJob]:
        output = self._output(
            "squeue", "--all", self._mine, "--states=all", "--noheader", "-o", "%i|%j|%T|%r|%N"
        )
        try:
            return parse_jobs(output)
        except ValueError as error:
            raise EngineUnavailableError(f"squeue printed an incomplete line: {error}") from None

    def cancel(self, token: str) -> None:
        result = self._run("scancel", self._mine, f"--name={NAME_PREFIX}{token}")
        # For scancel, it is an error if a job ends at the same time.
        if not result.succeeded and not _HAS_JUST_ENDED.search(result.output):
            raise _unavailable(result)

    def problem(self, resources: Resources) -> str | None:
        words = self._refusal("--test-only", *resource_options(self._settings, resources), folder="/")
        if words is not None and _NO_NODE in words:
            nodes = self._output("sinfo", "-hN", f"--partition={self._settings.partition}", "-o", "%t|%G")
            return None if has_hidden_node(self._settings, resources, nodes) else words
        return words

    def start_problem(self) -> str | None:
        """Returns why Slurm cannot be used, with a remedy; None if it can. Raises EngineUnavailableError."""
        for name in ("sbatch", "squeue", "scancel", "sinfo"):
            if shutil.which(name, path=self._env.get("PATH")) is None:
                return f"{name} is not on PATH; start on a login node of the cluster, or load Slurm's module"
        words = self.problem(Resources())
        if words is None or _NO_NODE in words:
            return None  # Slurm says so of any job while its nodes restart; the queue waits for them
        remedy = "check --slurm and --slurm-options"
        if "account" in words:
            remedy = "`sacctmgr show associations user=$USER` lists the accounts for --slurm-options"
        elif "partition" in words:
            remedy = "`sinfo -s` lists the partitions for --slurm"
        return f"Slurm refuses all jobs for the partition {self._settings.partition}: {words}; {remedy}"

    def _refusal(self, *options: str, folder: str) -> str | None:
        """Runs sbatch. Returns what it says if that is final; None if it accepts the job."""
        # As an argument, the script needs neither a file nor input.
        result = self._run("sbatch", *options, "--wrap", job_command(self._settings, folder))
        words = words_of(result.output)
        if not result.succeeded and (result.exit_code is None or not is_final(words)):
            raise _unavailable(result)
        return None if result.succeeded else words

    def _output(self, *words: str) -> str:
        result = self._run(*words)
        if not result.succeeded:
            raise _unavailable(result)
        return result.output

    def _run(self, *words: str) -> ProgramResult:
        return run_program(words, self._env, self._deadline_s, _MAX_OUTPUT_BYTES)


def _unavailable(result: ProgramResult) -> EngineUnavailableError:
    words = words_of(result.output)
    return EngineUnavailableError("; ".join(filter(None, [result.problem, words])) or result.failure_reason())
