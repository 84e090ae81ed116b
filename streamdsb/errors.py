"""The two ways a command can fail, and the exit status each stands for."""


class StreamdsbError(Exception):
    """Base of every error that streamdsb raises on purpose; its text is one sentence on one line."""

    exit_status = 1

    def __str__(self) -> str:
        # libraries whose words are quoted may use several lines
        return " ".join(super().__str__().split())


class UserError(StreamdsbError):
    """Something the user gave or asked for cannot work: a key, a file, a port, a disk, a memory size."""

    exit_status = 2


class Cancelled(Exception):
    """The coordinator has called the run off; nothing needs to be said."""


class RunFailed(StreamdsbError):
    """A run that started could not finish: a process died, frames were lost, nothing moved in time."""

    exit_status = 1


class Interrupted(RunFailed):
    """Ctrl-C or SIGTERM."""

    exit_status = 130
