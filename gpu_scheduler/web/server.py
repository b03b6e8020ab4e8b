"""Runs the web server: checks who may reach it, binds its address, and serves until it is asked to end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from argparse import Namespace
from collections.abc import Callable
from errno import EADDRINUSE
from pathlib import Path

from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.errors import SchedulerError, UsageError, missing_package
from gpu_scheduler.runner.locks import conflicting_lock
from gpu_scheduler.show.location import Location
from gpu_scheduler.system import own_process
from gpu_scheduler.system.safe_file import name_of_user, replace_file

#: Files in the data directory: the address of the last server, and the lock that it holds.
_ADDRESS_FILE, _LOCK_FILE = "serve.url", "serve.lock"
#: Seconds that open requests have to end, and after which a server that hangs ends by force.
_GRACE_S, _HANGING_S = 3, 5


def run(location: Location, options: Namespace, say: Callable[[str], None]) -> None:
    """Serves the API of a queue until SIGTERM or SIGINT, which raise SystemExit(0).

    options: as `serve` declares them. say: prints a message to the user. Raises UsageError for options with
    which it must not run, and SchedulerError if another server has the queue or the port.
    """
    own_process.begin(options.until_eof, _HANGING_S)  # uvicorn repeats the signal that has ended it
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise missing_package("`serve` needs more packages", "api", error) from None

    from gpu_scheduler.web.app import create_app
    from gpu_scheduler.web.guard import Guard, GuardedProtocol, Listener
    from gpu_scheduler.web.operations import Context
    from gpu_scheduler.web.tokens import Tokens

    home, user = location.resolve(), name_of_user(os.geteuid())
    tokens = Tokens(home.folder)
    is_local = _is_local(options.host)
    needs_token = not is_local or os.geteuid() == 0
    if os.geteuid() == 0 and not options.as_root:
        raise UsageError("as root, whoever may submit jobs runs code as root; to serve anyway, add --as-root")
    if needs_token and not tokens.valid():
        where = "as root" if is_local else f"on {options.host}"
        raise UsageError(f"{where}, every request needs a token; create one first: `token create NAME`")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together; give both")
    if options.open_metrics:
        check_open_metrics(options.host)
    home.create()
    own_process.lock_file(home.folder / _LOCK_FILE, "another server serves this queue already")
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n"
    listener = Listener(_listen(options.host, options.port), b"" if options.tls_cert else refusal)
    port = listener.getsockname()[1]
    context = Context(
        location, os.path.abspath(options.dir or "."), "api", may_preempt=not options.no_preempt
    )
    guard = Guard(
        create_app(context), tokens=tokens, is_loopback=is_local, port=port,
        allowed_hosts=options.allowed_host or (), owner_uid=os.geteuid(),
        open_paths=("/metrics",) if options.open_metrics else (),
    )  # fmt: skip
    config = uvicorn.Config(
        guard, interface="asgi3", loop="asyncio", http=GuardedProtocol, ws="none", log_config=None,
        log_level=logging.ERROR, access_log=False, proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=_GRACE_S, ssl_certfile=options.tls_cert, ssl_keyfile=options.tls_key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # also SSLError
        raise UsageError(f"--tls-cert, --tls-key: {error}; give PEM files that belong together") from None
    logging.basicConfig(format="%(asctime)s %(levelname)-7s serve: %(message)s", level=logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    host = f"[{options.host}]" if ":" in options.host else options.host
    who = "every request needs" if needs_token else "other users of this machine need"
    is_clear = options.tls_cert is None and not is_local
    scheme = "http" if options.tls_cert is None else "https"
    name = "localhost" if host in ("0.0.0.0", "[::]") else host
    name = options.allowed_host[0] if options.allowed_host and not is_local else name
    address = f"{scheme}://{name if ':' in name.rpartition(']')[2] else f'{name}:{port}'}"
    replace_file(home.folder / _ADDRESS_FILE, address.encode())
    say(
        f"serving {home.state_file} at {scheme}://{host}:{port}\n"
        f"whoever may submit jobs runs code as {user}; {who} a token (`token create NAME`)"
        f"{', which travels in the clear; use --tls-cert and --tls-key' if is_clear else ''}"
    )
    uvicorn.Server(config).run(sockets=[listener])


def check_open_metrics(host: str) -> None:
    """Raises UsageError if --open-metrics would open the metrics to other machines."""
    if not _is_local(host):
        raise UsageError(
            f"--open-metrics would open the metrics to whoever reaches {host}; leave it out, and give"
            " Prometheus a token: `token create --read-only NAME`"
        )


def address_of(location: Location) -> str:
    """Returns the address of the server of a queue. Raises SchedulerError if none runs."""
    home = location.resolve()
    try:
        with open(home.folder / _LOCK_FILE, "rb") as file:
            # Without its lock, somebody else may listen at that address.
            if conflicting_lock(file.fileno()) is not None:
                return (home.folder / _ADDRESS_FILE).read_text(encoding="utf-8")
    except OSError:
        pass
    raise SchedulerError("no web server serves this queue; start one: `start --serve` or `serve`")


def _is_local(host: str) -> bool:
    """Returns whether only programs of this machine can reach the server. A name may mean any address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_error(record: logging.LogRecord) -> bool:
    """Leaves out that uvicorn cancels the open requests when it ends."""
    is_cancelled = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not is_cancelled and not record.getMessage().startswith("Cancel ")


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises SchedulerError, which names the owner of a port that is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except UnicodeError:
        raise UsageError(f"--host {host!r} is neither a name nor an address") from None
    except OSError as error:
        problem = f"{os.strerror(error.errno)}" if error.errno and error.errno > 0 else f"{error.strerror}"
        if error.errno == EADDRINUSE:
            pid = _listening_pid(port)
            problem = f"{'another program' if pid is None else pid_text(pid)} uses this port"
        raise SchedulerError(
            f"cannot serve on {host}, port {port}: {problem}; choose another --host or --port"
        ) from None


def _listening_pid(port: int) -> int | None:
    """Returns a process that listens on the port; None if this user may not see it."""
    rows: list[list[str]] = []
    for name in filter(os.path.exists, ("/proc/net/tcp", "/proc/net/tcp6")):
        rows += map(str.split, Path(name).read_text("ascii").splitlines()[1:])
    links = {
        f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
    }
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in links for fd in os.listdir(f"/proc/{pid}/fd")):
                return int(pid)
        except OSError:
            continue  # it has ended, or belongs to another user
    return None
