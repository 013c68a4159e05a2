"""Recognise what looks like a secret, so that it is never remembered.

By its shape alone: the values that a process knows are blotted out by `harness_common.redaction`.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_SHAPES: Final = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY"),
        ("a JSON web token", r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
        ("an API key of Harness", r"\bhk_[0-9a-zA-Z]{6,}_\S{8,}"),
        ("an API key", r"\b(?:sk|pk|rk)[-_](?:[a-z]+[-_])*[\w-]{16,}"),
        ("a token of a code forge", r"\b(?:gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
        ("a token of a chat service", r"\bxox[abeprs]-[\w-]{10,}"),
        ("a cloud access key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"),
        ("a package token", r"\b(?:pypi-[\w-]{32,}|npm_\w{30,}|hf_\w{20,})"),
        ("a bearer token", r"(?i)\bbearer\s+[\w.~+/-]{12,}"),
        ("a URL with a password", r"\b\w+://[^\s/:@]*:[^\s/@]{3,}@"),
        (
            "a password or key",
            r"(?i)\b(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|api[ _-]?key|access[ _-]?key|"
            r"credentials?|pin)(?:\s+(?:is|was|für|for\s+\S+\s+is))?\s*[:=]?\s*[\"'`]?"
            r"(?=\S*\d)(?=\S*[A-Za-z!-/])[^\s\"'`]{6,}",
        ),
        ("a password", r"(?i)\b(?:password|passwd|passphrase|pwd)\b\s*(?:is|=|:)\s*\S{4,}"),
        ("a password", r"(?:密码|口令|令牌)\s*(?:是|为|:|\uff1a|=)\s*\S{4,}"),
    )
)
_LONG: Final = re.compile(r"[A-Za-z0-9+/_=-]{24,}")
_OUR_IDS: Final = re.compile(r"[a-z]{2,6}_[0-9a-f]{32}")
_CARD: Final = re.compile(r"\b(?:\d[ -]?){12,18}\d\b")


def secret_shape(text: str) -> str | None:
    """Name what in a text looks like a secret; None when nothing does."""
    for name, shape in _SHAPES:
        if shape.search(text):
            return name
    if any(_is_random(m[0]) for m in _LONG.finditer(text)):
        return "a random string of the length of a key"
    if any(_is_card(m[0]) for m in _CARD.finditer(text)):
        return "a payment card number"
    return None


def _is_random(word: str) -> bool:
    """Tell whether a long run of characters mixes small and capital letters with digits, as keys do
    and words, paths, UUIDs and hashes do not.
    """
    if _OUR_IDS.fullmatch(word):
        return False
    kinds = (str.islower, str.isupper, str.isdigit)
    if not all(any(kind(c) for c in word) for kind in kinds):
        return False
    changes = sum(_kind(a) != _kind(b) for a, b in pairwise(word))
    return changes * 3 >= len(word)


def _kind(c: str) -> int:
    return 0 if c.islower() else 1 if c.isupper() else 2 if c.isdigit() else 3


def _is_card(text: str) -> bool:
    digits = [int(c) for c in text if c.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 3:
        return False
    doubled = [d * 2 - 9 if d > 4 else d * 2 for d in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
