"""What a call has asked a person so far and what was answered: the state that a `NeedInput` keeps.

Two protocols, two ways. Since 2026 a server answers a call with what it needs and an opaque state,
and has done nothing yet: the call is made again with both, by any worker, days later. Before, a
server asks in the middle of a call. A call that may be repeated is ended then, and made again with
the answer at hand for when the same question comes again. A `write` is not: nobody knows what it
had done before it asked, so its question is declined and the model is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import mcp_types as types

from harness_common.contracts.tool import NeedInput
from harness_common.core.errors import Permanent
from harness_common.core.message import Json
from harness_worker.mcp import ask
from harness_worker.mcp.ask import Asked, NotAnswered
from harness_worker.mcp.connection import Call

_MAX_QUESTIONS: Final = 20


@dataclass(slots=True)
class Talk:
    """The questions of one call."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of questions in mid-call: by the question's digest."""
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of questions before a call: by the server's key."""
    open: list[tuple[str, Asked]] = field(default_factory=list)
    """Questions still to be put, the first one now; the key is empty for one in mid-call."""
    request_state: str | None = None
    asked: int = 0

    def take(self, server: str, text: str) -> NeedInput | None:
        """Take a person's answer; returns what is to be asked next, None when that was all."""
        if not self.open:
            return None
        key, question = self.open[0]
        try:
            result = ask.result_of(question, text).model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
        except NotAnswered as why:
            return self._need(server, str(why))
        self.open.pop(0)
        if key:
            self.given[key] = result
        else:
            self.answers[question.digest] = result
        return self._need(server) if self.open else None

    def answer_to(self, question: Asked) -> types.ElicitResult | None:
        """Return what was answered to a question in mid-call."""
        known = self.answers.get(question.digest)
        return types.ElicitResult.model_validate(known) if known is not None else None

    def responses(self) -> types.InputResponses | None:
        """Return the answers to send with the next call."""
        if not self.given:
            return None
        return {key: types.ElicitResult.model_validate(value) for key, value in self.given.items()}

    def ask_in_mid_call(self, server: str, question: Asked) -> NeedInput:
        """Put a question that came in the middle of a call."""
        self.open = [("", question)]
        return self._need(server)

    def ask_before(self, server: str, answer: types.InputRequiredResult) -> NeedInput:
        """Put the questions that a server has before it does anything."""
        self.given, self.open, self.request_state = {}, [], answer.request_state
        for key, request in (answer.input_requests or {}).items():
            if not isinstance(request, types.ElicitRequest):
                raise Permanent(
                    f"the MCP server {server!r} wants {request.method}, which is not offered",
                    code="MCP_NOT_SUPPORTED",
                )
            self.open.append((key, ask.asked_of(request.params)))
        return self._need(server)

    def _need(self, server: str, why_again: str = "") -> NeedInput:
        self.asked += 1
        if self.asked > _MAX_QUESTIONS:
            raise Permanent(
                f"the MCP server {server!r} asked more than {_MAX_QUESTIONS} questions in one call",
                code="MCP_TOO_MANY_QUESTIONS",
            )
        question, choices = ask.words(server, self.open[0][1], why_again)
        return NeedInput(question, self.to_json(), choices)

    def to_json(self) -> Json:
        """Write it as the ledger keeps it."""
        return {
            "answers": self.answers,
            "given": self.given,
            "open": [[key, ask.to_json(question)] for key, question in self.open],
            "request_state": self.request_state,
            "asked": self.asked,
        }


def of(kept: Mapping[str, Any] | None) -> Talk:
    """Read what an earlier attempt kept."""
    if kept is None:
        return Talk()
    return Talk(
        dict(kept["answers"]),
        dict(kept["given"]),
        [(key, ask.from_json(question)) for key, question in kept["open"]],
        kept["request_state"],
        kept["asked"],
    )


def notes(server: str, call: Call) -> list[str]:
    """Say what could not be asked, for the model."""
    return [
        f"[the MCP server {server!r} asked in the middle of this call: {message[:500]!r}. That was "
        "declined: a person is asked in mid-call only for tools that the tenant has declared read "
        "or idempotent.]"
        for message in call.declined
    ]
