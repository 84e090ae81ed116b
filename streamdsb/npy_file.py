"""Reading .npy files of users: one place for all that may be wrong with them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdsb.errors import UserError

_MAGIC = (b"\x93NUMPY", b"PK\x03\x04")
"""What a .npy and a .npz begin with."""


def load_npy(path: Path, key: str = "") -> NDArray[Any]:
    """The array of a .npy, mapped and not loaded; raises UserError, beginning with `key`, if not."""
    where = f"{key} {path}".lstrip()
    try:
        with path.open("rb") as file:
            begins = file.read(6)
        if not begins.startswith(_MAGIC):
            raise UserError(f"{where}: not a .npy file, such as numpy.save writes")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{where} does not exist") from None
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, OverflowError, zipfile.BadZipFile) as error:
        raise UserError(f"{where}: cannot be read as .npy: {error}") from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{where}: holds several arrays, but one .npy is needed")
    return array
