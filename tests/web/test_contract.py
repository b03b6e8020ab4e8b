"""Runs schemathesis over the OpenAPI document: no server error, and no answer that is not declared.

It tries the values at and beyond the limits of each route. $SCHEMATHESIS_EXAMPLES adds this number of random
examples for each route, from the seed $SCHEMATHESIS_SEED, and sequences of requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.system.simulated_usage import FOLDER_VARIABLE
from tests.cli.desk import Desk

#: A value may be right in form and wrong on this machine, such as the path of a script.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]
"""


@pytest.mark.timeout(1200)
def test_the_api_keeps_to_its_document(desk: Desk, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("schemathesis")
    monkeypatch.setenv(FOLDER_VARIABLE, str(desk.path / "sim"))
    monkeypatch.setattr("gpu_scheduler.web.app.simulation_of_scheduler", lambda *_: ("simulated", "2:24G"))
    for number in range(3):
        desk.job(name=f"job{number}")
    (desk.path / "schemathesis.toml").write_text(CONFIG)
    examples = os.environ.get("SCHEMATHESIS_EXAMPLES")
    words = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml", "run",
        f"http://127.0.0.1:{port}/api/v1/openapi.json", "--exclude-path-regex", "stream|events",
        *(("--max-examples", examples) if examples else ("--phases", "coverage")),
        "--seed", os.environ.get("SCHEMATHESIS_SEED", "1"), "--no-color",
    ]  # fmt: skip
    with desk.scheduler():
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout[-6000:]
