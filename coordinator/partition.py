"""Which rank does what: receivers come first and share the rows, any other rank idles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamdsb.config import Config
from streamdsb.errors import UserError
from streamdsb.layout import GROUP_ROWS, RowRange, ceil_div


@dataclass(frozen=True)
class Partition:
    """The rows of the ranks that receive; those that follow have none."""

    rows: tuple[RowRange, ...]
    """One range for each of the first ranks, none of them empty."""
    idle_because: str
    """Why the ranks that follow have nothing to do."""

    @classmethod
    def of(cls, config: Config, size: int) -> Partition:
        """Deal the rows of `config` to `size` ranks; raises UserError if that is not possible."""
        wanted = size if config.receivers is None else config.receivers
        if wanted > size:
            raise UserError(
                f"receivers is {wanted}, but {size} rank{'s were' if size > 1 else ' was'} started; start"
                f" {wanted} with mpiexec -n {wanted}, or lower it"
            )
        groups = ceil_div(config.n, GROUP_ROWS)
        receivers = min(wanted, groups)
        if receivers < wanted:
            why = f"n = {config.n} has {groups} group{'s'[: groups - 1]} of {GROUP_ROWS} rows"
        else:
            why = f"receivers is {wanted}"
        return cls(RowRange(0, config.n).split(receivers), why)

    def lines(self, hosts: Sequence[str]) -> list[str]:
        """In words, what each rank does; hosts: of each rank."""
        lines = []
        for rank, host in enumerate(hosts):
            role = f"idle, as {self.idle_because}"
            if rank < len(self.rows):
                role = f"receiver of rows {self.rows[rank].start:,} to {self.rows[rank].stop - 1:,}"
                role += " with a generator of its own" + ("; keeps the records" if rank == 0 else "")
            lines.append(f"rank {rank} on {host}: {role}")
        return lines


def refuse_what_ranks_cannot(config: Config) -> None:
    """Raise UserError for keys that do not go with several receivers."""
    for role in ("generator", "receiver"):
        if getattr(config, role).backend != "cpu":
            raise UserError(
                f"{role}.backend is {getattr(config, role).backend}, but receivers that mpiexec or srun start"
                " compute on the CPU only; use cpu, or start one process without mpiexec"
            )
    if config.stream.transport != "shm":
        raise UserError(
            f"stream.transport is {config.stream.transport}, but receivers that mpiexec or srun start have"
            " their generators beside them; use shm"
        )
