"""Where the figures of a measurement come from."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streamdsb.machine import describe_machine


def provenance(program: str, output: Path | None) -> dict[str, Any]:
    """Command, machine and versions, for JSON; the command names `output` without its folder."""
    words = [output.name if output is not None and word == str(output) else word for word in sys.argv[1:]]
    return {
        "command": " ".join([program, *words]),
        "machine": describe_machine(),
        "versions": {name: version(name) for name in ("streamdsb", "numpy", "numba", "llvmlite")},
    }
