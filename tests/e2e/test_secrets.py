"""Secrets in jobs: only the jobs get them; no output and no file that the scheduler writes shows them.

The files that a job needs to run, the store, and the output of the job itself contain them.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from starlette.testclient import TestClient

from gpu_scheduler.cli import main
from gpu_scheduler.client import Client
from gpu_scheduler.show.location import Location
from gpu_scheduler.web.app import create_app
from gpu_scheduler.web.operations import Context
from tests.e2e.world import World
from tests.web.conftest import LOCAL, with_caller

#: Each secret is passed in a different way. None of them has a format that is known for secrets.
IN_ARGUMENTS, IN_COMMAND, IN_MESSAGE, IN_ENV = "s3arguments", "s3command", "s3message", "s3env"
MALFORMED = ("s3unknown", "s3unquoted", "s3fields", "s3background")
IN_ADD, IN_SUBMIT, IN_URL, IN_WORD, IN_LOWER_CASE = "s3added", "s3submitted", "s3url", "s3word", "s3lowercase"
SECRETS = (
    *(IN_ARGUMENTS, IN_COMMAND, IN_MESSAGE, IN_ENV, *MALFORMED),
    *(IN_ADD, IN_SUBMIT, IN_URL, IN_WORD, IN_LOWER_CASE),
)
#: The files that may contain secrets: the store, what a job needs to run, and what the jobs and tests write.
MAY_CONTAIN_SECRETS = ("*.db", "*.db-*", "command.sh", "spec.json", "jobs.txt", "got", "got.command")


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
        f"[hold env:db_password={IN_LOWER_CASE}] t.py --to https://me:{IN_URL}@host/x --password {IN_WORD}",
    ]


def _printed(world: World, *words: str) -> str:
    """Runs a command and returns its output. Runs it in this process, because there are many commands."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main([*words, "--state-file", str(world.folder / world.state)])
    return said.getvalue()


def _printed_by_commands(world: World) -> dict[str, str]:
    """Returns the output of all commands that show something about jobs, by command."""
    found = {}
    for words in (
        ["status", "--all", "-v"], ["lint", str(world.jobs_file)], ["events"], ["screens"], ["calibrate"],
        ["plan", "--all"], ["eta"],
        *([command, str(job)] for job in range(1, 8) for command in ("show", "why")),
    ):  # fmt: skip
        for form in ([], ["--jsonl" if words == ["events"] else "--json"]):
            found[" ".join([*words[:2], *form])] = _printed(world, *words, *form)
    found["why 3 -v"] = _printed(world, "why", "3", "-v")
    found["logs"] = world.run_ok("logs", "1", "-n", "9") + world.run_ok("logs", "2", "-n", "9")
    return found


def _answered_by_api(world: World) -> dict[str, str]:
    """Returns the answers of the REST API and of the Python client, by route or method."""
    context = Context(Location(str(world.folder / world.state)), str(world.folder), "api:local")
    app = create_app(context)
    new = {"command": ["python", "t.py", "--password", IN_WORD], "env": {"db_password": IN_LOWER_CASE}}
    with TestClient(with_caller(app, LOCAL), base_url="http://localhost:8000") as http:
        v1 = "/api/v1"
        routes = ["/queue", "/jobs/3"]
        routes += [f"{v1}/{name}" for name in ("jobs", "eta", "plan", "gpus", "health")]
        routes += [f"{v1}/jobs/{job}{more}" for job in range(1, 8) for more in ("", "/why")]
        found = {route: http.get(route).text for route in routes}
        found["preview"] = http.post(f"{v1}/preview", json=new).text
        found["error"] = http.post(f"{v1}/preview", json={"script": f"--password={IN_WORD} \0"}).text
    app.state.close()
    client = Client(state_file=str(world.folder / world.state))
    found["client"] = repr(
        [client.call("jobs"), client.call("preview", **new), client.health()]
        + [[client.job(job).info(), client.job(job).why()] for job in range(1, 8)]
    )
    return found


def _written(world: World) -> dict[str, str]:
    """Returns the text of the files that must not contain secrets, without the output of job 3, by name."""
    found = {}
    for path in world.folder.rglob("*"):
        if path.is_file() and not any(map(path.match, MAY_CONTAIN_SECRETS)):
            lines = path.read_bytes().decode(errors="replace").split("\n")
            text = "\n".join(line for line in lines if not line.startswith(("ValueError: ", "[job 3] ")))
            found[str(path.relative_to(world.folder))] = text
    return found


def test_no_output_and_no_file_shows_the_secrets_of_jobs(world: World) -> None:
    world.append(*_lines(world))
    world.start()
    world.wait_finished(1, 2, 3)
    added = world.cli("add", "--vram", "1G", "--hold", "--", "python", "t.py", f"--client-secret={IN_ADD}")
    world.wait_until(lambda jobs: jobs.get(6) is not None, "the added line")
    new = ["--hold", "--env", f"db_password={IN_SUBMIT}", "--", "python", "t.py", "--password", IN_SUBMIT]
    found = {"add": added.stdout + added.stderr}
    for form in (["--dry-run"], ["--dry-run", "--json"], []):
        done = world.cli("submit", *form, *new)
        found[" ".join(["submit", *form])] = done.stdout + done.stderr
    found |= _printed_by_commands(world) | _answered_by_api(world) | _written(world)
    world.end_scheduler()
    found |= {f"{name} at the end": text for name, text in _written(world).items()}
    told = {name: [secret for secret in SECRETS if secret in text] for name, text in found.items()}
    assert {name: secrets for name, secrets in told.items() if secrets} == {}
    for name in (
        *("status --all", "status --all --json", "show 1", "show 5", "show 5 --json", "why 3", "add"),
        *(f"lint {world.jobs_file}", f"lint {world.jobs_file} --json"),
        *("events", "events --jsonl", "submit", "submit --dry-run", "submit --dry-run --json", "logs"),
        *("/api/v1/jobs", "/api/v1/jobs/5", "preview", "client"),
        *("logs/journal.jsonl", "logs/status.txt", "gpu_scheduler.log", world.output_file.name),
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
