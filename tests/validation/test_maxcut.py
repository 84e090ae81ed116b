from pathlib import Path

import numpy as np
import pytest

import streamdsb
from streamdsb.config import load_config
from streamdsb.errors import UserError
from validation import maxcut

ROOT = Path(__file__).parents[2]
K2000 = ROOT.parent / "shared" / "instances" / "K2000_w_packed.npz"


def random_weights(n: int, seed: int = 5) -> np.ndarray:
    above = np.triu(np.random.default_rng(seed).choice([-1, 1], size=(n, n)), k=1)
    return (above + above.T).astype(np.int8)


def write_graph(path: Path, weights: np.ndarray) -> Path:
    np.savez(path, w_bits=np.packbits(weights > 0, axis=1))
    return path


def cut_edge_by_edge(weights: np.ndarray, spins: np.ndarray) -> int:
    n = len(spins)
    return sum(int(weights[i, j]) for i in range(n) for j in range(i) if spins[i] != spins[j])


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    return write_graph(tmp_path_factory.mktemp("graph") / "graph.npz", random_weights(67))


@pytest.fixture(scope="module")
def run(graph) -> Path:
    couplings = graph.with_name("couplings.npy")
    maxcut.prepare(graph, couplings)
    out = graph.with_name("run")
    problem = {"source": "file", "path": str(couplings)}
    streamdsb.run({"problem": problem, "solver": {"replicas": 3, "updates": 30}}, out)
    return out


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 67])
def test_weights_come_back_from_their_bits(tmp_path, n):
    weights = random_weights(n)
    assert (maxcut.load_weights(write_graph(tmp_path / "graph.npz", weights)) == weights).all()


def test_diagonal_bits_are_ignored(tmp_path):
    weights = random_weights(9)
    marked = weights + np.diag([1, -1, 1, 1, -1, 1, 1, 1, -1]).astype(np.int8)
    assert (maxcut.load_weights(write_graph(tmp_path / "graph.npz", marked)) == weights).all()


def test_couplings_are_the_negated_weights(graph, tmp_path):
    assert maxcut.prepare(graph, tmp_path / "couplings.npy") == 67
    couplings = np.load(tmp_path / "couplings.npy")
    assert couplings.dtype == np.int8
    assert (couplings == -random_weights(67)).all()


def test_the_cut_is_the_sum_over_edges_between_the_sides():
    weights, rng = random_weights(20), np.random.default_rng(1)
    for _ in range(10):
        spins = rng.choice([-1, 1], size=20)
        assert maxcut.cut_weight(weights, spins) == cut_edge_by_edge(weights, spins)


def test_the_cut_of_a_run(run, graph, capsys):
    spins = np.load(run / "best_spins.npy")
    right = cut_edge_by_edge(random_weights(67), spins)
    cut = maxcut.best_cut(run, graph)
    assert cut.weight == right
    assert cut.sides == (int((spins > 0).sum()), int((spins < 0).sum()))
    assert maxcut.main(["cut", str(run), str(graph)]) == 0
    assert capsys.readouterr().out.startswith(f"best cut: {right:,} between")


def test_a_cut_that_the_energy_contradicts(run, graph, tmp_path):
    """The run was of another graph: one edge between the sides has the other weight."""
    spins, weights = np.load(run / "best_spins.npy"), random_weights(67)
    i, j = int(np.argmax(spins > 0)), int(np.argmax(spins < 0))
    weights[i, j] = weights[j, i] = -weights[i, j]
    other = write_graph(tmp_path / "other.npz", weights)
    assert maxcut.best_cut(run, graph).weight != maxcut.cut_weight(weights, spins)
    with pytest.raises(UserError, match=r"best_spins\.npy cuts .* stands for"):
        maxcut.best_cut(run, other)


def test_asymmetric_weights_are_named(tmp_path):
    weights = random_weights(9)
    weights[3, 7] = 1
    weights[7, 3] = -1
    path = write_graph(tmp_path / "graph.npz", weights)
    with pytest.raises(UserError, match=r"not symmetric: w\[3, 7\] is \+1, but w\[7, 3\] is -1"):
        maxcut.load_weights(path)


def test_what_is_no_graph_is_refused_in_a_sentence(graph, run, tmp_path, capsys):
    text, npy, other = tmp_path / "text.npz", tmp_path / "array.npy", tmp_path / "other.npz"
    text.write_text("not an archive")
    np.save(npy, np.ones((2, 2)))
    np.savez(other, w_bits=np.zeros((9, 1), np.uint8))
    nameless = tmp_path / "nameless.npz"
    np.savez(nameless, w=np.ones(3))
    small = write_graph(tmp_path / "small.npz", random_weights(9))
    out = str(tmp_path / "out.npy")
    for arguments, words in [
        (["prepare", str(tmp_path / "nowhere.npz"), out], "No such file"),
        (["prepare", str(text), out], "not an .npz"),
        (["prepare", str(npy), out], "not an .npz"),
        (["prepare", str(nameless), out], "no array w_bits"),
        (["prepare", str(other), out], "uint8 (9, 1)"),
        (["prepare", str(graph), str(tmp_path / "nowhere" / "out.npy")], "cannot be written"),
        (["prepare", str(graph), str(tmp_path / "out.txt")], ".npy"),
        (["cut", str(tmp_path / "nowhere"), str(graph)], "does not exist"),
        (["cut", str(run), str(small)], "(67,)"),
    ]:
        assert maxcut.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("maxcut: ")
        assert words in said.err
        assert said.err.count("\n") == 1
    assert not Path(out).exists()


@pytest.mark.skipif(not K2000.exists(), reason=f"{K2000.name} is not here")
def test_the_best_known_cut_of_k2000():
    with np.load(K2000) as arrays:
        witness = arrays["witness"]
    assert maxcut.cut_weight(maxcut.load_weights(K2000), witness) == 33_337


@pytest.mark.skipif(not K2000.exists(), reason=f"{K2000.name} is not here")
def test_a_run_on_k2000(tmp_path):
    couplings = tmp_path / "K2000.npy"
    maxcut.prepare(K2000, couplings)
    config = load_config(ROOT / "configs" / "k2000.yaml", [f"problem.path={couplings}"])
    streamdsb.run(config, tmp_path / "run")
    assert maxcut.best_cut(tmp_path / "run", K2000).weight >= 33_200
