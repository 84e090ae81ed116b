"""Kernel sources compile for every architecture that is promised, without a GPU."""

import importlib.util

import pytest

from generator import synthesize_cuda
from receiver import accumulate_cuda
from streamdsb import cuda
from streamdsb.errors import RunFailed
from streamdsb.queues.faulty import FAULTY_QUEUE

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None, reason="NVRTC (nvidia-cuda-nvrtc) is not installed"
)
FAULTY = {"QUEUE": "FaultyQueue"}
VARIANTS = {
    "accumulate.cu": [{"REPLICAS": 8, "PATH": "mma"}, {"REPLICAS": 33, "PATH": "popc"}],
    "receive.cu": [{"REPLICAS": 8, "PATH": "mma"}, {"REPLICAS": 1, "PATH": "popc"}, {"REPLICAS": 64}, FAULTY],
    "generate.cu": [{"SOURCE": "random"}, {"SOURCE": "mattis"}, FAULTY],
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
    + [(name, FAULTY, other) for name in ("receive.cu", "generate.cu") for other in (80, 100)],
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
def test_sizes_are_right_for_a_lossy_kind_too() -> None:
    for name, twin in (("receive.cu", accumulate_cuda), ("generate.cu", synthesize_cuda)):
        job = twin.job_of(FAULTY_QUEUE).itemsize
        cuda.compile_only(
            name, 90, FAULTY | SIZES | {"JOB_BYTES": job, "CONTROL_BYTES": twin.CONTROL.itemsize}
        )


@needs_nvrtc
def test_error_of_the_compiler_is_shown() -> None:
    with pytest.raises(
        RunFailed, match=r"accumulate\.cu does not compile for sm_90:(.|\n)*accumulate_nothing"
    ):
        cuda.compile_only("accumulate.cu", 90, {"PATH": "nothing"})


def test_source_has_every_header_once() -> None:
    text = cuda.source("receive.cu")
    assert "#include" not in text
    assert text.count("struct Header {") == 1
