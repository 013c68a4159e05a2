"""Takes secrets out of what comes back: by value, in the forms in which servers give them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, quote_plus

from harness_common.core.message import Json

HIDDEN: Final = "[secret]"
_SHORTEST: Final = 4
"""A shorter value would be found everywhere."""


class Redactor:
    """Hides the given values: as they are, as JSON and URLs write them, in hex, and in base64 at
    each of the three places at which they can begin.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return `text` without them."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def cut(self, text: str) -> str:
        """Return a text that was cut off without them, and without the beginning of one at its
        end.
        """
        text = self.text(text)
        for form in self._forms:
            for length in range(len(form) - 1, _SHORTEST - 1, -1):
                if text.endswith(form[:length]):
                    return text[:-length] + HIDDEN
        return text

    def bytes(self, data: bytes) -> bytes:
        """Return bytes without them."""
        for form in self._forms:
            data = data.replace(form.encode(), HIDDEN.encode())
        return data

    def json(self, value: Json) -> Json:
        """Return a JSON value without them, names included."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(part) for part in value]
        if isinstance(value, dict):
            return {self.text(name): self.json(part) for name, part in value.items()}
        return value


def _forms(secret: str) -> Iterable[str]:
    raw = secret.encode()
    yield secret
    yield json.dumps(secret)[1:-1]
    yield from (quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield from (raw.hex(), raw.hex().upper())
    for lead in range(3):
        # What surrounds the value decides its first and last characters: those are left out.
        start, end = (lead * 8 + 5) // 6, (lead + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            inner = encode(b"\0" * lead + raw).decode()[start:end]
            if len(inner) >= 2 * _SHORTEST:
                yield inner
