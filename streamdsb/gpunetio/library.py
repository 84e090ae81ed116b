"""The network card, through the host library in host/: its queues, and which frames are steered to them.

The library is built where DOCA is installed (`make -C streamdsb/gpunetio`); everything else works without it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from streamdsb.errors import RunFailed, UserError
from streamdsb.gpunetio.keys import SOFTWARE_CARD

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "libstreamdsb_gpunetio.so"
BUILD = f"make -C {FOLDER}"
"""The command that builds the library."""

DOCA_PACKAGES = ("doca-gpunetio", "doca-eth", "doca-flow", "doca-common")
"""What pkg-config has to know."""


class _Queue(ctypes.Structure):
    """struct streamdsb_queue of gpunetio.h."""

    _fields_ = (
        ("handle", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("dmabuf", ctypes.c_uint8),
        ("proxied", ctypes.c_uint8),
    )


@dataclass(frozen=True)
class CardQueue:
    """A queue of the card and the GPU memory that it writes to or reads from."""

    handle: int
    """Device address of DOCA's own struct, for kernels."""
    memory: int
    """Device address of the ring, or of what may be sent."""
    nbytes: int
    key: int
    """Of that memory, in network byte order."""
    by_dmabuf: bool
    """False if the card reaches the memory through nvidia-peermem."""
    proxied: bool
    """True if a thread rings the doorbells, because the GPU cannot."""


def doca_environment() -> dict[str, str]:
    """The environment with DOCA's usual folders where pkg-config looks."""
    folders = map(str, Path("/opt/mellanox").glob("*/lib/*/pkgconfig"))
    known = [os.environ.get("PKG_CONFIG_PATH", ""), *folders]
    return os.environ | {"PKG_CONFIG_PATH": ":".join(filter(None, known))}


def missing_for_build() -> list[str]:
    """What the build command needs and does not find here, in words; empty if it can be run."""
    tools = {"make": "make", "g++": "a C++ compiler (g++)", "pkg-config": "pkg-config", "nvcc": "CUDA's nvcc"}
    lacking = [words for tool, words in tools.items() if shutil.which(tool) is None]
    if "pkg-config" in lacking:
        return [*lacking, "DOCA"]
    command = ["pkg-config", "--list-all"]
    known = subprocess.run(command, capture_output=True, text=True, env=doca_environment())
    names = {line.split()[0] for line in known.stdout.splitlines() if line.strip()}
    absent = [package for package in DOCA_PACKAGES if package not in names]
    return lacking + ([f"DOCA ({', '.join(absent)})"] if absent else [])


def compile_options() -> tuple[str, ...]:
    """What nvcc compiles kernels with that include DOCA's headers; UserError where DOCA is not installed."""
    command = ["pkg-config", "--cflags", *DOCA_PACKAGES]
    try:
        flags = subprocess.run(command, capture_output=True, text=True, check=True, env=doca_environment())
    except (OSError, subprocess.CalledProcessError):
        raise UserError(_unavailable()) from None
    return ("-DDOCA_ALLOW_EXPERIMENTAL_API", *(f for f in flags.stdout.split() if f.startswith(("-I", "-D"))))


def _unavailable() -> str:
    lacking = missing_for_build()
    ready = f"build it with '{BUILD}'"
    needs = f"missing here: {', '.join(lacking)}; then {ready}" if lacking else ready
    return f"stream.transport gpunetio needs its library {LIBRARY.name}, which is not built: {needs}"


@cache
def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """The library; UserError that says what is missing if it is not built or cannot be loaded."""
    if not path.exists():
        raise UserError(_unavailable())
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(
            f"stream.transport gpunetio cannot load {path}: {error}; build it again: {BUILD}"
        ) from None
    library.streamdsb_card_error.restype = ctypes.c_char_p
    library.streamdsb_card_close.restype = None
    return library


def require_for(nic: str) -> None:
    """Raise UserError that says what is missing here if `nic` is a network card and cannot be used."""
    if nic != SOFTWARE_CARD:
        load()


class Card:
    """A network card, opened for the GPU that is current.

    nic, gpu: PCI addresses; ethertype: of the frames that are steered to the receive queues.  Where something
    goes wrong, RunFailed is raised with the sentence of the library.
    """

    def __init__(self, nic: str, gpu: str, ethertype: int, library: ctypes.CDLL | None = None) -> None:
        self._library = load() if library is None else library
        self._card = ctypes.c_void_p()
        self._call("open", nic.encode(), gpu.encode(), ctypes.c_uint16(ethertype), ctypes.byref(self._card))

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, f"streamdsb_card_{name}")
        if function(*arguments):
            raise RunFailed(self._library.streamdsb_card_error().decode(errors="replace"))

    @property
    def mac(self) -> bytes:
        """The card's Ethernet address, 6 bytes."""
        mac = (ctypes.c_uint8 * 6)()
        self._call("mac", self._card, mac)
        return bytes(mac)

    def receive_queue(self, slots: int, slot_bytes: int, consistent: bool) -> CardQueue:
        """A cyclic queue of `slots` (a power of two, at least 512) slots.

        consistent: whether the GPU sees a frame before its completion by itself (compute capability 9.0 on).
        """
        made = _Queue()
        sizes = ctypes.c_uint32(slots), ctypes.c_uint32(slot_bytes), ctypes.c_int(consistent)
        self._call("receive_queue", self._card, *sizes, ctypes.byref(made))
        return _described(made)

    def send_queue(self, descriptors: int, nbytes: int) -> CardQueue:
        """A queue of `descriptors` (a power of two) descriptors, with `nbytes` of memory to send from."""
        made = _Queue()
        sizes = ctypes.c_uint32(descriptors), ctypes.c_uint64(nbytes)
        self._call("send_queue", self._card, *sizes, ctypes.byref(made))
        return _described(made)

    def steer(self) -> None:
        """Let frames come in, once all receive queues are made; other traffic stays with the kernel."""
        self._call("steer", self._card)

    def steered(self, queue: int) -> int:
        """Frames that came for a receive queue since `steer`, whether or not it had room for them."""
        frames = ctypes.c_uint64()
        self._call("steered", self._card, ctypes.c_uint32(queue), ctypes.byref(frames))
        return frames.value

    def close(self) -> None:
        """Take everything down; all kernels that use the queues have ended."""
        self._library.streamdsb_card_close(self._card)
        self._card = ctypes.c_void_p()

    def __enter__(self) -> Card:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _described(made: _Queue) -> CardQueue:
    return CardQueue(made.handle, made.memory, made.bytes, made.key, bool(made.dmabuf), bool(made.proxied))
