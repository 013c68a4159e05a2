"""A server's tool list as it is recorded and offered: names, digests, what can be no tool here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from harness_common.contracts.tool import EffectClass, Reach, ToolSpec
from harness_common.core.errors import Invalid
from harness_common.core.mcp import (
    MAX_DEFINITION_BYTES,
    MAX_TOOLS,
    digest,
    exposed_name,
    pinned,
)
from harness_common.store import json_codec
from harness_common.store.mcp_tools import Listed, Server

CALL_TIMEOUT_S: Final = 60.0
"""How long a call may take unless the server's declaration says otherwise."""
_MAX_NAME: Final = 256


def spec_of(
    server: Server, tool: str, exposed: str, definition: Mapping[str, Any], *, spare_s: float
) -> ToolSpec:
    """Return the specification of an accepted tool.

    What a server says of its own effects is a hint from a stranger and not used: a tool is a
    `write` unless the tenant has declared otherwise.
    """
    description = str(definition.get("description") or definition.get("title") or tool)
    effect = EffectClass(server.effects.get(tool, EffectClass.WRITE))
    where = server.target.get("url") or server.target.get("command")
    return ToolSpec(
        name=exposed,
        description=description,
        input_schema=definition.get("inputSchema"),
        effect=effect,
        # The same definition at another place, or of another effect, is another tool.
        version=digest([definition, where, str(effect)])[:16],
        permission_tags=frozenset({"mcp", "network"}),
        timeout_s=(server.timeout_s or CALL_TIMEOUT_S) + spare_s,
        reach=Reach.EXTERNAL,
        untrusted_output=True,
        outbound=True,
    )


def listed_tools(
    server: Server, tools: Iterable[Mapping[str, Any]], check: Callable[[ToolSpec], None]
) -> list[Listed]:
    """Return what is to be recorded of a list; what cannot be a tool has its problem beside it."""
    found: dict[str, Listed] = {}
    taken: set[str] = set()
    for tool in tools:
        name = str(tool.get("name", ""))
        if not name or len(name) > _MAX_NAME or name in found or len(found) >= MAX_TOOLS:
            continue
        one = _listed(server, name, tool, check)
        if one.exposed in taken:
            continue
        taken.add(one.exposed)
        found[name] = one
    return list(found.values())


def _listed(
    server: Server, name: str, tool: Mapping[str, Any], check: Callable[[ToolSpec], None]
) -> Listed:
    definition = json_codec.loads(json_codec.dumps(pinned(tool)))
    exposed, hash_ = exposed_name(server.name, name), digest(definition)
    size = len(json_codec.dumps(definition))
    if size > MAX_DEFINITION_BYTES:
        problem = f"its definition has {size} bytes; the limit is {MAX_DEFINITION_BYTES}"
        return Listed(name, exposed, {"name": name}, hash_, problem)
    try:
        check(spec_of(server, name, exposed, definition, spare_s=0.0))
    except Invalid as error:
        return Listed(name, exposed, definition, hash_, error.message[:1_000])
    return Listed(name, exposed, definition, hash_)
