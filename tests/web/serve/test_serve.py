"""Tests `serve` as a real process: what it refuses, what it says, and how it ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import own_locks
from gpu_scheduler.system.safe_file import name_of_user
from gpu_scheduler.web.guard import Listener
from tests.certificate import make_certificate
from tests.stress.harness import ROOT
from tests.users import User, run_as
from tests.waiting import wait_for
from tests.web.serve.box import AS_ROOT, Box

NO_TOKEN = "every request needs a token; create one first: `token create NAME`"


def without_package(name: str) -> tuple[str, str]:
    """Returns options of Python that run the command line as if a package were not installed."""
    return (
        "-c", f"import sys; sys.modules[{name!r}] = None; sys.argv[0] = 'gpu-scheduler';"
        " from gpu_scheduler.cli import main; sys.exit(main())",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["fastapi", "uvicorn"])
def test_without_the_extra_serve_prints_the_command_that_installs_it(box: Box, name: str) -> None:
    done = box.cli("serve", *AS_ROOT, python=without_package(name))
    assert done.returncode == 2
    assert name in done.stderr
    assert '`pip install "gpu-job-scheduler[api]"`' in done.stderr
    assert f"`{sys.executable} -m pip install -e '{ROOT}[api]'`" in done.stderr
    assert done.stderr.count("\n") == 2


def test_serve_works_without_a_scheduler_and_says_who_may_run_code(box: Box) -> None:
    (box.folder / "work").mkdir()
    process = box.serve("--dir", "work", "--no-preempt")
    assert box.server_pid() == process.pid
    who = "every request needs" if AS_ROOT else "other users of this machine need"
    assert box.output.read_text() == (
        f"gpu-scheduler: serving {box.home.state_file} at http://127.0.0.1:{box.port}\n"
        f"whoever may submit jobs runs code as {name_of_user(os.geteuid())}; {who} a token"
        " (`token create NAME`)\n"
    )
    with box.request("/api/v1/health") as answer:
        assert answer.getheader("Server") is None
    with open(f"/proc/{process.pid}/status") as status:
        assert "Umask:\t0077\n" in status.readlines()
    (box.folder / "work" / "only_there.py").write_text("")
    job = box.post("/jobs", {"model_script": "only_there.py", "gpu_memory_mb": 1, "priority": 0})
    with closing(Store(box.home)) as store:
        record = store.job(int(job["job_id"]))
    assert record is not None
    assert (record.spec.cwd, record.spec.preempt) == (str(box.folder / "work"), False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("with_stream", [False, True])
def test_a_signal_ends_serve_within_seconds_with_code_0(
    box: Box, number: signal.Signals, with_stream: bool
) -> None:
    process = box.serve()
    said = box.output.read_text()
    stream = box.request("/api/v1/events") if with_stream else None
    sent_at = time.monotonic()
    process.send_signal(number)
    assert process.wait(30) == 0
    assert time.monotonic() - sent_at < 3, "a stream needs no grace"
    assert box.output.read_text() == said
    if stream is not None:
        stream.close()


def test_a_signal_during_the_imports_ends_serve_with_code_0(box: Box) -> None:
    process = box.begin("serve", "--port", str(box.port), *AS_ROOT, python=("-m", "gpu_scheduler"))

    def catches_signals() -> bool:
        with open(f"/proc/{process.pid}/status") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    wait_for(catches_signals, "a handler for SIGTERM", every_s=0)
    process.terminate()
    assert process.wait(30) == 0
    assert "Traceback" not in box.output.read_text()


def test_a_queue_has_one_server(box: Box) -> None:
    process = box.serve()
    done = box.cli("serve", "--port", "0", *AS_ROOT)
    assert (done.returncode, done.stderr) == (
        1,
        f"gpu-scheduler: another server serves this queue already (pid {process.pid}); end it first\n",
    )
    process.kill()
    process.wait()
    box.serve()


def test_a_taken_port_is_refused_with_the_pid_of_its_owner(box: Box) -> None:
    with closing(socket.create_server(("127.0.0.1", box.port))):
        done = box.cli("serve", "--port", str(box.port), *AS_ROOT)
    assert (done.returncode, done.stderr) == (
        1,
        f"gpu-scheduler: cannot serve on 127.0.0.1, port {box.port}: pid {os.getpid()} uses this port;"
        " choose another --host or --port\n",
    )


@pytest.mark.parametrize(
    ("host", "part"),
    [
        ("no.such.host.invalid", "cannot serve on no.such.host.invalid, port 0: "),
        ("203.0.113.7", "Cannot assign requested address"),
        ("x" * 70, "is neither a name nor an address"),
        ("", "cannot serve on"),
    ],
)
def test_an_address_that_cannot_be_bound_is_refused(box: Box, host: str, part: str) -> None:
    done = box.cli("serve", "--host", host, "--port", "0", *AS_ROOT)
    assert done.returncode in (1, 2)
    assert part in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", socket.gethostname(), "127.1"])
def test_other_addresses_need_a_token_and_the_banner_says_what_travels_in_the_clear(
    box: Box, host: str
) -> None:
    (box.home.folder / "tokens.json").rename(box.folder / "kept")
    done = box.cli("serve", "--host", host, "--port", "0", *AS_ROOT)
    assert (done.returncode, done.stderr) == (2, f"gpu-scheduler: on {host}, {NO_TOKEN}\n")
    assert not (box.home.folder / "serve.lock").exists()
    (box.folder / "kept").rename(box.home.folder / "tokens.json")
    process = box.begin("serve", "--host", host, "--port", "0", *AS_ROOT)
    wait_for(lambda: process.poll() is not None or "token create" in box.output.read_text(), "the banner")
    assert (
        "every request needs a token (`token create NAME`), which travels in the clear; use --tls-cert and"
        " --tls-key\n" in box.output.read_text()
    )


@pytest.mark.skipif(not AS_ROOT, reason="only root is refused")
def test_root_needs_an_option_and_a_token(box: Box) -> None:
    done = box.cli("serve", "--port", "0")
    assert done.returncode == 2
    assert "whoever may submit jobs runs code as root; to serve anyway, add --as-root" in done.stderr
    (box.home.folder / "tokens.json").unlink()
    done = box.cli("serve", "--port", "0", "--as-root")
    assert (done.returncode, done.stderr) == (2, f"gpu-scheduler: as root, {NO_TOKEN}\n")


def test_a_user_needs_no_token_on_this_machine(box: Box, other_uid: int) -> None:
    (box.home.folder / "tokens.json").unlink()
    (box.folder / "home").mkdir()
    for path in (box.folder, *box.folder.rglob("*")):
        os.chown(path, other_uid, other_uid)
    for folder in box.folder.parents:  # pytest makes them private, and xdist adds one
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o711)
    box.env |= {"HOME": str(box.folder / "home"), "XDG_STATE_HOME": str(box.folder / "home")}
    process = box.begin("serve", "--port", str(box.port), prefix=run_as(other_uid))
    banner = f"runs code as {other_uid}; other users of this machine need a token"
    wait_for(lambda: process.poll() is not None or banner in box.output.read_text(), "the banner")
    assert process.poll() is None, box.output.read_text()
    program = f"from urllib.request import urlopen; urlopen('http://127.0.0.1:{box.port}/api/v1/health')"
    subprocess.run([*run_as(other_uid), sys.executable, "-c", program], check=True, timeout=60)


def ask_over_tls(port: int, certificate: str) -> bytes:
    """Returns the beginning of an answer."""
    context = ssl.create_default_context(cadata=certificate)
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        wrapped.sendall(b"GET /api/v1/health HTTP/1.0\r\n\r\n")
        return wrapped.recv(100)


def test_serve_uses_tls(box: Box) -> None:
    cert, key = make_certificate(box.folder)
    server = box.begin("serve", "--host", "0.0.0.0", "--port", str(box.port), "--tls-cert", cert,
                       "--tls-key", key, *AS_ROOT)  # fmt: skip
    wait_for(lambda: "https://" in box.output.read_text(), "the banner")
    assert "in the clear" not in box.output.read_text()
    assert ask_over_tls(box.port, Path(cert).read_text()).startswith(b"HTTP/1.1 ")
    server.kill()
    server.wait()
    for words, part in (
        (("--tls-cert", cert), "--tls-cert and --tls-key belong together"),
        (("--tls-cert", key, "--tls-key", key), "give PEM files that belong together"),
        (("--tls-cert", "missing", "--tls-key", key), "No such file"),
    ):
        done = box.cli("serve", "--port", "0", *words, *AS_ROOT)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert part in done.stderr


def test_stalled_tls_handshakes_count_as_connections(box: Box, ann: User) -> None:
    """Otherwise they take all descriptors of the server, and nobody else gets in."""
    cert, key = make_certificate(box.folder)
    server = box.begin("serve", "--port", str(box.port), "--tls-cert", cert, "--tls-key", key, *AS_ROOT)
    wait_for(lambda: "https://" in box.output.read_text(), "the banner")
    certificate = Path(cert).read_text()
    with ExitStack() as stalled:
        opened = [
            stalled.enter_context(socket.create_connection(("127.0.0.1", box.port))) for _ in range(300)
        ]
        poll = select.poll()
        for one in opened:
            poll.register(one, select.POLLIN)  # at the end of a connection, too
        wait_for(lambda: len(poll.poll(0)) == 300 - Listener.max_per_peer, "the others are closed")
        assert ann.call(ask_over_tls, box.port, certificate).startswith(b"HTTP/1.1 ")
    wait_for(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < 50, "the stalled ones are closed")
    assert ask_over_tls(box.port, certificate).startswith(b"HTTP/1.1 ")
    assert box.output.read_text().count("\n") == 2


def test_serve_ends_at_the_end_of_the_file(box: Box) -> None:
    read, write = os.pipe()
    process = box.serve("--until-eof", str(read), pass_fds=(read,))
    os.close(read)
    os.close(write)
    assert process.wait(30) == 0
    assert "Traceback" not in box.output.read_text()


def test_a_server_that_hangs_ends_at_the_end_of_the_file_by_force(tmp_path: Path) -> None:
    program = (
        "import signal, time; from gpu_scheduler.system import own_process;"
        " signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " own_process.start_thread(lambda: own_process.end_at_eof(0, 0.1)); time.sleep(1000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 1


def test_serve_holds_no_claim_on_a_gpu(box: Box) -> None:
    box.env["GPU_SCHEDULER_LOCK_DIR"] = os.environ["GPU_SCHEDULER_LOCK_DIR"]
    process = box.begin("run", "--simulate", "1", "--", *box.argv("serve", "--port", str(box.port), *AS_ROOT))
    wait_for(box.health, "an answer")
    links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
    assert [link for link in links if link.startswith(os.environ["GPU_SCHEDULER_LOCK_DIR"])] == []
    assert own_locks(Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])) == {}


def test_other_commands_import_neither_the_server_nor_its_packages(box: Box) -> None:
    program = (
        "import sys; from gpu_scheduler.cli import main; main();"
        " print(*(name for name in sys.modules if name.split('.')[0] in"
        " ('fastapi', 'starlette', 'uvicorn', 'pydantic') or name.startswith('gpu_scheduler.web')))"
    )
    done = box.cli("status", python=("-c", program))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, ""), done


def test_serve_records_a_change_for_the_next_scheduler_and_runs_no_rounds(box: Box) -> None:
    box.serve()
    (box.folder / "train.py").write_text("")
    job = box.post("/jobs", {"model_script": "train.py", "gpu_memory_mb": 1})
    (answer,) = box.post("/api/v1/hold", {"jobs": [int(job["job_id"])]})["answers"]
    assert answer["result"] == "recorded"
    with closing(Store(box.home)) as store:
        record = store.job(int(job["job_id"]))
        assert [request.verb for request in open_requests(store)] == ["hold"]
    assert record is not None
    assert record.state == "queued"


@pytest.mark.parametrize(
    "words", [("serve", "--host", "0.0.0.0"), ("start", "--simulate", "1", "--serve", "[::]:0")]
)
def test_metrics_are_open_on_a_loopback_address_only(box: Box, words: tuple[str, ...]) -> None:
    done = box.cli(*words, "--open-metrics", *AS_ROOT)
    assert done.returncode == 2
    assert "leave it out, and give Prometheus a token: `token create --read-only NAME`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_open_metrics_need_no_token(box: Box) -> None:
    process = box.serve("--open-metrics")
    box.token = "wrong"
    with pytest.raises(HTTPError, match="401"):
        box.request("/metrics")
    with urlopen(f"http://127.0.0.1:{box.port}/metrics", timeout=30) as answer:
        assert b"\ngpu_scheduler_up 0.0\n" in answer.read()
    assert process.poll() is None
