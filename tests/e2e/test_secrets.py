"""Tests secrets in the lines of a jobs file.

Only the job gets them; nothing shown or logged contains them.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from gpu_scheduler.cli import main
from tests.e2e.world import World

#: Each secret is passed in a different way. None of them has a format that is known for secrets.
IN_ARGUMENTS, IN_COMMAND, IN_MESSAGE, IN_ENV = "s3arguments", "s3command", "s3message", "s3env"
MALFORMED = ("s3unknown", "s3unquoted", "s3fields", "s3background")
IN_ADD = "s3added"
SECRETS = (IN_ARGUMENTS, IN_COMMAND, IN_MESSAGE, IN_ENV, *MALFORMED, IN_ADD)


def _lines(world: World) -> list[str]:
    script = world.folder / "t.py"
    script.write_text(
        "import os, sys\nopen('got', 'a').write(' '.join(sys.argv[1:] + [os.environ['X_TOKEN']]))\n"
    )
    return [
        f"[env:X_TOKEN={IN_ENV}] 0,{script},,--api-key '{IN_ARGUMENTS} x' --epochs 3",
        f"WANDB_API_KEY={IN_COMMAND} bash -c 'echo $WANDB_API_KEY > got.command'",
        f"echo 'ValueError: no access to https://me:{IN_MESSAGE}@host/x'; exit 3",
        f"[env:X_TOKEN={MALFORMED[0]} vrm=4G] python t.py",
        f'[env:X_TOKEN="{MALFORMED[1]} x] python t.py',
        f"0,t.py,,--password {MALFORMED[2]} --layers 1,2,3",
        f"HF_TOKEN={MALFORMED[3]} python t.py &",
        f"[hold] python t.py --hf-token={IN_COMMAND}",
    ]


def _printed(*words: str) -> str:
    """Runs a command and returns its output. Runs it in this process, because there are many commands."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main(words)
    return said.getvalue()


def _read_by_people(world: World) -> dict[str, str]:
    """Returns the output of all commands and the content of the scheduler's files except the database."""
    own = "[job 3] "  # The output of a job is not masked.
    found = {"start": "\n".join(line for line in world.output().split("\n") if not line.startswith(own))}
    for words in (
        ["status", "--all", "-v"], ["lint", str(world.jobs_file)], ["events"], ["screens"], ["calibrate"],
        *([command, str(job)] for job in (1, 2, 3, 4) for command in ("show", "why")),
    ):  # fmt: skip
        for form in ([], ["--jsonl" if words == ["events"] else "--json"]):
            found[" ".join([*words[:2], *form])] = _printed(
                *words, *form, "--state-file", str(world.folder / world.state)
            )
    found["why 3 -v"] = _printed("why", "3", "-v", "--state-file", str(world.folder / world.state))
    found["logs"] = world.run_ok("logs", "1", "-n", "9") + world.run_ok("logs", "2", "-n", "9")
    shown = [
        world.folder / world.state,
        world.folder / "gpu_scheduler.log",
        *(world.folder / "logs").iterdir(),
    ]
    found.update((path.name, path.read_text()) for path in shown if not path.name.startswith("job_3_"))
    return found


def test_a_secret_in_a_line_reaches_only_its_job(world: World) -> None:
    world.append(*_lines(world))
    world.start()
    world.wait_finished(1, 2, 3)
    added = world.cli("add", "--vram", "1G", "--hold", "--", "python", "t.py", f"--client-secret={IN_ADD}")
    world.wait_until(lambda jobs: jobs.get(5) is not None, "the added line")
    found = _read_by_people(world)
    found["add"] = added.stdout + added.stderr
    world.end_scheduler()
    found["board at the end"] = (world.folder / "logs" / "status.txt").read_text()
    told = {name: [secret for secret in SECRETS if secret in text] for name, text in found.items()}
    assert {name: secrets for name, secrets in told.items() if secrets} == {}
    for name in (
        "status --all",
        "status --all --json",
        "events",
        "journal.jsonl",
        "gpu_scheduler.log",
        "start",
        "logs",
    ):
        assert "(hidden)" in found[name], name
    reasons = [bad["reason"] for bad in json.loads(found["status --all --json"])["malformed"]]
    assert len(reasons) == len(MALFORMED)
    assert "vrm" in reasons[0]
    # The job, its command.sh and the jobs file contain all secrets.
    assert (world.folder / "got").read_text() == f"--api-key {IN_ARGUMENTS} x --epochs 3 --cuda 0 {IN_ENV}"
    assert (world.folder / "got.command").read_text() == f"{IN_COMMAND}\n"
    scripts = Path(world.folder).glob("*.d/runs/1/*/command.sh")
    assert IN_ARGUMENTS in "".join(path.read_text() for path in scripts)
    assert f"--client-secret={IN_ADD}" in world.jobs_file.read_text()
