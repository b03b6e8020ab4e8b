"""Names of users."""

from __future__ import annotations

import os
import pwd

import pytest

from gpu_scheduler.system.safe_file import name_of_user


def test_the_name_of_a_user_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    real = pwd.getpwuid

    def look_up(uid: int) -> pwd.struct_passwd:
        looked_up.append(uid)
        return real(uid)

    name_of_user.cache_clear()
    monkeypatch.setattr(pwd, "getpwuid", look_up)
    assert {name_of_user(os.getuid()) for _ in range(3)} == {real(os.getuid()).pw_name}
    assert {name_of_user(4_000_000_000) for _ in range(3)} == {"4000000000"}
    assert looked_up == [os.getuid(), 4_000_000_000]
