"""The configuration of a run: its keys, their defaults and what is allowed, all in one place."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streamdsb.config_words import sentence, shown
from streamdsb.errors import UserError
from streamdsb.gpunetio.keys import SOFTWARE_CARD, PciAddress, require_cards
from streamdsb.layout import (
    FRAME_BYTES,
    MAX_CUDA_REPLICAS,
    MAX_N,
    MAX_QUEUES,
    MAX_RECEIVERS,
    MAX_REPLICAS,
    Layout,
)
from streamdsb.yaml_text import NotYaml, parse_yaml

_MAX_UPDATES = 2**31 - 1
_FLOAT32_MIN, _FLOAT32_MAX = 1e-45, 3.4e38
"""What float32 neither rounds to 0 nor to infinity."""

Seed = Annotated[int, Field(ge=0, le=2**64 - 1)]
Threads = Annotated[int, Field(ge=1, le=256)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_number(cls, value: Any, info: ValidationInfo) -> Any:
        """NumPy's numbers as Python's; where a float is due, whole numbers and text such as 1e-3 too.

        YAML 1.1 takes 1e-3 for text.
        """
        if isinstance(value, np.generic):
            value = value.item()
        annotation = cls.model_fields[str(info.field_name)].annotation
        if annotation not in (float, float | None) or isinstance(value, bool):
            return value
        try:
            return float(value) if isinstance(value, int | str) else value
        except (ValueError, OverflowError):
            return value


class Problem(_Section):
    """What is solved: where the couplings come from, their number, and an optional field."""

    source: Literal["mattis", "random", "file", "python"] = "mattis"
    n: int | None = Field(
        default=None, ge=1, le=MAX_N, description="spins; a file or class may tell it itself"
    )
    seed: Seed = 0
    path: str | None = Field(
        default=None, description="file: a .npy or a folder of them; python: module:Class"
    )
    bit_order: Literal["big", "little"] = Field(
        default="big", description="of packed bits, as in numpy.packbits"
    )
    field: str | None = Field(default=None, description="a .npy of n integers h")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: Any) -> Any:
        return _expand_python_source(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check_what_source_needs(self) -> Problem:
        if self.source in ("mattis", "random") and self.n is None:
            raise ValueError(f"problem.source {self.source} needs problem.n, 1 to {MAX_N}")
        if self.source in ("file", "python") and self.path is None:
            example = "couplings.npy" if self.source == "file" else "module:Class"
            raise ValueError(f"problem.source {self.source} needs problem.path, for example {example}")
        if self.source in ("mattis", "random") and self.path is not None:
            raise ValueError(f"problem.path goes with problem.source file or python, not with {self.source}")
        return self


class Solver(_Section):
    """The dynamics: replicas, updates and the parameters of the update step."""

    replicas: int = Field(default=8, ge=1, le=MAX_REPLICAS)
    updates: int = Field(default=20, ge=1, le=_MAX_UPDATES)
    seed: Seed = 0
    dt: float = Field(default=1.1, ge=_FLOAT32_MIN, le=_FLOAT32_MAX)
    xi: float | None = Field(
        default=None, ge=_FLOAT32_MIN, le=_FLOAT32_MAX, description="0.5 / sqrt(n) if absent"
    )


class Stream(_Section):
    """How frames travel from the generator to the receiver."""

    transport: Literal["shm", "tcp", "udp", "ethernet", "peer", "gpunetio"] = Field(
        default="shm",
        description="peer: from GPU to GPU, or inside one; gpunetio: GPUs that drive their network cards",
    )
    queues: int = Field(default=1, ge=1, le=MAX_QUEUES)
    burst_frames: int = Field(default=256, ge=1, le=8192, description="multiples of 64 are fastest")
    ring_bursts: int = Field(default=4, ge=2, le=256, description="bursts a queue holds in shared memory")
    device_ring_mib: int = Field(
        default=64, ge=1, le=65536, description="frames that the receiver's GPU holds, all queues together"
    )
    window_frames: int = Field(
        default=4096,
        ge=1,
        le=2**20,
        description="udp, ethernet, gpunetio: frames a queue may have on the way",
    )
    resend_budget: float = Field(
        default=10.0,
        ge=0,
        le=1e6,
        description="udp, ethernet, gpunetio: resent frames a pass, for each of its frames",
    )
    slots: int = Field(
        default=16384, ge=512, le=2**19, description="gpunetio: frames that a receive queue's ring holds"
    )
    pace_gbps: float | None = Field(
        default=None, gt=0, le=1e5, description="gpunetio: what all queues together send at most, Gb/s"
    )
    timeout_s: float = Field(default=60.0, gt=0, le=86400, description="longest time without any progress")

    @property
    def is_networked(self) -> bool:
        """True if the queues find each other by address, so that processes may be started apart."""
        return self.transport in ("tcp", "udp", "ethernet", "gpunetio")

    @property
    def is_lossy(self) -> bool:
        """True if a CPU's frames may get lost on the way and are then sent again."""
        return self.transport in ("udp", "ethernet")

    @property
    def ring_bytes(self) -> int:
        """Bytes of frames that one queue in shared memory holds."""
        return self.ring_bursts * self.burst_frames * FRAME_BYTES

    @property
    def device_ring_bytes(self) -> int:
        """Bytes of frames that the receiver's GPU holds, all queues together."""
        if self.transport == "gpunetio":
            return self.queues * self.slots * FRAME_BYTES
        return self.device_ring_mib << 20


class Process(_Section):
    """Where and how wide a generator or receiver computes."""

    backend: Literal["cpu", "cuda"] = "cpu"
    device: int = Field(default=0, ge=0, le=1023, description="which GPU, for backend cuda")
    threads: Threads = 1
    interface: str | None = Field(default=None, description="ethernet: the network interface, such as eth1")
    nic: PciAddress | None = Field(
        default=None,
        description="gpunetio: the network card's PCI address, such as 0000:17:00.0, or software",
    )


class Checkpoints(_Section):
    """How often the state is saved, so that an interrupted run can go on."""

    every: int | str | None = Field(default="10 minutes", description="passes, or a text such as '5 minutes'")

    @field_validator("every", mode="before")
    @classmethod
    def _check_every(cls, value: Any) -> Any:
        _interval(value)
        return value

    @property
    def interval(self) -> tuple[int | None, float | None]:
        """(passes, None), (None, seconds) or, for never, (None, None)."""
        return _interval(self.every)

    @property
    def is_on(self) -> bool:
        return self.every is not None


class Recovery(_Section):
    """What is done about a process of 'streamdsb run' that dies."""

    restarts: int = Field(
        default=0, ge=0, le=1000, description="times it is started again, from the last state that is known"
    )


def _interval(every: Any) -> tuple[int | None, float | None]:
    if every is None:
        return None, None
    number, unit = 0.0, ""
    if isinstance(every, int) and not isinstance(every, bool):
        number, unit = min(max(every, 0), 2 * _MAX_UPDATES), "passes"
    elif isinstance(every, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?) *(pass|passes|minute|minutes|min)", every.strip())
        number, unit = (float(match[1]), match[2]) if match else (0.0, "")
    in_passes = unit.startswith("pass")
    if not 0 < number <= _MAX_UPDATES or (in_passes and number != int(number)):
        raise ValueError(
            f"checkpoint.every is {shown(every)}, but it should be a number of passes from 1 to"
            f" {_MAX_UPDATES} such as 10, or a text such as '5 minutes', or null"
        )
    return (int(number), None) if in_passes else (None, 60.0 * number)


class Config(_Section):
    """A whole run."""

    problem: Problem
    solver: Solver = Solver()
    stream: Stream = Stream()
    generator: Process = Process()
    receiver: Process = Process()
    checkpoint: Checkpoints = Checkpoints()
    recovery: Recovery = Recovery()
    receivers: int | None = Field(
        default=None, ge=1, le=MAX_RECEIVERS, description="ranks that receive, under mpiexec; all if absent"
    )
    generators: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RECEIVERS,
        description="ranks that generate for those that receive; each has a generator beside it if absent",
    )

    @model_validator(mode="after")
    def _check_what_cuda_needs(self) -> Config:
        peer = self.stream.transport == "peer"
        if peer and (self.generator.backend, self.receiver.backend) != ("cuda", "cuda"):
            raise ValueError(
                "stream.transport peer needs generator.backend cuda and receiver.backend cuda, not"
                f" {self.generator.backend} and {self.receiver.backend}"
            )
        if self.generator.backend == "cuda" and self.stream.transport not in ("peer", "gpunetio"):
            raise ValueError(
                f"generator.backend cuda needs stream.transport peer or gpunetio, not {self.stream.transport}"
            )
        if self.generator.backend == "cuda" and self.problem.source not in ("mattis", "random"):
            raise ValueError(
                "generator.backend cuda makes problem.source mattis or random, not"
                f" {self.problem.source}; use generator.backend cpu with stream.transport shm"
            )
        if self.receiver.backend == "cuda" and self.stream.is_lossy:
            raise ValueError(
                f"receiver.backend cuda takes stream.transport peer, shm or tcp, not {self.stream.transport}"
            )
        if self.receiver.backend == "cuda" and self.solver.replicas > MAX_CUDA_REPLICAS:
            raise ValueError(
                f"receiver.backend cuda takes solver.replicas from 1 to {MAX_CUDA_REPLICAS}, not"
                f" {self.solver.replicas}"
            )
        return self

    @model_validator(mode="after")
    def _check_what_ethernet_needs(self) -> Config:
        if self.stream.transport != "ethernet":
            return self
        for role in ("generator", "receiver"):
            if getattr(self, role).interface is None:
                raise ValueError(f"stream.transport ethernet needs {role}.interface, such as eth1")
        if self.generators is not None:
            # frames name a queue, not whose of several receivers behind one interface it is
            raise ValueError(
                f"stream.transport is ethernet, but generators is {self.generators}: what ranks generate goes"
                " to others over tcp or udp; use one of these"
            )
        return self

    @model_validator(mode="after")
    def _check_what_gpunetio_needs(self) -> Config:
        if self.stream.transport == "gpunetio":
            require_cards(self)
        return self

    @property
    def n(self) -> int:
        """The number of spins; known once a file or class has been opened (see `with_n`)."""
        if self.problem.n is None:
            raise ValueError("problem.n is not known before the couplings are opened")
        return self.problem.n

    def with_n(self, n: int) -> Config:
        """This configuration with problem.n filled in."""
        return self.model_copy(update={"problem": self.problem.model_copy(update={"n": n})})

    @property
    def shares_process(self) -> bool:
        """True if generator and receiver share a GPU: two processes on one only take turns."""
        between_gpus = self.stream.transport in ("peer", "gpunetio")
        return between_gpus and self.generator.device == self.receiver.device

    @property
    def has_software_card(self) -> bool:
        """True if a program stands for the network cards of transport gpunetio, inside one process."""
        return self.stream.transport == "gpunetio" and self.receiver.nic == SOFTWARE_CARD

    @property
    def layout(self) -> Layout:
        return Layout(self.n, self.solver.replicas, self.stream.queues)

    @property
    def xi(self) -> np.float32:
        """The coupling gain, computed in float64 and rounded once: 0.5 / sqrt(n) unless given."""
        return np.float32(0.5 / math.sqrt(self.n) if self.solver.xi is None else self.solver.xi)

    def digest(self) -> str:
        """SHA-256 of the resolved configuration, to tell whether two processes hold the same one."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(), sort_keys=False)


def load_config(path: Path, settings: Iterable[str] = ()) -> Config:
    """Read a YAML configuration and apply `key=value` settings such as "solver.updates=50".

    Relative paths in the file are taken from the file's folder, those in settings from the current one.
    Raises UserError with one sentence that names the key, the value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{path}: cannot read the configuration: {reason}") from None
    try:
        values = parse_yaml(text)
    except NotYaml as error:
        raise UserError(f"{path}{error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected sections such as 'problem:' and 'solver:', found {shown(values)}")
    values = {
        key: value for key, value in values.items() if value is not None or key not in Config.model_fields
    }
    given = {_apply_setting(values, setting) for setting in settings}
    _anchor_paths(values, path.parent, given)
    return make_config(values, str(path))


def load_config_for_apart(path: Path, settings: Iterable[str] = ()) -> Config:
    """`load_config` for processes that are started apart: over TCP where shared memory is only the default.

    A transport among the settings is taken as it is.
    """
    settings = list(settings)
    config = load_config(path, settings)
    is_chosen = any(setting.startswith("stream.transport=") for setting in settings)
    if config.stream.is_networked or is_chosen:
        return config
    return load_config(path, ["stream.transport=tcp", *settings])


def make_config(values: Mapping[str, Any], where: str = "configuration") -> Config:
    """Validate nested `values`; raises UserError with one sentence about the first thing wrong."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {sentence(error, values, Config)}") from None


def _expand_python_source(problem: dict[str, Any]) -> dict[str, Any]:
    """Accept `source: {python: module:Class}` and `source: python:module:Class` for source and path."""
    source, target = problem.get("source"), None
    if isinstance(source, dict) and list(source) == ["python"]:
        target = source["python"]
    elif isinstance(source, str) and source.startswith("python:"):
        target = source.removeprefix("python:").strip()
    return problem if target is None else {**problem, "source": "python", "path": target}


def _anchor_paths(values: dict[str, Any], folder: Path, given: set[str]) -> None:
    """Make the problem's paths absolute: from `folder`, or the current one if their keys were `given`."""
    if not isinstance(values.get("problem"), dict):
        return
    problem = _expand_python_source(values["problem"])
    path_given = "problem.path" in given or (problem != values["problem"] and "problem.source" in given)
    values["problem"] = problem
    if isinstance(problem.get("field"), str):
        base = Path.cwd() if "problem.field" in given else folder.absolute()
        problem["field"] = str(base / problem["field"])
    path = problem.get("path")
    if isinstance(path, str) and (problem.get("source") == "file" or _names_python_file(path)):
        problem["path"] = str((Path.cwd() if path_given else folder.absolute()) / path)


def _names_python_file(path: str) -> bool:
    return path.rpartition(":")[0].endswith(".py")


def _apply_setting(values: dict[str, Any], setting: str) -> str:
    """Change `values` as `setting` says; the key that it names."""
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if equals and parts[0] in ("receivers", "generators") and len(parts) == 1:
        number = int(text) if text.isdecimal() and len(text) < 10 else text
        values[parts[0]] = None if text.strip() in ("", "null") else number
        return parts[0]
    if not equals or len(parts) != 2 or not all(parts):
        raise UserError(f"--set {setting}: expected section.key=value, for example solver.updates=50")
    try:
        value = parse_yaml(text) if text.strip() else None
    except NotYaml:
        raise UserError(f"--set {setting}: the value {shown(text)} is not valid YAML") from None
    section = values.setdefault(parts[0], {})
    if not isinstance(section, dict):
        raise UserError(
            f"--set {setting}: {parts[0]} is {shown(section)} in the file, not a section with keys"
        )
    section[parts[1]] = value
    return ".".join(parts)
