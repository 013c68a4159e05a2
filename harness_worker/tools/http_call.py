"""Turns one call of an HTTP tool into a request, and its answer into a result or a named failure.

What a failure means depends on the effect: of a `write`, only a request that the server has surely
not acted on is a failure; everything in doubt is `UnknownOutcome`, for a person to decide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import httpx
import orjson

from harness_common.contracts.http_tool import ToolDefinition
from harness_common.contracts.tool import EffectClass, NewArtifact, ToolContext, ToolOutput
from harness_common.core import pointer, template
from harness_common.core.errors import (
    Denied,
    HarnessError,
    Invalid,
    Limited,
    Permanent,
    Transient,
    UnknownOutcome,
)
from harness_common.core.message import Json
from harness_worker.egress.client import NOT_SENT, Answer, Ask, TooManyRedirects
from harness_worker.egress.redact import CallSecrets
from harness_worker.egress.retry import retry_after_s
from harness_worker.egress.transport import Refused

_NO_BODY: Final = object()
_MAX_ERROR_CHARS: Final = 500
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_SEE_OTHER: Final = 303
_NOT_ACTED_ON: Final = frozenset({307, 308})
"""Redirects that say "send the same again elsewhere": nothing was done here."""


class HttpCall:
    """One definition, taken apart once; `ask` and `result` are pure."""

    def __init__(self, definition: ToolDefinition) -> None:
        request = definition.http
        self.definition, self.name = definition, definition.name
        self.write = definition.effect_class is EffectClass.WRITE
        self._url = template.parse(request.url)
        self._query = {name: template.parse(v) for name, v in request.query.items()}
        self._headers = {name: template.parse(v) for name, v in request.headers.items()}
        self._body = _parse_body(request.body)
        held = [self._url, *self._query.values(), *self._headers.values(), *_templates(self._body)]
        self.secrets = tuple(sorted({s for part in held for s in part.secrets}))
        used = {name for part in held for name in part.arguments}
        self._rest = frozenset(used - {"*"})

    @property
    def shown(self) -> str:
        """Return the address without query, arguments and secrets, for messages."""
        return self.definition.http.url.partition("?")[0][:200]

    def ask(
        self, ctx: ToolContext, arguments: Mapping[str, Json], secrets: Mapping[str, str]
    ) -> Ask:
        """Write the request; raises `Invalid` for an argument that does not fit into it."""
        request = self.definition.http
        url = self._url.fill(arguments, secrets, self._quote_path)
        if pairs := self._pairs(arguments, secrets):
            url += ("&" if "?" in url else "?") + urlencode(pairs)
        headers = self._filled_headers(arguments, secrets)
        if self.definition.effect_class is not EffectClass.READ and request.idempotency_header:
            headers.setdefault(request.idempotency_header, ctx.idempotency_key)
        content: bytes | None = None
        body = self._filled_body(arguments, secrets)
        if body is not _NO_BODY:
            content, media_type = _encode(body, request.body_type)
            if not any(name.lower() == "content-type" for name in headers):
                headers["Content-Type"] = media_type
        return Ask(
            request.method,
            url,
            headers,
            content,
            timeout_s=self.definition.timeout_s,
            max_bytes=request.max_response_bytes,
            follow=request.method in {"GET", "HEAD"} and not self.write,
        )

    def _quote_path(self, text: str) -> str:
        """Encode one segment; one that would climb or vanish is refused."""
        if text.strip() in {"", ".", ".."}:
            raise self._wrong(f"{text!r} cannot stand in the address")
        return quote(text, safe="")

    def _pairs(
        self, arguments: Mapping[str, Json], secrets: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for name, part in self._query.items():
            value = arguments.get(part.whole) if part.whole else None
            if isinstance(value, list):
                pairs += [(name, template.plain(item)) for item in value]
                continue
            try:
                pairs.append((name, part.fill(arguments, secrets)))
            except template.Missing:
                continue
        return pairs

    def _filled_headers(
        self, arguments: Mapping[str, Json], secrets: Mapping[str, str]
    ) -> dict[str, str]:
        headers: dict[str, str] = {}
        for name, part in self._headers.items():
            try:
                value = part.fill(arguments, secrets)
            except template.Missing:
                continue
            if not value.isprintable() or not value.isascii():
                raise self._wrong(f"the header {name!r} would not be printable ASCII")
            headers[name] = value
        return headers

    def _filled_body(
        self, arguments: Mapping[str, Json], secrets: Mapping[str, str]
    ) -> Json | object:
        """Return the body, `_NO_BODY` when there is none or its one argument was not given."""
        if self._body is None:
            return _NO_BODY
        try:
            return self._fill_body(self._body, arguments, secrets)
        except template.Missing:
            return _NO_BODY

    def _fill_body(
        self, node: Json, arguments: Mapping[str, Json], secrets: Mapping[str, str]
    ) -> Json:
        if isinstance(node, template.Template):
            if node.whole == "*":
                return {k: v for k, v in arguments.items() if k not in self._rest}
            if node.whole is not None:
                if node.whole not in arguments:
                    raise template.Missing(node.whole)
                return arguments[node.whole]
            return node.fill(arguments, secrets)
        if isinstance(node, list):
            items = []
            for part in node:
                with contextlib.suppress(template.Missing):
                    items.append(self._fill_body(part, arguments, secrets))
            return items
        if not isinstance(node, dict):
            return node
        filled: dict[str, Json] = {}
        for name, part in node.items():
            with contextlib.suppress(template.Missing):
                filled[name] = self._fill_body(part, arguments, secrets)
        return filled

    def _wrong(self, cause: str) -> Invalid:
        return Invalid(
            f"Tool {self.name!r} was not run: {cause}. Correct the argument and call it again.",
            code="ARGUMENTS_INVALID",
            tool=self.name,
        )

    def result(self, answer: Answer, hide: CallSecrets) -> ToolOutput:
        """Return what the model gets of an answer; raises what its status means."""
        accepted = range(200, 300)
        if answer.status not in accepted and not (self.write and answer.status == _SEE_OTHER):
            raise self._status(answer, hide)
        if answer.broken is not None and not self.write:
            raise Transient(
                f"Tool {self.name!r}: {self.shown} {answer.broken}. Try again later.",
                code="BAD_BODY",
                tool=self.name,
            )
        return self._content(answer, hide)

    def _content(self, answer: Answer, hide: CallSecrets) -> ToolOutput:
        head: dict[str, Json] = {"status": answer.status}
        if answer.broken is not None:
            return ToolOutput(head | {"note": f"done; its answer {answer.broken}"})
        if not answer.body:
            return ToolOutput(head | {"data": None})
        if _is_json(answer):
            return self._json(answer, hide, head)
        if _is_text(answer):
            text = _decode(answer)
            text = hide.cut(text) if answer.truncated else hide.text(text)
            return ToolOutput(head | {"text": text, "truncated": answer.truncated})
        kind = hide.text(answer.content_type) or "application/octet-stream"
        kept = NewArtifact(f"{self.name}.bin", kind, hide.bytes(answer.body))
        more = {"content_type": kind, "size_bytes": len(answer.body)}
        return ToolOutput(head | more | {"truncated": answer.truncated}, (kept,))

    def _json(self, answer: Answer, hide: CallSecrets, head: dict[str, Json]) -> ToolOutput:
        request = self.definition.http
        if answer.truncated:
            limit = f"its answer is larger than {request.max_response_bytes} bytes"
            if self.write:
                return ToolOutput(head | {"note": f"done; {limit}"})
            raise Permanent(
                f"Tool {self.name!r}: {limit}. Ask for less: a smaller page, fewer fields.",
                code="RESPONSE_TOO_LARGE",
                tool=self.name,
                limit=request.max_response_bytes,
            )
        try:
            found: Json = orjson.loads(answer.body)
        except ValueError:
            return ToolOutput(head | {"text": hide.text(_decode(answer)), "truncated": False})
        data = pointer.follow(found, request.result)
        if data is pointer.NOTHING:
            data = None
            head["note"] = f"the answer has nothing at {request.result}"
        out = head | {"data": hide.json(data)}
        if request.next_cursor is not None:
            cursor = pointer.follow(found, request.next_cursor)
            out["next_cursor"] = None if cursor is pointer.NOTHING else hide.json(cursor)
        return ToolOutput(out)

    def _status(self, answer: Answer, hide: CallSecrets) -> HarnessError:
        """Say what a status that is no success means for a call of this effect."""
        status, code = answer.status, f"HTTP_{answer.status}"
        said = hide.cut(_decode(answer))[:_MAX_ERROR_CHARS] if _is_text(answer) else ""
        reason = hide.text(answer.reason)
        start = f"Tool {self.name!r}: {self.shown} answered {status} {reason}".rstrip()
        start += f": {' '.join(said.split())}" if said.strip() else "."
        wait_s = retry_after_s(answer.headers)
        if status == _TOO_MANY or (status == _UNAVAILABLE and wait_s is not None):
            after = f"not before {wait_s:g} s have passed" if wait_s is not None else "later"
            return Limited(
                f"{start} Ask this server again {after}.",
                retry_after_s=wait_s,
                scope=f"http:{urlsplit(self.definition.http.url).hostname}",
                code=code,
                tool=self.name,
            )
        if self.write and (status >= 500 or (300 <= status < 400 and status not in _NOT_ACTED_ON)):
            return UnknownOutcome(
                f"{start} It may have happened or not.", code=code, tool=self.name
            )
        if status >= 500 or status in {408, 425}:
            return Transient(f"{start} Try again later.", code=code, tool=self.name)
        return Permanent(f"{start} The same call will be refused again.", code=code, tool=self.name)

    def fail(self, problem: Exception, hide: CallSecrets) -> NoReturn:
        """Raise what a request that got no answer means for a call of this effect."""
        start = f"Tool {self.name!r}: {self.shown}"
        if isinstance(problem, Refused):
            raise Denied(
                f"{start} may not be asked: {hide.text(str(problem))}. "
                "Do not call it again; tell the person that its host is not allowed.",
                code="E403",
                tool=self.name,
            ) from None
        if isinstance(problem, TooManyRedirects):
            raise Permanent(f"{start}: {problem}.", code="TOO_MANY_REDIRECTS", tool=self.name)
        what = type(problem).__name__
        if isinstance(problem, NOT_SENT):
            raise Transient(
                f"{start} cannot be reached ({what}); nothing was sent. Try again later.",
                code="CONNECTION_FAILED",
                tool=self.name,
            ) from None
        if self.write:
            raise UnknownOutcome(
                f"{start} gave no answer ({what}); the request may have arrived.",
                code="NO_ANSWER",
                tool=self.name,
            ) from None
        slow = isinstance(problem, httpx.TimeoutException)
        raise Transient(
            f"{start} {'did not answer in time' if slow else f'broke off ({what})'}. "
            "Try again later.",
            code="TIMEOUT" if slow else "CONNECTION_FAILED",
            tool=self.name,
        ) from None


def _parse_body(node: Json) -> Json:
    """Replace every text of a body by its template."""
    if isinstance(node, str):
        return template.parse(node)
    if isinstance(node, list):
        return [_parse_body(part) for part in node]
    if isinstance(node, dict):
        return {name: _parse_body(part) for name, part in node.items()}
    return node


def _templates(node: Json) -> list[template.Template]:
    if isinstance(node, template.Template):
        return [node]
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [found for part in parts for found in _templates(part)]


def _encode(body: Json, kind: str) -> tuple[bytes, str]:
    if kind == "json":
        return orjson.dumps(body), "application/json"
    pairs = [
        (name, template.plain(item))
        for name, value in body.items()
        for item in (value if isinstance(value, list) else [value])
    ]
    return urlencode(pairs).encode(), "application/x-www-form-urlencoded"


def _is_json(answer: Answer) -> bool:
    return answer.content_type.endswith(("/json", "+json"))


def _is_text(answer: Answer) -> bool:
    kind = answer.content_type
    if kind.startswith("text/") or kind.endswith(("/json", "+json", "/xml", "+xml", "/yaml")):
        return True
    return kind == "application/x-ndjson" or (not kind and b"\0" not in answer.body)


def _decode(answer: Answer) -> str:
    try:
        return answer.body.decode(answer.charset or "utf-8", errors="replace")
    except (LookupError, ValueError):
        return answer.body.decode("utf-8", errors="replace")
