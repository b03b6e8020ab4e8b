"""Tests a scheduler whose files are replaced by links, FIFOs and folders.

It keeps running and ends on request.
"""

from __future__ import annotations

import json
import os

from tests.e2e.world import World
from tests.waiting import wait_for


def test_a_scheduler_keeps_running_with_a_linked_state_file_and_fifos_in_place_of_files(world: World) -> None:
    link, config = world.folder / world.state, world.folder / "llm_config.json"
    real = world.folder / "elsewhere" / "real.json"
    real.parent.mkdir()
    link.symlink_to(real)
    world.start("--state-interval", "600", "--monitor-interval", "600")
    wait_for(real.exists, "state file")
    state = json.loads(real.read_text())
    # This edits the target of the link.
    real.write_text(json.dumps({**state, "paused_gpus": [2], "mine": "\ud800"}))

    def paused() -> bool:
        said = json.loads(real.read_text() or "{}")
        return bool(said.get("_scheduler") == {"paused_gpus": [2]} and said["mine"] == "\ud800")

    wait_for(paused, "the edit to be applied and the file to be written through the link")
    assert link.is_symlink()
    link.unlink()
    for path in (link, config):
        os.mkfifo(path)
    wait_for(lambda: f"{config} is not a regular file" in world.output(), "a message about llm_config.json")
    world.append("echo ran > ran")
    world.wait_finished(1)
    wait_for(
        lambda: f"{link} cannot be read or written (is not a regular file)" in world.output(),
        "a message about the state file",
    )
    assert f"state file {link} is not a regular file: remove it" in world.run_ok("status")
    assert world.end_scheduler() == 0
