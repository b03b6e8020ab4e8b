"""Connections: which user owns the other end, how many a user may have, and how long they may be silent.

A connection counts from the moment at which the kernel hands it over, so also during a TLS handshake.

The kernel says who owns a connection on this machine. What requests may do is decided in `guard`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: The key in the state of a request for the uid of the caller (int or None).
PEER_UID = "peer_uid"

#: The paths of the routes whose answers have no end.
STREAM = re.compile(r"/api/v1/(events|jobs/[^/]+/log/stream)")
#: An address and a port.
End = tuple[IPv4Address | IPv6Address, int]

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED = 1
#: struct nlmsghdr (length, type, flags, sequence, port), inet_diag_req_v2 (family, protocol, extensions,
#: padding, states) and inet_diag_sockid (ports, addresses, interface, cookie).
_QUESTION = struct.Struct("=IHHII BBBBI 2s2s16s16sIQ")
#: struct nlmsghdr and inet_diag_msg (family, state, timers, sockid, expiry, two queues, uid, inode).
_ANSWER = struct.Struct("=IHHII BBBB48sIIIII")


def uid_of_peer(peer: tuple[str, int | None], local: tuple[str, int | None]) -> int | None:
    """Returns the uid of the open socket on this machine that is connected from `peer` to `local`.

    Returns None if there is none, or if the kernel has no sock_diag. A socket that its program has closed
    does not count, because it shows uid 0; nor does a user from outside of this container, because all of
    these show the same uid.
    """
    try:
        state, uid, inode = _ask_kernel(*((_address(host), port or 0) for host, port in (peer, local)))
    except OSError:
        return None
    is_foreign = uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None if state != _ESTABLISHED or inode == 0 or is_foreign else uid


def _address(host: str) -> IPv4Address | IPv6Address:
    """Returns the address without its scope; an IPv4 address also if it is written as an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _ask_kernel(peer: End, local: End) -> tuple[int, int, int]:
    """Returns the state, the uid and the inode of the peer's socket. Raises OSError if there is no answer."""
    family = socket.AF_INET if peer[0].version == 4 else socket.AF_INET6
    ports = [port.to_bytes(2, "big") for _, port in (peer, local)]
    question = _QUESTION.pack(
        *(_QUESTION.size, _SOCK_DIAG_BY_FAMILY, 1, 0, 0),  # flag 1: NLM_F_REQUEST
        *(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED),
        *(*ports, peer[0].packed, local[0].packed, 0, 2**64 - 1),  # any interface, any cookie
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.sendto(question, (0, 0))
        answer = kernel.recv(4096)
    if len(answer) < _ANSWER.size or (read := _ANSWER.unpack_from(answer))[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError("the kernel knows no such socket")
    return read[6], read[-2], read[-1]


class _StrictConnection(h11.Connection):
    """Refuses requests whose length two programs could read differently.

    h11 itself refuses two Host headers and lengths that differ. Of equal lengths it shows one, and it ignores
    a length beside Transfer-Encoding.
    """

    _LENGTH = re.compile(rb"^content-length:(.*)$", re.IGNORECASE | re.MULTILINE)

    def next_event(self) -> Any:
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            lengths = self._LENGTH.findall(before[: len(before) - len(self.trailing_data[0])])
            is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if len(lengths) + is_chunked > 1 or any(b"," in length for length in lengths):
                raise h11.RemoteProtocolError("more than one length")
        return event


class Peer(tuple[Any, ...]):
    """The address of the other end of a connection. uid: its user; None if unknown or on another machine."""

    uid: int | None = None


class Listener(socket.socket):
    """The listening socket of `serve`, whose `accept` finds the caller's uid and keeps to the limits.

    asyncio gives the address that `accept` returns to the protocol, as `peername`. refusal: what a caller
    above the limits is sent.
    """

    #: Maximum number of connections of all callers, above which only the owner may open one, and of one user
    #: of this machine or one address.
    max_connections = 512
    max_per_peer = 128
    #: Seconds after which a caller that reads nothing is dropped.
    reader_timeout_s = 30.0

    def __init__(self, listening: socket.socket, refusal: bytes) -> None:
        super().__init__(fileno=listening.detach())
        self._refusal = refusal
        self._open: dict[socket.socket, object] = {}  # whose each one is

    def accept(self) -> tuple[socket.socket, Peer]:
        """Returns a new connection and its peer.

        Raises ConnectionAbortedError for one above the limits. asyncio ignores this error, but stops to
        listen for a second, or fails, after others.
        """
        made, address = super().accept()
        local, peer = made.getsockname(), Peer(address)
        is_local = _address(local[0]).is_loopback
        if is_local:
            peer.uid = uid_of_peer(address[:2], local[:2])
            if made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED:
                peer.uid = None  # the caller reset the connection; another user may have got its port since
        # The kernel drops a connection whose other end accepts nothing for this time, also if we closed ours.
        limit_ms = int(self.reader_timeout_s * 1000)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
        whose = peer.uid if is_local else address[0]
        self._open = {one: owner for one, owner in self._open.items() if one.fileno() >= 0}  # not closed
        is_full = len(self._open) >= self.max_connections and peer.uid != os.geteuid()
        if is_full or list(self._open.values()).count(whose) >= self.max_per_peer:
            with made, suppress(OSError):
                made.send(self._refusal)
            raise ConnectionAbortedError("too many connections")
        self._open[made] = whose
        return made, peer


class GuardedProtocol(H11Protocol):
    """The connections of `serve`, which tell the guard the uid of the caller."""

    #: Seconds for the headers of a request, and for the rest of a body that nobody reads.
    request_timeout_s = 10.0

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.conn = _StrictConnection(h11.SERVER)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        uid = getattr(transport.get_extra_info("peername"), "uid", None)
        self.app_state = {**self.app_state, PEER_UID: uid}
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def shutdown(self) -> None:
        super().shutdown()
        if self.scope is not None and STREAM.fullmatch(self.scope["path"]):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has begun
            self.transport.abort()

    def _watch(self) -> None:
        """Limits the time for bytes that no handler awaits: headers, or the body of a refused request.

        uvicorn itself closes a connection on which nothing arrives after an answer.
        """
        is_unread = self.conn.our_state in (h11.IDLE, h11.DONE) and not self.transport.is_closing()
        if is_unread and self._deadline is None:
            self._deadline = self.loop.call_later(self.request_timeout_s, self.transport.close)
        elif not is_unread and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
