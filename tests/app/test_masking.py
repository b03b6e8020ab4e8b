"""The result of every use case can be written as JSON and contains no secrets from command lines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from gpu_scheduler.app import add
from gpu_scheduler.app import logs as screens
from gpu_scheduler.app.diagnosis import diagnose
from gpu_scheduler.app.events import open_events
from gpu_scheduler.app.gpu_requests import pause
from gpu_scheduler.app.job_detail import job_detail
from gpu_scheduler.app.job_requests import hold
from gpu_scheduler.app.lint import lint
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.status import StatusQuery, status
from gpu_scheduler.app.stop import stop
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests.cli.desk import Desk
from tests.records import attempt_record, job_record

#: Each secret is in a different place. None of them has a format that is known for secrets.
IN_COMMAND, IN_ENV, IN_ERROR, IN_LINE, IN_ARGUMENTS = "s3command", "s3env", "s3error", "s3line", "s3arguments"
SECRETS = (IN_COMMAND, IN_ENV, IN_ERROR, IN_LINE, IN_ARGUMENTS)
COMMAND = f"WANDB_API_KEY={IN_COMMAND} python t.py"


def assert_no_secret(result: Any) -> None:
    text = json.dumps(dataclasses.asdict(result))
    assert [secret for secret in SECRETS if secret in text] == []


def test_no_result_contains_a_secret(desk: Desk, location: Location, tmp_path: Path) -> None:
    waiting = desk.job(COMMAND, env=(("X_TOKEN", IN_ENV),))
    failed = desk.job(f"python u.py --password {IN_ARGUMENTS}")
    reason = StateReason(ReasonKind.COMMAND_FAILED, exit_code=3, error=f"no https://me:{IN_ERROR}@host/x")
    desk.record(act.FinishJob(failed, Outcome.FAILED, reason))
    assert_no_secret(status(location, StatusQuery(last_lines=True)))
    for job in (waiting, failed):
        assert_no_secret(job_detail(location, job))
        assert_no_secret(diagnose(location, job))
    with open_events(location, None) as events:
        found = list(events.new_events())
        assert len(found) == 3
        for event in found:
            assert_no_secret(event)
    assert_no_secret(screens.screens(location))
    assert_no_secret(stop(location, end_jobs=False, grace_s=1.0))
    for answer in (*hold(location, [waiting]), *pause(location, [0])):
        assert_no_secret(answer)
    lines = f"[env:X_TOKEN={IN_ENV}] {COMMAND}\nHF_TOKEN={IN_LINE} python t.py &\n"
    linted = lint(location, "jobs.txt", lines.encode())
    assert (len(linted.lines), len(linted.malformed)) == (1, 1)
    assert_no_secret(linted)
    new = add.NewLine(command=["env", f"X_TOKEN={IN_COMMAND}", "python", "t.py"])
    path = tmp_path / "jobs.txt"
    assert_no_secret(add.add(location, [new], str(path))[0])
    assert IN_COMMAND in path.read_text()


def test_masking_the_secrets_of_a_job_leaves_its_other_values_unchanged() -> None:
    spec = JobSpec("csv", COMMAND, "/", script="/t.py", arguments=("--api-key", IN_ARGUMENTS, "--n", "3"))
    job = job_record(text=COMMAND, spec_json=spec.to_json(), reason=StateReason(ReasonKind.PREEMPTED))
    shown = without_secrets(job)
    assert shown.spec == dataclasses.replace(
        spec, text="WANDB_API_KEY=(hidden) python t.py", arguments=("--api-key", "(hidden)", "--n", "3")
    )
    assert shown._replace(text=job.text, spec_json=job.spec_json) == job
    assert json.loads(job.spec_json)["arguments"][1] == IN_ARGUMENTS


def test_hides_a_secret_that_follows_a_json_escape() -> None:
    spec = JobSpec("csv", "t", "/", script="/t.py", arguments=(f"\tMY_TOKEN={IN_ARGUMENTS}",))
    assert without_secrets(job_record(spec_json=spec.to_json())).spec.arguments == ("\tMY_TOKEN=(hidden)",)


def test_masks_each_string_in_a_list_separately() -> None:
    lines = (f"PASS={IN_LINE} of 12 tests", "error: a value is required for --password", "--password", "exit")
    assert without_secrets(lines) == ("PASS=(hidden) of 12 tests", *lines[1:])


def test_masking_returns_a_result_without_secrets_unchanged() -> None:
    spec = JobSpec("command", "t", "/", command='echo "\t"', env=(("SEED", "3"), ("WHERE", "\t")))
    for record in (job_record(), job_record(spec_json=spec.to_json()), attempt_record()):
        assert without_secrets(record) is record
