"""Takes secrets out of what comes back: by value, in the forms in which servers give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from harness_common.core.message import Json
from harness_common.redaction import MARK, forms_of

_SHORTEST: Final = 4
"""Of a secret that is cut off at the end, a shorter beginning would be found everywhere."""


class CallSecrets:
    """Hides the secrets of one call in its answer, whatever the process forgets meanwhile, and
    unlike `redaction` also the beginning of one at which an answer was cut off.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in forms_of(secret)}
        self._forms = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return `text` without them."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MARK)
        return text

    def cut(self, text: str) -> str:
        """Return a text that was cut off without them, and without the beginning of one at its
        end.
        """
        text = self.text(text)
        for form in self._forms:
            for length in range(len(form) - 1, _SHORTEST - 1, -1):
                if text.endswith(form[:length]):
                    return text[:-length] + MARK
        return text

    def bytes(self, data: bytes) -> bytes:
        """Return bytes without them."""
        for form in self._forms:
            data = data.replace(form.encode(), MARK.encode())
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
