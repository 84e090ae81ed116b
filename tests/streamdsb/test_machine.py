import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamdsb import machine

MIB = 2**20

MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        23463380 kB
MemAvailable:   24319352 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""
STATUS = "Name:\tcat\nVmPeak:\t    2900 kB\nVmHWM:\t    1768 kB\nThreads:\t1\n"
X86 = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse2 avx2 avx512f avx512_vpopcntdq
power management:

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"
VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            300000.
Pages inactive:                           20000.
Pages speculative:                          500.
"Translation faults":                 123456789.
"""


def write(folder: Path, **files: str) -> Path:
    """Files in a folder of their own; `__` in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_sizes_of_meminfo_and_status():
    assert machine.parse_kibibytes(MEMINFO)["MemAvailable"] == 24319352 * 1024
    assert "HugePages_Total" not in machine.parse_kibibytes(MEMINFO)
    assert machine.parse_kibibytes(STATUS) == {"VmPeak": 2900 * 1024, "VmHWM": 1768 * 1024}
    assert machine.parse_kibibytes("") == {}


def test_the_first_processor_of_cpuinfo():
    assert machine.parse_cpuinfo(X86)["model name"] == "Intel(R) Xeon(R) Processor"
    assert machine.parse_cpuinfo(X86)["flags"].split()[-1] == "avx512_vpopcntdq"
    assert machine.parse_cpuinfo(ARM)["Features"] == "fp asimd sve"


def test_pages_of_vm_stat():
    assert machine.parse_vm_stat(VM_STAT) == 30500 * 16384
    assert machine.parse_vm_stat("") == 0


HOST_V2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
DOCKER_V2 = "30 23 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw"
V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"""


@pytest.mark.parametrize(
    ("controller", "membership", "mounts", "expected"),
    [
        ("memory", "0::/a/b.scope", HOST_V2, ["/a/b.scope", "/a", ""]),
        ("cpu", "0::/", HOST_V2, [""]),
        ("memory", "0::/docker/abc", DOCKER_V2, [""]),
        ("memory", "0::/elsewhere/x", DOCKER_V2, [""]),
        ("memory", "0::/../../x", HOST_V2, ["/x", ""]),
        ("memory", "4:memory:/job/7\n3:cpu,cpuacct:/slice", V1, ["/memory/job/7", "/memory/job", "/memory"]),
        ("cpu", "4:memory:/job/7\n3:cpu,cpuacct:/slice", V1, ["/cpu,cpuacct/slice", "/cpu,cpuacct"]),
        ("memory", "0::/", V1, []),
        ("memory", "", HOST_V2, []),
        ("memory", "0::/", "", []),
    ],
)
def test_folders_of_the_own_cgroup(controller, membership, mounts, expected):
    folders = machine.cgroup_folders(controller, membership, mounts)
    assert [str(folder) for folder in folders] == ["/sys/fs/cgroup" + name for name in expected]


def test_memory_room(tmp_path):
    version_2 = {"memory__max": f"{100 * MIB}\n", "memory__current": f"{60 * MIB}\n"}
    assert machine.memory_room(write(tmp_path / "2", **version_2)) == 40 * MIB
    cached = write(tmp_path / "2", memory__stat=f"anon 1\ninactive_file {10 * MIB}\n")
    assert machine.memory_room(cached) == 50 * MIB
    version_1 = {"memory__limit_in_bytes": f"{100 * MIB}\n", "memory__usage_in_bytes": f"{60 * MIB}\n"}
    group = write(
        tmp_path / "1", **version_1, memory__stat=f"inactive_file 1\ntotal_inactive_file {5 * MIB}\n"
    )
    assert machine.memory_room(group) == 45 * MIB
    assert machine.memory_room(write(tmp_path / "free", memory__max="max\n", memory__current="1\n")) is None
    assert machine.memory_room(tmp_path / "nowhere") is None


def test_cpu_quota(tmp_path):
    assert machine.cpu_quota(write(tmp_path / "2", cpu__max="150000 100000\n")) == 1.5
    assert machine.cpu_quota(write(tmp_path / "2free", cpu__max="max 100000\n")) is None
    assert (
        machine.cpu_quota(write(tmp_path / "1", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000"))
        == 0.5
    )
    assert (
        machine.cpu_quota(write(tmp_path / "1free", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000"))
        is None
    )
    assert machine.cpu_quota(tmp_path / "nowhere") is None


def test_a_quota_narrows_the_cores_and_a_limit_the_memory(tmp_path, monkeypatch):
    limits = {"memory__max": f"{3 * MIB}", "memory__current": f"{MIB}", "cpu__max": "10000 100000"}
    monkeypatch.setattr(machine, "own_cgroups", lambda controller: [write(tmp_path, **limits)])
    assert machine.usable_cores() == 1
    if sys.platform == "linux":
        assert machine.available_memory() == 2 * MIB


def test_this_machine():
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)
    assert 0 < machine.available_memory() <= machine.total_memory()
    assert MIB < machine.peak_memory() < machine.total_memory()
    described = machine.describe_machine()
    assert list(described) == ["cpu", "cores", "memory", "platform", "python"]
    assert described["cpu"]
    assert described["python"].split(".")[:2] == [str(part) for part in sys.version_info[:2]]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_an_affinity_mask_narrows_the_cores():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_peak_stays_when_memory_is_given_back_and_is_not_handed_down():
    before = machine.peak_memory()
    block = bytearray(b"x") * (before + 64 * MIB)
    peak = machine.peak_memory()
    del block
    assert peak >= before + 64 * MIB
    assert machine.peak_memory() > peak - MIB  # the kernel sums its counters a little late
    program = "from streamdsb.machine import peak_memory; print(peak_memory())"
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    if Path("/proc/self/status").exists():
        assert int(child.stdout) < peak
