"""The tokens of the API: the file `tokens.json` in the data directory.

The file is private to the user and contains only hashes. It is replaced atomically, and read again when it
has changed. This module knows nothing of HTTP.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import replace_file

#: Begins every token, so that programs that search for leaked secrets recognise it.
PREFIX = "gps_"
#: Seconds for which a link is valid, and the token that it is exchanged for.
LINK_S, PAGE_S = 300.0, 30 * 86_400.0
#: The name of callers without a token; no token may have it.
LOCAL = "local"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Token(Struct, frozen=True):
    """A token, without its secret.

    digest: the SHA-256 of the secret. created, expires: seconds since 1970; None means that it never expires.
    logs: whether it shows logs, which those that are not read-only always do. is_link: whether it is only
    good for being exchanged, once, for a token with the same rights.
    """

    name: str
    digest: str
    created: float
    expires: float | None
    read_only: bool
    logs: bool
    is_link: bool = False


class Tokens:
    """The tokens of a data directory. now: returns the seconds since 1970."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._path = folder / "tokens.json"
        self._now = now
        self._version: tuple[int, ...] | None = None
        self._tokens: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """Returns all tokens, also expired ones. Raises SchedulerError if the file must not be used."""
        try:
            with open(os.open(self._path, os.O_RDONLY | _OPEN), "rb") as file:
                status = os.fstat(file.fileno())
                allowed = safe_file.trusted_owners(self._path)
                problem = safe_file.check_status(status, safe_file.MAX_JSON_BYTES, allowed)
                if problem is not None or status.st_mode & 0o077:
                    raise ValueError("is open to other users" if problem is None else problem.description)
                if (version := safe_file.file_version(status)) != self._version:
                    self._tokens = tuple(Token(**row) for row in json.load(file)["tokens"])
                    self._version = version
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SchedulerError(
                f"{self._path} cannot be used ({error}), so no token is accepted; make it a file of your own"
                " with mode 600 or, if others could change it, remove it and create the tokens again"
            ) from None
        return self._tokens

    def valid(self) -> list[Token]:
        """Returns the tokens that have not expired. Raises SchedulerError as `all` does."""
        now = self._now()
        return [token for token in self.all() if token.expires is None or now < token.expires]

    def find(self, secret: str) -> Token | None:
        """Returns the valid token with this secret, in constant time. Raises SchedulerError as `all` does."""
        digest = _digest(secret)
        found = [token for token in self.valid() if hmac.compare_digest(token.digest, digest)]
        return found[0] if found and not found[0].is_link else None

    def is_valid(self, token: Token) -> bool:
        """Returns whether the token is still accepted, which it is not if the file cannot be used."""
        try:
            return token in self.valid()
        except SchedulerError:
            return False

    def create(
        self, name: str, *, read_only: bool = False, logs: bool = False, days: int | None = None
    ) -> str:
        """Adds a token and returns its secret, which cannot be read later. days: None means forever.

        The folder must exist. Raises UsageError for a bad name, and SchedulerError if it is taken or the file
        cannot be used.
        """
        if not _NAME.fullmatch(name) or name == LOCAL:
            raise UsageError(
                f"{name!r} cannot be the name of a token; use 1 to 64 letters, digits, dots, dashes and"
                f" underscores, but not `{LOCAL}`, which names callers without a token"
            )
        secret, now = PREFIX + secrets.token_urlsafe(32), self._now()
        expires = None if days is None else now + days * 86400
        with self._changed() as tokens:
            if any(token.name == name for token in tokens):
                raise SchedulerError(
                    f"there is already a token named {name}; use another name, or run `token revoke {name}`"
                )
            tokens.append(Token(name, _digest(secret), now, expires, read_only, logs or not read_only))
        return secret

    def create_link(self) -> str:
        """Returns a secret that is good once, for five minutes, for a token with all rights."""
        secret, now = secrets.token_urlsafe(32), self._now()
        name = f"link-{secrets.token_hex(4)}"
        with self._changed() as tokens:
            tokens.append(Token(name, _digest(secret), now, now + LINK_S, False, True, is_link=True))
        return secret

    def exchange(self, secret: str) -> str | None:
        """Returns a token for the secret of a link; None if that was used or has expired.

        Raises SchedulerError as `all` does.
        """
        digest, now = _digest(secret), self._now()

        def is_meant(one: Token) -> bool:
            return one.is_link and hmac.compare_digest(one.digest, digest)

        if not any(map(is_meant, self.valid())):
            return None  # strangers make no file to be written
        with self._changed() as tokens:
            valid = [one for one in tokens if one.expires is None or now < one.expires]
            found = [one for one in valid if is_meant(one)]
            made_here = ("link-", "page-")
            tokens[:] = [
                one
                for one in tokens
                if one not in found and (one in valid or not one.name.startswith(made_here))
            ]
            if not found:
                return None
            token = PREFIX + secrets.token_urlsafe(32)
            name, expires = f"page-{found[0].name.removeprefix('link-')}", now + PAGE_S
            tokens.append(replace(found[0], name=name, digest=_digest(token), expires=expires, is_link=False))
        return token

    def revoke(self, name: str) -> None:
        """Removes a token. Raises SchedulerError if there is none, or if the file cannot be used."""
        if name not in [token.name for token in self.all()]:
            raise SchedulerError(f"there is no token named {name!r}; `token list` shows the tokens")
        with self._changed() as tokens:
            tokens[:] = [token for token in tokens if token.name != name]

    @contextmanager
    def _changed(self) -> Iterator[list[Token]]:
        """Yields the tokens and writes the changed list. Concurrent commands take turns."""
        try:
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                tokens = list(self.all())
                yield tokens
                # An earlier version knows no links, and refuses a file with a field that it does not know.
                fields = [asdict(token) for token in tokens]
                kept = [{key: one for key, one in row.items() if key != "is_link" or one} for row in fields]
                rows = json.dumps({"tokens": kept}, indent=2)
                replace_file(self._path, f"{rows}\n".encode("ascii"), synced=True)
            finally:
                os.close(lock)
        except OSError as error:
            raise SchedulerError(f"cannot write {self._path}: {error.strerror}") from None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
