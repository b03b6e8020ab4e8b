"""The file of tokens: who may read it, what it contains, and how commands change it."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_scheduler.cli import main
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.web.tokens import LINK_S, PAGE_S, Tokens

DAY_S = 86400


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_token_is_found_by_its_secret_and_only_by_it(tmp_path: Path, file: Path) -> None:
    secret = Tokens(tmp_path).create("nb")
    found = Tokens(tmp_path).find(secret)
    assert found is not None
    assert (found.name, found.read_only, found.logs, found.expires) == ("nb", False, True, None)
    for wrong in ("", "gps_", secret[:-1], secret + "x", secret.upper(), found.digest, "é", "\udcff"):
        assert Tokens(tmp_path).find(wrong) is None


def test_the_file_is_private_and_holds_only_hashes(tmp_path: Path, file: Path) -> None:
    secret = Tokens(tmp_path).create("nb")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret.startswith("gps_")
    assert len(secret) == 4 + 43  # 256 bits in base 64
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert secret not in text
    assert secret[4:] not in text


def test_digests_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every digest is compared, also after the right one, with the function of the standard library."""
    tokens = Tokens(tmp_path)
    compared: list[str] = []
    secrets = [tokens.create(name) for name in ("a", "b", "c")]

    def compare(one: str, other: str) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert tokens.find(secrets[0]) is not None
    assert compared == [token.digest for token in tokens.all()]


def test_a_token_expires(tmp_path: Path) -> None:
    now = [1000.0]
    tokens = Tokens(tmp_path, lambda: now[0])
    secret = tokens.create("nb", days=2)
    now[0] += 2 * DAY_S - 1
    found = tokens.find(secret)
    assert found is not None
    assert tokens.is_valid(found)
    now[0] += 1
    assert tokens.find(secret) is None
    assert not tokens.is_valid(found)
    assert [token.name for token in tokens.all()] == ["nb"]


def test_another_process_sees_a_new_and_a_revoked_token(tmp_path: Path) -> None:
    server, command = Tokens(tmp_path), Tokens(tmp_path)
    assert server.all() == ()
    secret = command.create("nb")
    found = server.find(secret)
    assert found is not None
    command.revoke("nb")
    assert server.find(secret) is None
    assert not server.is_valid(found)


def test_a_new_token_with_an_old_name_does_not_revive_the_old_one(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    old = tokens.find(tokens.create("nb"))
    tokens.revoke("nb")
    tokens.create("nb")
    assert old is not None
    assert not tokens.is_valid(old)


@pytest.mark.parametrize("name", ["", "local", "a b", "a/b", "é", "a\n", "x" * 65, "a:b"])
def test_rejects_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a token"):
        Tokens(tmp_path).create(name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_unique(tmp_path: Path) -> None:
    secret = Tokens(tmp_path).create("nb")
    with pytest.raises(SchedulerError, match="already a token named nb"):
        Tokens(tmp_path).create("nb")
    assert Tokens(tmp_path).find(secret) is not None


def test_writers_take_turns(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda i: Tokens(tmp_path).create(f"t{i}"), range(24)))
    assert {token.name for token in Tokens(tmp_path).all()} == {f"t{i}" for i in range(24)}
    assert all(Tokens(tmp_path).find(secret) for secret in secrets)


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path, file: Path) -> None:
    tokens = Tokens(tmp_path)
    secret = tokens.create("nb")
    found = tokens.find(secret)
    assert found is not None
    file.chmod(0o640)
    for use in (lambda: tokens.find(secret), lambda: tokens.create("x"), lambda: tokens.revoke("nb")):
        with pytest.raises(SchedulerError, match="open to other users"):
            use()
    assert not tokens.is_valid(found)
    file.chmod(0o600)
    assert tokens.is_valid(found)


def test_a_file_of_another_user_is_not_used(tmp_path: Path, file: Path, other_uid: int) -> None:
    secret = Tokens(tmp_path).create("nb")
    os.chown(file, other_uid, other_uid)
    with pytest.raises(SchedulerError, match="another user"):
        Tokens(tmp_path).find(secret)


@pytest.mark.parametrize("lock", [False, True])
def test_links_are_not_followed(tmp_path: Path, file: Path, lock: bool) -> None:
    other = tmp_path / "other"
    other.mkdir()
    secret = Tokens(other).create("nb")
    (file.with_suffix(".lock") if lock else file).symlink_to(other / "tokens.json")
    with pytest.raises(SchedulerError):
        Tokens(tmp_path).create("x") if lock else Tokens(tmp_path).find(secret)
    assert [token.name for token in Tokens(other).all()] == ["nb"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tokens": [1]}', '{"tokens": [{"name": "x"}]}', "\0"])
def test_a_damaged_file_accepts_no_token(tmp_path: Path, file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
    with pytest.raises(SchedulerError, match="no token is accepted"):
        Tokens(tmp_path).find("gps_x")


def test_a_fifo_is_not_read(tmp_path: Path, file: Path) -> None:
    os.mkfifo(file, 0o600)
    with pytest.raises(SchedulerError, match="not a regular file"):
        Tokens(tmp_path).all()


# The command.


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_create_prints_only_the_secret_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "nb"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("gps_")
    assert out.count("\n") == 1
    assert len(out.split()) == 1
    assert "whoever has a token that may change things can run code as the owner" in err
    assert "shown only once; clients send it as their bearer token\n" in err
    assert out.strip() not in err


def test_a_read_only_token_has_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "nb", "--read-only"]) == 0
    assert "run code" not in capsys.readouterr().err


def test_list_shows_rights_and_expiry_but_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    main(["token", "create", "a"])
    main(["token", "create", "b", "--read-only", "--days", "3"])
    main(["token", "create", "c", "--read-only", "--logs"])
    secrets = capsys.readouterr().out.split()
    assert main(["token", "list"]) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines()] == ["a", "b", "c"]
    assert [" changes " in text, "read-only, logs" in text, "expires 20" in text] == [True] * 3
    assert main(["token", "list", "--json"]) == 0
    shown = capsys.readouterr().out
    rows = json.loads(shown)["tokens"]
    assert [(row["name"], row["read_only"], row["logs"], row["expired"]) for row in rows] == [
        ("a", False, True, False), ("b", True, False, False), ("c", True, True, False),
    ]  # fmt: skip
    assert "digest" not in shown
    assert not any(secret in text + shown for secret in secrets)


def test_revoke_without_a_queue_creates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "revoke", "nb"]) == 1
    assert "there is no token named 'nb'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_revoke_ends_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    main(["token", "create", "nb"])
    assert main(["token", "revoke", "nb"]) == 0
    assert main(["token", "revoke", "nb"]) == 1
    assert "there is no token named 'nb'" in capsys.readouterr().err
    assert main(["token", "list"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("create", "give a NAME"),
        ("list nb", "give a NAME"),
        ("create nb --logs", "--logs belongs to --read-only"),
        ("create nb --json", "--json belongs to `token list`"),
        ("revoke nb --days 3", "--days belongs to `token create`"),
        ("list --read-only", "--read-only belongs to `token create`"),
        ("create local", "cannot be the name"),
        ("create nb --days 0", "from 1 to"),
        ("make nb", "invalid choice"),
    ],
)
def test_usage_errors(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert text in err
    assert out == ""


def test_a_queue_with_a_token_can_be_started_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`token create` makes the store as `submit` does, so that no half of one remains."""
    main(["token", "create", "nb"])
    capsys.readouterr()
    assert main(["status"]) == 0
    assert main(["submit", "--", "true"]) == 0


def test_a_link_is_exchanged_once_within_five_minutes(tmp_path: Path) -> None:
    now = [1000.0]
    tokens = Tokens(tmp_path, lambda: now[0])
    secret, late = tokens.create_link(), tokens.create_link()
    token = tokens.exchange(secret)
    assert token is not None
    found = tokens.find(token)
    assert found is not None
    assert (found.name.partition("-")[0], found.read_only, found.is_link) == ("page", False, False)
    assert tokens.exchange(secret) is None
    assert tokens.exchange("") is None
    now[0] += LINK_S
    assert tokens.exchange(late) is None
    assert tokens.exchange(tokens.create_link()) is not None
    assert {one.name.partition("-")[0] for one in tokens.all()} == {"page"}
    assert "is_link" not in (tmp_path / "tokens.json").read_text()
    now[0] += PAGE_S
    assert tokens.find(token) is None
