import os
import subprocess
import sys
import time

import psutil
import pytest

from streamdsb import doctor
from streamdsb.doctor import Finding, Missing, Probe


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a shell script of a given name first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def command(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)

    return command


def test_this_machine():
    findings = {finding.name: finding for finding in doctor.examine()}
    assert list(findings) == [probe.name for probe in doctor.PROBES]
    for name in ("Python", "System", "Cores", "Memory", "numba"):
        assert findings[name].found, findings[name].text
    for finding in findings.values():
        assert finding.text
        assert not finding.text.startswith("could not be examined")
        assert finding.found or (finding.needed_for and finding.remedy)


def test_nothing_optional_is_imported():
    program = (
        "import sys, streamdsb.doctor as d; d.examine();"
        "print(sorted({'numba', 'cupy', 'mpi4py', 'matplotlib', 'cuda'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == "[]\n"


def test_report():
    findings = [
        Finding("Python", "3.11"),
        Finding("CuPy", "not installed", False, "backend=cuda", "pip install cupy"),
        Finding("matplotlib", "not installed", False, "report", "pip install matplotlib"),
        Finding("GPUs", "none", False, "backend=cuda", "buy one"),
    ]
    assert doctor.report(findings).splitlines() == [
        "ok  Python      3.11",
        "--  CuPy        not installed",
        "--  matplotlib  not installed",
        "--  GPUs        none",
        "",
        "Not here, but needed for",
        "    backend=cuda: CuPy, GPUs",
        "        pip install cupy",
        "        buy one",
        "    report: matplotlib",
        "        pip install matplotlib",
    ]
    assert doctor.report(findings[:1]).splitlines()[-1] == "Nothing is missing."


def test_a_probe_that_fails_is_a_finding():
    def broken() -> str:
        raise RuntimeError("no such luck")

    def missing() -> str:
        raise Missing("looked everywhere")

    finding = Probe("thing", broken, "magic", "get a wand").finding()
    assert finding == Finding(
        "thing", "could not be examined: RuntimeError: no such luck", False, "magic", "get a wand"
    )
    assert Probe("thing", missing).finding().text == "looked everywhere"


def test_answers(command):
    command("speaks", "echo one; echo two >&2")
    command("fails", "echo said; echo first >&2; echo last words >&2; exit 3")
    command("mutters", "echo only this; exit 1")
    command("silent", "exit 4")
    command("crashes", "echo half; kill -SEGV $$")
    assert doctor.answer("speaks") == "one"
    for name, reason in [
        ("fails", "fails: last words"),
        ("mutters", "mutters: only this"),
        ("silent", "silent: ended with status 4"),
        ("crashes", "crashes: ended by signal 11"),
        ("no-such-command", "no-such-command is not installed"),
    ]:
        with pytest.raises(Missing, match=f"^{reason}$"):
            doctor.answer(name)


def test_a_command_that_cannot_be_executed(tmp_path):
    with pytest.raises(Missing, match="cannot be run: Permission denied"):
        doctor.answer(str(tmp_path))


def test_a_program_that_hangs_is_ended_with_its_children(command, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE", 0.3)
    command("hangs", f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(Missing, match=r"gave no answer in 0.3 s"):
        doctor.answer("hangs")
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.05)
    pytest.fail(f"process {child} was left running")


def _runs(pid: int) -> bool:
    """Whether the process exists and is more than a zombie that nobody has collected."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_modules_are_asked_in_a_process_of_their_own():
    with pytest.raises(Missing, match=r"^not installed$"):
        doctor.python_answer("no_such_module", "print(1)")
    with pytest.raises(Missing, match=r"^import json: ended by signal 6$"):
        doctor.python_answer("json", "import os; os.abort()")
    with pytest.raises(Missing, match=r"^import json: ImportError: its library is not here$"):
        doctor.python_answer("json", "raise ImportError('its library is not here')")


def test_vector_extensions():
    assert doctor.describe_simd({"fpu", "avx2", "avx512f", "avx512_vpopcntdq"}) == "AVX2, AVX-512, VPOPCNTDQ"
    assert doctor.describe_simd({"asimd", "neon", "sve"}) == "NEON, SVE"
    with pytest.raises(Missing, match="no vector extension"):
        doctor.describe_simd({"fpu"})


def test_gpus_of_nvidia_smi(command):
    row = "NVIDIA H200, 143771 MiB, 9.0, 580.159.03"
    described = "NVIDIA H200, 143771 MiB, compute 9.0, driver 580.159.03"
    command("nvidia-smi", f"echo '{row}'; echo '{row}'; echo 'NVIDIA T4, 15360 MiB, 7.5, 580.159.03'")
    t4 = "NVIDIA T4, 15360 MiB, compute 7.5, driver 580.159.03"
    assert doctor.find_gpus() == f"2 x {described}; 1 x {t4}"
    assert (
        doctor.describe_gpus(["NVIDIA H200, 143771 MiB, 9.0"]) == "1 x NVIDIA H200, 143771 MiB, compute 9.0"
    )
    with pytest.raises(Missing, match=r"^none$"):
        doctor.describe_gpus(["", " "])


def test_mpi_and_doca_where_they_are_installed(command):
    command("mpiexec", "echo 'mpiexec (OpenRTE) 4.1.4'; echo 'Report bugs to 7 people'")
    command("pkg-config", "echo 3.3.0109; echo 3.3.0110")
    assert doctor.find_mpiexec() == "mpiexec (OpenRTE) 4.1.4"
    assert doctor.describe_mpiexec("HYDRA build details:\n    Version:         4.2.0\n") == "Version: 4.2.0"
    assert doctor.describe_mpiexec("") == "of unknown version"
    assert doctor.find_doca() == "doca-gpunetio 3.3.0109, doca-eth 3.3.0110"
    command("pkg-config", "exit 1")
    with pytest.raises(Missing, match=r"^no doca-gpunetio and doca-eth$"):
        doctor.find_doca()
