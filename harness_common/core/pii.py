"""Finds personal data in a text by its form: addresses and numbers whose check digits are right.

Names of people are not found: that takes a model of the language, see the `judge` and `plugin`
guardrails.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

PiiKind = Literal["email", "phone", "iban", "credit_card", "ip", "us_ssn"]
KINDS: Final[tuple[PiiKind, ...]] = get_args(PiiKind)
_SCANNED_CHARS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """A piece of a text that is personal data."""

    kind: PiiKind
    start: int
    end: int


def find(text: str, kinds: Iterable[PiiKind] = KINDS) -> list[Found]:
    """Return what is personal in a text, in order; what one kind has taken no other takes."""
    taken: list[Found] = []
    for kind in sorted(kinds, key=_ORDER.index):
        pattern, is_right = _FORMS[kind]
        for match in pattern.finditer(text[:_SCANNED_CHARS]):
            start, end = match.span()
            if is_right(match.group()) and not any(f.start < end and start < f.end for f in taken):
                taken.append(Found(kind, start, end))
    return sorted(taken, key=lambda f: f.start)


def masked(text: str, found: Iterable[Found]) -> str:
    """Return the text with what was found replaced by its kind in brackets."""
    out, at = [], 0
    for one in found:
        out += [text[at : one.start], f"[{one.kind}]"]
        at = one.end
    return "".join([*out, text[at:]])


def _luhn(text: str) -> bool:
    digits = [int(c) for c in text if c.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = [d if i % 2 == 0 else (d * 2 - 9 if d > 4 else d * 2) for i, d in _backwards(digits)]
    return sum(doubled) % 10 == 0


def _backwards(digits: list[int]) -> Iterable[tuple[int, int]]:
    return enumerate(reversed(digits))


def _iban(text: str) -> bool:
    plain = re.sub(r"[ -]", "", text).upper()
    if not 15 <= len(plain) <= 34:
        return False
    number = "".join(str(int(c, 36)) for c in plain[4:] + plain[:4])
    return int(number) % 97 == 1


def _ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _phone(text: str) -> bool:
    return 8 <= sum(c.isdigit() for c in text) <= 15


def _ssn(text: str) -> bool:
    area, group, serial = text.split("-")
    return area not in {"000", "666"} and area[0] != "9" and group != "00" and serial != "0000"


_FORMS: Final[Mapping[PiiKind, tuple[re.Pattern[str], Callable[[str], bool]]]] = {
    "email": (
        re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),
        lambda _: True,
    ),
    "iban": (
        re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?\b"),
        _iban,
    ),
    "credit_card": (re.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?![\w])"), _luhn),
    "us_ssn": (re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"), _ssn),
    "ip": (
        re.compile(
            r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{1,4})(?![\w:]|\.\d)"
        ),
        _ip,
    ),
    "phone": (
        re.compile(
            r"(?<![\w.+])(?:\+|00)[1-9]\d{0,2}[ ./-]?(?:\(\d{1,5}\)[ ./-]?)?"
            r"\d(?:[ ./-]?\d){5,12}(?!\w)"
        ),
        _phone,
    ),
}
_ORDER: Final[tuple[PiiKind, ...]] = tuple(_FORMS)
