"""What is wrong with a configuration, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

_SHOWN = 200
"""Characters of a wrong value that an error message shows."""


def sentence(error: ValidationError, values: Mapping[str, Any], model: type[BaseModel]) -> str:
    """The first thing wrong with `values` for a model of models: key, value found, values allowed."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location) or "configuration"
    if first["type"] in ("extra_forbidden", "invalid_key"):
        return f"unknown key {key}; valid keys here: {', '.join(_section(model, location[:-1]).model_fields)}"
    if first["type"] == "missing":
        return f"the key {key} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "model_type":
        allowed = f"a section with the keys {', '.join(_section(model, location).model_fields)}"
    else:
        allowed = _allowed_range(model, location) or first["msg"].removeprefix("Input should be ")
    return f"{key} is {shown(_given(values, location, first['input']))}, but it should be {allowed}"


def _given(values: Any, location: list[str], otherwise: Any) -> Any:
    """The value at `location` as it was before anything was read into it."""
    for name in location:
        if not isinstance(values, Mapping) or name not in values:
            return otherwise
        values = values[name]
    return values


def _allowed_range(model: type[BaseModel], location: list[str]) -> str | None:
    """The limits of a number, in words; None for what is not a number with two limits."""
    try:
        field = _section(model, location[:-1]).model_fields[location[-1]]
    except (KeyError, IndexError, AttributeError):
        return None
    limits = [limit for item in field.metadata for limit in getattr(item, "metadata", [item])]
    low = next((limit.ge for limit in limits if hasattr(limit, "ge")), None)
    above = next((limit.gt for limit in limits if hasattr(limit, "gt")), None)
    high = next((limit.le for limit in limits if hasattr(limit, "le")), None)
    kind = "an integer" if "int" in str(field.annotation) else "a number"
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    if above is not None:
        return f"{kind} above {above}" + ("" if high is None else f" and up to {high}")
    return None


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no more than 4300 digits
        text = "a very long number"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _section(model: type[BaseModel], names: list[str]) -> Any:
    found: Any = model
    for name in names:
        found = found.model_fields[name].annotation
    return found
