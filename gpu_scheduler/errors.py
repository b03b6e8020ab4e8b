"""The tree of errors that a user can meet, each with its exit code and the next move in its text.

    SchedulerError            1  the request failed
    ├── NoRecordError         1  no scheduler has been started with this state file
    ├── NotOwnerError         1  this scheduler is not the one of its record any more
    ├── SchemaError           1  the record is that of another version of the program
    ├── DamagedRecordError    1  the database of the record is damaged
    ├── UsageError            2  bad invocation: a value, a file or an option is wrong
    └── GpuStateError         4  the state of the GPUs cannot be read

A text names the file, line and value, and the remedy, in one or two lines; the command line prints it without
a traceback. Anything else that escapes is a fault of ours and keeps its traceback.
"""

from __future__ import annotations


class SchedulerError(Exception):
    """The request failed."""

    exit_code = 1


class NoRecordError(SchedulerError):
    """No scheduler has been started with this state file."""


class NotOwnerError(SchedulerError):
    """This scheduler is not the one of its record any more."""


class SchemaError(SchedulerError):
    """The record is that of another version of the program."""


class DamagedRecordError(SchedulerError):
    """The database of the record is damaged."""


class UsageError(SchedulerError):
    """A value, a file or an option given by the user is wrong."""

    exit_code = 2


class GpuStateError(SchedulerError):
    """The state of the GPUs cannot be read."""

    exit_code = 4
