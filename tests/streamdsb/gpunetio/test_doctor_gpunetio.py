"""Each prerequisite of transport gpunetio, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from streamdsb import cli
from streamdsb import doctor_gpunetio as doctor
from streamdsb.doctor import Missing
from streamdsb.doctor_gpunetio import Machine
from streamdsb.gpunetio import library

NIC, GPU = "0000:03:00.0", "0000:04:00.0"
SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
FILES = {
    "sys/module/mlx5_core/version": "25.10-1.2.8",
    "sys/module/mlx5_ib/refcnt": "1",
    "opt/mellanox/doca/include/doca_version.h": '#define DOCA_VERSION_STRING "3.3.0109"',
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "proc/sys/kernel/osrelease": "6.8.0-60-generic",
    "proc/self/status": "Name:\tpython\nCapEff:\t000001ffffffffff\n",
    "proc/self/limits": "Limit  Soft Limit  Hard Limit\nMax locked memory  unlimited  unlimited  bytes",
}
NIC_FILES = {
    "vendor": "0x15b3",
    "class": "0x020000",
    "device": "0x1021",
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "numa_node": "0",
    "net/ens3np0/mtu": "9000",
    "net/ens3np0/operstate": "up",
    "net/ens3np0/speed": "400000",
    "infiniband/mlx5_0/fw_ver": "28.43.1014",
    "infiniband/mlx5_0/ports/1/link_layer": "Ethernet",
}
GPU_FILES = {
    "vendor": "0x10de",
    "class": "0x030200",
    "numa_node": "0",
    "resource": "\n".join(
        [
            "0x00000000b2000000 0x00000000b2ffffff 0x0000000000040200",
            "0x0000050000000000 0x0000053fffffffff 0x000000000014220c",
            "0x0000000000000000 0x0000000000000000 0x0000000000000000",
        ]
    ),
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def add_device(root: Path, place: str, files: dict[str, str]) -> Path:
    """A PCI device at `place` below sys/devices, with its link in sys/bus/pci/devices."""
    folder = root / "sys/devices" / place
    write(folder, files)
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / folder.name).symlink_to(folder)
    return links / folder.name


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is missing."""
    write(tmp_path, FILES)
    add_device(tmp_path, f"{SWITCH}/0000:02:00.0/{NIC}", NIC_FILES)
    add_device(tmp_path, f"{SWITCH}/0000:02:01.0/{GPU}", GPU_FILES)
    write(tmp_path, {"bin/nvcc": "#!/bin/sh", "libstreamdsb_gpunetio.so": ""})
    (tmp_path / "bin/nvcc").chmod(0o755)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libstreamdsb_gpunetio.so")
    return tmp_path


def machine(root: Path, **addresses: str) -> Machine:
    return Machine(root, environment={"PATH": str(root / "bin")}, **addresses)


def test_a_machine_that_has_everything(root: Path) -> None:
    findings = {f.name: f for f in doctor.examine(machine(root))}
    assert all(f.found for f in findings.values()), doctor.report(list(findings.values()))
    assert findings["Network card"].text == f"ConnectX-7 at {NIC}, PCIe 32.0 GT/s PCIe x16"
    assert findings["Firmware"].text == "28.43.1014 (mlx5_0)"
    assert findings["DOCA"].text == "3.3.0109"
    assert findings["GPU's driver"].text == "580.95.05, open kernel modules"
    assert findings["Way to GPU memory"].text == "dmabuf (Linux 6.8.0-60-generic)"
    assert findings["BAR1"].text == f"256.0 GiB on {GPU}"
    assert findings["PCIe path"].text == f"PIX between {NIC} and {GPU}"
    assert findings["Link"].text == "ens3np0 is up, 400 Gb/s"
    assert doctor.report(list(findings.values())).endswith(
        "Nothing is missing for stream.transport=gpunetio."
    )


def test_a_machine_that_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libstreamdsb_gpunetio.so")
    findings = doctor.examine(machine(tmp_path))
    assert [f.name for f in findings if f.found] == ["Module loading"]
    assert all(f.remedy for f in findings if not f.found)
    assert not any(f.text.startswith("could not be examined") for f in findings)
    lines = doctor.report(findings).splitlines()
    assert lines[0].startswith("--  Network card       no network card to look at")
    assert lines[1].strip().startswith("> a ConnectX-6 Dx, ConnectX-7")
    assert lines[-1] == "14 of 15 are missing for stream.transport=gpunetio."


DEVICES = "sys/bus/pci/devices"


@pytest.mark.parametrize(
    ("look", "file", "text", "reason"),
    [
        (doctor.find_nic, f"{DEVICES}/{NIC}/device", "0x1017", f"^{NIC} is ConnectX-5$"),
        (doctor.find_nic, f"{DEVICES}/{NIC}/device", "0x9999", f"^{NIC} is unknown here: 0x9999$"),
        (
            doctor.find_firmware,
            f"{DEVICES}/{NIC}/infiniband/mlx5_0/ports/1/link_layer",
            "InfiniBand",
            "InfiniBand",
        ),
        (
            doctor.find_doca_version,
            "opt/mellanox/doca/include/doca_version.h",
            '#define DOCA_VERSION_STRING "3.1.0"',
            "^3.1.0",
        ),
        (
            doctor.find_gpu_memory_path,
            "proc/sys/kernel/osrelease",
            "5.4.0-generic",
            "older than 5.12, and nvidia_peermem",
        ),
        (
            doctor.find_gpu_memory_path,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05",
            "^closed kernel modules have no dmabuf, and nvidia_peermem is not loaded$",
        ),
        (
            doctor.find_bar1,
            f"{DEVICES}/{GPU}/resource",
            "0x1000 0x1fff 0x0\n0x10000000 0x1fffffff 0x0",
            "^0.2 GiB",
        ),
        (doctor.find_mtu, f"{DEVICES}/{NIC}/net/ens3np0/mtu", "1500", "^1500 on ens3np0, frames take 4082$"),
        (doctor.find_link, f"{DEVICES}/{NIC}/net/ens3np0/operstate", "down", "^ens3np0 is down$"),
        (doctor.find_permissions, "proc/self/status", "CapEff:\t0000000000001000", "^without CAP_NET_RAW$"),
        (
            doctor.find_permissions,
            "proc/self/status",
            "CapEff:\t0000000000000000",
            "CAP_NET_ADMIN and CAP_NET_RAW$",
        ),
        (
            doctor.find_locked_memory,
            "proc/self/limits",
            "Max locked memory  8388608  8388608  bytes",
            "8388608",
        ),
    ],
)
def test_what_is_missing_is_said(root: Path, look, file: str, text: str, reason: str) -> None:
    assert look(machine(root))
    (root / file).write_text(text + "\n")
    with pytest.raises(Missing, match=reason):
        look(machine(root))


def test_peermem_makes_up_for_closed_modules(root: Path) -> None:
    (root / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n"
    )
    write(root, {"sys/module/nvidia_peermem/version": "580.95.05"})
    assert doctor.find_gpu_memory_path(machine(root)) == "nvidia_peermem is loaded"


def test_lazy_loading_is_refused(root: Path) -> None:
    with pytest.raises(Missing, match=r"^CUDA_MODULE_LOADING is LAZY$"):
        doctor.find_eager_loading(Machine(root, environment={"CUDA_MODULE_LOADING": "LAZY"}))


@pytest.mark.parametrize(
    ("place", "files", "path"),
    [
        (f"{SWITCH}/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", {}, "PXB"),
        ("pci0000:00/0000:00:02.0/0000:07:00.0", {}, "PHB"),
        ("pci0000:40/0000:40:01.0/0000:07:00.0", {}, "NODE"),
        ("pci0000:80/0000:80:01.0/0000:07:00.0", {"numa_node": "1"}, "SYS"),
    ],
)
def test_distance(root: Path, place: str, files: dict[str, str], path: str) -> None:
    other = add_device(root, place, GPU_FILES | files)
    nic = root / DEVICES / NIC
    assert doctor.distance(nic, other) == path
    assert doctor.find_path(machine(root)).startswith("PIX")  # the closest pair
    there = machine(root, gpu="07:00.0")
    if path == "PXB":
        assert doctor.find_path(there).startswith("PXB")
    else:
        with pytest.raises(Missing, match=f"^{path} between {NIC} and 0000:07:00.0$"):
            doctor.find_path(there)


def test_devices_can_be_named(root: Path) -> None:
    assert machine(root, nic="03:00.0", gpu=GPU).pair()[1].name == GPU
    with pytest.raises(Missing, match="no network card"):
        machine(root, nic="0000:09:00.0").pair()


def test_command() -> None:
    done = CliRunner().invoke(cli.main, ["doctor", "--gpunetio"])
    assert done.exit_code == 0
    assert "PCIe path" in done.output
    assert done.output.rstrip().endswith("for stream.transport=gpunetio.")
