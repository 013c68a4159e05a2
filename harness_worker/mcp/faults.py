"""What can go wrong with a call to an MCP server, as the house's errors.

One question decides: may the call have happened? A call that was never sent has not. One whose
connection was lost has perhaps: repeated for what may be repeated, `unknown` for a write.
"""

from __future__ import annotations

from typing import Final

from mcp import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
)

from harness_common.contracts.tool import EffectClass
from harness_common.core.errors import HarnessError, Permanent, Transient, UnknownOutcome

NOT_SENT: Final = "not_sent"
LOST: Final = "lost"
UNAUTHORIZED: Final = "unauthorized"
_MAX_TEXT: Final = 2_000
_SESSION_GONE: Final = "Session terminated"
_WORDS_OF_LOSS: Final[dict[int, tuple[str, ...]]] = {
    CONNECTION_CLOSED: ("Connection closed", "SSE stream"),
    PARSE_ERROR: ("Failed to parse",),
    INTERNAL_ERROR: ("Server returned an error response",),
    # Taken, and answered with nothing that says what came of it; "see there" is how a form is
    # answered once it is done (RFC 9110, 15.4.4).
    INVALID_REQUEST: (
        "server answered a request with 202",
        "Unexpected content type",
        "Redirect to",
    ),
}


class Unavailable(Transient):
    """A server cannot be reached or started now; nothing was sent."""

    code = "MCP_UNAVAILABLE"


class ConnectionLost(Exception):
    """The connection ended, and an answer with it: the call may have happened."""


class SessionGone(Exception):
    """The connection was closed before the call, or the server does not know its session: it has
    not taken the call.
    """


def raise_fault(error: MCPError, server: str, fault: str | None, *, is_open: bool) -> None:
    """Raise what an error that came instead of an answer means; returns when it is the server's own
    answer. `fault` is what the transport says of it.

    The client marks lost answers with codes that servers use as well: its words tell them apart.
    """
    if fault == NOT_SENT:
        raise Unavailable(f"the MCP server {server!r} cannot be reached: {error.message}")
    if fault == UNAUTHORIZED:
        raise unauthorized(server)
    if error.code == INVALID_REQUEST and error.message == _SESSION_GONE:
        raise SessionGone
    known = _WORDS_OF_LOSS.get(error.code, ())
    if fault == LOST or not is_open or error.message.startswith(known):
        raise ConnectionLost(error.message)


def unauthorized(server: str) -> Permanent:
    """Return the error of credentials that a server does not take."""
    return Permanent(
        f"the MCP server {server!r} does not accept the credentials it is given; look at the "
        f"headers and the secrets of its declaration (`harness mcp show {server}`)",
        code="MCP_UNAUTHORIZED",
    )


def lost(server: str, effect: EffectClass, why: str) -> HarnessError:
    """Return what a lost answer means for a tool of this effect."""
    text = f"the connection to the MCP server {server!r} was lost during the call: {why}"
    if effect is EffectClass.WRITE:
        return UnknownOutcome(text, code="MCP_CONNECTION_LOST")
    return Transient(text)


def answered(server: str, effect: EffectClass, error: MCPError) -> HarnessError:
    """Return what a server's own error means: its refusal of a call, for the model to read, or that
    it failed in the middle of one.
    """
    said = f"({error.code}): {error.message[:_MAX_TEXT]}"
    if effect is EffectClass.WRITE and _failed_within(error):
        return UnknownOutcome(
            f"the MCP server {server!r} failed during the call {said}", code="MCP_ERROR"
        )
    return Permanent(f"the MCP server {server!r} refused the call {said}", code="MCP_ERROR")


def _failed_within(error: MCPError) -> bool:
    """Tell whether an error says that the call was begun: something unforeseen came up in it, or
    whoever the server asked in turn did not answer. The code of the second has other uses as well.
    """
    is_late = error.code == REQUEST_TIMEOUT and "timed out" in error.message.lower()
    return error.code == INTERNAL_ERROR or is_late
