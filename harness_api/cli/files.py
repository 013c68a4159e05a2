"""Reads the files that commands take: JSON, TOML and YAML, by their suffix."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from harness_common.core.errors import Invalid


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one object; raises `Invalid` that says what is wrong with it."""
    kind = {".json": "JSON", ".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}.get(
        path.suffix.lower()
    )
    if kind is None:
        raise Invalid(f"{path} is neither .json, .toml nor .yaml", code="USAGE", field="FILE")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Invalid(f"Cannot read {path}: {error.strerror}", code="USAGE") from error
    except ValueError as error:
        raise Invalid(f"{path} is not UTF-8: {error}", code="USAGE") from error
    try:
        found = _parse(kind, text)
    except ValueError as error:
        raise Invalid(f"{path} is not valid {kind}: {error}", code="USAGE") from error
    if not isinstance(found, dict):
        raise Invalid(f"{path} holds no object", code="USAGE")
    return found


def _parse(kind: str, text: str) -> Any:  # noqa: ANN401 - whatever the file holds
    if kind == "JSON":
        return json.loads(text)
    if kind == "TOML":
        return tomllib.loads(text)
    import yaml

    class Loader(yaml.SafeLoader):
        """Leaves dates as they are written, as JSON would have them."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
