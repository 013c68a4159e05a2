"""Make a server's error text fit to be stored and shown: short, one line, without credentials.

Used wherever a provider's own words go into one of our errors.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHARS: Final = 300

_SECRET: Final = re.compile(
    r"(?i)\b(?:bearer|basic)\s+[^\s\"',;]+"
    r"|\b(?:sk|pk|rk|hk|gsk|xai|key|api|org|proj)[-_][a-z0-9*_.-]{6,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f]+")


def redact(text: str, *secrets: str) -> str:
    """Shorten `text` to one line of `MAX_CHARS` and blot out `secrets` and whatever looks like a
    credential.
    """
    text = _BLANK.sub(" ", blot(text[: 20 * MAX_CHARS], *secrets)).strip()
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def blot(text: str, *secrets: str) -> str:
    """Blot out `secrets` and whatever looks like a credential, and leave the rest as it is."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[redacted]")
    return _SECRET.sub("[redacted]", text)
