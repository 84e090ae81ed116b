"""The model of several receivers, against numbers worked out by hand."""

import struct
from pathlib import Path

import pytest

from coordinator.scaling import Network, PassTime, scaling_lines
from coordinator.scaling_plot import SIZE
from streamdsb.layout import Layout
from tests.harness import run_command

NETWORK = Network(receiver_rate=50e9, latency_s=1e-5, bandwidth=1e10, update_rate=1e9)
LAYOUT = Layout(10_000_000, 8, 2)


def test_one_receiver_exchanges_nothing() -> None:
    time = PassTime.of(LAYOUT, 1, NETWORK)
    assert time.stream_s == pytest.approx(12_539_520_000_000 / 50e9)
    assert time.exchange_s == 0
    assert time.update_s == pytest.approx(0.08)


def test_four_receivers() -> None:
    time = PassTime.of(LAYOUT, 4, NETWORK)
    # 156,250 groups of 64 rows: 39,063 of them for the receiver with the most
    assert time.stream_s == pytest.approx(12_539_520_000_000 / 50e9 * 39_063 / 156_250)
    assert time.exchange_s == pytest.approx(3 * 2 * 1e-5 + 10_000_000 * 0.75 / 1e10)
    assert time.update_s == pytest.approx(0.08 * 39_063 / 156_250)
    assert time.total_s == time.stream_s + time.exchange_s + time.update_s


def test_more_receivers_than_groups_of_rows_are_of_no_use() -> None:
    small = Layout(65, 8, 2)
    two, five = PassTime.of(small, 2, NETWORK), PassTime.of(small, 5, NETWORK)
    assert two.total_s == five.total_s


def test_where_more_stop_paying() -> None:
    assert scaling_lines(Layout(64, 1, 1), [1, 2], NETWORK)[-1].startswith("beyond about 1 receiver, ")
    lines = scaling_lines(LAYOUT, [1, 1024], NETWORK)
    assert len(lines) == 4
    assert "1,024" in lines[2]
    assert "up to 65,536 receivers, the most" in scaling_lines(Layout(10**8, 1, 2), [1], NETWORK)[-1]


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("problem: {source: mattis, n: 10000000}\n")
    status, out, err = run_command("plan", path, "--receivers", "1,2,4,1024")
    assert status == 0, err
    rows = [line.split()[0] for line in out.splitlines()[-5:-1]]
    assert rows == ["1", "2", "4", "1,024"]
    status, _, err = run_command("plan", path, "--receivers", "1,two")
    assert status == 2
    assert "--receivers 1,two" in err


def test_the_picture(tmp_path: Path) -> None:
    path, picture = tmp_path / "run.yaml", tmp_path / "scaling.png"
    path.write_text("problem: {source: mattis, n: 10000000}\n")
    status, out, err = run_command("plan", path, "--receivers", "1,2,1024", "--plot", picture)
    assert status == 0, err
    assert out.splitlines()[-1] == str(picture)
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == SIZE
    status, _, err = run_command("plan", path, "--plot", picture)
    assert status == 2
    assert "--receivers" in err
    status, _, err = run_command("plan", path, "--receivers", "2", "--plot", tmp_path / "none" / "a.png")
    assert status == 2
    assert "there is no folder" in err
