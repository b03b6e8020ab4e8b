"""Which environment variables are shown without their values."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What is written for a value that nobody should read over a shoulder.
HIDDEN = "(hidden)"

_SECRET = re.compile(
    r"(?:.*_)?(?:API_?KEY|KEYS?|TOKENS?|SECRETS?|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|CREDENTIALS?|AUTH|COOKIE|DSN)"
    r"(?:_.*)?",
    re.IGNORECASE,
)
_NO_SECRET = frozenset({"PWD", "OLDPWD"})
#: A password inside an address, and the forms of well-known keys.
_SECRET_VALUE = re.compile(
    r"\w+://[^/\s:@]*:[^/\s@]+@|\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza)\w|-----BEGIN "
)


def hide_secrets(env: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The variables with the values hidden that look like secrets, by their names or by themselves."""
    return {name: HIDDEN if _is_secret(name, value) else value for name, value in env}


def holds_secret(text: str) -> bool:
    """Whether a text holds what looks like a password in an address, or a well-known key."""
    return _SECRET_VALUE.search(text) is not None


def _is_secret(name: str, value: str) -> bool:
    by_name = _SECRET.fullmatch(name) is not None and name not in _NO_SECRET
    return by_name or holds_secret(value)
