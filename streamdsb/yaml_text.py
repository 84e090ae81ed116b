"""YAML as a user writes it: plain values only, and no key twice."""

from __future__ import annotations

from typing import Any

import yaml


class NotYaml(Exception):
    """The text is not YAML; says ", line L: why", to follow the name of a file."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value} stands there twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The plain values that `text` stands for; raises NotYaml if it stands for none."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise NotYaml(f"{where}: {getattr(error, 'problem', None) or 'not valid YAML'}") from None
    except (ValueError, RecursionError) as error:
        # the date 2001-99-99, an integer or a nesting too long for Python
        raise NotYaml(f": not valid YAML: {error}") from None
