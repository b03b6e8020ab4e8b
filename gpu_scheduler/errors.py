"""Defines the errors that users see, each with its exit code and a message that gives the remedy.

    SchedulerError             1  the request failed
    ├── StoreNotFoundError     1  no scheduler has been started with this state file
    ├── NoSuchJobError         1  no job has this number or name
    ├── NotOwnerError          1  this scheduler no longer owns its store
    ├── SchemaError            1  another version of the program wrote the store
    ├── DamagedStoreError      1  the database of the store is damaged
    ├── ClientError            1  a request of the Python client failed
    ├── UsageError             2  a value, a file or an option given by the user is wrong
    └── GpuStateError          4  the state of the GPUs cannot be read

In one or two lines, a message gives the file, line or value that is wrong, and the remedy. The command line
prints the message without a traceback. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations


class SchedulerError(Exception):
    """The request failed."""

    exit_code = 1


class StoreNotFoundError(SchedulerError):
    """No scheduler has been started with this state file."""


class NoSuchJobError(SchedulerError):
    """No job has this number or name."""


class NotOwnerError(SchedulerError):
    """This scheduler no longer owns its store."""


class SchemaError(SchedulerError):
    """Another version of the program wrote the store."""


class DamagedStoreError(SchedulerError):
    """The database of the store is damaged."""


class ClientError(SchedulerError):
    """A request of the Python client failed.

    status: the HTTP code; None if there was no answer. retry_after_s: what the server says about that.
    """

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def remedy(self) -> str | None:
        """The part of the message that says what to do; None if there is none."""
        _, found, rest = str(self).replace("\n", "; ").removesuffix("; nothing was submitted").partition("; ")
        return rest if found else None


class UsageError(SchedulerError):
    """A value, a file or an option given by the user is wrong."""

    exit_code = 2


class GpuStateError(SchedulerError):
    """The state of the GPUs cannot be read."""

    exit_code = 4


def missing_package(need: str, extra: str, error: ImportError) -> UsageError:
    """Returns the error for a package that is not installed, with the commands that install it.

    need: what needs the package; extra: the extra of this package that names it.
    """
    import shlex
    import sys
    from pathlib import Path

    text = f'{need} ({error}); run `pip install "gpu-job-scheduler[{extra}]"`'
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").exists():
        words = (sys.executable, "-m", "pip", "install", "-e", f"{root}[{extra}]")
        text += f"\nor, for this clone, `{shlex.join(words)}`"
    return UsageError(text)
