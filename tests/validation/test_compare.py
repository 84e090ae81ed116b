import json

import pytest

from streamdsb.errors import UserError
from validation import oracle
from validation.compare import compare, parse_record


@pytest.fixture(scope="module")
def records() -> list[str]:
    return oracle.solve(oracle.random_couplings(65, 1), replicas=3, updates=5, seed=1).records


@pytest.fixture
def write(tmp_path):
    def write(name: str, lines: list[str], partial: str = ""):
        path = tmp_path / name
        path.write_bytes("".join(line + "\n" for line in lines).encode() + partial.encode())
        return path

    return write


def changed(records: list[str], k: int, **fields) -> list[str]:
    """The records with some fields of pass k replaced."""
    record = json.loads(records[k]) | fields
    return [*records[:k], json.dumps(record, separators=(",", ":")), *records[k + 1 :]]


def energies(records: list[str], k: int) -> list[int]:
    return json.loads(records[k])["two_energy"]


def test_the_records_of_a_run_equal_themselves(records, write):
    comparison = compare(write("a", records), write("b", records))
    assert comparison.equal
    assert comparison.difference is None
    assert comparison.lines() == ["The records are equal byte for byte: 6 passes."]


def test_a_run_directory_stands_for_its_records(records, tmp_path, write):
    (tmp_path / "run").mkdir()
    write("run/records.jsonl", records)
    assert compare(tmp_path / "run", str(write("b", records))).equal


@pytest.mark.parametrize(
    ("k", "cause"), [(0, "It is the first pass"), (3, "The signs that entered the pass")]
)
def test_the_first_replica_whose_energy_differs(records, write, k, cause):
    e = energies(records, k)
    altered = changed(records, k, two_energy=[e[0], e[1] + 2, e[2] - 4])
    altered = changed(altered, 5, checksum="0" * 16)
    a, b = write("a", records), write("b", altered)
    comparison = compare(a, b)
    assert not comparison.equal
    assert comparison.difference.line == k
    assert comparison.difference.replica == 1
    text = "\n".join(comparison.lines())
    assert f"The records part at pass {k}." in text
    assert ("Equal byte for byte before that: 3 passes." in text) == (k == 3)
    assert f"Replica 1 is the first whose energy differs: 2E = {e[1]} in {a} and {e[1] + 2} in {b}." in text
    assert f"The checksum after the pass is {json.loads(records[k])['checksum']} in both." in text
    assert cause in text


def test_only_the_checksum_differs(records, write):
    a, b = write("a", records), write("b", changed(records, 2, checksum="0123456789abcdef"))
    comparison = compare(a, b)
    assert not comparison.equal
    assert comparison.difference.line == 2
    assert comparison.difference.replica is None
    digits = json.loads(records[2])["checksum"]
    assert comparison.lines() == [
        "The records part at pass 2.",
        "Equal byte for byte before that: 2 passes.",
        "Every energy of the pass is the same.",
        f"The checksum after the pass is {digits} in {a} and 0123456789abcdef in {b}.",
        "So the update after it differs.",
    ]


def test_only_the_text_differs(records, write):
    spaced = [*records[:1], records[1].replace(",", ", "), *records[2:]]
    comparison = compare(write("a", records), write("b", spaced))
    assert not comparison.equal
    assert (
        comparison.lines()[-1] == "Its energies and checksum are the same, but the text of the line is not."
    )


def test_the_number_of_replicas_differs(records, write):
    a, b = write("a", records), write("b", changed(records, 0, two_energy=energies(records, 0)[:2]))
    assert compare(a, b).lines()[-1] == f"The number of replicas is 3 in {a} and 2 in {b}."


def test_a_shorter_run(records, write):
    a, b = write("a", records), write("b", records[:1])
    comparison = compare(a, b)
    assert not comparison.equal
    assert comparison.difference is None
    assert comparison.lines() == [
        f"The runs are not equally long: 6 passes in {a} and 1 pass in {b}.",
        "Equal byte for byte as far as both go: 1 pass.",
    ]


def test_a_missing_pass(records, write):
    a, b = write("a", records), write("b", records[:2] + records[3:])
    assert compare(a, b).lines()[0] == f"Line 3 is pass 2 in {a} and 3 in {b}."


def test_a_partial_last_line_is_ignored_and_reported(records, write):
    a, b = write("a", records), write("b", records, partial='{"pass":6,"best')
    comparison = compare(a, b)
    assert comparison.equal
    assert comparison.lines() == [
        "The records are equal byte for byte: 6 passes.",
        f'The last line of {b} is cut off, as by a crash, and ignored: \'{{"pass":6,"best\'.',
    ]


def test_a_last_record_without_a_line_end_does_not_count(records, write):
    comparison = compare(write("a", records[:-1], partial=records[-1]), write("b", records))
    assert not comparison.equal
    assert len(comparison.a.lines) == 5


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"pass":', "\x00\x00", '{"pass":2,"two_energy":[1]}'])
def test_a_line_that_is_no_record(records, write, line):
    """Also where both files hold the same such line."""
    broken = [*records[:2], line, *records[3:]]
    for other in (records, broken):
        b = write("b", broken)
        comparison = compare(write("a", other), b)
        assert not comparison.equal
        assert comparison.lines()[0].startswith("Line 3 of")
        assert "is not a record" in comparison.lines()[0]
    assert f"Line 3 of {b} is not a record" in compare(write("a", records), b).lines()[0]


def test_files_without_a_record_are_not_equal(write):
    comparison = compare(write("a", []), write("b", []))
    assert not comparison.equal
    assert "nothing was compared" in comparison.lines()[0]


def test_what_cannot_be_read_is_a_user_error(records, tmp_path, write):
    with pytest.raises(UserError, match=r"cannot read .*nowhere .*give a run directory or a records\.jsonl"):
        compare(write("a", records), tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"records\.jsonl .No such file"):
        compare(tmp_path, tmp_path)


def test_parse_record(records):
    record = parse_record(records[4].encode())
    assert record.pass_number == 4
    assert record.two_energy == energies(records, 4)
    assert parse_record(b"\xff\xfe{") is None
