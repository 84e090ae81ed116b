"""Published in-kernel solve times of this kind of service, to stand beside measured ones.

Median over 500 requests on an RTX PRO 6000 Blackwell Workstation Edition (188 SMs), from the table "One
request on the server GPU, no network" of the paper on dsb-gpunetio (https://github.com/yaochengchen/dsb-gpunetio).
"""

from __future__ import annotations

from streamdsb.service.models import Format

_UPDATES = (50, 100, 200, 400)

_MICROSECONDS = {
    (Format.PM1, 64, 1): (31.3, 58.6, 112.8, 221.1),
    (Format.PM1, 64, 8): (41.7, 77.7, 149.6, 293.2),
    (Format.PM1, 64, 32): (89.9, 168.7, 326.5, 641.5),
    (Format.PM1, 128, 1): (32.2, 59.8, 114.9, 225.1),
    (Format.PM1, 128, 8): (57.9, 108.1, 208.7, 409.7),
    (Format.PM1, 128, 32): (166.6, 313.3, 606.1, 1192.5),
    (Format.PM1, 192, 1): (34.9, 64.7, 124.3, 243.4),
    (Format.PM1, 192, 8): (81.2, 152.9, 296.2, 582.6),
    (Format.PM1, 256, 1): (35.4, 65.2, 124.9, 244.4),
    (Format.PM1, 256, 8): (100.8, 190.3, 369.1, 726.7),
    (Format.PM1, 512, 1): (50.9, 93.4, 178.1, 347.8),
    (Format.PM1, 512, 8): (224.4, 428.7, 837.2, 1654.7),
    (Format.TERNARY, 64, 1): (35.5, 62.8, 117.7, 227.2),
    (Format.TERNARY, 64, 8): (47.3, 84.0, 157.5, 304.4),
    (Format.TERNARY, 64, 32): (103.0, 188.3, 358.9, 699.5),
    (Format.TERNARY, 128, 1): (36.4, 64.6, 120.9, 233.5),
    (Format.TERNARY, 128, 8): (67.0, 120.3, 227.1, 440.3),
    (Format.TERNARY, 128, 32): (197.9, 370.4, 713.8, 1408.1),
    (Format.TERNARY, 192, 1): (39.8, 70.6, 132.0, 254.1),
    (Format.TERNARY, 192, 8): (99.6, 183.8, 352.2, 689.2),
    (Format.TERNARY, 256, 1): (41.1, 72.6, 135.5, 261.5),
    (Format.TERNARY, 256, 8): (121.9, 227.0, 437.1, 857.4),
    (Format.INT8, 64, 1): (34.5, 60.9, 113.5, 218.8),
    (Format.INT8, 64, 8): (48.5, 87.1, 164.4, 318.9),
    (Format.INT8, 64, 32): (111.3, 206.8, 398.0, 780.3),
    (Format.INT8, 128, 1): (38.1, 66.5, 123.4, 237.2),
    (Format.INT8, 128, 8): (82.5, 151.7, 290.1, 566.9),
    (Format.INT8, 128, 32): (254.3, 487.1, 953.2, 1885.1),
    (Format.INT8, 192, 1): (44.9, 78.8, 146.7, 282.3),
    (Format.INT8, 192, 8): (131.1, 246.2, 476.4, 936.9),
}


def microseconds(format: Format, n: int, replicas: int, updates: int) -> float | None:  # noqa: A002
    """The published time, us; None where there is none."""
    times = _MICROSECONDS.get((format, n, replicas))
    return None if times is None or updates not in _UPDATES else times[_UPDATES.index(updates)]
