"""P16: jobs are posted to the API, whose server, client or scheduler is killed at a random moment.

Each post is then repeated, with its Idempotency-Key, until it is answered. In the end, each key must have one
job, which ran once, and every answer must name it. The negative control repeats the posts without their keys.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from random import Random
from typing import Any, Literal

from gpu_scheduler.store.job_lists import state_counts
from tests.stress.gated import end_scheduler
from tests.stress.harness import ROOT, Stage, pause, program_for, scheduler
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, outcome_of
from tests.waiting import wait_for
from tests.web.serve.box import AS_ROOT, STATE, Box

Victim = Literal["serve", "client", "scheduler"]

_POSTS_PER_MOMENT = 16
#: Number of kills after which everything is started anew, the other way round: the server as a process of its
#: own, or as a child of the scheduler, which starts a killed one again after 1, 2, 4 … s.
_MOMENTS_PER_STAGE = 3
#: Seconds within which a kill follows the answer to a random post.
_LATEST_KILL_S = 0.04
#: The script of every job. Its name has the number of the job.
_SCRIPT = """\
import os, re
number = re.sub(r"\\D", "", os.path.basename(__file__))
with open("trace", "a") as trace:
    trace.write(f"{number} start {os.getpid()} 0\\n")
    trace.flush()
    trace.write(f"{number} end 0\\n")
"""
#: Seconds that a client may take.
_CLIENT_S = 120


def kills(order: Order) -> Findings:
    """Kills one of the three at each of 100 moments."""
    found, dice, moments = Findings(), order.rng("posts"), order.scaled(100, least=3)
    victims: list[Victim] = ["serve", "client", "scheduler"]
    service = _Service(order)
    try:
        for number in range(moments):
            if number % _MOMENTS_PER_STAGE == 0:
                dice.shuffle(victims)
                service.start(is_child=number // _MOMENTS_PER_STAGE % 2 == 1)
            victim = victims[number % _MOMENTS_PER_STAGE]
            service.post_and_kill(_posts(number, dice), victim, dice, found)
        service.judge(found)
    finally:
        service.kill()
    found.figures = {"kills": moments, **found.figures}
    return found


def _posts(moment: int, dice: Random) -> list[dict[str, Any]]:
    posts = []
    for n in range(moment * _POSTS_PER_MOMENT, (moment + 1) * _POSTS_PER_MOMENT):
        script = f"post{n}.py"
        model = {"path": "/jobs", "body": {"model_script": script, "gpu_memory_mb": 2000}}
        ours = {"path": "/api/v1/jobs", "body": {"script": script, "attributes": {"share": "0.2"}}}
        posts.append({"n": n, "key": f"key-{n}", **dice.choice([model, ours])})
    return posts


class _Service:
    """The scheduler and the server of one queue."""

    def __init__(self, order: Order) -> None:
        self._stage = Stage(order.folder, command=scheduler(order.folder, program=program_for(order)))
        self._box = Box(order.folder, is_warm=False)
        self._box.create_token()
        self._answers, self._is_control = order.folder / "answers", order.is_control
        self._answers.touch()
        self._count = self._server = 0
        self._is_child = False
        self._scheduler: subprocess.Popen[bytes] | None = None

    def start(self, *, is_child: bool) -> None:
        """Starts both, after killing those that run. is_child: the scheduler starts the server."""
        self.kill()
        self._is_child = is_child
        self._start("scheduler")
        if not is_child:
            self._start("serve")

    def _start(self, name: Victim) -> None:
        """Starts the scheduler or the server, if it is not the scheduler who does, and waits for answers."""
        if name == "scheduler":
            words = ["--serve", f"127.0.0.1:{self._box.port}", *AS_ROOT] if self._is_child else []
            self._scheduler = self._stage.start("--state-file", STATE, *words)
        elif not self._is_child:
            self._box.serve()
        old = self._server
        if name == "serve" or self._is_child:
            self._server = wait_for(lambda: pid if (pid := self._box.server_pid()) != old else 0, "a server")

    def kill(self, name: Victim | None = None) -> None:
        """Kills the server, the scheduler, or both."""
        if name != "serve" and self._scheduler is not None:
            end_scheduler(self._scheduler, signal.SIGKILL)
        if name == "serve":
            os.kill(self._server, signal.SIGKILL)
            for process in self._box.processes:
                process.wait()
        elif name is None:
            self._box.close()

    def post_and_kill(
        self, posts: list[dict[str, Any]], victim: Victim, dice: Random, found: Findings
    ) -> None:
        """Posts jobs, kills the victim meanwhile, starts it again, and repeats all posts."""
        for post in posts:
            (self._stage.folder / f"post{post['n']}.py").write_text(_SCRIPT)
        jobs, answers = self._job_count(), len(self._read_answers())
        least = answers + dice.randrange(len(posts))
        client = self._begin_client(posts, again=False)
        wait_for(
            lambda: len(self._read_answers()) >= least or client.poll() is not None, "answers", every_s=0.001
        )
        pause(dice.uniform(0.0, _LATEST_KILL_S))
        if victim == "client":
            client.kill()
        else:
            self.kill(victim)
        client.communicate(timeout=_CLIENT_S)
        if victim != "client":
            self._start(victim)
        answered = len(self._read_answers()) - answers
        found.count(f"kills of {victim}")
        found.count("posts", len(posts))
        found.count("posts without an answer", len(posts) - answered)
        found.count("jobs of these", self._job_count() - jobs - answered)
        if self._is_control:
            posts = [{**post, "key": None} for post in posts]
        self._begin_client(posts, again=True).communicate(timeout=_CLIENT_S)
        self._count += len(posts)

    def _begin_client(self, posts: list[dict[str, Any]], *, again: bool) -> subprocess.Popen[str]:
        """Starts a client and waits until it begins to post."""
        client = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.poster", str(self._answers)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        order = {"port": self._box.port, "token": self._box.token, "again": again, "posts": posts}
        client.stdin.write(f"{json.dumps(order)}\n")
        client.stdin.flush()
        assert client.stdout.readline() == "ready\n"
        client.stdin.write("\n")
        client.stdin.flush()
        return client

    def _job_count(self) -> int:
        with closing(self._stage.store()) as store:
            return sum(state_counts(store).values())

    def _read_answers(self) -> list[tuple[int, int, int]]:
        """Returns the number of the post, the status and the job of each answer."""
        lines = self._answers.read_text().splitlines()
        return [(int(n), int(status), int(job)) for n, status, job in map(str.split, lines)]

    def judge(self, found: Findings) -> None:
        """Lets all jobs run, and compares them with the answers and with their traces."""
        self.kill()
        code = self._stage.drain(60 + self._count, "--state-file", STATE)
        if code != 0:
            found.fault("wrong codes", f"the drain exited with {code}")
        jobs = self._stage.status()["jobs"]
        numbers = {job["id"]: _number_of(job["command"]) for job in jobs}
        counts = Counter(numbers.values())
        for n in range(self._count):
            if counts[n] != 1:
                found.fault("duplicates" if counts[n] else "lost", f"post {n} has {counts[n]} jobs")
        answered = set()
        for n, status, job in self._read_answers():
            answered.add(n)
            if status != 200:
                found.fault("refused", f"post {n}: {status}")
            elif numbers.get(job) != n:
                found.fault("wrong answers", f"post {n} was answered with job {job}: {numbers.get(job)}")
        for n in set(range(self._count)) - answered:
            found.fault("unanswered", f"post {n}")
        outcomes = {numbers[job["id"]]: outcome_of(job) for job in jobs}
        judge(self._stage.trace, dict.fromkeys(range(self._count), 0), outcomes, killed=False).report_to(
            found
        )


def _number_of(command: str) -> int:
    match = re.search(r"\bpost(\d+)\.py", command)
    assert match is not None, command
    return int(match[1])
