"""The ways in which programs save a file. Between any two steps of a save, a reader can observe the file."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

Style = Callable[[Path, bytes, random.Random], Iterator[None]]


def truncate(path: Path, content: bytes, dice: random.Random) -> Iterator[None]:
    """Truncates the file, then writes the content at once."""
    with open(path, "wb", buffering=0) as file:
        yield
        file.write(content)
        yield


def slow(path: Path, content: bytes, dice: random.Random) -> Iterator[None]:
    """Truncates the file, then writes the content in several pieces."""
    with open(path, "wb", buffering=0) as file:
        yield
        cuts = sorted(dice.randrange(len(content) + 1) for _ in range(dice.randint(1, 5)))
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            file.write(content[start:end])
            yield


def rename(path: Path, content: bytes, dice: random.Random) -> Iterator[None]:
    """Writes another file and renames it over the old one."""
    spare = path.with_name(f".{path.name}.swp")
    spare.write_bytes(content)
    yield
    os.replace(spare, path)


def sed(path: Path, content: bytes, dice: random.Random) -> Iterator[None]:
    """Saves like `sed -i`: writes a temporary file with the old mode and renames it over the old file."""
    spare = path.with_name(f"sed{dice.randrange(10**6):06}")
    with open(spare, "wb", buffering=0) as file:
        file.write(content[: len(content) // 2])
        yield
        file.write(content[len(content) // 2 :])
    if path.exists():
        os.chmod(spare, path.stat().st_mode)
    os.replace(spare, path)


def backup(path: Path, content: bytes, dice: random.Random) -> Iterator[None]:
    """Moves the old file aside, then writes a new one."""
    if path.exists():
        os.replace(path, path.with_name(f"{path.name}~"))
    yield
    with open(path, "wb", buffering=0) as file:
        yield
        file.write(content)
        yield


def append(path: Path, content: bytes, dice: random.Random) -> Iterator[None]:
    """Appends the new part of the content in two writes. Rewrites a file that begins differently."""
    old = path.read_bytes() if path.exists() else b""
    if not content.startswith(old) or not old:
        yield from truncate(path, content, dice)
        return
    cut = dice.randint(len(old), len(content))
    with open(path, "ab", buffering=0) as file:
        file.write(content[len(old) : cut])
        yield
        file.write(content[cut:])


STYLES: tuple[Style, ...] = (truncate, slow, rename, sed, backup, append)
