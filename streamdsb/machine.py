"""What this machine lets the process use: cores, memory, and what it has used at its peak.

Containers and batch systems grant less than the machine has, through the affinity mask and through cgroups
(version 1 or 2). The files are read anew at each call, and a file that is not there limits nothing.
"""

import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask, or less where a cgroup quota grants less time."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in own_cgroups("cpu") if (quota := cpu_quota(folder)) is not None]
    return min([affinity, *(max(1, math.ceil(quota)) for quota in quotas)])


def total_memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Bytes that can still be taken without swapping, and without exceeding what a cgroup grants."""
    if sys.platform == "darwin":
        return parse_vm_stat(_output("vm_stat")) or total_memory()
    free = parse_kibibytes(_text("/proc/meminfo")).get("MemAvailable", total_memory())
    rooms = [room for folder in own_cgroups("memory") if (room := memory_room(folder)) is not None]
    return max(0, min([free, *rooms]))


def peak_memory() -> int:
    """Bytes of physical memory that this process has held at its peak.

    Linux keeps the peak in ru_maxrss across exec, so that a child reports its parent's; VmHWM starts anew.
    """
    peak = parse_kibibytes(_text("/proc/self/status")).get("VmHWM")
    if peak is None:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = used if sys.platform == "darwin" else used * 1024
    return peak


def cpu_model() -> str:
    """The processor's name, or the architecture's where it has none."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
    return parse_cpuinfo(_text("/proc/cpuinfo")).get("model name", platform.machine())


def cpu_flags() -> set[str]:
    """Instruction-set extensions by the kernel's names, in lower case: avx2, avx512f, asimd, ..."""
    if sys.platform == "darwin":
        names = _output("sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features")
        return set(names.lower().split()) | ({"asimd"} if platform.machine() == "arm64" else set())
    cpu = parse_cpuinfo(_text("/proc/cpuinfo"))
    return set((cpu.get("flags") or cpu.get("Features") or "").split())


def describe_machine() -> dict[str, Any]:
    """The machine as it stands in summaries and benchmark results; memory in bytes."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory": total_memory(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


# --- cgroups --------------------------------------------------------------------------------------


def own_cgroups(controller: str) -> list[Path]:
    """Folders of the cgroups that limit this process in `controller` (cpu or memory)."""
    return list(cgroup_folders(controller, _text("/proc/self/cgroup"), _text("/proc/self/mountinfo")))


def cgroup_folders(controller: str, membership: str, mounts: str) -> Iterator[Path]:
    """The folders of the process's cgroup and its ancestors, from /proc/self/cgroup and /proc/self/mountinfo.

    A line of the first is id:controllers:path, with no controllers for version 2. A mount shows the hierarchy
    from its root on; for a path outside it, as a container may see, the mount point itself has to do.
    """
    paths = {}
    for line in membership.splitlines():
        _, names, own = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), own))
    for line in mounts.splitlines():
        place, _, source = line.partition(" - ")
        match source.split(" ", 2):
            case ["cgroup", _, options] if controller in options.split(","):
                path = paths.get(controller)
            case ["cgroup2", _, _]:
                path = paths.get("")
            case _:
                path = None
        if path is None:
            continue
        root, mount_point = place.split(" ")[3:5]
        below = os.path.relpath(path, root)
        folder = Path(mount_point, "." if below.startswith("..") else below)
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(mount_point))


def memory_room(folder: Path) -> int | None:
    """Bytes that the cgroup in `folder` can still take, counting file cache as free; None if unlimited."""
    for limit_file, usage_file, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _text(folder / limit_file).strip(), _text(folder / usage_file).strip()
        if limit.isdecimal() and usage.isdecimal():
            statistics = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
            return int(limit) - int(usage) + int(statistics.get(cache, 0))
    return None


def cpu_quota(folder: Path) -> float | None:
    """Cores' worth of time that the cgroup in `folder` may use, None if unlimited."""
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota = _text(folder / "cpu.cfs_quota_us").strip()
        period = _text(folder / "cpu.cfs_period_us").strip()
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # unlimited is "max" or -1
        return int(quota) / int(period)
    return None


# --- texts ----------------------------------------------------------------------------------------


def parse_kibibytes(text: str) -> dict[str, int]:
    """Bytes by name from lines such as `MemAvailable:   24319352 kB` (/proc/meminfo, /proc/self/status)."""
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        match value.split():
            case [number, "kB"]:
                sizes[name] = int(number) * 1024
    return sizes


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    first, _, _ = text.partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


VM_STAT_AVAILABLE = ("free", "speculative", "inactive")


def parse_vm_stat(text: str) -> int:
    """Bytes in the free, speculative and inactive pages that macOS's vm_stat counts; 0 if it says nothing."""
    header, *lines = text.splitlines() or [""]
    page = next((int(word) for word in header.split() if word.isdecimal()), 0)
    counts = dict(line.split(":", 1) for line in lines if ":" in line)
    return page * sum(int(counts.get(f"Pages {kind}", "0").strip(" .")) for kind in VM_STAT_AVAILABLE)


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
