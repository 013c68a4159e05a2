"""How a caged tool's return value or error is written, so that the worker gets an equal one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from harness_common.contracts.tool import (
    AskUser,
    NeedInput,
    NewArtifact,
    StartChild,
    ToolOutput,
    ToolReturn,
    WaitUntil,
)
from harness_common.core.errors import (
    Conflict,
    Denied,
    HarnessError,
    Invalid,
    Limited,
    NotFound,
    Permanent,
    Transient,
    UnknownOutcome,
)

_ERRORS: Final[dict[str, type[HarnessError]]] = {
    kind.__name__: kind
    for kind in (
        Conflict, Denied, Invalid, Limited, NotFound, Permanent, Transient, UnknownOutcome,
    )
}  # fmt: skip
BAD_RESULT: Final = "BAD_RESULT"
_MAX_MESSAGE_CHARS = 4_000
Pieces = tuple[dict[str, Any], bytes]
"""A value as JSON, and the bytes of its artifacts one after another."""


def pack(value: ToolReturn) -> Pieces:
    """Write what a tool returned."""
    if isinstance(value, WaitUntil):
        return {"kind": "wait", "at": value.at.isoformat()}, b""
    if isinstance(value, AskUser):
        asked = {"question": value.question, "choices": value.choices, "timeout_s": value.timeout_s}
        return {"kind": "ask", **asked}, b""
    if isinstance(value, NeedInput):
        return {"kind": "need"} | {f.name: getattr(value, f.name) for f in fields(value)}, b""
    if isinstance(value, StartChild):
        return {"kind": "child"} | {f.name: getattr(value, f.name) for f in fields(value)}, b""
    output = value if isinstance(value, ToolOutput) else ToolOutput(value)
    listed = [(a.name, a.media_type, len(a.data)) for a in output.artifacts]
    head = {"kind": "output", "content": output.content, "artifacts": listed}
    head["cost_usd"] = output.cost_usd
    head["untrusted"] = output.untrusted
    return head, b"".join(a.data for a in output.artifacts)


def pack_error(error: Exception) -> dict[str, Any]:
    """Write what a tool raised."""
    if not isinstance(error, HarnessError):
        text = f"{type(error).__name__}: {error}"
        return {"kind": "error", "type": "", "code": type(error).__name__, "message": text}
    name = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _ERRORS), "Permanent")
    packed: dict[str, Any] = {"kind": "error", "type": name, "code": error.error_code}
    packed["message"] = error.message
    if isinstance(error, Limited):
        packed |= {"retry_after_s": error.retry_after_s, "scope": error.scope}
    return packed


def unpack(head: Mapping[str, Any], body: bytes) -> ToolReturn:
    """Make a tool's value again, or raise its error.

    The cage could have sent anything: what is not as `pack` writes it is a `Permanent` error.
    """
    try:
        value = _unpack(head, body)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise Permanent(
            "the tool's process sent something that is no result", code=BAD_RESULT
        ) from problem
    if isinstance(value, HarnessError):
        raise value
    return value


def is_unnamed(head: Mapping[str, Any], error: Permanent) -> bool:
    """Tell whether what `unpack` raised is no answer of the tool's own: an exception that it did
    not name, or nonsense.
    """
    return error.error_code == BAD_RESULT or (head.get("kind") == "error" and not head.get("type"))


def _unpack(head: Mapping[str, Any], body: bytes) -> ToolReturn | HarnessError:
    match head["kind"]:
        case "output":
            artifacts, at = [], 0
            for name, media_type, size in head["artifacts"]:
                artifacts.append(NewArtifact(str(name), str(media_type), body[at : at + int(size)]))
                at += int(size)
            return ToolOutput(
                head["content"],
                tuple(artifacts),
                float(head["cost_usd"]),
                untrusted=bool(head.get("untrusted")),
            )
        case "wait":
            return WaitUntil(datetime.fromisoformat(head["at"]))
        case "ask":
            return AskUser(str(head["question"]), tuple(head["choices"]), head["timeout_s"])
        case "need":
            question, choices = str(head["question"]), tuple(map(str, head["choices"]))
            return NeedInput(question, head["state"], choices, float(head["timeout_s"]))
        case "child":
            return StartChild(**{f.name: head[f.name] for f in fields(StartChild)})
        case "error":
            return _error(head)
    raise ValueError(head["kind"])


def _error(head: Mapping[str, Any]) -> HarnessError:
    message, code = str(head["message"])[:_MAX_MESSAGE_CHARS], str(head["code"])[:64]
    if head["type"] == "Limited":
        wait_s = head.get("retry_after_s")
        after_s = None if wait_s is None else float(wait_s)
        return Limited(message, retry_after_s=after_s, scope=str(head.get("scope", "")), code=code)
    return _ERRORS.get(head["type"], Permanent)(message, code=code)
