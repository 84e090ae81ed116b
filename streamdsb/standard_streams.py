"""Standard input, output and error where the one that started this process had closed them."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Hold descriptors 0 to 2, so that nothing else gets them and is lost where a child replaces its own."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
