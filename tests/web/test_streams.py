"""Tests of the streams, over a real socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from gpu_scheduler.core.model.states import Outcome
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for

Event = tuple[str, dict[str, Any], str | None]


@contextmanager
def stream(port: int, path: str, **headers: str) -> Iterator[Iterator[Event]]:
    """Yields the events of a stream: kind, data and id."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(
            "GET", f"/api/v1/{path}", headers={key.replace("_", "-"): one for key, one in headers.items()}
        )
        reply = connection.getresponse()
        assert (reply.status, reply.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        reply.readline(), reply.readline()  # the comment at the beginning

        def events() -> Iterator[Event]:
            fields: dict[str, str] = {}
            while line := reply.readline():
                key, _, value = line.decode().rstrip("\n").partition(": ")
                if key:
                    fields[key] = value
                elif fields:
                    if "event" in fields:
                        yield fields["event"], json.loads(fields["data"]), fields.get("id")
                    fields = {}

        yield events()
        if connection.sock is not None:
            connection.sock.close()


def test_new_events_arrive_with_the_ids_of_the_store(desk: Desk, port: int) -> None:
    desk.job("echo old")
    with stream(port, "events") as events:
        job = desk.job("echo new")
        kind, data, event_id = next(events)
    assert (kind, data["event"], data["job"], data["command"]) == ("event", "queued", job, "echo new")
    assert event_id == str(data["id"])


def test_a_stream_goes_on_after_the_last_known_event(desk: Desk, port: int) -> None:
    for _ in range(5):
        desk.job()
    with stream(port, "events", Last_Event_ID="2") as events:
        assert [next(events)[2] for _ in range(3)] == ["3", "4", "5"]
        desk.job()
        assert next(events)[2] == "6"


def test_a_stream_catches_up_with_more_events_than_are_read_at_once(desk: Desk, port: int) -> None:
    total = 3500
    with stream(port, "events") as first:
        with desk.store.db.transaction():
            for _ in range(total):
                desk.job()
        assert [next(first)[2] for _ in range(total)] == [str(number) for number in range(1, total + 1)]
        with stream(port, "events", Last_Event_ID="0") as second:
            assert [next(second)[2] for _ in range(total)] == [str(number) for number in range(1, total + 1)]


def test_events_of_another_store_or_forgotten_ones_are_a_reset(desk: Desk, port: int) -> None:
    for _ in range(4):
        desk.job()
    for unknown in ("99", "9" * 40):
        with stream(port, "events", Last_Event_ID=unknown) as events:
            assert next(events)[:2] == ("reset", {"newest": 4})
    with stream(port, "events", Last_Event_ID="99") as events:
        assert next(events)[:2] == ("reset", {"newest": 4})
        desk.job()
        assert next(events)[2] == "5"
    desk.store.db.connection.execute("DELETE FROM event WHERE id < 4")
    with stream(port, "events", Last_Event_ID="1") as events:
        assert next(events)[0] == "reset"
        desk.job()
        assert next(events)[2] == "6"


def test_a_reader_sees_no_commands_in_events(desk: Desk, port: int) -> None:
    with stream(port, "events", Reader="yes") as events:
        desk.job("run geheim")
        assert "geheim" not in json.dumps(next(events)[1])


def test_a_log_is_followed_to_the_end_of_the_job(desk: Desk, port: int) -> None:
    job = desk.run_job("echo one; while [ ! -e go ]; do sleep 0.01; done; printf 'zwei \\303\\274\\n'")
    text, position = "", None
    with stream(port, f"jobs/{job}/log/stream") as events:
        while "one\n" not in text:
            _, data, position = next(events)
            text += data["text"]
        (desk.path / "go").touch()
        desk.wait_until_processes_end()
        row = desk.store.newest_attempts([job])[job]
        done = Outcome.COMPLETED
        desk.record(changes.end(row.id, done))
        for kind, data, _ in events:
            if kind == "end":
                assert data == {"state": "finished", "outcome": "completed"}
                break
            text += data["text"]
    assert text.encode() == (desk.path / f"job_{job}.log").read_bytes()
    with stream(port, f"jobs/{job}/log/stream", Last_Event_ID=position or "") as events:
        rest = "".join(data["text"] for kind, data, _ in events if kind == "log")
    assert "one" not in rest
    assert text.endswith(rest)
    assert "zwei ü" in rest


def test_a_character_that_arrives_in_two_parts_is_whole(desk: Desk, port: int) -> None:
    job = desk.run_job("printf 'a\\303'; while [ ! -e go ]; do sleep 0.01; done; printf '\\274b'")
    with stream(port, f"jobs/{job}/log/stream") as events:
        _, data, position = next(events)
        assert (data["text"], position) == ("a", "1:1")
    (desk.path / "go").touch()
    desk.wait_until_processes_end()
    with stream(port, f"jobs/{job}/log/stream", Last_Event_ID=position or "") as events:
        assert next(events)[1]["text"].startswith("üb")


def test_a_stream_of_a_queued_job_waits_for_its_log(desk: Desk, port: int) -> None:
    job = desk.job("echo here")
    with stream(port, f"jobs/{job}/log/stream") as events:
        row = desk.attempt(job)
        log = desk.path / "late.log"
        log.write_text("here\n")
        desk.writer.record_log(row.id, str(log), None)
        assert next(events)[1] == {"attempt": 1, "offset": 0, "text": "here\n"}


@pytest.mark.parametrize("path", ["log", "log/stream"])
def test_callers_who_leave_at_once_leave_no_log_open(desk: Desk, port: int, path: str) -> None:
    job = desk.run_job("echo here")
    desk.wait_until_processes_end()

    def open_logs() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the server closes files meanwhile
                count += os.readlink(f"/proc/self/fd/{fd}").endswith(f"job_{job}.log")
        return count

    for pause_s in (0.0, 0.001, 0.003) * 10:
        with closing(socket.create_connection(("127.0.0.1", port))) as one:
            one.sendall(f"GET /api/v1/jobs/{job}/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            time.sleep(pause_s)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: open_logs() == 0, "all logs are closed")
