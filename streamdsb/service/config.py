"""What `streamdsb serve` can be told: keys, defaults and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamdsb.errors import UserError
from streamdsb.service.limits import DEFAULT_ETHER_TYPE, DEFAULT_PORT, RING_ITEMS


class ServiceConfig(BaseModel):
    """A server: where it listens and what solves."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    server: Literal["cpu", "launch", "proxy"] = Field(
        default="cpu",
        description="what solves: cpu, worker threads; launch, one kernel launch a request; proxy, worker"
        " blocks that stay on the GPU",
    )
    listen: str = Field(
        default=f"127.0.0.1:{DEFAULT_PORT}", description="UDP host:port; port 0 is any free one"
    )
    interface: str | None = Field(default=None, description="raw Ethernet on this interface instead of UDP")
    ether_type: int = Field(default=DEFAULT_ETHER_TYPE, ge=0x0600, le=0xFFFF, description="of raw Ethernet")
    workers: int | None = Field(
        default=None, ge=1, le=1024,
        description="threads of cpu, blocks of proxy; as many as there are cores, or as fit, if absent",
    )  # fmt: skip
    streams: int = Field(default=8, ge=1, le=64, description="requests on their way at once, of launch")
    device: int = Field(default=0, ge=0, description="CUDA device of launch and proxy")
    queue: int = Field(
        default=1024, ge=1, le=RING_ITEMS, description="requests inside, beyond which: overloaded"
    )


PLANNED_SERVERS = ("gpunetio",)
"""Servers that have a place here but are not there: gpunetio, a NIC's queues driven by the GPU."""


def load_service_config(path: Path | None, settings: Iterable[str] = ()) -> ServiceConfig:
    """Read a YAML file of these keys, if any, and apply `key=value` settings."""
    values: Any = {}
    if path is not None:
        try:
            values = yaml.safe_load(path.read_text()) or {}
        except OSError as error:
            raise UserError(f"{path}: cannot read the configuration: {error.strerror}") from None
        except (ValueError, RecursionError, yaml.YAMLError):
            raise UserError(f"{path}: not valid YAML") from None
        if not isinstance(values, dict):
            raise UserError(f"{path}: expected keys such as 'listen:', found {str(values)[:100]!r}")
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: expected key=value, for example queue=256")
        try:
            values[key.strip()] = yaml.safe_load(text)
        except (ValueError, RecursionError, yaml.YAMLError):
            raise UserError(f"--set {setting}: the value is not valid YAML") from None
    return make_service_config(values, str(path or "configuration"))


def make_service_config(values: Mapping[str, Any], where: str = "configuration") -> ServiceConfig:
    """Validate; UserError with one sentence about the first thing wrong."""
    try:
        return ServiceConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("server",) and first["input"] in PLANNED_SERVERS:
            raise UserError(
                f"{where}: server is {first['input']!r}, which this version does not have yet; choose 'cpu',"
                " 'launch' or 'proxy'"
            ) from None
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            valid = ", ".join(ServiceConfig.model_fields)
            raise UserError(f"{where}: unknown key {key}; valid keys: {valid}") from None
        allowed = first["msg"].removeprefix("Input should be ")
        raise UserError(
            f"{where}: {key} is {str(first['input'])[:100]!r}, but it should be {allowed}"
        ) from None
