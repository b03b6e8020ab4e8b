"""A fake conda. `plant` makes an installation.

When conda.sh runs this file as a program, it prints the shell commands that activate or deactivate an
environment. It follows the rules of the real conda:

- Activation stacks the new environment on the active one, unless they are the same. The deactivate.d hooks of
  the active one run, but the variables that it sets (conda-meta/state, etc/conda/env_vars.d) stay.
- If an environment sets a variable that is already set, the old value is saved as
  __CONDA_SHLVL_<level below>_<name>.
- Deactivation runs the deactivate.d hooks in reverse order of their names, with the PATH that deactivation
  leaves behind. It restores the saved variables and activates the environment below (if any) with its hooks.
- If an environment is given as a folder, the folder must contain conda-meta.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

Lines = Iterator[str]


def plant(root: Path, *names: str, python: bool = True) -> Path:
    """Makes an installation at `root` with base and these environments. python: each has its own Python."""
    for prefix in (root, *(root / "envs" / name for name in names)):
        (prefix / "bin").mkdir(parents=True, exist_ok=True)
        (prefix / "conda-meta").mkdir(exist_ok=True)
        program = prefix / "bin" / "python"
        if (python or prefix == root) and not program.exists():
            program.symlink_to(sys.executable)
    return root


def plant_hook(prefix: Path, when: str, name: str, text: str) -> Path:
    """Writes a hook script of an environment. when: "activate" or "deactivate"."""
    path = prefix / "etc" / "conda" / f"{when}.d" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def plant_variables(prefix: Path, variables: Mapping[str, str]) -> None:
    """Sets variables of an environment as `conda env config vars set` does."""
    (prefix / "conda-meta" / "state").write_text(json.dumps({"env_vars": dict(variables)}))


class _Failure(Exception):
    pass


def _hooks(prefix: str, when: str) -> list[str]:
    folder = Path(prefix, "etc", "conda", f"{when}.d")
    return sorted(map(str, folder.glob("*.sh")), reverse=when == "deactivate")


def _variables(prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(Path(prefix, "etc", "conda", "env_vars.d").glob("*")):
        found.update(json.loads(path.read_text()))
    state = Path(prefix, "conda-meta", "state")
    if state.exists():
        found.update(json.loads(state.read_text()).get("env_vars", {}))
    return found


class _Shell:
    """The state of the calling shell, read from its environment."""

    def __init__(self, env: Mapping[str, str], root: str) -> None:
        self.env, self.root = env, root
        self.level = int(env.get("CONDA_SHLVL", "").strip() or 0)
        self.prefix = env.get("CONDA_PREFIX", "")
        self.path = env.get("PATH", "/usr/bin").split(":")

    def activate(self, name: str) -> Lines:
        prefix = self._find(name)
        if prefix == self.prefix and self.level > 0:
            yield from self._run(prefix, "deactivate")
            yield from _export({"PATH": self._path(prefix, prefix), **_variables(prefix)})
            yield from self._run(prefix, "activate")
            return
        values = _variables(prefix)
        kept = {f"__CONDA_SHLVL_{self.level}_{key}": self.env[key] for key in values if key in self.env}
        if self.level:
            yield from self._run(self.prefix, "deactivate")
            kept[f"CONDA_PREFIX_{self.level}"] = self.prefix
        elif not any(part.endswith("condabin") for part in self.path):
            self.path.insert(0, f"{self.root}/condabin")
        yield from _export({"PATH": self._path(self.prefix if self.level else None, prefix)})
        yield from _export({**self._marks(prefix, self.level + 1), **values, **kept})
        yield from self._run(prefix, "activate")

    def deactivate(self) -> Lines:
        if not self.prefix or self.level < 1:
            return
        below = self.level - 1
        new = self.env[f"CONDA_PREFIX_{below}"] if below else None
        stacked = f"CONDA_STACKED_{self.level}"
        yield from _export({"PATH": self._path(self.prefix, None if stacked in self.env else new)})
        yield from self._run(self.prefix, "deactivate")
        gone = [*_variables(self.prefix), stacked, f"CONDA_PREFIX_{below}"]
        gone += [] if new else ["CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER"]
        yield from (f"unset {name}" for name in gone)
        yield from _export(
            {"CONDA_SHLVL": "0"} if new is None else {**self._marks(new, below), **_variables(new)}
        )
        saved = {key: self.env.get(f"__CONDA_SHLVL_{below}_{key}") for key in _variables(self.prefix)}
        yield from _export({key: value for key, value in saved.items() if value is not None})
        if new is not None:
            yield from self._run(new, "activate")

    def _find(self, name: str) -> str:
        if "/" in name:
            prefix = os.path.abspath(os.path.expanduser(name))
            if not os.path.isdir(f"{prefix}/conda-meta"):
                raise _Failure(f"EnvironmentLocationNotFound: Not a conda environment: {prefix}")
            return prefix
        prefix = self.root if name in ("base", "root") else f"{self.root}/envs/{name}"
        if not os.path.isdir(prefix):
            raise _Failure(f"EnvironmentNameNotFound: Could not find conda environment: {name}")
        return prefix

    def _path(self, old: str | None, new: str | None) -> str:
        parts, at = list(self.path), 0
        if old is not None and f"{old}/bin" in parts:
            at = parts.index(f"{old}/bin")
            del parts[at]
        if new is not None:
            parts.insert(at, f"{new}/bin")
        return ":".join(parts)

    def _marks(self, prefix: str, level: int) -> dict[str, str]:
        named = "base" if prefix == self.root else prefix
        if os.path.basename(os.path.dirname(prefix)) == "envs":
            named = os.path.basename(prefix)
        return {
            "CONDA_PREFIX": prefix,
            "CONDA_SHLVL": str(level),
            "CONDA_DEFAULT_ENV": named,
            "CONDA_PROMPT_MODIFIER": f"({named}) ",
        }

    def _run(self, prefix: str, when: str) -> Lines:
        return (f". {_quoted(path)}" for path in _hooks(prefix, when))


def _export(values: Mapping[str, str]) -> Lines:
    return (f"export {name}={_quoted(value)}" for name, value in values.items())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def main(words: list[str]) -> int:
    """Prints the commands that `conda activate NAME` or `conda deactivate` runs in the calling shell."""
    shell = _Shell(os.environ, os.environ["FAKE_CONDA_ROOT"])
    name = words[1] if len(words) > 1 else "base"
    try:
        print("\n".join(shell.activate(name) if words[0] == "activate" else shell.deactivate()))
    except _Failure as failure:
        print(f"\n{failure}\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
