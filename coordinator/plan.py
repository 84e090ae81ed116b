"""What a run will cost, from the configuration alone: nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from streamdsb.config import Config
from streamdsb.layout import FRAME_BYTES

_PROCESS_BYTES = 165_000_000
"""What a generator or receiver takes by itself, its kernels loaded, as measured."""

_COMPILING_BYTES = {"receiver": 245_000_000, "generator": 205_000_000}
"""What each takes at most while it compiles, before it allocates anything else; as measured."""

_WIRE_BYTES = FRAME_BYTES + 24
"""A frame on Ethernet, with check sequence, preamble and gap."""


@dataclass(frozen=True)
class Plan:
    """Sizes of a run; bytes unless the name says otherwise."""

    n: int
    replicas: int
    passes: int
    matrix: int
    payload_per_pass: int
    frames_per_pass: int
    receiver_memory: int
    generator_memory: int
    ring_memory: int
    gpu_memory: int
    """Of a receiver with backend cuda: state and frames; its host memory is then not estimated."""
    gpu_ring: int

    @classmethod
    def of(cls, config: Config) -> Plan:
        layout = config.layout
        ring = config.stream.queues * config.stream.ring_bytes
        on_gpu = config.receiver.backend == "cuda"
        gpu_ring = config.stream.device_ring_bytes if on_gpu else 0
        return cls(
            n=layout.n,
            replicas=layout.replicas,
            passes=config.solver.updates + 1,
            matrix=layout.n * layout.n // 8,
            payload_per_pass=layout.payload_per_pass,
            frames_per_pass=layout.frames_per_pass,
            receiver_memory=_PROCESS_BYTES + layout.state_bytes + ring,
            generator_memory=_PROCESS_BYTES + ring + layout.bitmap_words * 8,
            ring_memory=ring,
            gpu_memory=layout.state_bytes + gpu_ring if on_gpu else 0,
            gpu_ring=gpu_ring,
        )

    def seconds_per_pass(self, payload_per_second: float) -> float:
        return self.payload_per_pass / payload_per_second

    def lines(self) -> list[str]:
        """The plan in words, a line each."""
        return [
            f"n = {self.n:,} spins, {self.replicas} replicas, {self.passes:,} passes over a matrix of"
            f" {bytes_text(self.matrix)}",
            f"payload {bytes_text(self.payload_per_pass)} a pass in {self.frames_per_pass:,} frames,"
            f" {bytes_text(self.payload_per_pass * self.passes)} in all",
            self._memory_line(),
        ]

    def _memory_line(self) -> str:
        if self.gpu_memory:
            gpu, frames = bytes_text(self.gpu_memory), bytes_text(self.gpu_ring)
            return f"GPU memory {gpu} for the receiver, {frames} of it for frames"
        receiver, generator = (bytes_text(size) for size in _COMPILING_BYTES.values())
        return (
            f"memory {bytes_text(self.receiver_memory)} for the receiver, {bytes_text(self.generator_memory)}"
            f" for the generator, {bytes_text(self.ring_memory)} of it shared; before that, if they have to"
            f" compile, up to {receiver} and {generator}"
        )

    def link_line(self, gigabits_per_second: float) -> str:
        """Pass time over an Ethernet link of this rate, framing included."""
        payload = gigabits_per_second / 8 * 1e9 * (self.payload_per_pass / self.frames_per_pass) / _WIRE_BYTES
        seconds = self.seconds_per_pass(payload)
        return (
            f"at {gigabits_per_second:g} Gb/s on the wire: {duration_text(seconds)} a pass,"
            f" {duration_text(seconds * self.passes)} in all"
        )


def plan_lines(config: Config, gigabits_per_second: float) -> list[str]:
    """The plan of `config` over a link of this rate; a file is asked for its n, but not read."""
    config = with_known_n(config)
    plan = Plan.of(config)
    return [*plan.lines(), plan.link_line(gigabits_per_second)]


def with_known_n(config: Config) -> Config:
    """`config` with problem.n, for which a file or class is asked if need be."""
    if config.problem.n is not None:
        return config
    from generator.source import open_source

    return config.with_n(open_source(config.problem).n)


def bytes_text(size: float) -> str:
    """A size with three digits and a decimal unit."""
    units = ["B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"


def duration_text(seconds: float) -> str:
    """A duration for people: 1.23 ms, 45.6 s, 12 min 5 s, 3 h 20 min, 2 d 5 h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 48 * 3600:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"
