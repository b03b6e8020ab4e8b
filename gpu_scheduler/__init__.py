"""GPU Job Scheduler: runs every line of a jobs file once, on the right GPU."""

TYPE_CHECKING = False  # the runner imports this module, but not `typing`
if TYPE_CHECKING:
    from gpu_scheduler.client import Client as Client
    from gpu_scheduler.errors import SchedulerError as SchedulerError

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Imports the client when it is used, so that the command line starts without it."""
        if name == "Client":
            from gpu_scheduler.client import Client as found
        elif name == "__version__":
            from gpu_scheduler.config import VERSION as found
        elif name == "SchedulerError":
            from gpu_scheduler.errors import SchedulerError as found
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return found
