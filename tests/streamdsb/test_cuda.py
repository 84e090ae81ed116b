"""Kernel sources compile for every architecture that is promised, without a GPU."""

import importlib.util

import numpy as np
import pytest

from generator import synthesize_cuda
from receiver import accumulate_cuda
from streamdsb import cuda
from streamdsb.errors import RunFailed
from streamdsb.gpunetio import software
from streamdsb.gpunetio.queue import GPUNETIO_QUEUE
from streamdsb.queues.faulty import FAULTY_QUEUE

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None, reason="NVRTC (nvidia-cuda-nvrtc) is not installed"
)
FAULTY = {"QUEUE": "FaultyQueue"}
SOFTWARE_CARD = cuda.queue_kind("SoftwareQueue")
VARIANTS = {
    "accumulate.cu": [{"REPLICAS": 8, "PATH": "mma"}, {"REPLICAS": 33, "PATH": "popc"}],
    "receive.cu": [{"REPLICAS": 8, "PATH": "mma"}, {"REPLICAS": 1, "PATH": "popc"}, {"REPLICAS": 64}],
    "generate.cu": [{"SOURCE": source} for source in ("random", "mattis")],
    "gpunetio_wire.cu": [{}],
    "service.cu": [{"MODEL_BYTES": 1_056_768}],
    "store.cu": [{}],
    "synthesize.cu": [{"SOURCE": source} for source in ("random", "mattis")],
    "update.cu": [{}],
}

SIZES = {"UNIT_BYTES": accumulate_cuda.UNIT_BYTES, "REPAIR_BYTES": synthesize_cuda.REPAIR.itemsize}


def test_every_kernel_source_has_variants_here() -> None:
    assert sorted(VARIANTS) == cuda.kernel_names()


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "defines", "architecture"),
    [(name, defines, 90) for name, variants in VARIANTS.items() for defines in variants]
    + [(name, variants[0], other) for name, variants in VARIANTS.items() for other in (80, 100)]
    + [
        (name, kind, architecture)
        for kind in (FAULTY, SOFTWARE_CARD)
        for name in ("receive.cu", "generate.cu")
        for architecture in (80, 90, 100)
    ],
)
def test_kernels_compile(name: str, defines: dict[str, object], architecture: int) -> None:
    assert cuda.compile_only(name, architecture, defines).startswith(b"\x7fELF")


@needs_nvrtc
def test_popc_path_compiles_before_binary_tensor_cores() -> None:
    assert cuda.compile_only("receive.cu", 75, {"REPLICAS": 8, "PATH": "popc"}).startswith(b"\x7fELF")


@needs_nvrtc
@pytest.mark.parametrize("extra", [0, 8])
def test_sizes_of_structures_are_what_the_host_takes_them_for(extra: int) -> None:
    for name, twin in (("receive.cu", accumulate_cuda), ("generate.cu", synthesize_cuda)):
        sizes = SIZES | {"JOB_BYTES": twin.JOB.itemsize + extra, "CONTROL_BYTES": twin.CONTROL.itemsize}
        if extra:
            with pytest.raises(RunFailed, match="struct Job is not what the host fills"):
                cuda.compile_only(name, 90, sizes)
        else:
            cuda.compile_only(name, 90, sizes)


@needs_nvrtc
@pytest.mark.parametrize(("kind", "queue"), [(FAULTY, FAULTY_QUEUE), (SOFTWARE_CARD, GPUNETIO_QUEUE)])
def test_sizes_are_right_for_lossy_kinds_too(kind: dict[str, object], queue: np.dtype) -> None:
    for name, twin in (("receive.cu", accumulate_cuda), ("generate.cu", synthesize_cuda)):
        sizes = {"JOB_BYTES": twin.job_of(queue).itemsize, "CONTROL_BYTES": twin.CONTROL.itemsize}
        cuda.compile_only(name, 90, kind | SIZES | sizes)


@needs_nvrtc
def test_size_of_the_software_cards_job() -> None:
    cuda.compile_only("gpunetio_wire.cu", 90, {"JOB_BYTES": software.JOB.itemsize})


@needs_nvrtc
def test_error_of_the_compiler_is_shown() -> None:
    with pytest.raises(
        RunFailed, match=r"accumulate\.cu does not compile for sm_90:(.|\n)*accumulate_nothing"
    ):
        cuda.compile_only("accumulate.cu", 90, {"PATH": "nothing"})


def test_source_has_every_header_once() -> None:
    text = cuda.source("receive.cu")
    assert '#include "' not in text  # what DOCA has is included only where it is used
    assert text.count("struct Header {") == 1
