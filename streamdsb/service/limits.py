"""What one request may ask for: every limit of the service, in one place."""

from __future__ import annotations

from numbers import Integral

from streamdsb.errors import UserError

HEADER_BYTES = 64
PAYLOAD_BYTES = 1408
FRAME_BYTES = HEADER_BYTES + PAYLOAD_BYTES

SLOTS = 64
"""Models that a store holds."""

MODEL_BYTES = 512 * 1024
"""A packed model, at most."""

MAX_FRAGMENTS = 4096
"""Fragments of one model; 373 full ones carry the largest."""

MAX_PAIRS = 4096
"""Pairs of a replica and a row, with rows padded to a multiple of 32."""

MAX_UPDATES = 100_000
"""K, so that one request cannot hold a worker for hours."""

MAX_FIELD_SPINS = PAYLOAD_BYTES // 2
"""Spins of a request whose field has to fit one frame."""

FIELD_MIN, FIELD_MAX = -(2**15), 2**15 - 1

RING_ITEMS = 4096
"""Requests that a server holds, waiting or being solved."""

DEFAULT_PORT = 8686
DEFAULT_ETHER_TYPE = 0x88B6

SUMMARY = (
    f"Limits: replicas x 32 ceil(n / 32) up to {MAX_PAIRS}; updates 1 to {MAX_UPDATES}; a model up to"
    f" {MODEL_BYTES // 1024} KiB packed (n up to 2048 as ±1, 1440 as -1/0/+1, 724 as int8), {SLOTS} models;"
    f" frames up to {FRAME_BYTES} bytes, so a field needs n up to {MAX_FIELD_SPINS}."
)


def padded(n: int) -> int:
    """Rows of an n-spin problem, rounded up to whole 32-bit words."""
    return -(-n // 32) * 32


def max_replicas(n: int) -> int:
    """The most replicas that one request for n spins may have."""
    return MAX_PAIRS // padded(n)


def require_integers(**values: object) -> None:
    """UserError, with its name, for a value that is no integer."""
    for name, value in values.items():
        if not isinstance(value, Integral):
            raise UserError(f"{name} is {value!r}, but it should be an integer")


def check_request(n: int, replicas: int, updates: int) -> None:
    """UserError, with the limit, if a request for n spins cannot have these replicas or updates."""
    require_integers(replicas=replicas, steps=updates)
    if not 1 <= n <= MAX_PAIRS:
        raise UserError(f"n is {n}, but the service solves 1 to {MAX_PAIRS} spins")
    if not 1 <= replicas <= max_replicas(n):
        raise UserError(
            f"replicas is {replicas}, but for n = {n} it should be an integer from 1 to {max_replicas(n)},"
            f" since replicas x {padded(n)} must not exceed {MAX_PAIRS}"
        )
    if not 1 <= updates <= MAX_UPDATES:
        raise UserError(f"steps is {updates}, but it should be an integer from 1 to {MAX_UPDATES}")
