"""Parsing of the session lists that different versions of Screen print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.command.build import SessionList, parse_session_list

DEBIAN = """\
There are screens on:
\t13275.gpujob_2_echo_362\t(11/21/26 09:31:25)\t(Detached)
\t13283.gpujob_0,1_a.b_3\t(11/21/26 09:31:25)\t(Attached)
\t99.gone\t(11/21/26 09:31:25)\t(Dead ???)
Remove dead screens with 'screen -wipe'.
3 Sockets in /run/screen/S-ann.
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEBIAN, SessionList("/run/screen/S-ann",
                             {"13275.gpujob_2_echo_362": False, "13283.gpujob_0,1_a.b_3": True})),
        ("There is a screen on:\n\t7.a\t(Detached)\n1 Socket in /tmp/my sockets.\n",
         SessionList("/tmp/my sockets", {"7.a": False})),
        ("\t7.a\t(Multi, attached)\n\t8.b\t(Multi, detached)\n\t9.c\t(Private)\n",
         SessionList(None, {"7.a": True, "8.b": False, "9.c": False})),
        ("\t7.a\t(Remote or dead)\n\t8.b\t(Unreachable)\n\t9.c\t(Removed)\n", SessionList(None, {})),
        ("No Sockets found in /run/screen/S-root.\n\n", SessionList("/run/screen/S-root", {})),
        ("Cannot make directory '/run/screen': Permission denied\n", SessionList(None, {})),
        ("", SessionList()),
    ],
)  # fmt: skip
def test_parses_the_session_list_of_every_screen_version(text: str, expected: SessionList) -> None:
    assert parse_session_list(text) == expected


@given(st.text())
def test_parsing_any_text_as_a_session_list_raises_no_error(text: str) -> None:
    assert isinstance(parse_session_list(text), SessionList)
