"""The configuration: what is accepted, and one sentence for everything that is not."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.config import Config, load_config, make_config
from streamdsb.errors import UserError

MATTIS = {"source": "mattis", "n": 100}
FLOAT32 = "a number from 1e-45 to 3.4e+38"


def _written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def _refusal(values: Any) -> str:
    with pytest.raises(UserError) as caught:
        make_config(values)
    return str(caught.value)


def test_defaults() -> None:
    config = make_config({"problem": MATTIS})
    assert (config.solver.replicas, config.solver.updates, config.solver.dt) == (8, 20, 1.1)
    assert (config.stream.transport, config.stream.queues, config.stream.burst_frames) == ("shm", 1, 256)
    assert (config.generator.backend, config.receiver.backend) == ("cpu", "cpu")
    assert (config.generator.threads, config.receiver.threads) == (1, 1)


def test_numbers_of_numpy() -> None:
    problem = {"source": "mattis", "n": np.int64(100), "seed": np.uint64(2**64 - 1)}
    config = make_config({"problem": problem, "solver": {"dt": np.float32(0.5), "replicas": np.int16(3)}})
    assert (config.n, config.problem.seed, config.solver.replicas) == (100, 2**64 - 1, 3)
    assert config.solver.dt == 0.5
    assert make_config(yaml.safe_load(config.to_yaml())) == config
    assert "problem.n is" in _refusal({"problem": {"source": "mattis", "n": np.float64(1.5)}})


def test_all_keys_that_scripts_rely_on(tmp_path: Path) -> None:
    config = load_config(
        _written(
            tmp_path,
            "problem: {source: file, n: 10, seed: 1, path: m.npy, field: h.npy}\n"
            "solver: {replicas: 3, updates: 4, seed: 5, dt: 1, xi: 0.25}\n"
            "stream: {transport: tcp, queues: 8, burst_frames: 7}\n"
            "generator: {backend: cpu, threads: 2}\n"
            "receiver: {backend: cpu, threads: 3}\n",
        )
    )
    assert config.problem.path == str(tmp_path / "m.npy")
    assert config.problem.field == str(tmp_path / "h.npy")
    assert config.solver.dt == 1.0
    assert config.xi == np.float32(0.25)
    assert (config.generator.threads, config.receiver.threads) == (2, 3)


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 32_257, 10**7, 10**8])
def test_xi_is_computed_in_double_and_rounded_once(n: int) -> None:
    xi = make_config({"problem": {"source": "random", "n": n}}).xi
    assert xi.dtype == np.float32
    assert xi == np.float32(np.float64(0.5) / math.sqrt(n))


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("problem", "source", "matis", "'mattis', 'random', 'file' or 'python'"),
        ("problem", "n", 0, "from 1 to 100000000"),
        ("problem", "n", -5, "from 1 to 100000000"),
        ("problem", "n", 100_000_001, "from 1 to 100000000"),
        ("problem", "n", "many", "an integer from 1 to 100000000"),
        ("problem", "n", 1e5, "an integer from 1 to 100000000"),
        ("problem", "n", True, "an integer from 1 to 100000000"),
        ("problem", "seed", -1, "from 0 to 18446744073709551615"),
        ("problem", "seed", 2**64, "from 0 to 18446744073709551615"),
        ("problem", "bit_order", "middle", "'big' or 'little'"),
        ("problem", "field", 3, "valid string"),
        ("solver", "replicas", 0, "from 1 to 1024"),
        ("solver", "replicas", 1025, "from 1 to 1024"),
        ("solver", "updates", 0, "from 1 to 2147483647"),
        ("solver", "updates", 2**31, "from 1 to 2147483647"),
        ("solver", "dt", 0, FLOAT32),
        ("solver", "dt", float("nan"), FLOAT32),
        ("solver", "dt", True, FLOAT32),
        ("solver", "dt", "fast", FLOAT32),
        ("solver", "dt", "nan", FLOAT32),
        ("solver", "dt", 10**400, FLOAT32),
        ("solver", "dt", 1e39, FLOAT32),
        ("solver", "dt", 1e-46, FLOAT32),
        ("solver", "xi", "1e-46", FLOAT32),
        ("solver", "xi", -0.5, FLOAT32),
        ("solver", "xi", float("inf"), FLOAT32),
        ("stream", "transport", "pigeon", "'shm'"),
        ("stream", "queues", 0, "from 1 to 8"),
        ("stream", "queues", 9, "from 1 to 8"),
        ("stream", "burst_frames", 0, "from 1 to 8192"),
        ("stream", "timeout_s", 0, "a number above 0 and up to 86400"),
        ("stream", "timeout_s", 10**400, "a number above 0 and up to 86400"),
        ("stream", "timeout_s", float("nan"), "a number above 0 and up to 86400"),
        ("checkpoint", "every", 10**400, "a number of passes from 1 to 2147483647"),
        ("checkpoint", "every", True, "a number of passes from 1 to 2147483647"),
        ("checkpoint", "every", 2.5, "or a text such as '5 minutes', or null"),
        ("checkpoint", "every", "soon", "or a text such as '5 minutes', or null"),
        ("checkpoint", "every", "9" * 400 + " minutes", "or a text such as '5 minutes', or null"),
        ("generator", "backend", "gpu", "'cpu'"),
        ("generator", "threads", 0, "from 1 to 256"),
        ("receiver", "threads", 2.5, "an integer from 1 to 256"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_allowed(
    section: str, key: str, value: Any, allowed: str
) -> None:
    values: dict[str, Any] = {"problem": dict(MATTIS)}
    values.setdefault(section, {})[key] = value
    sentence = _refusal(values)
    assert f"{section}.{key} is " in sentence
    assert repr(value)[:200] in sentence
    assert allowed in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["problem", "missing"]),
        ({"problem": MATTIS, "slover": {}}, ["slover", "problem, solver, stream, generator, receiver"]),
        ({"problem": {**MATTIS, "N": 3}}, ["problem.N", "source, n, seed, path"]),
        ({"problem": MATTIS, "solver": {"B": 3}}, ["solver.B", "replicas, updates, seed, dt, xi"]),
        ({"problem": MATTIS, "stream": None}, ["stream", "None"]),
        ({"problem": MATTIS, "stream": 4}, ["stream is 4", "a section with the keys transport, queues"]),
        ({"problem": "mattis"}, ["problem", "'mattis'"]),
        ({"problem": {"source": "mattis"}}, ["problem.n", "1 to 100000000"]),
        ({"problem": {"source": "random"}}, ["problem.n", "1 to 100000000"]),
        ({"problem": {"source": "file"}}, ["problem.path", "couplings.npy"]),
        ({"problem": {"source": "python"}}, ["problem.path", "module:Class"]),
        ({"problem": {**MATTIS, "path": "m.npy"}}, ["problem.path", "mattis"]),
        ({"problem": {"source": {"julia": "x"}, "n": 3}}, ["problem.source", "julia"]),
        ({"problem": MATTIS, 7: {}}, ["unknown key 7", "problem, solver, stream"]),
        ({"problem": MATTIS, "solver": {7: 1}}, ["unknown key solver.7", "replicas, updates"]),
    ],
)
def test_wrong_sections_and_keys(values: dict[Any, Any], words: list[str]) -> None:
    sentence = _refusal(values)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "source", [{"python": "mine:Couplings"}, "python:mine:Couplings", "python: mine:Couplings"]
)
def test_short_forms_of_a_python_source(source: Any) -> None:
    problem = make_config({"problem": {"source": source}}).problem
    assert (problem.source, problem.path) == ("python", "mine:Couplings")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("problem: [", ["run.yaml", "line"]),
        ("problem:\n\tn: 3", ["run.yaml", "line 2"]),
        ("just words", ["run.yaml", "problem:", "just words"]),
        ("", ["run.yaml", "problem:", "None"]),
        ("- 1\n- 2", ["run.yaml", "[1, 2]"]),
        ("problem: {source: mattis, n: 2001-99-99}", ["run.yaml"]),
        ("problem: {source: mattis, n: " + "9" * 5000 + "}", ["run.yaml"]),
        ("problem: " + "[" * 5000, ["run.yaml"]),
        (
            "problem: {source: mattis, n: 0x" + "f" * 5000 + "}",
            ["problem.n", "from 1 to 100000000"],
        ),
        ("problem: !!python/object:os.system {}", ["run.yaml"]),
        ("problem: &p {n: *p}", ["run.yaml"]),
        ("? [1, 2]\n: 3", ["run.yaml"]),
        (
            "problem: {source: mattis, n: 100}\nsolver: {seed: 1}\nsolver: {seed: 2}",
            ["line 3", "solver", "twice"],
        ),
        ("problem: {source: mattis, n: 100, n: 200}", ["line 1", "the key n", "twice"]),
        ("problem: {source: mattis, n: 100}\nslover:", ["unknown key slover"]),
    ],
    ids=range(15),
)
def test_broken_files(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_config(_written(tmp_path, text))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_empty_sections_are_as_if_left_out(tmp_path: Path) -> None:
    path = _written(tmp_path, "problem: {source: mattis, n: 100}\nsolver:\n  # seed: 3\nstream:\n")
    assert load_config(path) == make_config({"problem": MATTIS})
    assert load_config(path, ["solver.seed=3"]).solver.seed == 3


def test_numbers_that_yaml_takes_for_text(tmp_path: Path) -> None:
    text = "problem: {source: mattis, n: 100}\nsolver: {dt: 1e-3, xi: 2}\nstream: {timeout_s: 1e2}\n"
    config = load_config(_written(tmp_path, text), ["solver.xi=5e-1"])
    assert (config.solver.dt, config.solver.xi, config.stream.timeout_s) == (0.001, 0.5, 100.0)


@pytest.mark.parametrize("value", [1e-45, 1e-40, 3.4e38])
def test_the_outermost_steps_stay_finite_and_above_zero_in_float32(value: float) -> None:
    config = make_config({"problem": MATTIS, "solver": {"dt": value, "xi": value}})
    assert 0 < np.float32(config.solver.dt) < np.inf
    assert 0 < config.xi < np.inf


def test_missing_folder_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.yaml: cannot read the configuration: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="not a text file"):
        load_config(tmp_path / "binary.yaml")


def test_settings_override_the_file(tmp_path: Path) -> None:
    path = _written(tmp_path, "problem: {source: mattis, n: 100}\nsolver: {updates: 3}\n")
    config = load_config(path, ["solver.updates=50", "stream.transport=tcp", "solver.xi=", "problem.n = 7"])
    assert config.solver.updates == 50
    assert config.stream.transport == "tcp"
    assert config.solver.xi is None
    assert config.n == 7


def test_paths_are_taken_from_where_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    path = _written(tmp_path / "configs", "problem: {source: file, path: m.npy, field: ../h.npy}\n")
    monkeypatch.chdir(tmp_path)
    assert load_config(path).problem.path == str(tmp_path / "configs" / "m.npy")
    assert Path(load_config(path).problem.field or "").resolve() == tmp_path / "h.npy"
    moved = load_config(path, ["problem.path=other.npy", "problem.field=/abs/h.npy"])
    assert moved.problem.path == str(tmp_path / "other.npy")
    assert moved.problem.field == "/abs/h.npy"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("solver.updates", ["section.key=value"]),
        ("updates=3", ["section.key=value"]),
        ("a.b.c=3", ["section.key=value"]),
        (".=3", ["section.key=value"]),
        ("=", ["section.key=value"]),
        ("solver.updates=[", ["valid YAML"]),
        ("solver.updates=2001-99-99", ["valid YAML"]),
        ("solver.updates=" + "9" * 5000, ["valid YAML"]),
        ("solver.updates=few", ["solver.updates", "'few'", "an integer from 1 to 2147483647"]),
        ("solver.update=3", ["solver.update", "replicas, updates, seed, dt, xi"]),
        ("solvers.updates=3", ["solvers", "problem, solver, stream, generator, receiver"]),
        ("scalar.key=3", ["scalar", "5"]),
    ],
)
def test_bad_settings(tmp_path: Path, setting: str, words: list[str]) -> None:
    path = _written(tmp_path, "problem: {source: mattis, n: 100}\n" + "scalar: 5\n" * ("scalar" in setting))
    with pytest.raises(UserError) as caught:
        load_config(path, [setting])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_resolved_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    config = make_config({"problem": {**MATTIS, "seed": 2**64 - 1}, "solver": {"dt": 0.1, "xi": 1e-3}})
    again = load_config(_written(tmp_path, config.to_yaml()))
    assert again == config
    assert again.digest() == config.digest()
    assert make_config({"problem": {**MATTIS, "seed": 1}}).digest() != config.digest()


@pytest.mark.parametrize(("text", "receivers"), [("receivers=3", 3), ("receivers=65536", 65536)])
def test_receivers_have_no_section(text: str, receivers: int, tmp_path: Path) -> None:
    config = load_config(_written(tmp_path, yaml.safe_dump({"problem": MATTIS})), [text])
    assert config.receivers == receivers


@pytest.mark.parametrize(
    "text", ["receivers=0", "receivers=65537", "receivers=all", f"receivers={'9' * 5000}"]
)
def test_receivers_out_of_range(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"receivers is .* should be an integer from 1 to 65536"):
        load_config(_written(tmp_path, yaml.safe_dump({"problem": MATTIS})), [text])


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.dates()
    | st.binary(max_size=4)
    | st.sampled_from(["mattis", "random", "file", "python", "python:a:B", "tcp", "cpu", "0x1", "1e5"])
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
sections = {
    name: list(getattr(field.annotation, "model_fields", [])) for name, field in Config.model_fields.items()
}
near_misses = st.fixed_dictionaries(
    {},
    optional={
        name: trees | st.fixed_dictionaries({}, optional=dict.fromkeys(keys, trees))
        for name, keys in sections.items()
    },
)


@settings(deadline=None, max_examples=300)
@given(values=near_misses | st.dictionaries(st.text(max_size=8) | st.integers(), trees, max_size=3))
def test_arbitrary_dictionaries_are_accepted_or_refused_in_one_sentence(values: dict[Any, Any]) -> None:
    try:
        config = make_config(values)
    except UserError as error:
        assert str(error).startswith("configuration: ")  # noqa: PT017
    else:
        assert make_config(config.model_dump()) == config


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60))
def test_arbitrary_text_raises_nothing_but_user_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("text") / "run.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError):
        load_config(path)


@settings(deadline=None, max_examples=200)
@given(
    setting=st.text(max_size=30)
    | st.tuples(st.sampled_from(sorted(sections)), trees).map(lambda s: f"{s[0]}.x={s[1]}")
)
def test_arbitrary_settings_raise_nothing_but_user_errors(
    tmp_path_factory: pytest.TempPathFactory, setting: str
) -> None:
    path = tmp_path_factory.mktemp("set") / "run.yaml"
    path.write_text(yaml.safe_dump({"problem": MATTIS}))
    with pytest.raises(UserError):
        load_config(path, [setting])


def test_settings_mean_the_same_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _written(tmp_path, "problem: {source: random, n: 9}\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = ["problem.path=j.npy", "problem.source=file", "problem.n=7"]
    for order in (settings, settings[::-1]):
        assert load_config(path, order).problem.path == str(tmp_path / "here" / "j.npy")
    written = _written(tmp_path, "problem: {source: random, path: j.npy, n: 9}\n")
    assert load_config(written, ["problem.source=file"]).problem.path == str(tmp_path / "j.npy")
    source = "problem.source=python:mine.py:Class"
    assert load_config(path, [source]).problem.path == str(tmp_path / "here" / "mine.py:Class")
