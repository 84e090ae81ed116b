"""Discrete simulated bifurcation on dense Ising couplings that stream past instead of being stored."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("streamdsb")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    __version__ = "0+unknown"
