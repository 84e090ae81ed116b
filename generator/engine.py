"""The generator: makes the frames of each released pass and sends them; it knows nothing of dynamics."""

from __future__ import annotations

from collections.abc import Sequence

from generator.send import QueueFeeder, send_pass
from generator.source import CouplingSource
from generator.symmetry import SymmetryCheck
from streamdsb.config import Config
from streamdsb.frame import empty_frames
from streamdsb.layout import GROUP_ROWS, HEADER_WORDS, PAYLOAD_BYTES, RowRange
from streamdsb.messages import Begin, PassSent, Ready
from streamdsb.queues import FrameSender
from streamdsb.worker import Control, Shares, shortest_time

_TRIAL_ROWS = 4 * GROUP_ROWS


class GeneratorEngine:
    """Serves released passes from a coupling source over the given queues."""

    def __init__(
        self,
        config: Config,
        run: int,
        source: CouplingSource,
        senders: Sequence[FrameSender],
        control: Control,
        first_pass: int = 0,
    ) -> None:
        self._config = config
        self._first_pass = first_pass
        self._layout = config.layout
        self._source = source
        self._control = control
        rows = self._layout.queue_rows
        feeders = [QueueFeeder(q, rows[q], self._layout, run, source, s) for q, s in enumerate(senders)]
        self._feeders = feeders
        self._shares = Shares(feeders, config.generator.threads, control.cancelled)

    def run(self) -> None:
        """Answer every Begin with a pass until the coordinator says Stop."""
        self._control.send(Ready(payload_per_second=self._measure_rate()))
        while isinstance(begin := self._control.next(), Begin):
            self._send_pass(begin.pass_index)

    def _send_pass(self, pass_index: int) -> None:
        watched = pass_index == self._first_pass and not self._source.symmetric
        symmetry = SymmetryCheck() if watched else None
        for feeder in self._feeders:
            feeder.begin_pass(pass_index, symmetry)
        timeout_s = self._config.stream.timeout_s
        self._shares.each(lambda share: send_pass(share, timeout_s, self._control.cancelled))
        name = f"problem.path {self._config.problem.path}"
        self._control.send(
            PassSent(
                pass_index=pass_index,
                frames=self._layout.frames_per_pass,
                couplings_hash=symmetry.finish(self._source, name) if symmetry else None,
            )
        )

    def _measure_rate(self) -> float:
        """Payload bytes a second that the threads of this process can make, nothing else going on."""
        rows = RowRange(0, min(_TRIAL_ROWS, self._layout.n))
        payload = empty_frames(len(rows))[:, HEADER_WORDS : HEADER_WORDS + self._layout.words_in(0)]
        seconds = shortest_time(lambda: self._source.fill(rows, 0, payload))
        return len(rows) * PAYLOAD_BYTES * len(self._shares) / seconds
