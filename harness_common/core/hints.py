"""What a guard says to the model: a message that is told from what the user said."""

from __future__ import annotations

from typing import Final

from harness_common.core.message import Message, user

NOTE: Final = "[Note from Harness, not from the user] "


def hint(text: str) -> Message:
    """Build a message from Harness to the model."""
    return user(NOTE + text)


def is_hint(message: Message) -> bool:
    """Tell whether a message was said by Harness, not by a person."""
    return message.role == "user" and message.text().startswith(NOTE)
