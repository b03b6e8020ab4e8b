"""Lists the commands with the functions that declare and run them."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpu_scheduler.cli import arguments


class Command(NamedTuple):
    """A command of the command line.

    module: the module of `cli` that runs the command, in the function that `function_name` returns; declare:
    the function that declares the command's arguments.
    """

    module: str
    declare: Callable[[argparse.ArgumentParser], None]
    example: str
    summary: str


#: The commands by purpose, in the order of the help and of docs/commands.md.
GROUPS: Mapping[str, Mapping[str, Command]] = {
    "run the scheduler": {
        "start": Command("start", arguments.start, "start --screen --jobs-file jobs.txt",
            "Run the scheduler until it is stopped or, with --drain, until no more jobs can run"),
        "stop": Command("request_commands", arguments.stop, "stop",
            "Stop the scheduler; running jobs continue"),
        "serve": Command("front_ends", arguments.serve, "serve --port 8000",
            "Serve the API on this machine, even without a running scheduler, until it is stopped"),
    },
    "inspect jobs and GPUs": {
        "status": Command("status", arguments.status, "status --json",
            "Show GPUs, jobs and malformed lines, even without a running scheduler"),
        "show": Command("report_commands", arguments.show, "show 3",
            "Show everything about one job: its line, attempts and history"),
        "why": Command("report_commands", arguments.why, "why 3",
            "Explain, check by check, why a job does not start or why it failed"),
        "eta": Command("report_commands", arguments.eta, "eta 3",
            "Show how far a running job is and when it will finish; without a job, all running jobs (`plan`"
            " also shows jobs that report no progress)"),
        "plan": Command("report_commands", arguments.plan, "plan --json",
            "Show when each running and waiting job is expected to start and end, and on which GPUs"),
        "logs": Command("logs", arguments.logs, "logs 3 -f",
            "Print the log of a job's latest attempt, or of the attempt given by --attempt"),
        "attach": Command("logs", arguments.one_job, "attach 3",
            "Open the Screen session of a running job (Ctrl-A d detaches)"),
        "screens": Command("report_commands", arguments.screens, "screens",
            "List the Screen sessions of running jobs with the commands that open them"),
        "events": Command("report_commands", arguments.events, "events -f",
            "Print events, one per line, even without a running scheduler"),
    },
    "manage jobs": {
        "add": Command("submit", arguments.add, "add --vram 18G --name bert -- python train.py --epochs 3",
            "Append one job, given as a script or as a command after `--`, to the jobs file and print its"
            " line"),
        "submit": Command("submit", arguments.submit, "submit --name bert --vram 18G train.py --epochs 3",
            "Queue one job, given as a script with its arguments or as a command after `--`, without a jobs"
            " file"),
        "adopt": Command("submit", arguments.adopt, "adopt 158500 --name exp02-training",
            "Make a running process a job, so that it counts in the queue and other jobs can wait for it"),
        "import": Command("submit", arguments.import_queue, "import ~/.gpuq/queue.json",
            "Queue the pending jobs of a queue.json of gpuq, and rename the file"),
        "lint": Command("report_commands", arguments.lint, "lint jobs.txt",
            "Show what each line of a jobs file would do, without queueing any job"),
        "cancel": Command("request_commands", arguments.cancel, "cancel 3 4 --grace 30",
            "Cancel queued or running jobs, even without a running scheduler"),
        "preempt": Command("request_commands", arguments.preempt, "preempt 3 --timeout 120",
            "Ask a running job to save its work and end, and hold it so that it can be resumed"),
        "retry": Command("request_commands", arguments.retry, "retry --failed",
            "Queue finished or held jobs again"),
        "hold": Command("request_commands", arguments.jobs, "hold 3",
            "Keep queued jobs from starting until they are released"),
        "release": Command("request_commands", arguments.jobs, "release 3",
            "Return held jobs to the queue"),
        "set": Command("request_commands", arguments.set_attributes, "set 3 vram=18G after=1,2",
            "Change attributes of a waiting job that has no line in a jobs file"),
        "recover": Command("request_commands", arguments.recover, "recover --all",
            "Queue interrupted jobs again, such as those that ran before a crash or a reboot"),
        "clear": Command("request_commands", arguments.clear, "clear 3 5-9",
            "Take finished jobs (without arguments, all of them) out of the lists; their history stays"),
        "priority": Command("request_commands", arguments.priority, "priority 3 0",
            "Change the priority of waiting jobs; lower numbers run first"),
    },
    "manage GPUs": {
        "pause": Command("request_commands", arguments.gpus, "pause 0 2",
            "Keep new jobs off GPUs; running jobs continue"),
        "resume": Command("request_commands", arguments.resume, "resume 0 2",
            "Let paused GPUs accept new jobs again; with --job, continue a job from its newest checkpoint"),
    },
    "use GPUs without the queue": {
        "run": Command("claim_commands", arguments.run, "run --min-free-mb 8000 -- python train.py",
            "Wait for free GPUs, claim them, and execute a command on them; needs no scheduler"),
        "wait": Command("claim_commands", arguments.wait, "wait --min-free-mb 8000",
            "Wait for free GPUs and print their ids without claiming them, or wait for the given jobs"),
        "gpus": Command("claim_commands", arguments.list_gpus, "gpus",
            "List the GPUs of this machine with their free memory and the claims on them"),
    },
    "use the queue from other programs": {
        "token": Command("front_ends", arguments.token, "token create notebook",
            "Create, list or revoke the tokens with which programs and other users may use the API"),
        "mcp": Command("front_ends", arguments.mcp, "mcp --allow-changes",
            "Offer the queue to an assistant as tools (Model Context Protocol) on stdin and stdout"),
    },
    "share a queue in Redis": {
        "redis-submit": Command("redis_commands", arguments.redis_submit,
            "redis-submit train.py --gpu-memory-mb 18000 --epochs 3",
            "Add a script with its arguments to a queue in Redis, which several machines share"),
        "redis-queue": Command("redis_commands", arguments.redis_queue, "redis-queue --json",
            "Show a queue in Redis and who holds what, or change one of its items"),
        "redis-agent": Command("redis_commands", arguments.redis_agent, "redis-agent --dir ~/project",
            "Take jobs from a queue in Redis until it is stopped, as `start --redis` does"),
    },
    "maintain": {
        "doctor": Command("report_commands", arguments.doctor, "doctor",
            "Check this machine for problems without changing anything"),
        "calibrate": Command("report_commands", arguments.calibrate, "calibrate",
            "Show the memory and the time that jobs used, and suggest llm_config.json entries"),
        "completion": Command("completion", arguments.completion, "completion bash",
            "Print a script that enables completion in a shell"),
    },
}  # fmt: skip
#: All commands by name.
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def function_name(command: str) -> str:
    """Returns the name of the function that runs a command, such as `import_` or `redis_queue`."""
    return f"{command}_" if keyword.iskeyword(command) else command.replace("-", "_")
