"""What a receiving rank does in each pass, in step with the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel

from coordinator.engine import described, welcome
from coordinator.outcome import Outcome, input_hash, require_same_input
from coordinator.peers import Peers, is_news
from coordinator.plan import Plan, bytes_text, duration_text
from coordinator.progress import Display
from coordinator.rank_checkpoints import RankCheckpoints
from coordinator.schedule import SaveSchedule
from coordinator.supply import Supply
from coordinator.timings import timing
from receiver import accumulate_cpu, check, update_cpu, window
from receiver.base import Receiver
from receiver.check import Count
from receiver.engine_cpu import CpuReceiver, require_memory
from receiver.exchange import SignExchange
from receiver.update_cpu import checksum
from streamdsb import frame, payload_checksum
from streamdsb.channel import PeerGone
from streamdsb.checkpoint import Checkpoint, Header, load_first_usable
from streamdsb.communicator import Communicator
from streamdsb.config import Config
from streamdsb.errors import RunFailed, StreamdsbError
from streamdsb.jit import compile_kernels
from streamdsb.layout import RowRange
from streamdsb.machine import peak_memory
from streamdsb.messages import Begin, Farewell, Opened, PassReceived, PassSent, Ready, Resolved, Spins, Stop
from streamdsb.queues import shm, udp
from streamdsb.run_directory import RunDirectory, record_line
from streamdsb.worker import every

M = TypeVar("M", bound=BaseModel)

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 60.0
_PROGRESS_S = 0.25


class Lockstep:
    """One receiver among several and its generator; every method is called by all ranks alike.

    rows: of each rank; supply: where this rank's frames come from; device: its GPU, if it computes on one.
    """

    def __init__(
        self,
        config: Config,
        rows: Sequence[RowRange],
        supply: Supply,
        ranks: Communicator,
        peers: Peers,
        display: Display,
        out: Path,
        device: int | None = None,
    ) -> None:
        self.config = config
        self.outcome = Outcome()
        self._rows = rows
        self._supply = supply
        self._ranks = ranks
        self._peers = peers
        self._display = display
        self._device = device
        self._is_started = False
        self._pass = 0
        self.first_pass = 0
        """The pass that the run begins or goes on with."""
        self._expected_hash: str | None = None
        self._field: np.ndarray | None = None
        self._schedule = SaveSchedule(config)
        self._checkpoints = RankCheckpoints(out, rows[ranks.rank])
        self._best = Spins(best_pass=0, best_replica=0, best_two_energy=2**62)
        self._exchange = SignExchange(ranks, rows, config.solver.replicas)
        self._best_signs = np.zeros(config.layout.bitmap_words, np.uint64)
        self._take_signs: Callable[[], None] = lambda: None
        """Takes signs that were exchanged to where they are used, if that is not host memory."""

    @property
    def signs(self) -> np.ndarray:
        """The sign bitmaps of all rows and replicas, uint64 (B, ceil(n / 64))."""
        return self._receiver.signs

    @property
    def best_spins(self) -> np.ndarray:
        """The spins of the lowest energy so far, int8 (n,) of ±1."""
        bits = np.unpackbits(self._best_signs.view(np.uint8), count=self.config.n, bitorder="little")
        return bits.astype(np.int8) * 2 - 1

    def prepare(
        self,
        field: np.ndarray | None,
        run_id: int,
        hosts: Sequence[str],
        checkpoints: Sequence[Path] = (),
    ) -> None:
        """Have the generator join and bring everything to the first pass.

        field: int32 (n,) or None; checkpoints: the files of the pass to go on from.
        """
        self._field = field
        config, rows = self.config, self._rows[self._ranks.rank]
        if self._device is None:
            here = hosts[self._ranks.rank]
            beside = [part for part, host in zip(self._rows, hosts, strict=False) if host == here]
            require_memory(config, sum(config.layout.of(part).state_bytes for part in beside))
        self._supply.join(self._peers, self._display)
        welcome(self._peers.members[0].channel, config, run_id)
        couplings = described(config)
        self._await(Opened, f"the generator to open the couplings of {couplings}", _START_TIMEOUT_S)
        restored = None
        if checkpoints:
            restored = load_first_usable(checkpoints, config.n, config.solver.replicas, rows)
        self.first_pass = restored.header.next_pass if restored else 0
        self._peers.send(Resolved(n=config.n, rows=(rows.start, rows.stop), first_pass=self.first_pass))
        self._receiver = self._open_receiver(run_id)
        if restored:
            self._restore(restored)
        waiting_for = f"the generator to compile and to try how fast it is, with the couplings of {couplings}"
        ready = self._await(Ready, waiting_for, _START_TIMEOUT_S)
        self._exchange_signs()
        rates = self._ranks.gather(min(ready.payload_per_second, self._receiver.measure_rate()))
        self._say_plan(min(rates))

    def _open_receiver(self, run_id: int) -> Receiver:
        """The receiver of this rank's rows, with everything compiled and allocated."""
        config, rows, stream = self.config, self._rows[self._ranks.rank], self.config.stream
        kernels = shm.KERNELS if stream.transport == "shm" else ()
        if self._device is None:
            kernels += (*frame.KERNELS, *check.KERNELS, *accumulate_cpu.KERNELS, *update_cpu.KERNELS)
        if stream.is_lossy:
            kernels += (*udp.KERNELS, *window.KERNELS, *payload_checksum.KERNELS)
        compile_kernels(*kernels)
        queues = self._supply.open_queues(config, run_id, self._peers)
        if self._device is None:
            return CpuReceiver(config, run_id, self._field, queues, self._peers.trouble, rows)
        from coordinator import rank_cuda

        part = rank_cuda.PartConfig.of(config, rows)
        receiver = rank_cuda.open_receiver(
            part, run_id, self._field, queues, self._peers, self._device, self.first_pass
        )
        self._take_signs = receiver.take_signs
        return receiver

    def _exchange_signs(self) -> None:
        self._exchange.exchange(self.signs)
        self._take_signs()

    def _restore(self, restored: Checkpoint) -> None:
        header = restored.header
        self._receiver.restore(restored.positions, restored.momenta)
        self._best = Spins(
            best_pass=header.best_pass,
            best_replica=header.best_replica,
            best_two_energy=header.best_two_energy,
        )
        self._best_signs[:] = restored.best_signs
        self._expected_hash = header.input_hash
        self._display.say(f"continuing with pass {header.next_pass} from a checkpoint")
        if self.config.problem.source in ("mattis", "random"):
            self._require_same_input()

    def _require_same_input(self) -> None:
        require_same_input(self._expected_hash, self._input_hash())

    def _input_hash(self) -> str:
        return input_hash(self.config, self.outcome.couplings_hash, self._field)

    def _say_plan(self, rate: float) -> None:
        plan = Plan.of(self.config)
        for line in plan.lines()[:2]:
            self._display.say(line)
        seconds = plan.seconds_per_pass(rate * self._ranks.size)
        self._display.say(
            f"expected {duration_text(seconds)} a pass and {duration_text(seconds * plan.passes)} in all, at"
            f" the {bytes_text(rate)}/s that the slowest of {self._ranks.size} receivers reached alone"
        )

    def run_passes(self, directory: RunDirectory | None) -> None:
        """All passes; rank 0 writes a record and a timing of each to `directory`."""
        self._receiver.start()
        self._is_started = True
        self._display.start(self.config, self.first_pass)
        if directory is not None:
            every(_PROGRESS_S, self._show_progress)
        for k in range(self.first_pass, self.config.solver.updates + 1):
            self._pass = k
            self._do_pass(k, directory)

    def _do_pass(self, k: int, directory: RunDirectory | None) -> None:
        start = time.perf_counter()
        self._peers.send(Begin(pass_index=k))
        receive_s, drain_s = self._receive(k)
        measure_start = time.perf_counter()
        own_energy = self._receiver.measure(k)
        measured = time.perf_counter()
        two_energy, frames = self._add_up(k, own_energy)
        # less the wait for those who are still receiving
        update_start = time.perf_counter() - (measured - measure_start)
        wait_s = self._checkpoints.wait()
        if k < self.config.solver.updates:
            self._receiver.advance(k)
        exchange_start = time.perf_counter()
        if k < self.config.solver.updates:
            self._exchange_signs()
        end = time.perf_counter()
        digest = checksum(self.signs)
        own_seconds = receive_s, drain_s, end - update_start, end - exchange_start, wait_s
        said = self._ranks.gather((digest, own_seconds, self._schedule.is_due(k + 1)))
        require_equal(k, [theirs for theirs, _, _ in said])
        if directory is not None:
            slowest = [max(kind) for kind in zip(*(theirs for _, theirs, _ in said), strict=True)]
            self._keep(directory, two_energy, digest, frames, slowest, time.perf_counter() - start)
        if said[0][2]:  # rank 0's clock decides for all
            self._save(k + 1)

    def _keep(
        self,
        directory: RunDirectory,
        two_energy: list[int],
        digest: str,
        frames: Mapping[str, int],
        seconds: Sequence[float],
        total_s: float,
    ) -> None:
        """Record a pass that counts; seconds: of the slowest rank, in the order of `_do_pass`."""
        receive_s, drain_s, update_s, exchange_s, wait_s = seconds
        received = _received(self._pass, frames, receive_s, drain_s)
        directory.append_record(record_line(self._pass, two_energy, digest))
        directory.append_timing(
            timing(
                received,
                update_s=update_s,
                exchange_s=exchange_s,
                checkpoint_wait_s=wait_s,
                total_s=total_s,
                restarted=0,
            )
        )
        self.outcome.add(two_energy, receive_s, total_s)
        self.outcome.checkpoint_wait_s += wait_s
        self._display.show_frames(self._pass, received.frames)
        self._display.show_energy(self.outcome.best_two_energy)

    def _save(self, next_pass: int) -> None:
        """Begin to write the state that `next_pass` starts from."""
        header = Header(
            next_pass=next_pass,
            n=self.config.n,
            replicas=self.config.solver.replicas,
            first_row=0,
            last_row=self.config.n,
            input_hash=self._input_hash(),
            **self._best.model_dump(exclude={"type"}),
        )
        self._checkpoints.save(header, self._receiver.state, self._best_signs)

    def _receive(self, k: int) -> tuple[float, float]:
        try:
            seconds = self._receiver.receive_pass(k)
        except PeerGone as gone:
            raise self._peers.cause_of(gone) from None
        sent = self._await(PassSent, f"the generator to end pass {k}", self.config.stream.timeout_s)
        if sent.tile_sums is not None:
            self._require_symmetry(sent.tile_sums)
        return seconds

    def _add_up(self, k: int, own_energy: list[int]) -> tuple[list[int], dict[str, int]]:
        """2E of each replica over all rows, and what happened to the frames of all ranks."""
        counted = self._receiver.count_frames()
        own = [*own_energy, *(counted[reason] for reason in Count)]
        total = self._ranks.sum(np.array([*own, self._receiver.count_resent()], np.int64)).tolist()
        replicas = self.config.solver.replicas
        two_energy = total[:replicas]
        lowest = min(two_energy)
        if lowest < self._best.best_two_energy:
            replica = two_energy.index(lowest)
            self._best = Spins(best_pass=k, best_replica=replica, best_two_energy=lowest)
            self._best_signs[:] = self.signs[replica]
        reasons = [*(reason.name.lower() for reason in Count), "resent"]
        return two_energy, dict(zip(reasons, total[replicas:], strict=True))

    def _require_symmetry(self, own_sums: tuple[int, int]) -> None:
        above, below = self._ranks.sum(np.array(own_sums, np.uint64)).tolist()
        if above == below:
            self.outcome.couplings_hash = f"{above:016x}"
            self._require_same_input()
        elif self._ranks.rank == 0:
            from generator.source import open_source
            from generator.symmetry import hash_of_sums

            problem = self.config.problem
            hash_of_sums((above, below), open_source(problem), f"problem.path {problem.path}")
        else:
            self._ranks.barrier()  # which rank 0 ends by naming the place

    def collect(self) -> dict[str, int]:
        """End the generators and what is being written; peak memory in bytes of all processes."""
        self._checkpoints.wait()
        self.outcome.checkpoint_bytes, self.outcome.checkpoint_s = (
            self._checkpoints.sizes,
            self._checkpoints.seconds,
        )
        self.close()  # a generator on the same GPU cannot free its memory before
        self._peers.send(Stop(completed=True))
        farewell = self._await(Farewell, "the generator to end", _STOP_TIMEOUT_S)
        memory = self._ranks.gather((peak_memory(), farewell.peak_memory))
        roles = ("receiver", "generator")
        return {
            f"{role} {r}": size
            for r, sizes in enumerate(memory)
            for role, size in zip(roles, sizes, strict=True)
        }

    def close(self) -> None:
        """No pass will follow, however the run has ended; may be called again."""
        if self._is_started:
            self._is_started = False
            with suppress(StreamdsbError):  # whatever is wrong with it now, the run has its end
                self._receiver.stop()

    def _show_progress(self) -> None:
        """In the current pass, as far as can be told from the rows here."""
        share = self.config.layout.frames_per_pass / (
            len(self._rows[self._ranks.rank]) * self.config.layout.column_blocks
        )
        accepted = self._receiver.count_frames()[Count.ACCEPTED]
        self._display.show_frames(self._pass, int(accepted * share))

    def _await(self, kind: type[M], waiting_for: str, timeout_s: float) -> M:
        """The generator's next message but news, which has to be of `kind`."""
        deadline = time.monotonic() + timeout_s
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            _, message, _ = self._peers.next(remaining, waiting_for)
            if isinstance(message, kind):
                return message
            if not is_news(message):
                raise RunFailed(f"{type(message).__name__} came while waiting for {waiting_for}")


def require_equal(pass_index: int, digests: Sequence[str]) -> None:
    """Raise RunFailed naming pass and ranks if the ranks' checksums, in their order, are not all the same."""
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        ranks = f"rank{'s'[: len(others) - 1]} {', '.join(others)}"
        raise RunFailed(f"after pass {pass_index}, the signs of {ranks} differ from those of rank 0")


def _received(k: int, frames: Mapping[str, int], receive_s: float, drain_s: float) -> PassReceived:
    return PassReceived(
        pass_index=k,
        frames=frames["accepted"],
        dropped=frames["missing"],
        duplicated=frames["duplicate"],
        rejected={name: frames[name] for name in (reason.name.lower() for reason in list(Count)[3:])},
        resent=frames["resent"],
        receive_s=receive_s,
        drain_s=drain_s,
    )
