"""Compiles both halves of transport gpunetio against a folder of DOCA's real headers, without DOCA or a card.

    python -m streamdsb.gpunetio.check_headers --doca /opt/mellanox/doca/include

The host part is compiled by g++ (nothing is linked), the receive and generate kernels by nvcc. Where the
headers of rdma-core are not installed, --rdma names a folder with infiniband/mlx5dv.h.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from streamdsb import cuda
from streamdsb.gpunetio.library import FOLDER

KERNELS = {
    "receive.cu": ("-DSTREAMDSB_REPLICAS=8", "-DSTREAMDSB_PATH=mma"),
    "generate.cu": (),
}
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def compile_host(doca: Path, rdma: Path | None) -> None:
    """Compile the host part; CalledProcessError with the compiler's words if it fails."""
    folders = [f"DOCA_INCLUDE={doca.absolute()}", f"RDMA_INCLUDE={rdma.absolute() if rdma else ''}"]
    subprocess.run(["make", "--silent", "-C", FOLDER, "check", *folders], check=True)


def compile_kernel(name: str, architecture: int, doca: Path, rdma: Path | None) -> int:
    """Compile a kernel for compute capability `architecture`; the size of its machine code, bytes."""
    folders: Sequence[Path] = [doca] if rdma is None else [doca, rdma]
    with tempfile.TemporaryDirectory() as scratch:
        source, binary = Path(scratch, name), Path(scratch, "kernel.cubin")
        source.write_text(cuda.source(name))
        options = [
            *cuda.OPTIONS,
            *(f"-DSTREAMDSB_{key}={value}" for key, value in cuda.queue_kind("GpunetioQueue").items()),
            "-DDOCA_ALLOW_EXPERIMENTAL_API",
            *KERNELS[name],
            *(f"-I{folder}" for folder in folders),
        ]
        subprocess.run(
            ["nvcc", "-cubin", f"-arch=sm_{architecture}", *options, "-o", binary, source], check=True
        )
        return binary.stat().st_size


def doca_version(doca: Path) -> str:
    """As the headers tell it."""
    found = re.search(r'DOCA_VERSION_STRING "([^"]+)"', (doca / "doca_version.h").read_text())
    return found[1] if found else "unknown"


@click.command()
@click.option(
    "--doca", required=True, type=click.Path(exists=True, path_type=Path), help="Folder of doca_*.h."
)
@click.option("--rdma", type=click.Path(exists=True, path_type=Path), help="Folder of infiniband/mlx5dv.h.")
@click.option("--arch", multiple=True, type=int, default=(80, 90, 100), show_default=True)
def main(doca: Path, rdma: Path | None, arch: tuple[int, ...]) -> None:
    """Compile both halves of transport gpunetio against DOCA's headers."""
    click.echo(f"DOCA {doca_version(doca)} in {doca}")
    try:
        compile_host(doca, rdma)
        click.echo("host part: compiles")
        for name in KERNELS:
            for architecture in arch:
                size = compile_kernel(name, architecture, doca, rdma)
                click.echo(f"{name} for sm_{architecture}: compiles, {size} bytes")
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"{error.cmd[0]} failed, see above") from None


if __name__ == "__main__":
    main()
