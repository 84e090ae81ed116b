"""What this machine has, what it lacks, which feature would need it, and the command that gets it.

Nothing optional is imported here: libraries and drivers are asked in processes of their own, which may crash
or hang without harm.
"""

import contextlib
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from streamdsb import machine

PATIENCE = 20.0  # seconds for one question to another program


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for; `needed_for` and `remedy` say something only where it was not found."""

    name: str
    text: str
    found: bool = True
    needed_for: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Probe:
    """How to look for a thing: `look` describes what it finds, or raises Missing with the reason."""

    name: str
    look: Callable[[], str]
    needed_for: str = "every run"
    remedy: str = ""

    def finding(self) -> Finding:
        """Look; whatever goes wrong becomes the finding, so that the other probes have their say too."""
        try:
            return Finding(self.name, self.look())
        except Missing as reason:
            text = str(reason)
        except Exception as error:
            text = f"could not be examined: {type(error).__name__}: {error}"
        return Finding(self.name, text, False, self.needed_for, self.remedy)


class Missing(Exception):
    """The thing a probe looked for is not here; the text says how that showed."""


def examine() -> list[Finding]:
    """Look for everything at once: about a second, and at most twice PATIENCE where programs hang."""
    with ThreadPoolExecutor(len(PROBES)) as pool:
        return list(pool.map(Probe.finding, PROBES))


def report(findings: list[Finding]) -> str:
    """The findings as a table, then each feature that lacks something, what it lacks, and how to get that."""
    width = max(len(f.name) for f in findings)
    lines = [f"{'ok' if f.found else '--'}  {f.name:<{width}}  {f.text}" for f in findings]
    missing = [f for f in findings if not f.found]
    lines += ["", "Not here, but needed for" if missing else "Nothing is missing."]
    for feature in dict.fromkeys(f.needed_for for f in missing):
        lacking = [f for f in missing if f.needed_for == feature]
        lines.append(f"    {feature}: {', '.join(f.name for f in lacking)}")
        lines += [f"        {remedy}" for remedy in dict.fromkeys(f.remedy for f in lacking) if remedy]
    return "\n".join(lines)


# --- asking other programs ------------------------------------------------------------------------


def answer(*command: str, what: str = "", env: dict[str, str] | None = None) -> str:
    """What a command prints. Missing if it is not there, fails, or takes longer than PATIENCE.

    A process that is stuck in a driver cannot be killed, so it is told to end and not waited for; its output
    goes to files, since a pipe could be held open by a grandchild.
    """
    what = what or command[0]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaint:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaint,
                env=env,
                start_new_session=True,
            )
            status = process.wait(PATIENCE)
        except FileNotFoundError:
            raise Missing(f"{what} is not installed") from None
        except OSError as error:
            raise Missing(f"{what} cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise Missing(f"{what} gave no answer in {PATIENCE:g} s") from None
        said = _contents(output)
        if status == 0:
            return said
        last_words = (_contents(complaint) or said or f"ended with status {status}").splitlines()[-1]
    raise Missing(f"{what}: {last_words if status > 0 else f'ended by signal {-status}'}")


def _contents(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def python_answer(module: str, program: str) -> str:
    """What a program that imports `module` prints, run by this Python with the same packages."""
    if importlib.util.find_spec(module) is None:
        raise Missing("not installed")
    return answer(sys.executable, "-P", "-c", program, what=f"import {module}")


# --- the machine ----------------------------------------------------------------------------------


def find_streamdsb() -> str:
    try:
        return importlib.metadata.version("streamdsb")
    except importlib.metadata.PackageNotFoundError:
        raise Missing("not installed, only present in this folder") from None


def find_python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"


def find_cores() -> str:
    return f"{machine.usable_cores()} usable of {os.cpu_count()}, {machine.cpu_model()}"


def find_simd() -> str:
    return describe_simd(machine.cpu_flags())


SIMD_NAMES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vpopcntdq": "VPOPCNTDQ",
    "neon": "NEON",
    "asimd": "NEON",
    "sve": "SVE",
}


def describe_simd(flags: set[str]) -> str:
    """The vector extensions that matter here, of all the kernel's CPU flags."""
    names = dict.fromkeys(name for flag, name in SIMD_NAMES.items() if flag in flags)
    if not names:
        raise Missing("no vector extension that is known here")
    return ", ".join(names)


def find_memory() -> str:
    rooms = [machine.memory_room(folder) for folder in machine.own_cgroups("memory")]
    limited = any(room is not None and room < machine.total_memory() for room in rooms)
    sizes = f"{gibibytes(machine.available_memory())} available of {gibibytes(machine.total_memory())}"
    return sizes + ", limited by a cgroup" * limited


def find_shared_memory() -> str:
    if not hasattr(os, "memfd_create"):
        raise Missing(f"{platform.system()} has no memfd")
    descriptor = os.memfd_create("streamdsb-doctor")
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
            page[0] = 1
    finally:
        os.close(descriptor)
    folder = Path("/dev/shm")
    free = f", /dev/shm has {gibibytes(shutil.disk_usage(folder).free)} free" if folder.is_dir() else ""
    return "memfd works" + free


def gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


# --- libraries ------------------------------------------------------------------------------------


def find_numba() -> str:
    return python_answer(
        "numba",
        "import numba, llvmlite.binding as llvm\n"
        "print(f'{numba.__version__}, compiles for {numba.config.CPU_NAME or llvm.get_host_cpu_name()}')",
    )


def find_matplotlib() -> str:
    return python_answer("matplotlib", "import matplotlib; print(matplotlib.__version__)")


def find_cupy() -> str:
    return python_answer(
        "cupy",
        "import cupy\n"
        "try:\n"
        "    seen = f'visible devices: {cupy.cuda.runtime.getDeviceCount()}'\n"
        "except Exception as error:\n"
        "    seen = f'but it sees no device: {error}'\n"
        "print(f'{cupy.__version__}, {seen}')",
    )


def find_mpi4py() -> str:
    return python_answer(
        "mpi4py",
        "import mpi4py\n"
        "mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI\n"
        "line = MPI.Get_library_version().rstrip('\\0').split(',')[0].splitlines()[0]\n"
        "print(f'{mpi4py.__version__} on {\" \".join(line.split())}')",
    )


def find_mpiexec() -> str:
    return describe_mpiexec(answer("mpiexec", "--version"))


def describe_mpiexec(text: str) -> str:
    """The line that holds the version: the first with a digit, whatever words an MPI puts around it."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return next((line for line in lines if any(map(str.isdigit, line))), "of unknown version")


def find_doca() -> str:
    folders = [
        os.environ.get("PKG_CONFIG_PATH", ""),
        *map(str, Path("/opt/mellanox").glob("*/lib/*/pkgconfig")),
    ]
    env = os.environ | {"PKG_CONFIG_PATH": ":".join(filter(None, folders))}
    try:
        versions = answer("pkg-config", "--modversion", "doca-gpunetio", "doca-eth", env=env).splitlines()
    except Missing:
        known = shutil.which("pkg-config") is not None
        raise Missing("no doca-gpunetio and doca-eth" if known else "pkg-config is not installed") from None
    return f"doca-gpunetio {versions[0]}, doca-eth {versions[-1]}"


# --- GPUs -----------------------------------------------------------------------------------------


def find_gpus() -> str:
    fields = "name,memory.total,compute_cap,driver_version"
    try:
        rows = answer("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
    except Missing as reason:
        try:
            rows = cuda_driver_answer().splitlines()[1:]
        except Missing:
            raise reason from None
    return describe_gpus(rows)


def describe_gpus(rows: list[str]) -> str:
    """GPUs from comma-separated rows: name, memory, compute capability and, where known, driver version."""
    gpus: Counter[str] = Counter()
    for row in filter(str.strip, rows):
        name, memory, capability, *driver = (field.strip() for field in row.split(","))
        gpus[", ".join([name, memory, f"compute {capability}", *(f"driver {d}" for d in driver)])] += 1
    if not gpus:
        raise Missing("none")
    return "; ".join(f"{count} x {gpu}" for gpu, count in gpus.items())


def find_cuda_driver() -> str:
    version, *devices = cuda_driver_answer().splitlines()
    return f"CUDA {version}, visible devices: {len(devices)}"


def cuda_driver_answer() -> str:
    """The driver's CUDA version, then a row for each device that CUDA_VISIBLE_DEVICES leaves."""
    return answer(sys.executable, "-P", "-c", CUDA_DRIVER_PROGRAM, what="libcuda")


CUDA_DRIVER_PROGRAM = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("not installed")
if status := cuda.cuInit(0):
    sys.exit(f"cuInit gives error {status}")
number, minor, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
name = ctypes.create_string_buffer(256)
cuda.cuDriverGetVersion(ctypes.byref(number))
print(f"{number.value // 1000}.{number.value % 1000 // 10}")
cuda.cuDeviceGetCount(ctypes.byref(number))
for device in range(number.value):
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(number), 75, device)  # compute capability, major
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    print(f"{name.value.decode()}, {size.value >> 20} MiB, {number.value}.{minor.value}")
"""


# --- all of it ------------------------------------------------------------------------------------

CUDA = "generator.backend=cuda and receiver.backend=cuda"
MPI = "several receivers over MPI"
NVIDIA_DRIVER = "a machine with an NVIDIA GPU, and its driver from https://www.nvidia.com/drivers"
DOCA_PACKAGES = (
    "sudo apt install pkg-config libdoca-sdk-gpunetio-dev libdoca-sdk-eth-dev libdoca-sdk-flow-dev, "
    "with the repository of https://developer.nvidia.com/doca-downloads"
)

PROBES = (
    Probe("streamdsb", find_streamdsb, remedy="pip install ."),
    Probe("Python", find_python),
    Probe("System", platform.platform),
    Probe("Cores", find_cores),
    Probe("SIMD", find_simd, "speed on the CPU", "a processor with AVX2, AVX-512 or NEON"),
    Probe("Memory", find_memory),
    Probe("Shared memory", find_shared_memory, "stream.transport=shm", "set stream.transport=tcp instead"),
    Probe("numba", find_numba, remedy="pip install --force-reinstall numba"),
    Probe("matplotlib", find_matplotlib, "streamdsb report", "pip install 'streamdsb[plot]'"),
    Probe("GPUs", find_gpus, CUDA, NVIDIA_DRIVER),
    Probe("CUDA driver", find_cuda_driver, CUDA, NVIDIA_DRIVER),
    Probe("CuPy", find_cupy, CUDA, "pip install 'streamdsb[cuda]'"),
    Probe("mpi4py", find_mpi4py, MPI, "pip install 'streamdsb[mpi]'"),
    Probe("mpiexec", find_mpiexec, MPI, "pip install mpich, or this cluster's own MPI (module load ...)"),
    Probe("DOCA", find_doca, "stream.transport=gpunetio", DOCA_PACKAGES),
)
