"""Kernel sources compile for every architecture that is promised, without a GPU."""

import importlib.util

import pytest

from streamdsb import cuda
from streamdsb.errors import RunFailed

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None, reason="NVRTC (nvidia-cuda-nvrtc) is not installed"
)
VARIANTS = {
    "accumulate.cu": [{"REPLICAS": 8, "PATH": "mma"}, {"REPLICAS": 33, "PATH": "popc"}],
    "receive.cu": [{"REPLICAS": 1, "PATH": "popc"}, {"REPLICAS": 8}, {"REPLICAS": 64, "PATH": "mma"}],
    "generate.cu": [{"SOURCE": source} for source in ("random", "mattis")],
    "service.cu": [{"MODEL_BYTES": 1_056_768}],
    "store.cu": [{}],
    "synthesize.cu": [{"SOURCE": source} for source in ("random", "mattis")],
    "update.cu": [{}],
}


def test_every_kernel_source_has_variants_here() -> None:
    assert sorted(VARIANTS) == cuda.kernel_names()


@needs_nvrtc
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(("name", "defines"), [(k, d) for k, variants in VARIANTS.items() for d in variants])
def test_kernels_compile(name: str, defines: dict[str, object], architecture: int) -> None:
    assert cuda.compile_only(name, architecture, defines).startswith(b"\x7fELF")


@needs_nvrtc
def test_popc_path_compiles_before_binary_tensor_cores() -> None:
    assert cuda.compile_only("receive.cu", 75, {"REPLICAS": 8, "PATH": "popc"}).startswith(b"\x7fELF")


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
