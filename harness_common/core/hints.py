"""Words of the platform to the model, between its answers: they are no new request of the user."""

from __future__ import annotations

from typing import Final

from harness_common.core.message import Message, Text

HINT: Final = {"hint": True}


def hint(text: str) -> Message:
    """Build a message that tells the model what to do about its last answer."""
    return Message("user", (Text(text),), extra=HINT)


def is_hint(message: Message) -> bool:
    """Tell whether the platform said this, and not a user."""
    return bool(message.extra == HINT)
