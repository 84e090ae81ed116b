"""What transport gpunetio needs of a machine: each prerequisite, whether it is there, and how to get it.

Everything is read from /sys and /proc below a root folder, so that recorded machines can be examined too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

from streamdsb.doctor import Finding, Missing, Probe, find_doca, gibibytes
from streamdsb.gpunetio import library

MODELS = {
    "0x1013": "ConnectX-4",
    "0x1015": "ConnectX-4 Lx",
    "0x1017": "ConnectX-5",
    "0x1019": "ConnectX-5 Ex",
    "0x101b": "ConnectX-6",
    "0x101d": "ConnectX-6 Dx",
    "0x101f": "ConnectX-6 Lx",
    "0x1021": "ConnectX-7",
    "0x1023": "ConnectX-8",
    "0xa2d6": "BlueField-2",
    "0xa2dc": "BlueField-3",
}
"""PCI device numbers of Mellanox and NVIDIA network cards."""
CAPABLE = ("ConnectX-6 Dx", "ConnectX-7", "ConnectX-8", "BlueField-2", "BlueField-3")

LEAST_MTU = 4082
"""A frame of 4096 bytes less the Ethernet header of 14."""
LEAST_BAR1 = 1 << 30
_CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13}
_CLOSE = ("PIX", "PXB")


@dataclass(frozen=True)
class Machine:
    """A machine by its /sys and /proc below `root`; nic, gpu: PCI addresses, or None for the closest pair."""

    root: Path = Path("/")
    nic: str | None = None
    gpu: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def text(self, path: Path | str) -> str:
        """A file's content, stripped; "" if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def _devices(self, vendor: str, classes: tuple[str, ...], wanted: str | None) -> list[Path]:
        folders = sorted((self.root / "sys/bus/pci/devices").glob("*"))
        found = [
            folder
            for folder in folders
            if self.text(folder / "vendor") == vendor and self.text(folder / "class").startswith(classes)
        ]
        if wanted is None:
            return found
        full = wanted if wanted.count(":") == 2 else f"0000:{wanted}"
        return [folder for folder in found if folder.name == full.lower()]

    @property
    def nics(self) -> list[Path]:
        """Ethernet ports of Mellanox and NVIDIA cards, or the one that is meant."""
        return self._devices("0x15b3", ("0x0200",), self.nic)

    @property
    def gpus(self) -> list[Path]:
        """NVIDIA GPUs, or the one that is meant."""
        return self._devices("0x10de", ("0x0300", "0x0302"), self.gpu)

    def pair(self) -> tuple[Path, Path]:
        """The network card and the GPU that are closest to each other; Missing if there is none of either."""
        pairs = list(product(self.nics, self.gpus))
        if not self.nics:
            raise Missing("no network card to look at")
        if not pairs:
            raise Missing("no GPU to look at")
        return min(pairs, key=lambda pair: _DISTANCES.index(distance(*pair)))

    def the_nic(self) -> Path:
        """The card of the closest pair, or the first where there is no GPU."""
        return self.pair()[0] if self.gpus else _first(self.nics, "no network card to look at")

    def the_gpu(self) -> Path:
        """The GPU of the closest pair, or the first where there is no card."""
        return self.pair()[1] if self.nics else _first(self.gpus, "no GPU to look at")

    def interface(self) -> Path:
        """The folder of the card's network interface."""
        nic = self.the_nic()
        return _first(sorted((nic / "net").glob("*")), f"{nic.name} has no network interface")


def _first(folders: list[Path], otherwise: str) -> Path:
    if not folders:
        raise Missing(otherwise)
    return folders[0]


# --- the path between two PCI devices ---------------------------------------------------------------

_DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""As nvidia-smi topo names them, the closest first."""


def distance(one: Path, other: Path) -> str:
    """What a transfer between two PCI devices crosses, in nvidia-smi's words.

    PIX: one bridge at most; PXB: several bridges; PHB: the host bridge; NODE: bridges inside a NUMA node;
    SYS: the link between sockets.
    """
    paths = [folder.resolve().parts for folder in (one, other)]
    starts = [next(k for k, part in enumerate(path) if part.startswith("pci")) for path in paths]
    (root_one, *ours), (root_other, *theirs) = (path[k:] for path, k in zip(paths, starts, strict=True))
    if root_one != root_other:
        nodes = [_numa_node(folder) for folder in (one, other)]
        return "NODE" if nodes[0] == nodes[1] != "" else "SYS"
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    if shared == 0:
        return "PHB"
    # a switch is a port above and one below it
    return "PIX" if max(len(ours), len(theirs)) - shared <= 2 else "PXB"


def _numa_node(folder: Path) -> str:
    try:
        node = (folder / "numa_node").read_text().strip()
    except OSError:
        return ""
    return "" if node.startswith("-") else node


# --- what is looked for -----------------------------------------------------------------------------


def find_nic(machine: Machine) -> str:
    nic = machine.the_nic()
    model = MODELS.get(machine.text(nic / "device"), f"unknown here: {machine.text(nic / 'device')}")
    if model not in CAPABLE:
        raise Missing(f"{nic.name} is {model}")
    link = f"PCIe {machine.text(nic / 'current_link_speed')} x{machine.text(nic / 'current_link_width')}"
    return f"{model} at {nic.name}, {link}"


def find_firmware(machine: Machine) -> str:
    nic = machine.the_nic()
    folder = _first(sorted((nic / "infiniband").glob("*")), f"{nic.name} has no RDMA device (mlx5_ib)")
    layer = machine.text(folder / "ports/1/link_layer")
    if layer != "Ethernet":
        raise Missing(f"{folder.name} has link layer {layer or 'unknown'}, not Ethernet")
    return f"{machine.text(folder / 'fw_ver') or 'of unknown version'} ({folder.name})"


def find_nic_driver(machine: Machine) -> str:
    if not (machine.root / "sys/module/mlx5_core").is_dir():
        raise Missing("mlx5_core is not loaded")
    if not (machine.root / "sys/module/mlx5_ib").is_dir():
        raise Missing("mlx5_ib is not loaded")
    return f"mlx5_core {machine.text('sys/module/mlx5_core/version') or 'of the kernel'}"


def find_doca_version(machine: Machine) -> str:
    header = machine.text("opt/mellanox/doca/include/doca_version.h")
    found = re.search(r'DOCA_VERSION_STRING\s+"([^"]+)"', header)
    if found:
        version = found[1]
    elif machine.root == Path("/"):
        version = find_doca().split()[1].rstrip(",")
    else:
        raise Missing("no doca_version.h")
    if tuple(map(int, version.split(".")[:2])) < (3, 3):
        raise Missing(f"{version}, 3.3 is the oldest that is supported")
    return version


def find_library(machine: Machine) -> str:
    if not library.LIBRARY.exists():
        raise Missing(f"{library.LIBRARY.name} is not built")
    return str(library.LIBRARY)


def find_nvcc(machine: Machine) -> str:
    path = shutil.which("nvcc", path=machine.environment.get("PATH"))
    if path is None:
        raise Missing("nvcc is not on PATH")
    return path


def _driver(machine: Machine) -> tuple[str, bool]:
    """The NVIDIA driver's version and whether its kernel modules are the open ones."""
    line = machine.text("proc/driver/nvidia/version").partition("\n")[0]
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", line)
    if not version:
        raise Missing("the NVIDIA driver is not loaded")
    return version[1], "Open Kernel Module" in line


def find_gpu_driver(machine: Machine) -> str:
    version, is_open = _driver(machine)
    return f"{version}, {'open' if is_open else 'closed'} kernel modules"


def find_gpu_memory_path(machine: Machine) -> str:
    release = machine.text("proc/sys/kernel/osrelease")
    kernel = tuple(map(int, re.findall(r"\d+", release)[:2]))
    is_open = _driver(machine)[1]
    if is_open and kernel >= (5, 12):
        return f"dmabuf (Linux {release})"
    if (machine.root / "sys/module/nvidia_peermem").is_dir():
        return "nvidia_peermem is loaded"
    why = f"Linux {release} is older than 5.12" if is_open else "closed kernel modules have no dmabuf"
    raise Missing(f"{why}, and nvidia_peermem is not loaded")


def find_bar1(machine: Machine) -> str:
    gpu = machine.the_gpu()
    sizes = []
    for line in machine.text(gpu / "resource").splitlines():
        start, end, _ = (int(word, 16) for word in line.split())
        sizes.append(end - start + 1 if end else 0)
    size = sizes[1] if len(sizes) > 1 else 0
    if size < LEAST_BAR1:
        raise Missing(f"{gibibytes(size)} on {gpu.name}")
    return f"{gibibytes(size)} on {gpu.name}"


def find_path(machine: Machine) -> str:
    nic, gpu = machine.pair()
    between = distance(nic, gpu)
    if between not in _CLOSE:
        raise Missing(f"{between} between {nic.name} and {gpu.name}")
    return f"{between} between {nic.name} and {gpu.name}"


def find_mtu(machine: Machine) -> str:
    interface = machine.interface()
    mtu = machine.text(interface / "mtu")
    if not mtu.isdecimal() or int(mtu) < LEAST_MTU:
        raise Missing(f"{mtu or 'unknown'} on {interface.name}, frames take {LEAST_MTU}")
    return f"{mtu} on {interface.name}"


def find_link(machine: Machine) -> str:
    interface = machine.interface()
    state = machine.text(interface / "operstate") or "unknown"
    if state != "up":
        raise Missing(f"{interface.name} is {state}")
    return f"{interface.name} is up, {int(machine.text(interface / 'speed') or 0) / 1000:g} Gb/s"


def find_permissions(machine: Machine) -> str:
    status = machine.text("proc/self/status")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    capabilities = int(found[1], 16) if found else 0
    lacking = [name for name, bit in _CAPABILITIES.items() if not capabilities >> bit & 1]
    if lacking:
        raise Missing(f"without CAP_{' and CAP_'.join(lacking)}")
    return "may steer frames and map the card"


def find_locked_memory(machine: Machine) -> str:
    found = re.search(r"^Max locked memory\s+(\S+)", machine.text("proc/self/limits"), re.MULTILINE)
    if found is None or found[1] != "unlimited":
        raise Missing(f"locked memory is limited to {found[1] if found else 'unknown'} bytes")
    return "unlimited"


def find_eager_loading(machine: Machine) -> str:
    mode = machine.environment.get("CUDA_MODULE_LOADING", "EAGER")
    if mode != "EAGER":
        raise Missing(f"CUDA_MODULE_LOADING is {mode}")
    return "CUDA_MODULE_LOADING is EAGER, or unset and then set by streamdsb"


# --- all of it --------------------------------------------------------------------------------------

NEEDED_FOR = "stream.transport=gpunetio"

_CHECKS: tuple[tuple[str, Callable[[Machine], str], str], ...] = (
    (
        "Network card",
        find_nic,
        f"a {', '.join(CAPABLE[:-1])} or {CAPABLE[-1]} in this machine; see lspci -d 15b3:",
    ),
    ("Firmware", find_firmware, "sudo modprobe mlx5_ib; sudo mlxconfig -d NIC set LINK_TYPE_P1=2"),
    ("Card's driver", find_nic_driver, "sudo modprobe mlx5_core mlx5_ib, or install doca-ofed"),
    ("DOCA", find_doca_version, "DOCA 3.3 from https://developer.nvidia.com/doca-downloads: doca-all"),
    ("Host library", find_library, library.BUILD),
    ("nvcc", find_nvcc, "the CUDA toolkit, its bin folder on PATH"),
    ("GPU's driver", find_gpu_driver, "NVIDIA's driver with open kernel modules: apt install nvidia-open"),
    (
        "Way to GPU memory",
        find_gpu_memory_path,
        "open kernel modules on Linux 5.12 or newer, or sudo modprobe nvidia-peermem",
    ),
    ("BAR1", find_bar1, "at least 1 GiB: resizable BAR in the firmware, or displaymodeselector"),
    ("PCIe path", find_path, "card and GPU below one PCIe switch: nvidia-smi topo -m shows PIX or PXB"),
    ("MTU", find_mtu, f"sudo ip link set INTERFACE mtu {LEAST_MTU}, and as much on every switch between"),
    ("Link", find_link, "sudo ip link set INTERFACE up, and a cable to the other host"),
    ("Permissions", find_permissions, "run as root: sudo -E streamdsb ..."),
    ("Locked memory", find_locked_memory, "ulimit -l unlimited"),
    ("Module loading", find_eager_loading, "export CUDA_MODULE_LOADING=EAGER"),
)


def examine(machine: Machine | None = None) -> list[Finding]:
    """Look for every prerequisite of transport gpunetio, in the order in which to mend what is missing."""
    where = Machine() if machine is None else machine
    return [Probe(name, partial(look, where), NEEDED_FOR, remedy).finding() for name, look, remedy in _CHECKS]


def report(findings: list[Finding]) -> str:
    """A line for each, and below what is missing the way to get it."""
    width = max(len(f.name) for f in findings)
    lines = []
    for finding in findings:
        lines.append(f"{'ok' if finding.found else '--'}  {finding.name:<{width}}  {finding.text}")
        if not finding.found:
            lines.append(f"    {'':<{width}}  > {finding.remedy}")
    missing = sum(not finding.found for finding in findings)
    verdict = f"{missing} of {len(findings)} are missing" if missing else "Nothing is missing"
    return "\n".join([*lines, "", f"{verdict} for {NEEDED_FOR}."])
