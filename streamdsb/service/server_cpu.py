"""The `cpu` server: worker threads on the cores of this machine."""

from __future__ import annotations

import os

import numpy as np

from streamdsb.jit import compile_kernels
from streamdsb.machine import usable_cores
from streamdsb.service import solve_cpu
from streamdsb.service.config import ServiceConfig
from streamdsb.service.rings import make_rings
from streamdsb.service.server import Server, compile_for
from streamdsb.service.worker_cpu import work


class CpuServer(Server):
    """Solves on config.workers threads, a request each."""

    def __init__(self, config: ServiceConfig) -> None:
        super().__init__(config, make_rings())

    def _start_workers(self) -> None:
        self.work_event = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self.reply_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        compile_kernels(*solve_cpu.KERNELS)
        workers = [
            (self.rings, self.store, self.work_event, self.reply_event, index,
             np.zeros(solve_cpu.SCRATCH_BYTES, np.uint8))
            for index in range(self.config.workers or usable_cores())
        ]  # fmt: skip
        compile_for(work, workers[0])
        for arguments in workers:
            self._spawn(work, *arguments)
