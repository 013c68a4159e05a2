"""As much of `kustomize build` as deploy/k8s uses, so that what is applied can be looked at.

It knows resources, components, patches (strategic merge by file or inline, and JSON patches that
remove), labels, images, namespace and configMapGenerator without a hash. Whatever else stands in a
kustomization is refused, so that nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

Doc = dict[str, Any]

KNOWN: Final = {
    *("apiVersion", "kind", "resources", "components", "patches", "labels", "images", "namespace"),
    "configMapGenerator",
}
CLUSTER_WIDE: Final = {"Namespace", "RuntimeClass"}
MERGED_BY: Final = {"containers": "name", "env": "name", "volumes": "name", "ports": "name"}


def build(folder: Path) -> list[Doc]:
    """Return the documents that `kustomize build folder` would print."""
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(spec) - KNOWN:
        raise ValueError(f"{folder}: not known here: {sorted(unknown)}")
    docs = [doc for entry in spec.get("resources", ()) for doc in _resource(folder / entry)]
    docs += [_config_map(one) for one in spec.get("configMapGenerator", ())]
    for entry in spec.get("components", ()):
        docs = _component(folder / entry, docs)
    return _transform(folder, spec, docs)


def _resource(path: Path) -> list[Doc]:
    if path.is_dir():
        return build(path)
    return [doc for doc in yaml.safe_load_all(path.read_text()) if doc is not None]


def _component(folder: Path, docs: list[Doc]) -> list[Doc]:
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if spec["kind"] != "Component" or set(spec) - KNOWN:
        raise ValueError(f"{folder} is no component that is understood here")
    more = [doc for entry in spec.get("resources", ()) for doc in _resource(folder / entry)]
    return _transform(folder, spec, docs + more)


def _transform(folder: Path, spec: Doc, docs: list[Doc]) -> list[Doc]:
    for patch in spec.get("patches", ()):
        _patch(folder, patch, docs)
    for labels in spec.get("labels", ()):
        for doc in docs:
            _label(doc, labels)
    for image in spec.get("images", ()):
        for container in _containers(docs):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    if "namespace" in spec:
        for doc in docs:
            if doc["kind"] not in CLUSTER_WIDE:
                doc["metadata"]["namespace"] = spec["namespace"]
    return docs


def _config_map(spec: Doc) -> Doc:
    data = dict(line.split("=", 1) for line in spec["literals"])
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": spec["name"]},
        "data": data,
    }


def _patch(folder: Path, patch: Doc, docs: list[Doc]) -> None:
    text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
    change = yaml.safe_load(text)
    wanted = patch.get("target") or {
        "kind": change["kind"],
        "name": change["metadata"]["name"],
    }
    found = [
        doc
        for doc in docs
        if doc["kind"] == wanted["kind"] and doc["metadata"]["name"] == wanted["name"]
    ]
    if not found:
        raise ValueError(f"{folder}: a patch for {wanted} finds nothing")
    for doc in found:
        if isinstance(change, list):
            for operation in change:
                _json_patch(doc, operation)
        else:
            _merge(doc, change)


def _json_patch(doc: Doc, operation: Doc) -> None:
    if operation["op"] != "remove":
        raise ValueError(f"not known here: {operation}")
    *way, last = operation["path"].strip("/").split("/")
    for name in way:
        doc = doc[name]
    del doc[last]


def _merge(into: Doc, change: Doc) -> None:
    """Merge as Kubernetes does: objects by field, named lists by name, other lists as a whole."""
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif key in MERGED_BY and isinstance(into.get(key), list):
            by = {one[MERGED_BY[key]]: one for one in into[key]}
            for one in value:
                if (name := one[MERGED_BY[key]]) in by:
                    _merge(by[name], one)
                else:
                    into[key].append(one)
        else:
            into[key] = value


def _label(doc: Doc, labels: Doc) -> None:
    doc["metadata"].setdefault("labels", {}).update(labels["pairs"])
    template = doc.get("spec", {}).get("template")
    if labels.get("includeTemplates") and template is not None:
        template["metadata"].setdefault("labels", {}).update(labels["pairs"])


def _containers(docs: list[Doc]) -> Iterator[Doc]:
    for doc in docs:
        pod = doc.get("spec", {}).get("template", {}).get("spec", {})
        yield from pod.get("containers", ())
