"""P10: another user plants a data directory, links and files in a folder where root starts a scheduler.

None of that user's commands may run as root, and a file owned by root must not change because a planted link
points to it. Once the planted files are removed, the scheduler must work. This part must run as root, so that
it can act as both users.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.store import Store
from tests.stress.gated import GatedJobs, killed_at_exit, stage_in
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

#: Modes of a folder that is writable by everyone, with and without the sticky bit.
_MODES = (0o1777, 0o777)
_VICTIM_CONTENTS = {"text": "precious\n", "object": '{"mine": 1}\n', "empty": ""}


class _OtherUser:
    """Another user, who can write in the folder of a stage. canary: a file that their commands write."""

    def __init__(self, stage: Stage, order: Order, dice: random.Random) -> None:
        self.uid = dice.randint(50_000, 60_000)
        self.canary = stage.folder.parent / "ran"
        self.victim = stage.folder.parent / "victim"
        self._stage, self._is_control, self._dice = stage, order.is_control, dice
        self._own = stage.folder / "planted"
        self._command = f"id -u >> {self.canary}"

    def store(self) -> None:
        """Plants a data directory with a waiting job."""
        home = self._stage.home
        home.folder.mkdir()
        if self._is_control:
            job = {"n": 1, "state": "waiting", "tries": 0}
            home.database.write_text(json.dumps({self._command: job}))
        else:
            store = Store(home, create=True)
            spec = JobSpec("command", "x", str(self._stage.folder), command=self._command, share=500)
            store.insert_job(spec, "stress")
            store.close()
        mode = self._dice.choice([0o777, 0o755, 0o700])
        for path in (home.folder, *home.folder.rglob("*")):
            self._give(path, mode)

    def linked_store(self) -> None:
        """Plants a link to a data directory with a waiting job."""
        self.store()
        self._stage.home.folder.rename(self._own)
        self._link(self._stage.home.folder, self._own)

    def jobs_file(self) -> None:
        """Plants a jobs file with a command."""
        self._stage.jobs_file.unlink()
        self._stage.jobs_file.write_text(f"{self._command}\n")
        self._give(self._stage.jobs_file, 0o644)

    def linked_jobs_file(self) -> None:
        """Plants a link to a jobs file with a command."""
        self.jobs_file()
        self._stage.jobs_file.rename(self._own)
        self._link(self._stage.jobs_file, self._own)

    def writable_jobs_file(self) -> None:
        """Appends a command to a jobs file that is writable by everyone."""
        self._stage.append([self._command])
        self._stage.jobs_file.chmod(0o666)

    def log(self) -> None:
        """Plants a link in place of the main log, which points to a file owned by root."""
        self._link(self._stage.home.main_log, self.victim)

    def state_file(self) -> None:
        """Plants a link in place of the state file, which points to a file owned by root."""
        self._link(self._stage.home.state_file, self.victim)

    def llm_config(self) -> None:
        """Plants a link in place of llm_config.json, which points to a file owned by root."""
        self._link(self._stage.folder / "llm_config.json", self.victim)

    def log_folder(self) -> None:
        """Plants links named like the next job logs, which point to a file owned by root."""
        logs = self._stage.folder / "logs"
        logs.mkdir()
        self._give(logs, 0o777)
        for name in ("job_1.log", "job_2.log", "1.log", "2.log"):
            self._link(logs / name, self.victim)

    def _give(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        os.chown(path, self.uid, self.uid)

    def _link(self, path: Path, target: Path) -> None:
        path.symlink_to(target)
        os.chown(path, self.uid, self.uid, follow_symlinks=False)

    @property
    def attacks(self) -> tuple[Callable[[], None], ...]:
        """All attacks on the scheduler or, for the negative control, those that can succeed against it."""
        mine = (self.store, self.jobs_file)
        others = (
            self.linked_store, self.linked_jobs_file, self.writable_jobs_file, self.log, self.state_file,
            self.llm_config, self.log_folder,
        )  # fmt: skip
        return mine if self._is_control else (*mine, *others)


def planted(order: Order) -> Findings:
    """Attacks a scheduler in each of 90 folders that are writable by everyone."""
    if os.geteuid() != 0:
        return Findings(skipped="only root can act as two users")
    found, dice, rounds = Findings(), order.rng("planted"), order.scaled(90)
    found.figures = {"folders": rounds}
    for number in range(rounds):
        folder = order.folder / str(number)
        folder.mkdir()
        stage, jobs = stage_in(folder / "shared", order), GatedJobs(folder, dice)
        stranger = _OtherUser(stage, order, dice)
        precious = dice.choice(list(_VICTIM_CONTENTS))
        stranger.victim.write_text(_VICTIM_CONTENTS[precious])
        stage.folder.chmod(dice.choice(_MODES))
        attack = stranger.attacks[number % len(stranger.attacks)]
        attack()
        label = attack.__name__.replace("_", " ")
        found.count(label)
        _start(stage, stranger, found, f"{label}, {precious}")
        if stranger.canary.exists():
            found.fault("ran as root", f"{label}: {stranger.canary.read_text()}")
        if stranger.victim.read_text() != _VICTIM_CONTENTS[precious]:
            found.fault(
                "a file owned by root changed", f"{label}, {precious}: {stranger.victim.read_text()[:300]}"
            )
        if not order.is_control:
            _mend_and_go_on(stage, jobs, order, found)
        shutil.rmtree(folder)
    return found


def _start(stage: Stage, stranger: _OtherUser, found: Findings, label: str) -> None:
    """Starts a scheduler. Unless it refuses to start, lets it stay up for as long as a job needs to run."""
    out = stage.folder.parent / "out"
    stage.output_file = out
    process = stage.start(ready=False)
    with killed_at_exit(process):
        wait_for(
            lambda: process.poll() is not None or "up," in out.read_text() or "ready" in out.read_text(),
            f"a start with {label}", 60,
        )  # fmt: skip
        if process.poll() is None:
            found.count("starts that succeeded")
            probe = stranger.canary.parent / "probe"
            stage.append([f"[share=0.5] echo > {probe}"])
            try:
                wait_for(lambda: probe.exists() or process.poll() is not None, "a job", 10)
            except AssertionError:
                found.count("jobs file not read")
        else:
            found.count("starts refused")
            if process.returncode not in (1, 2) or "Traceback" in out.read_text():
                found.fault("wrong end", f"{label}: {process.returncode}: {out.read_text()[-800:]}")


def _mend_and_go_on(stage: Stage, jobs: GatedJobs, order: Order, found: Findings) -> None:
    """Empties the folder except for a jobs file, and checks that a scheduler works in it."""
    shutil.rmtree(stage.folder)
    stage_in(stage.folder, order)
    stage.append(jobs.lines(1, gated=False))
    stage.drain(60)
    jobs.judge(stage, order, found)
