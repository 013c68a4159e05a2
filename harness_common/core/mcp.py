"""Tools of MCP servers as they are known here: their names, their digests, what has changed.

A server's words are those of a stranger: what a tenant has accepted is pinned by digest, and
anything else is no tool of an agent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from harness_common.core.message import Json

SEPARATOR: Final = "__"
WILDCARD: Final = "__*"
"""`server__*` in an agent's tools stands for every accepted tool of the server."""
MAX_TOOLS: Final = 512
MAX_DEFINITION_BYTES: Final = 64 * 1024
_MAX_NAME: Final = 64
_ODD: Final = re.compile(r"[^a-zA-Z0-9_-]")
_PINNED: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


def masked(values: Mapping[str, str]) -> dict[str, str]:
    """Hide what headers or the environment of a server hold: it may be a secret. References to
    secrets stay.
    """
    return {k: v if v.startswith("secret://") else "***" for k, v in values.items()}


class ToolState(StrEnum):
    """What may be done with a tool of a server."""

    READY = "ready"
    """Accepted, and as it was then."""
    NEW = "new"
    """Never accepted."""
    CHANGED = "changed"
    """Accepted once, and another thing by now."""
    GONE = "gone"
    """Accepted once, and no longer listed."""
    REFUSED = "refused"
    """Cannot be a tool here: its problem says why."""


def command_allowed(program: str, allowed: Iterable[str]) -> bool:
    """Tell whether the operator lets tenants start this program: by name, path or pattern."""
    return any(fnmatchcase(program, pattern) for pattern in allowed)


def exposed_name(server: str, tool: str) -> str:
    """Return the name by which agents call a tool: `server__tool`.

    A name that providers would refuse gets its odd characters replaced, is cut, and ends with a
    digest of the true one, so that it is the same for ever and no other tool's.
    """
    plain = f"{server}{SEPARATOR}{tool}"
    if len(plain) <= _MAX_NAME and not _ODD.search(plain):
        return plain
    mark = "_" + hashlib.sha256(f"{server}\n{tool}".encode()).hexdigest()[:10]
    return _ODD.sub("_", plain)[: _MAX_NAME - len(mark)] + mark


def pinned(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Return the part of a listed tool that a person accepts: all that a model could read."""
    return {key: tool[key] for key in _PINNED if tool.get(key) is not None}


def digest(definition: Json) -> str:
    """Return the SHA-256 of a definition, whatever the order of its keys."""
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def list_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of a whole list, from those of its tools by name."""
    return digest(sorted(digests.items()))


def state_of(accepted: str | None, seen: str | None, problem: str | None) -> ToolState:
    """Return the state of a tool from the digests of what was accepted and of what is listed."""
    if problem:
        return ToolState.REFUSED
    if accepted is None:
        return ToolState.NEW
    if seen is None:
        return ToolState.GONE
    return ToolState.READY if accepted == seen else ToolState.CHANGED


def wildcards(names: Iterable[str]) -> list[str]:
    """Return the servers all of whose tools are wanted."""
    return [name.removesuffix(WILDCARD) for name in names if name.endswith(WILDCARD)]
