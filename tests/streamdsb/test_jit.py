"""Kernels are compiled once a machine, and only that is announced."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numpy as np
from streamdsb.jit import compile_kernels, kernel

@kernel("int64(int64)")
def double(x):
    return 2 * x

@kernel("int64(int64)")
def triple(x):
    return 3 * x

for _ in range(2):
    compile_kernels(double, triple, announce=lambda: print("compiling"))
print(double(3) + triple(1))
"""


def test_what_lies_in_the_cache_is_not_announced(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, tmp_path / "program.py"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert said == ["compiling\n9\n", "9\n"]
