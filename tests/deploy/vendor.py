"""Fetch the schemas that the tests of deploy/ check against: `python -m tests.deploy.vendor`.

They are taken from two packages of PyPI, by name and version, and cut down to the kinds that are
used here: the packages themselves are 80 MB of files that nobody else needs.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent / "schemas"
KUBERNETES: Final = ("kubernetes-validate", "1.37.0", "v1.34.0-local-strict")
"""Manifests are checked against 1.34; what they use has been stable since 1.27."""
COMPOSE: Final = ("check-jsonschema", "0.39.0", "check_jsonschema/builtin_schemas/vendor")
KINDS: Final = (
    *("Deployment-apps-v1", "Job-batch-v1", "Service-v1", "ServiceAccount-v1", "ConfigMap-v1"),
    *("Secret-v1", "Namespace-v1", "PersistentVolumeClaim-v1", "PodDisruptionBudget-policy-v1"),
    "HorizontalPodAutoscaler-autoscaling-v2",
    "NetworkPolicy-networking.k8s.io-v1",
    "Ingress-networking.k8s.io-v1",
    "RuntimeClass-node.k8s.io-v1",
)


def wheel(name: str, version: str, folder: Path) -> zipfile.ZipFile:
    """Download a wheel and open it."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{name}=={version}"]
    subprocess.run([*argv, "--dest", str(folder)], check=True)
    (found,) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return zipfile.ZipFile(found)


def without_words(value: Any) -> Any:
    """Drop what only people read."""
    if isinstance(value, list):
        return [without_words(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        k: without_words(v)
        for k, v in value.items()
        if not (k == "description" and isinstance(v, str))
    }


def references(value: Any) -> Iterator[str]:
    """List the definitions that a schema refers to."""
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref.rpartition("/")[2]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def kubernetes(archive: zipfile.ZipFile, folder: str) -> dict[str, Any]:
    """Gather the definitions that our kinds need into one document."""
    inside = f"kubernetes_validate/kubernetes-json-schema/{folder}/_definitions.json"
    document = without_words(json.loads(archive.read(inside)))
    every = document.get("$defs") or document["definitions"]
    kinds = {
        f"{gvk['group']}/{gvk['version']}/{gvk['kind']}".lstrip("/"): name
        for name, schema in every.items()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
    }
    wanted = {_name(kind): kinds[_name(kind)] for kind in KINDS}
    kept: dict[str, Any] = {}
    left = list(wanted.values())
    while left:
        name = left.pop()
        if name not in kept:
            kept[name] = json.loads(
                json.dumps(every[name]).replace("/api/_definitions.json#/", "#/")
            )
            left.extend(references(every[name]))
    return {"kinds": wanted, "$defs": kept}


def _name(kind: str) -> str:
    name, _, rest = kind.partition("-")
    group, _, version = rest.rpartition("-")
    return f"{group}/{version}/{name}".lstrip("/")


def write(name: str, document: Any) -> None:
    """Write a schema, the same bytes each time."""
    HERE.mkdir(exist_ok=True)
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))
    sys.stdout.write(f"{name}: {len(text)} bytes\n")


def main() -> None:
    """Fetch both."""
    with tempfile.TemporaryDirectory() as folder:
        name, version, inside = KUBERNETES
        write("kubernetes", kubernetes(wheel(name, version, Path(folder)), inside))
        name, version, inside = COMPOSE
        archive = wheel(name, version, Path(folder))
        write("compose", without_words(json.loads(archive.read(f"{inside}/compose-spec.json"))))


if __name__ == "__main__":
    main()
