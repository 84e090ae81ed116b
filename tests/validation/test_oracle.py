import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from validation import oracle

N2 = [
    '{"pass":0,"best_two_energy":-2,"best_replica":0,"two_energy":[-2],"checksum":"9f29cb17a2a49995"}',
    '{"pass":1,"best_two_energy":-2,"best_replica":0,"two_energy":[-2],"checksum":"9f29cb17a2a49995"}',
]
N1000 = {
    0: '{"pass":0,"best_two_energy":-792,"best_replica":0,"two_energy":[-792,424,204,-632],'
    '"checksum":"57aad685f835c155"}',
    1: '{"pass":1,"best_two_energy":-1312,"best_replica":2,"two_energy":[216,1728,-1312,56],'
    '"checksum":"9ee777d15e84190a"}',
    20: '{"pass":20,"best_two_energy":-44980,"best_replica":3,"two_energy":[-43300,-43380,-43580,-44980],'
    '"checksum":"b720be6f8ca4c059"}',
}


@st.composite
def problems(draw: st.DrawFn, couplings_range: tuple[int, int] = (-128, 127)):
    """A small problem of integer couplings: couplings (n, n), field (n,), spins (B, n)."""
    n = draw(st.integers(1, 9))
    values = draw(arrays(np.int8, (n, n), elements=st.integers(*couplings_range)))
    above = np.triu(values, k=1)
    field = draw(arrays(np.int32, n, elements=st.integers(-(2**31), 2**31 - 1)))
    spins = draw(arrays(np.int8, (draw(st.integers(1, 3)), n), elements=st.sampled_from([-1, 1])))
    return above + above.T, field, spins


def test_hash_vectors():
    assert oracle.hash_key(42, 0) == 0xBDD732262FEB6E95
    assert oracle.hash_key(42, 1) == 0x28EFE333B266F103
    assert oracle.hash_words(0xBDD732262FEB6E95, 0, 0)[0] == 0xB29ED950786F5AE3
    assert oracle.hash_words(0xBDD732262FEB6E95, 3, 7)[0] == 0xFA55AB45507FD2DD
    assert oracle.hash_words(0x28EFE333B266F103, 0, 0)[0] == 0x6A829AA58CBB5BE2


def test_hash_wraps_at_64_bits():
    """The seed -A modulo 2^64 gives mix(0) = 0, and so does the row -1 with the key A."""
    assert oracle.hash_key(2**64 - oracle.ROW_STEP, 0) == 0
    assert oracle.hash_words(oracle.ROW_STEP, 2**64 - 1, 0)[0] == 0


def test_initial_state_vectors():
    positions, momenta = oracle.initial_state(4, 1, 42)
    assert positions.dtype == momenta.dtype == np.float32
    assert positions.view(np.uint32).tolist() == [[0xBD5D1F67, 0xBC518180, 0x3D5D67CD, 0x3D377A37]]
    assert momenta.view(np.uint32).tolist() == [[0x3C73EE67, 0x3CE67ACD, 0xBD9F33B2, 0xBDA6873D]]


def test_initial_state_of_a_replica_does_not_depend_on_the_others():
    alone, together = oracle.initial_state(70, 1, 5), oracle.initial_state(70, 3, 5)
    assert np.array_equal(alone[0][0], together[0][0])
    assert len({row.tobytes() for row in together[0]}) == 3
    assert np.abs(together).max() <= np.float32(0.1)


def test_records_of_two_spins():
    assert oracle.solve(oracle.random_couplings(2, 3), replicas=1, updates=1, seed=3).records == N2


def test_records_of_a_thousand_spins():
    couplings = oracle.random_couplings(1000, 42)
    solution = oracle.solve(couplings, replicas=4, updates=20, seed=42)
    assert len(solution.records) == 21
    assert {k: solution.records[k] for k in N1000} == N1000
    assert oracle.two_energy(couplings, solution.spins).tolist() == [-43300, -43380, -43580, -44980]
    assert oracle.checksum(solution.spins) == oracle.checksum(solution.positions) == "b720be6f8ca4c059"


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 300])
def test_random_couplings_are_the_bits_of_the_hash(n):
    couplings = oracle.random_couplings(n, 7)
    key = oracle.hash_key(7, 0)
    assert couplings.dtype == np.int8
    assert np.array_equal(couplings, couplings.T)
    assert not couplings.diagonal().any()
    for i, j in [(0, n - 1), (n // 3, n // 2), (n - 2, n - 1)]:
        if 0 <= i < j:
            bit = (int(oracle.hash_words(key, i, j // 64)[0]) >> (j % 64)) & 1
            assert couplings[i, j] == (1 if bit else -1)


def test_couplings_do_not_depend_on_the_block_size(monkeypatch):
    whole, spins = oracle.random_couplings(130, 1), oracle.mattis_spins(130, 1)
    energy, xi = oracle.two_energy(whole, spins), oracle.default_xi(whole)
    monkeypatch.setattr(oracle, "BLOCK_ELEMENTS", 7 * 130)
    assert np.array_equal(oracle.random_couplings(130, 1), whole)
    assert oracle.two_energy(whole, spins) == energy
    assert oracle.default_xi(whole) == xi


@pytest.mark.parametrize("n", [2, 65, 1000])
def test_mattis_reaches_its_planted_ground_state(n):
    couplings, planted = oracle.mattis_couplings(n, 11), oracle.mattis_spins(n, 11)
    ground = -n * (n - 1)
    assert oracle.two_energy(couplings, planted) == ground
    assert oracle.two_energy(couplings, -planted) == ground
    solution = oracle.solve(couplings, replicas=3, updates=20, seed=11)
    assert oracle.two_energy(couplings, solution.spins).min() == ground
    best = solution.spins[oracle.two_energy(couplings, solution.spins).argmin()]
    assert abs(int(best.astype(int) @ planted)) == n


@given(problems())
def test_energy_is_the_double_sum(problem):
    couplings, field, spins = problem
    n = len(couplings)
    expected = [
        -sum(int(couplings[i, j]) * int(s[i]) * int(s[j]) for i in range(n) for j in range(n))
        - 2 * sum(int(field[i]) * int(s[i]) for i in range(n))
        for s in spins
    ]
    energies = oracle.two_energy(couplings, spins, field)
    assert energies.dtype == np.int64
    assert energies.tolist() == expected
    assert int(oracle.two_energy(couplings, spins[0], field)) == expected[0]
    without_field = oracle.two_energy(couplings, spins, np.zeros_like(field))
    assert np.array_equal(oracle.two_energy(couplings, spins), without_field)


@given(problems())
def test_energy_does_not_notice_a_transposition_or_a_global_flip(problem):
    couplings, field, spins = problem
    energies = oracle.two_energy(couplings, spins, field)
    assert np.array_equal(oracle.two_energy(couplings.T, spins, field), energies)
    assert np.array_equal(oracle.two_energy(couplings, -spins, -field.astype(np.int64)), energies)


def test_the_largest_sum_there_is():
    n = 4096
    couplings = np.full((n, n), -128, dtype=np.int8)
    sums = oracle.coupling_sums(couplings, np.ones((1, n), dtype=np.int8))
    assert np.array_equal(sums, np.full((1, n), -128 * n))


@given(
    arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 200)), elements=st.floats(-1, 1, width=32))
)
def test_sign_bitmap_round_trip(positions):
    replicas, n = positions.shape
    words = oracle.sign_bitmap(positions)
    assert words.shape == (replicas, -(-n // 64))
    spins = oracle.spins_of(words, n)
    assert np.array_equal(spins, np.where(positions > 0, 1, -1))
    assert np.array_equal(oracle.sign_bitmap(spins), words)
    bits = sum(int(word).bit_count() for word in words.flat)
    assert bits == np.count_nonzero(positions > 0), "padding bits must be 0"


def test_sign_bitmap_places_rows_by_bit():
    spins = np.full(66, -1, dtype=np.int8)
    spins[[0, 63, 65]] = 1
    assert oracle.sign_bitmap(spins).tolist() == [1 | 1 << 63, 2]
    assert oracle.sign_bitmap(np.array([0.0, -0.0, 1e-45], dtype=np.float32)).tolist() == [4]


@settings(deadline=None)
@given(
    problems((-1, 1)),
    st.integers(1, 5),
    st.floats(0.1, 2),
    st.floats(0.01, 2),
    st.sampled_from([1, 2**24, 2**30]),
)
def test_solve_agrees_with_scalar_arithmetic(problem, updates, dt, xi, weakness):
    """The same dynamics with one float32 scalar at a time."""
    couplings, field, spins = problem
    replicas, n = spins.shape
    field //= weakness
    solution = oracle.solve(couplings, replicas=replicas, updates=updates, seed=9, dt=dt, xi=xi, field=field)
    positions, momenta = oracle.initial_state(n, replicas, 9)
    f = np.float32
    for k in range(updates):
        c = f(1 - (k / (updates - 1) if updates > 1 else 0))
        for b in range(replicas):
            signs = [1 if x > 0 else -1 for x in positions[b]]
            for i in range(n):
                force = sum(int(couplings[i, j]) * signs[j] for j in range(n)) + int(field[i])
                y = f(momenta[b, i] + f(f(f(f(xi) * f(force)) - f(c * positions[b, i])) * f(dt)))
                x = f(positions[b, i] + f(y * f(dt)))
                if abs(x) > 1:
                    x, y = f(1 if x > 0 else -1), f(0)
                positions[b, i], momenta[b, i] = x, y
    assert np.array_equal(solution.positions.view(np.uint32), positions.view(np.uint32))
    assert np.array_equal(solution.momenta.view(np.uint32), momenta.view(np.uint32))


def test_update_keeps_subnormals_and_stops_at_the_walls():
    tiny = np.float32(1e-40)
    zero = np.zeros((1, 1), dtype=np.int64)
    x, y = oracle.update(np.array([[tiny]]), np.array([[tiny]]), zero, xi=1.0, decay=0.0, dt=1.0)
    assert (x[0, 0], y[0, 0]) == (tiny + tiny, tiny)
    for side in (1, -1):
        x, y = oracle.update(
            np.full((1, 1), 0.5, "f4"), np.zeros((1, 1), "f4"), zero + side, xi=2.0, decay=0.0, dt=1.0
        )
        assert (x[0, 0], y[0, 0]) == (side, 0)


def test_default_xi():
    assert oracle.default_xi(oracle.mattis_couplings(100, 1)) == 0.05
    assert oracle.default_xi(np.zeros((1, 1), dtype=np.int8)) == 0.5
    assert oracle.default_xi(np.array([[0, -4], [-4, 0]], dtype=np.int8)) == 0.5 / np.sqrt(32)
    with pytest.raises(ValueError, match="all couplings are 0"):
        oracle.default_xi(np.zeros((2, 2), dtype=np.int8))


def test_what_is_no_problem_is_refused():
    couplings = oracle.random_couplings(3, 1)
    with pytest.raises(ValueError, match="square int8"):
        oracle.two_energy(couplings.astype(np.float64), np.ones(3))
    with pytest.raises(ValueError, match="-1 or \\+1"):
        oracle.two_energy(couplings, np.array([1, 0, 1]))
    with pytest.raises(ValueError, match="-1 or \\+1"):
        oracle.two_energy(couplings, np.ones(4))
    with pytest.raises(ValueError, match="zero diagonal"):
        oracle.solve(np.ones((3, 3), dtype=np.int8), replicas=1, updates=1, seed=1)
    with pytest.raises(ValueError, match="at least 1, not 1 and 0"):
        oracle.solve(couplings, replicas=1, updates=0, seed=1)


def test_the_command_prints_record_lines():
    command = [sys.executable, "-m", "validation.oracle", "--source", "random", "--n", "2", "--replicas", "1"]
    command += ["--updates", "1", "--problem-seed", "3", "--solver-seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "".join(line + "\n" for line in N2)
