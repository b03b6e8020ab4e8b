"""A URL that would be misread is refused without showing it; what is shown of others lacks only secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from gpu_scheduler.core.text.formatting import HIDDEN, hidden_password
from gpu_scheduler.errors import UsageError
from gpu_scheduler.redis_queue.queue import Queue
from tests.redis_queue.conftest import Boxes, Server, ends
from tests.redis_queue.source_document import SourceQueue

VARIABLE = "GPU_SCHEDULER_REDIS_URL"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("redis://:1234/etPW@127.0.0.1:1/0", "percent-encode"),
        ("redis://:12?etPW@127.0.0.1/0", "percent-encode"),
        ("redis://:12#etPW@127.0.0.1/0", "percent-encode"),
        ("redis://:12@etPW@127.0.0.1/0", "percent-encode"),
        ("redis://:12/etPW", "database"),
        ("redis://:12#etPW", "percent-encode"),
        ("redis://:etPW", "percent-encode"),
        ("redis://[etPW", "percent-encode"),
        ("unix://:s3cr/etPW@/tmp/s", "percent-encode"),
        ("http://etPW", "rediss://"),
        ("etPW", "rediss://"),
        ("redis://localhost/etPW", "database"),
        ("redis://localhost/1/2", "database"),
        ("redis://localhost?db=etPW", "wrong value"),
        ("unix:///tmp/s?etPW=bar", "db, username, password;"),
        ("redis://localhost?etPW", "db, username, password;"),
        ("rediss://localhost?etPW=/ca.pem", "ssl_ca_certs"),
        ("redis://localhost?ssl_ca_certs=etPW", "with rediss:// also ssl_ca_certs"),
        ("redis://localhost?decode_responses=True&password=etPW", "db, username"),
        ("redis:///0?host=10.255.255.1&port=1&password=etPW", "db, username"),
        ("redis://localhost?passwor%64=etPW", "db, username"),
        ("redis://10.255.255.1/0", "give a password"),
        (hidden_password("redis://:etPW@10.255.255.1/0"), VARIABLE),
        (hidden_password("unix:///tmp/s?password=etPW"), VARIABLE),
    ],
)
def test_a_url_that_would_be_misread_is_refused_with_the_remedy(url: str, remedy: str) -> None:
    with pytest.raises(UsageError) as found:
        Queue(url)
    assert remedy in str(found.value)
    assert "etPW" not in str(found.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/3", None),
        ("redis://[::1]:6379", None),
        ("unix:///tmp/s?db=3", None),
        ("rediss://h/0?ssl_ca_certs=/ca.pem&ssl_check_hostname=false", None),
        ("redis://me:pw%40%2F@10.0.0.1/0", f"redis://{HIDDEN}@10.0.0.1/0"),
        ("rediss://:pw@h/?ssl_ca_certs=/ca.pem", f"rediss://{HIDDEN}@h/?ssl_ca_certs=/ca.pem"),
        ("redis://10.0.0.1?password=pw&db=1", f"redis://10.0.0.1?password={HIDDEN}&db=1"),
        (
            "rediss://h?ssl_keyfile=/k&ssl_password=pw&ssl_certfile=/c",
            f"rediss://h?ssl_keyfile=/k&ssl_password={HIDDEN}&ssl_certfile=/c",
        ),
    ],
)
def test_only_secrets_are_left_out_of_a_url(url: str, shown: str | None) -> None:
    assert Queue(url).url == (shown or url)


@pytest.mark.parametrize(
    "url", ["redis://:1234/etPW@127.0.0.1:1/0", "unix://:s3cr/etPW@/s", "redis://:1:etPW@h:x"]
)
def test_all_before_the_last_at_sign_is_hidden(url: str) -> None:
    assert "etPW" not in hidden_password(url)


def test_a_command_in_the_folder_of_start_uses_the_same_database(
    boxes: Boxes, server: Server, queue: SourceQueue
) -> None:
    box = boxes()
    box.url += "?db=3"
    box.start()
    other = redis.Redis(unix_socket_path=str(server.socket), db=3)
    ends_there = SourceQueue(other)
    own = ends_there.submit("job.py")
    ends(ends_there, own)
    done = box.cli("redis-submit", "job.py", "--gpu-memory-mb", "500")
    assert done.returncode == 0, done.stderr
    ends(ends_there, done.stdout.strip())
    other.close()


def test_a_command_asks_for_the_variable_if_the_recorded_url_had_a_password(
    boxes: Boxes, server: Server, queue: SourceQueue
) -> None:
    box = boxes()
    server.client.config_set("requirepass", "etPW")
    try:
        box.url = box.url.replace("unix://", "unix://:etPW@")
        box.start()
        submit = ("redis-submit", "job.py", "--gpu-memory-mb", "500")
        done = box.cli(*submit, "--redis", box.url)
        assert done.returncode == 0, done.stderr
        client = redis.Redis.from_url(box.url)
        ends(SourceQueue(client), done.stdout.strip())
        client.close()
        refused = box.cli(*submit)
        assert refused.returncode == 2
        assert VARIABLE in refused.stderr
    finally:
        server.client.config_set("requirepass", "")


def test_a_wrong_url_reaches_neither_the_terminal_nor_the_main_log(boxes: Boxes, tmp_path: Path) -> None:
    box = boxes()
    box.url = "redis://:1234/etPW@127.0.0.1:1/0"
    assert box.start().wait(30) == 2
    shown = (box.folder / "output").read_text() + box.log()
    assert "percent-encode" in shown
    assert "etPW" not in shown


def test_a_submitted_job_neither_gets_nor_stores_the_url(boxes: Boxes) -> None:
    box = boxes()
    box.script("env.py", "open('got', 'w').write(repr(dict(os.environ)))")
    box.env[VARIABLE] = "redis://:etPW@127.0.0.1:1/0"
    box.start_scheduler()
    done = box.cli("submit", "--wait", "env.py")
    assert done.returncode == 0, done.stderr
    assert VARIABLE not in (box.folder / "got").read_text()
    stored = [path for path in box.folder.rglob("*") if path.is_file() and b"etPW" in path.read_bytes()]
    assert stored == []
