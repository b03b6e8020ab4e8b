"""Boxes reach a Redis over TCP with TLS and a password, and neither shows the password nor passes it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from tests.certificate import make_certificate
from tests.redis_queue.conftest import Box, Boxes, Server, ends, traces
from tests.redis_queue.source_document import SourceQueue
from tests.stress.redis_boxes import free_port
from tests.waiting import wait_for

PASSWORD = "s3cret"
VARIABLE = "GPU_SCHEDULER_REDIS_URL"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Provides a server that accepts only TLS, with the password."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = make_certificate(folder)
    made, port = Server(folder), free_port()
    made.url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={cert}"
    made.client = redis.Redis.from_url(made.url)
    made.start(
        "--bind", "127.0.0.1", "--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key,
        "--tls-auth-clients", "no", "--requirepass", PASSWORD,
    )  # fmt: skip
    yield made
    made.client.close()
    made.kill()


def start_with_variable(box: Box, url: str) -> None:
    """Starts a scheduler with its agent, which gets the URL from the environment."""
    box.env[VARIABLE] = url
    box.begin("start", "--simulate", "2", "--log-dir", "logs", "--redis")


def files_with(word: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


def command_lines() -> bytes:
    """Returns the command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(path.read_bytes())
    return b"\n".join(found)


def test_an_item_runs_over_tls_and_its_password_is_shown_nowhere(
    boxes: Boxes, server: Server, queue: SourceQueue
) -> None:
    box = boxes()
    box.script("env.py", "open('got', 'w').write(repr(dict(os.environ)))")
    start_with_variable(box, server.url)
    submitted = box.cli("redis-submit", "env.py", "--gpu-memory-mb", "500")
    assert submitted.returncode == 0, submitted.stderr
    own = queue.submit("env.py")
    ends(queue, submitted.stdout.strip(), own)
    assert traces(box) == ["a env.py"] * 2
    shown = [submitted.stderr]
    for words in (
        ["status"],
        ["status", "--json"],
        ["show", "1"],
        ["redis-queue"],
        ["redis-queue", "--json"],
    ):
        done = box.cli(*words)
        assert done.returncode == 0, done.stderr
        shown += [done.stdout, done.stderr]
    assert PASSWORD not in "".join(shown)
    assert VARIABLE not in (box.folder / "got").read_text()
    assert files_with(PASSWORD, box.folder) == []  # its logs, the store and the variables of the jobs
    assert PASSWORD.encode() not in command_lines()


@pytest.mark.parametrize(
    ("password", "has_ca", "problem"),
    [
        ("wr0ng", True, "invalid username-password pair"),
        (PASSWORD, False, "certificate verify failed"),
    ],
    ids=["wrong password", "unknown CA"],
)
def test_a_connection_that_is_refused_gives_the_reason(
    boxes: Boxes, server: Server, password: str, has_ca: bool, problem: str
) -> None:
    box = boxes()
    address, _, options = server.url.replace(PASSWORD, password).partition("?")
    start_with_variable(box, f"{address}?{options}" if has_ca else address)
    for words in (["redis-queue"], ["redis-submit", "job.py", "--gpu-memory-mb", "500"]):
        done = box.cli(*words)
        assert done.returncode == 1
        assert done.stderr.count("\n") <= 2, "a message, not a traceback"
        assert problem in done.stderr
        assert has_ca or "ssl_ca_certs" in done.stderr
        assert password not in done.stderr
    wait_for(lambda: problem in box.log(), "a message in the log")
    shown = wait_for(
        lambda: text if "the Redis queue cannot be reached" in (text := box.cli("status").stdout) else "",
        "a warning in `status`",
    )
    assert problem in shown
    assert box.cli("submit", "job.py").returncode == 0
    wait_for(lambda: "1 completed" in box.cli("status").stdout, "the end of a job of this box")
    assert files_with(password, box.folder) == []
