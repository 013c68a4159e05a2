"""The schemas of Kubernetes and Compose that `vendor` fetched, and how to check against them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

_HERE = Path(__file__).parent / "schemas"


def _load(name: str) -> Any:
    return json.loads(gzip.decompress((_HERE / f"{name}.json.gz").read_bytes()))


def compose_faults(document: Any) -> list[str]:
    """List what is wrong with a Compose file."""
    schema = _load("compose")
    return _told(validator_for(schema)(schema).iter_errors(document))


def manifest_faults(document: dict[str, Any]) -> list[str]:
    """List what is wrong with a manifest; fields that Kubernetes does not know are."""
    schema = _load("kubernetes")
    kind = f"{document['apiVersion']}/{document['kind']}"
    if kind not in schema["kinds"]:
        return [f"{kind}: no schema; add it to tests/deploy/vendor.py"]
    one = {"$ref": f"#/$defs/{schema['kinds'][kind]}", "$defs": schema["$defs"]}
    return _told(Draft202012Validator(one).iter_errors(document))


def _told(errors: Any) -> list[str]:
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors]
