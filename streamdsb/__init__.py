"""Discrete simulated bifurcation on dense Ising couplings that stream past instead of being stored.

import streamdsb
result = streamdsb.run({"problem": {"source": "mattis", "n": 5000}})
result.energies[-1], result.spins, result.records
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from streamdsb.errors import RunFailed, StreamdsbError, UserError

if TYPE_CHECKING:
    from streamdsb.api import run
    from streamdsb.packing import columns_of, pack_couplings
    from streamdsb.service.client import Client
    from streamdsb.service.quantize import quantize
    from streamdsb.service.solve import solve, solve_qubo

__all__ = [
    "Client",
    "RunFailed",
    "StreamdsbError",
    "UserError",
    "columns_of",
    "pack_couplings",
    "quantize",
    "run",
    "solve",
    "solve_qubo",
]

try:
    __version__ = version("streamdsb")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    __version__ = "0+unknown"

_HOMES = {
    "Client": "service.client",
    "run": "api",
    "columns_of": "packing",
    "pack_couplings": "packing",
    "quantize": "service.quantize",
    "solve": "service.solve",
    "solve_qubo": "service.solve",
}


def __getattr__(name: str) -> Any:
    """Import what is heavy only when it is used: the command line should answer at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"streamdsb.{_HOMES[name]}"), name)
