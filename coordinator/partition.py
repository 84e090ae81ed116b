"""Which rank does what: receivers come first and share the rows, then ranks that generate; others idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamdsb.config import Config
from streamdsb.errors import UserError
from streamdsb.layout import GROUP_ROWS, RowRange, ceil_div


class Gpu(NamedTuple):
    """A GPU of a host."""

    number: int
    """As its rank counts them: where Slurm shows each task GPUs of its own, all count from 0."""
    bus: str
    """Which it is, whoever counts."""


@dataclass(frozen=True)
class Partition:
    """What each rank of a run is there for."""

    rows: tuple[RowRange, ...]
    """Of each of the first ranks, which receive; none of them empty."""
    served: tuple[range, ...]
    """The ranks that each rank which generates does so for; none if a receiver's generator is beside it."""
    first_generator: int
    """The rank that generates with the lowest number, if there is one."""
    idle_because: str
    """Why the other ranks have nothing to do."""

    @classmethod
    def of(cls, config: Config, size: int) -> Partition:
        """Deal the rows of `config` to `size` ranks; raises UserError if that is not possible."""
        generators = config.generators or 0
        wanted = size - generators if config.receivers is None else config.receivers
        if max(wanted, 1) + generators > size:
            raise UserError(_too_few(max(wanted, 1), generators, size))
        if generators > wanted:
            raise UserError(
                f"generators is {generators}, but {_ranks(wanted, 'receive')}, each from one generator;"
                f" lower generators to {wanted} or less"
            )
        groups = ceil_div(config.n, GROUP_ROWS)
        receivers = min(wanted, groups)
        if receivers < wanted:
            why = f"n = {config.n} has {groups} group{'s'[: groups - 1]} of {GROUP_ROWS} rows"
        else:
            why = ranks_text(wanted, generators)
        working = min(generators, receivers)
        served = tuple(
            range(part * receivers // working, (part + 1) * receivers // working) for part in range(working)
        )
        return cls(RowRange(0, config.n).split(receivers), served, wanted, why)

    def served_by(self, rank: int) -> range:
        """The ranks that `rank` generates for; empty if it does not."""
        part = rank - self.first_generator
        return self.served[part] if 0 <= part < len(self.served) else range(0)

    def generator_of(self, receiver: int) -> int | None:
        """The rank that generates for the rank `receiver`; None if its generator is beside it."""
        for part, ranks in enumerate(self.served):
            if receiver in ranks:
                return self.first_generator + part
        return None

    def lines(self, config: Config, hosts: Sequence[str], devices: Sequence[Gpu | None]) -> list[str]:
        """In words, what each rank does; hosts: of each rank; devices: its GPU, if it computes on one."""
        places = list(zip(hosts, devices, strict=True))
        lines = []
        for rank, place in enumerate(places):
            role = f"idle, as {self.idle_because}"
            if rank < len(self.rows):
                role = self._receives(config, rank, _device_text(place, places))
            elif served := self.served_by(rank):
                rows = RowRange(self.rows[served[0]].start, self.rows[served[-1]].stop)
                names = f"rank {served[0]}" if len(served) == 1 else f"ranks {served[0]} to {served[-1]}"
                role = f"generator of {_rows_text(rows)} on the CPU, for {names}"
            lines.append(f"rank {rank} on {hosts[rank]}: {role}")
        return lines

    def _receives(self, config: Config, rank: int, device: str) -> str:
        queues, generator = config.stream.queues, self.generator_of(rank)
        source = "a generator of its own" if generator is None else f"rank {generator}"
        return (
            f"receiver of {_rows_text(self.rows[rank])} on {device}, {queues} queue{'s'[: queues - 1]}"
            f" ({config.stream.transport}) from {source}" + ("; keeps the records" if rank == 0 else "")
        )


def _device_text(place: tuple[str, Gpu | None], places: Sequence[tuple[str, Gpu | None]]) -> str:
    host, gpu = place
    if gpu is None:
        return "the CPU"
    sharing = sum(other.bus == gpu.bus for where, other in places if where == host and other)
    return f"GPU {gpu.number}" + (f" (which {sharing} ranks share)" if sharing > 1 else "")


def _rows_text(rows: RowRange) -> str:
    return f"rows {rows.start:,} to {rows.stop - 1:,}"


def _ranks(count: int, verb: str) -> str:
    return f"{count} rank {verb}s" if count == 1 else f"{count} ranks {verb}"


def ranks_text(receivers: int, generators: int) -> str:
    """How many ranks of each kind are wanted, in the words of the configuration; 0 generators for none."""
    return f"receivers is {receivers}" + (f" and generators is {generators}" if generators else "")


def _too_few(receivers: int, generators: int, size: int) -> str:
    started = f"{size} rank{'s were' if size > 1 else ' was'} started"
    needed = receivers + generators
    return (
        f"{ranks_text(receivers, generators)}, but {started}; start {needed} with mpiexec -n {needed}, or"
        f" lower {'one of them' if generators else 'it'}"
    )


def refuse_what_ranks_cannot(config: Config) -> None:
    """Raise UserError for keys that do not go with several receivers."""
    stream = config.stream
    if stream.transport == "gpunetio":
        raise UserError(
            "stream.transport is gpunetio, which joins one generator to one receiver; ranks that mpiexec or"
            " srun start take shm or peer, or tcp or udp with the key generators"
        )
    if config.generators is None and stream.transport not in ("shm", "peer"):
        raise UserError(
            f"stream.transport is {stream.transport}, but receivers that mpiexec or srun start have their"
            " generators beside them; use shm or peer, or give ranks to generators with the key generators"
        )
    if config.generators is not None and stream.transport not in ("tcp", "udp"):
        raise UserError(
            f"stream.transport is {stream.transport}, but generators is {config.generators}: what ranks"
            " generate goes to others over tcp or udp; use one of these"
        )
