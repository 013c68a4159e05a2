"""Words in the user's place that are none of a user's: the platform's notes between answers, and
what a parent's model asks of a child run.
"""

from __future__ import annotations

from typing import Final

from harness_common.core.message import Message, Text
from harness_common.core.values import replace

HINT: Final = {"hint": True}
NOTE: Final = "[Note from Harness, not from the user] "


def hint(text: str) -> Message:
    """Build a message that tells the model what to do about its last answer."""
    return Message("user", (Text(NOTE + text),), extra=HINT)


def is_hint(message: Message) -> bool:
    """Tell whether the platform said this, and not a user."""
    return bool(message.extra == HINT)


ASSIGNED: Final = {"assigned": True}


def assigned(message: Message) -> Message:
    """Mark what a parent's model asks of a child: to the child it is a request like a user's, but
    no user has said it. The mark goes with the message into forks and the session's history.
    """
    return replace(message, extra=ASSIGNED)


def is_assigned(message: Message) -> bool:
    """Tell whether a model asked this of its child run."""
    return bool(message.extra == ASSIGNED)
