"""Calls a user's tool inside a cage, with a context whose questions go out to the worker."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from harness_common.contracts.tool import Tool, ToolReturn
from harness_common.core.message import Json
from harness_worker.sandbox import values

Send = Callable[..., None]
Receive = Callable[[], tuple[dict[str, Any], bytes]]
Tell = Callable[[BaseException], None]


class CagedContext:
    """The `ToolContext` of a caged tool: plain fields, and four questions to the worker."""

    def __init__(self, fields: Mapping[str, Any], send: Send, receive: Receive) -> None:
        self.tenant_id: str = fields["tenant_id"]
        self.run_id: str = fields["run_id"]
        self.session_id: str = fields["session_id"]
        self.call_id: str = fields["call_id"]
        self.idempotency_key: str = fields["idempotency_key"]
        self.attempt: int = fields["attempt"]
        self.now = datetime.fromisoformat(fields["now"])
        resumed = fields["resumed"]
        self.resumed = datetime.fromisoformat(resumed) if resumed else None
        self.state: Json = fields["state"]
        self.answer: str | None = fields["answer"]
        self.config: Mapping[str, Json] = fields["config"]
        self._send, self._receive = send, receive

    async def secret(self, name: str) -> str:
        """Return a secret that the tool declares; raises `Denied` and `NotFound`."""
        return str(self._ask({"ask": "secret", "name": name})[0]["secret"])

    async def progress(self, message: str, fraction: float | None = None) -> None:
        """Tell whoever watches how far it is."""
        self._ask({"ask": "progress", "message": message, "fraction": fraction})

    async def artifact(self, name: str, media_type: str, data: bytes) -> str:
        """Keep bytes and return their artifact id."""
        head = {"ask": "artifact", "name": name, "media_type": media_type}
        return str(self._ask(head, data)[0]["id"])

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return an artifact of the same tenant."""
        return self._ask({"ask": "read_artifact", "id": artifact_id})[1]

    def _ask(self, head: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        self._send(head, body)
        answer, data = self._receive()
        if "kind" in answer:
            values.unpack(answer, b"")  # raises what the worker raised
        return answer, data


def run_tool(job: Mapping[str, Any], send: Send, receive: Receive, tell: Tell) -> int:
    """Import the tool's module, call it, send what it returned or raised; returns an exit code."""
    call = job["call"]
    try:
        tool = _find(job["module"], call["tool"])
        context = CagedContext(call["context"], send, receive)
        value = asyncio.run(_call(tool, context, call["arguments"]))
        head, body = values.pack(value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told to the worker
        traceback.print_exc(file=sys.stderr)
        raised = error if isinstance(error, Exception) else RuntimeError(f"it called exit: {error}")
        tell(raised)
        send({"value": values.pack_error(raised)})
        return 1
    send({"value": head}, body)
    return 0


async def _call(tool: Tool, context: CagedContext, arguments: dict[str, Json]) -> ToolReturn:
    value = tool.fn(context, **arguments)
    return await value if inspect.isawaitable(value) else value


def _find(module: str, name: str) -> Tool:
    for value in vars(importlib.import_module(module)).values():
        if isinstance(value, Tool) and value.spec.name == name:
            return value
    raise LookupError(f"the module {module} has no tool {name} at its top level")
