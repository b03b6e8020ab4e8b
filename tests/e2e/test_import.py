"""Tests that imported jobs run: after their parents, with their arguments and variables."""

from __future__ import annotations

import json

from tests.e2e.world import World

SCRIPT = """\
import os, sys
with open("../got", "a") as file:
    print(os.path.basename(os.getcwd()), os.environ.get("SEED"), *sys.argv[1:], file=file)
"""


def test_imported_jobs_run_after_their_parents(world: World) -> None:
    folder = world.folder / "exp 1"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    jobs = [
        {"id": 1, "script": "train.py", "status": "done"},
        {"id": 2, "name": "eval", "script": "train.py", "args": ["last", "a b"], "after": [3, 4]},
        {
            "id": 3,
            "name": "exp/train",
            "script": "train.py",
            "args": "first",
            "env": {"SEED": "7"},
            "after": 1,
        },
        {"id": 4, "name": "check", "script": "train.py", "after": "exp/train"},
    ]
    jobs = [{"status": "pending", "cwd": str(folder), **job} for job in jobs]
    (world.folder / "queue.json").write_text(json.dumps({"jobs": jobs}))
    world.run_ok("import", "queue.json")
    world.start("--jobs-file", "", "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 0
    assert (world.folder / "got").read_text() == "exp 1 7 first\nexp 1 None\nexp 1 None last a b\n"
    outcomes = {job["name"]: job["outcome"] for job in world.jobs().values()}
    assert outcomes == dict.fromkeys(("exp-train", "check", "eval"), "completed")
