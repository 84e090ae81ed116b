"""The generator: makes the frames of each released pass and sends them; it knows nothing of dynamics."""

from __future__ import annotations

from collections.abc import Sequence

from generator.resend import feeder_for
from generator.send import send_pass, serve_until_acknowledged
from generator.source import CouplingSource
from generator.symmetry import InputWatch, hash_of_sums
from streamdsb.config import Config
from streamdsb.frame import empty_frames
from streamdsb.layout import GROUP_ROWS, HEADER_WORDS, PAYLOAD_BYTES, RowRange
from streamdsb.messages import Begin, Busy, PassSent, Ready
from streamdsb.queues import FrameSender
from streamdsb.worker import Control, Shares, every, shortest_time

_BUSY_S = 1.0
_TRIAL_ROWS = 4 * GROUP_ROWS


class GeneratorEngine:
    """Serves released passes from a coupling source over the given queues.

    rows: those of the receiver at the other end, from a multiple of 64; None for all.
    """

    def __init__(
        self,
        config: Config,
        run: int,
        source: CouplingSource,
        senders: Sequence[FrameSender],
        control: Control,
        rows: RowRange | None = None,
    ) -> None:
        self._config = config
        self._layout = config.layout if rows is None else config.layout.of(rows)
        self._source = source
        self._control = control
        carried = self._layout.queue_rows
        feeders = [
            feeder_for(queue, carried[queue], self._layout, run, source, sender)
            for queue, sender in enumerate(senders)
        ]
        self._feeders = feeders
        self._shares = Shares(feeders, config.generator.threads, control.cancelled)
        self._name = f"problem.path {config.problem.path}"
        self._watch = None if source.symmetric else InputWatch(self._name, len(feeders))

    def run(self) -> None:
        """Answer every Begin with a pass until the coordinator says Stop."""
        self._control.send(Ready(payload_per_second=self._measure_rate()))
        while isinstance(begin := self._control.next(), Begin):
            self._send_pass(begin.pass_index)

    def _send_pass(self, pass_index: int) -> None:
        checks = [None] * len(self._feeders) if self._watch is None else self._watch.begin_pass()
        for feeder, check in zip(self._feeders, checks, strict=True):
            feeder.begin_pass(pass_index, check)
        timeout_s = self._config.stream.timeout_s
        self._shares.each(lambda share: send_pass(share, timeout_s, self._control.cancelled))
        couplings_hash = None
        tile_sums = None if self._watch is None else self._watch.end_pass(pass_index)
        if tile_sums is not None and self._layout.own_rows is None:
            if tile_sums[0] != tile_sums[1]:
                searching = Busy(what="looking for the first couplings that are not symmetric")
                every(_BUSY_S, lambda: self._control.send(searching))
            couplings_hash, tile_sums = hash_of_sums(tile_sums, self._source, self._name), None
        self._control.send(
            PassSent(
                pass_index=pass_index,
                frames=self._layout.frames_per_pass,
                couplings_hash=couplings_hash,
                tile_sums=tile_sums,
            )
        )
        self._shares.each(
            lambda share: serve_until_acknowledged(share, self._control.is_waiting, self._control.cancelled)
        )

    def _measure_rate(self) -> float:
        """Payload bytes a second that the threads of this process can make, nothing else going on."""
        own = self._layout.rows
        rows = RowRange(own.start, min(own.start + _TRIAL_ROWS, own.stop))
        payload = empty_frames(len(rows))[:, HEADER_WORDS : HEADER_WORDS + self._layout.words_in(0)]
        seconds = shortest_time(lambda: self._source.fill(rows, 0, payload))
        return len(rows) * PAYLOAD_BYTES * len(self._shares) / seconds
