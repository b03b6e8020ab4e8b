"""The words of the command line into values. Nothing is done, opened or looked up here.

The packages that colour help are imported when help is printed, never before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from gpu_scheduler import __version__, config
from gpu_scheduler.cli import values
from gpu_scheduler.errors import UsageError

PROGRAM = "gpu-scheduler"
_DAY_S = 86400


class _Parser(argparse.ArgumentParser):
    """Mistakes become UsageError; help is formatted late."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n`{self.prog} --help` says what is accepted")

    def format_help(self) -> str:
        from rich_argparse import RawDescriptionRichHelpFormatter

        class Formatter(RawDescriptionRichHelpFormatter):
            # Brackets in our texts are attributes of jobs, not markup.
            text_markup = False
            help_markup = False

        self.formatter_class = Formatter
        return super().format_help()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options. `command` names it.

    Raises UsageError for bad words, naming option, value and what is accepted; SystemExit(0) after --help and
    --version have printed.
    """
    return _program().parse_args(_joined(argv))


def _joined(argv: Sequence[str]) -> list[str]:
    """`--args WORD` and `--args=WORD` as `--args= WORD`: argparse would take a WORD that begins with - for an
    option, and would lose a `--`."""
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            return [*words, word, *rest]
        value = next(rest, None) if word == "--args" else None
        if word.startswith("--args="):
            value = word.partition("=")[2]
        words.append(word if value is None else f"--args= {value}")
    return words


def _program() -> _Parser:
    program = _Parser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Runs every line of jobs.txt once, on the right GPU, in its own Screen session.",
        epilog=f"Example: {PROGRAM} start --screen\n`{PROGRAM} COMMAND --help` tells more of each command.",
    )
    program.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _where(program, config.STATE_FILE, None)
    # With prog given argparse need not format a usage line, which would load the help formatter.
    commands = program.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=PROGRAM)
    _start(_command(commands, "start", "runs the scheduler in the foreground until it is asked to end",
                    "start --screen --jobs-file jobs.txt"))  # fmt: skip
    _add(_command(commands, "add", "appends one well-formed line to the jobs file and prints it",
                  'add train.py --conda myenv --args "--llm qwen2.5-7b-inst" --gpus 0-3'))  # fmt: skip
    status = _command(commands, "status", "shows GPUs, jobs and malformed lines; works without a scheduler",
                      "status --json")  # fmt: skip
    status.add_argument("--json", action="store_true", help="machine-readable, see docs/json.md")
    status.add_argument("--all", action="store_true", help="every queued and finished job")
    for verb, does in (
        ("pause", "keeps new jobs off GPUs; running jobs go on"),
        ("resume", "lets GPUs take new jobs again"),
    ):
        _command(commands, verb, does, f"{verb} 0 2").add_argument(
            "ids", metavar="ID", nargs="+", type=values.gpu_ids, help="GPU ids such as 0, 0,2 or 0-3, or all"
        )
    attach = _command(commands, "attach", "opens the Screen session of a running job (leave with Ctrl-A D)",
                      "attach 3")  # fmt: skip
    attach.add_argument("job", metavar="JOB", type=values.job_id, help="a job number that `status` shows")
    _logs(_command(commands, "logs", "prints the log of a job's newest attempt", "logs 3 -f"))
    _cancel(_command(commands, "cancel", "ends queued or running jobs; works with no scheduler up",
                     "cancel 3 4 --grace 30"))  # fmt: skip
    for verb, does in (
        ("retry", "queues finished or held jobs once more"),
        ("hold", "keeps queued jobs from starting"),
        ("release", "queues held jobs again"),
    ):
        _command(commands, verb, does, f"{verb} 3").add_argument(
            "jobs", metavar="JOB", nargs="+", type=values.job_id, help="job numbers"
        )
    _stop(_command(commands, "stop", "asks the scheduler to end; running jobs go on", "stop"))
    return program


def _command(commands: Any, name: str, does: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=does,
        allow_abbrev=False,
        prog=f"{PROGRAM} {name}",
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"Example: {PROGRAM} {example}",
    )
    # SUPPRESS: a default here would overwrite what was given before the command's name.
    _where(parser, argparse.SUPPRESS, argparse.SUPPRESS)
    return parser


def _where(parser: argparse.ArgumentParser, state_file: str, data_dir: str | None) -> None:
    parser.add_argument(
        "--state-file", metavar="PATH", default=state_file, type=_path,
        help=f"state file of the scheduler (default: {config.STATE_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", metavar="DIR", default=data_dir, type=_path,
        help="folder of the record (default: beside the state file)",
    )  # fmt: skip


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def _start(parser: argparse.ArgumentParser) -> None:
    defaults = config.StartOptions()
    fraction = values.number(0, 1)
    interval = values.number(0, _DAY_S)
    option = parser.add_argument
    option("--gpus", metavar="N|LIST", type=values.gpu_choice, help="a count (4) or a list (0,2,3 or 3,)")
    option("--jobs-file", metavar="PATH", default=config.JOBS_FILE, help='"" watches none')
    option("--llm-config", metavar="PATH", type=_path, help=f"default: {config.LLM_CONFIG}, if it is there")
    option("--screen", action="store_true", help="run each job in a GNU Screen session of its own")
    option("--mem-threshold", metavar="X", type=fraction, default=defaults.mem_threshold,
           help="other people's share of a GPU's memory that keeps new jobs off (default: 0.8)")  # fmt: skip
    option("--load-threshold", metavar="X", type=fraction, default=defaults.load_threshold,
           help="load of a GPU used by others that keeps new jobs off (default: 0.8)")  # fmt: skip
    option("--monitor-interval", metavar="S", type=interval, default=defaults.monitor_interval_s,
           help="longest time until a change of the jobs file is seen (default: 30)")  # fmt: skip
    option("--state-interval", metavar="S", type=interval, default=defaults.state_interval_s,
           help="longest time until an edit of the state file is seen (default: 20)")  # fmt: skip
    option("--max-assign-attempts", metavar="N", type=values.whole(1, 1000),
           default=defaults.max_assign_attempts, help="tries to launch a job (default: 5)")  # fmt: skip
    option("--assign-retry-wait", metavar="S", type=values.number(0, 3600, least=0),
           default=defaults.assign_retry_wait_s, help="wait after a failed one (default: 5)")  # fmt: skip
    option("--log-dir", metavar="DIR", type=_path, help="job logs (default: /tmp/gpu_scheduler_logs)")
    option("--gpu-probe", choices=("auto", "nvml", "gputil", "simulated"), default=defaults.gpu_probe,
           help="who reads the GPUs (default: auto = NVML, else GPUtil)")  # fmt: skip
    option("--simulate", metavar="N", help="simulated GPUs: 4 (24 GiB each), 4:80G, 2:24G,2:80G")
    option("--cuda-ids", choices=("physical", "visible"), default=defaults.cuda_ids,
           help="the ids given by --cuda to scripts (default: physical)")  # fmt: skip
    option("--conda-sh", metavar="PATH", type=_path, help="profile.d/conda.sh, where it is not found")
    option("--drain", action="store_true", help="end when no job can run any more; exit code of the jobs")


def _add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("script", metavar="SCRIPT", help="Python script; its path is made absolute")
    option("--conda", metavar="ENV", help="conda environment (default: base)")
    option(
        "--args",
        metavar='"…"',
        default="",
        type=lambda text: text.removeprefix(" "),
        help='arguments of the script, such as "--epochs 3"',
    )
    option("--priority", metavar="N", type=values.whole(-(10**9) + 1, 10**9 - 1), default=0,
           help="lower numbers run first (default: 0)")  # fmt: skip
    option("--gpus", metavar="LIST", default="", help="GPUs that it may use: 0,2 or 0-3 (default: any)")
    option("--output-file", metavar="PATH", default=config.JOBS_FILE, type=_path,
           help=f"jobs file; - only prints the line (default: {config.JOBS_FILE})")  # fmt: skip


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", type=values.job_id, help="a job number that `status` shows")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("-n", "--lines", metavar="LINES", type=values.whole(0, 10**9 - 1),
                        help="only the last ones (default: all)")  # fmt: skip


def _grace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grace", metavar="S", type=values.number(0, _DAY_S, least=0), default=10.0,
                        help="seconds between SIGTERM and SIGKILL (default: 10)")  # fmt: skip


def _cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="*", type=values.job_id, help="job numbers")
    parser.add_argument("--all", action="store_true", help="every job that is not finished")
    _grace(parser)


def _stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", action="store_true", help="cancel the running jobs too")
    _grace(parser)
