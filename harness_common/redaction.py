"""Blot out secrets by value: as they are, and as base64, hex, percent-encoding or JSON would write
them.

A value is known from when this process resolved it (`worker`) or was given it (`api`). Logs are
cleaned of every value; what a tenant's tools return only of that tenant's own, so that no tenant
can blot out words of another. Without a known value everything here returns at once.

Plain substring search, one pass per form: at the few dozen values that a process meets this is
quicker than one large regular expression (docs/secrets.md has the figures).
"""

from __future__ import annotations

import base64
import html
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO
from urllib.parse import quote, quote_plus
from uuid import UUID

from harness_common.core.message import Json

MARK: Final = "[redacted]"
MIN_BYTES: Final = 6
"""Shorter values are refused as secrets: blotting them out would garble ordinary text."""
MAX_VALUES: Final = 512
"""Values known at once in a process; the least lately used go first."""
MAX_TENANT_CHARS: Final = 16 * 1024 * 1024
"""What all forms of a tenant's values take at most: those of a value of 64 KiB are over a megabyte,
and one tenant must not fill the memory of a process that serves all.
"""
_INNER: Final = ((0, 0), (1, 2), (2, 3))
"""Bytes before a value within its base64 group, and the characters that those bytes still touch."""


def forms_of(value: str) -> tuple[str, ...]:
    """Return what is searched for, the longest first: the value, and each encoding of it."""
    raw = value.encode()
    found = {value, value.strip()}
    for before, skip in _INNER:
        # The last character is left out where the bits of what follows are in it.
        whole = (before + len(raw)) * 8 // 6
        text = base64.b64encode(b"\0" * before + raw).decode()[skip:whole]
        found |= {text, text.replace("+", "-").replace("/", "_")}
    found |= {raw.hex(), raw.hex().upper()}
    for encoded in (quote(value, safe=""), quote(value), quote_plus(value)):
        found |= {encoded, _lower_escapes(encoded)}
    found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    found |= {repr(value)[1:-1], html.escape(value)}
    return tuple(
        sorted((f for f in found if len(f) >= MIN_BYTES and f not in MARK), key=len, reverse=True)
    )


def _lower_escapes(text: str) -> str:
    """Write `%2F` as `%2f`."""
    head, *rest = text.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in rest)])


class Redactor:
    """The values known to one process, by tenant."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max = max_values
        self._values: OrderedDict[tuple[UUID, str], tuple[str, ...]] = OrderedDict()
        self._of_tenant: dict[UUID, tuple[str, ...]] = {}
        self._of_all: tuple[str, ...] = ()

    def add(self, tenant_id: UUID, value: str) -> None:
        """Know a value from now on."""
        key = (tenant_id, value)
        if key in self._values:
            self._values.move_to_end(key)
            return
        if len(value.encode()) < MIN_BYTES:
            return
        self._values[key] = forms_of(value)
        changed = {tenant_id}
        self._make_room(tenant_id)
        while len(self._values) > self._max:
            (gone, _), _ = self._values.popitem(last=False)
            changed.add(gone)
        for tenant in changed:
            self._of_tenant[tenant] = _ordered(
                form for (t, _), forms in self._values.items() if t == tenant for form in forms
            )
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]
        self._of_all = _ordered(form for forms in self._values.values() for form in forms)

    def _make_room(self, tenant_id: UUID) -> None:
        """Forget the tenant's own least lately used values when its forms take too much."""
        sizes = {
            key: sum(len(form) for form in forms)
            for key, forms in self._values.items()
            if key[0] == tenant_id
        }
        *older, _ = sizes  # the newest stays
        left = sum(sizes.values())
        for key in older:
            if left <= MAX_TENANT_CHARS:
                return
            left -= sizes[key]
            del self._values[key]

    def clean(self, tenant_id: UUID, text: str) -> str:
        """Return `text` without the values of this tenant."""
        forms = self._of_tenant.get(tenant_id)
        return _without(text, forms) if forms else text

    def clean_bytes(self, tenant_id: UUID, data: bytes) -> bytes:
        """Return `data` without the values of this tenant, if it is UTF-8 text; else as it is."""
        if tenant_id not in self._of_tenant:
            return data
        try:
            return self.clean(tenant_id, data.decode()).encode()
        except UnicodeDecodeError:
            return data

    def clean_json(self, tenant_id: UUID, value: Json) -> Json:
        """Return a JSON value whose strings and keys are without the values of this tenant."""
        forms = self._of_tenant.get(tenant_id)
        return _clean_json(value, forms) if forms else value

    def clean_all(self, text: str) -> str:
        """Return `text` without any value known here: for logs, which all tenants share."""
        return _without(text, self._of_all) if self._of_all else text


def _ordered(forms: Iterator[str]) -> tuple[str, ...]:
    return tuple(sorted(set(forms), key=len, reverse=True))


def _without(text: str, forms: tuple[str, ...]) -> str:
    for form in forms:
        if form in text:
            text = text.replace(form, MARK)
    return text


def _clean_json(value: Json, forms: tuple[str, ...]) -> Json:
    if isinstance(value, str):
        return _without(value, forms)
    if isinstance(value, dict):
        return {_clean_json(k, forms): _clean_json(v, forms) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_json(v, forms) for v in value]
    return value


redactor: Final = Redactor()
"""That of this process: logs must be clean whoever writes them."""


def clean_line(_logger: object, _method: str, rendered: Any) -> Any:  # noqa: ANN401 - structlog's
    """Clean a log line that structlog has rendered (its last processor)."""
    return redactor.clean_all(rendered) if isinstance(rendered, str) else rendered


class CleanStream:
    """Standard output or standard error of a process, clean of secrets: also what a tool prints,
    and what the standard library's loggers write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text."""
        self._stream.write(redactor.clean_all(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)


def clean_streams() -> None:
    """Put a `CleanStream` in the place of this process's standard output and standard error."""
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanStream):
            setattr(sys, name, CleanStream(stream))
