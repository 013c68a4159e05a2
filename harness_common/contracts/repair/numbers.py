"""Read a number that was written in words, or with its unit: "about 1,000", "大概 1000", "a dozen".

One number exactly has to be in the text, and nothing else that means something.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple


class Read(NamedTuple):
    """A number, and whether the text said that it is about right only."""

    value: int | float
    exact: bool


_PLAIN: Final = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_GROUPED: Final = re.compile(r"[+-]?\d{1,3}(?:[,_ \u00a0\u202f']\d{3})+(?:\.\d+)?")
_NUMBER: Final = re.compile(rf"(?:{_GROUPED.pattern}|{_PLAIN.pattern})")
_ABOUT: Final = re.compile(
    r"(?i)\b(?:about|around|approximately|approx\.?|roughly|circa|ca\.?|nearly|almost|some|maybe|"
    r"perhaps|probably|give or take|or so|more or less|i think|i guess|it'?s|is|of)(?![a-z])"
    r"|[~≈≃±]|大概|大约|大約|约|約|差不多|左右|上下|可能|也许|也許|将近|將近|近乎|几乎|幾乎"
)
_UNITS: Final = re.compile(
    r"(?i)^\s*(?:usd|eur|dollars?|euros?|\$|€|£|¥|rows?|lines?|items?|results?|records?|"
    r"files?|times?|days?|hours?|minutes?|mins?|seconds?|secs?|ms|s|tokens?|characters?|chars?|"
    r"bytes?|元|块|塊|个|個|条|條|行|次|天|小时|小時|分钟|分鐘|秒|字|人)?\s*$"
)
_SCALES: Final = {
    "k": 10**3, "m": 10**6, "bn": 10**9, "b": 10**9, "hundred": 100, "thousand": 10**3,
    "million": 10**6, "billion": 10**9, "dozen": 12, "千": 10**3, "万": 10**4, "萬": 10**4,
    "亿": 10**8, "億": 10**8,
}  # fmt: skip
_SCALE: Final = re.compile(rf"(?i)^({'|'.join(sorted(_SCALES, key=len, reverse=True))})(?![a-z])")

_SMALL: Final = {
    word: number
    for number, word in enumerate(
        re.findall(
            r"\w+",
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
            "fifteen sixteen seventeen eighteen nineteen",
        )
    )
} | {
    word: 10 * number
    for number, word in enumerate(
        ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2
    )
} | {"couple": 2}  # fmt: skip
_LARGE: Final = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_HAN: Final = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"两": 2, "兩": 2, "〇": 0}
_HAN_UNITS: Final = {"十": 10, "百": 100, "千": 1000}
_HAN_LARGE: Final = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_MAX_CHARS: Final = 80


def read_number(text: str) -> Read | None:
    """Return the number that a text says; None when it says none, or more than one."""
    text = text.strip()
    if not text or len(text) > _MAX_CHARS:
        return None
    if _PLAIN.fullmatch(text) or _GROUPED.fullmatch(text):
        return _read(text, exact=True)
    bare = _ABOUT.sub(" ", text).strip(" .!,，。")
    found = list(_NUMBER.finditer(bare))
    if len(found) > 1:
        return None
    if not found:
        value = _in_words(bare)
        return None if value is None else Read(value, False)
    before, after = bare[: found[0].start()].strip(), bare[found[0].end() :].strip()
    times = 1
    if scale := _SCALE.match(after):
        times, after = _SCALES[scale[1].lower()], after[scale.end() :]
    if before not in {"", "$", "€", "£", "¥"} or not _UNITS.match(after):
        return None
    read = _read(found[0][0], exact=False)
    return read and Read(_whole(read.value * times), False)


def _read(text: str, *, exact: bool) -> Read | None:
    plain = re.sub(r"[,_ \u00a0\u202f']", "", text)
    if re.fullmatch(r"[+-]?\d{1,300}", plain):
        return Read(int(plain), exact)
    value = float(plain)
    return Read(value, exact) if math.isfinite(value) else None


def _whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(value, 9)


def _in_words(text: str) -> int | None:
    words = re.findall(r"[a-z]+", text.lower())
    if words and re.fullmatch(r"[a-z\s-]+", text.lower()):
        return _english(words)
    signs = re.sub(r"[个個条條行次天元块塊]$", "", text.strip())
    return _chinese(signs) if signs else None


def _english(words: list[str]) -> int | None:
    total = part = 0
    known = False
    for word in words:
        if word in {"a", "an", "and", "of"}:
            continue
        if word == "dozen":
            part = max(part, 1) * 12
        elif word == "hundred":
            part = max(part, 1) * 100
        elif word in _LARGE:
            total, part = total + max(part, 1) * _LARGE[word], 0
        elif (value := _SMALL.get(word)) is not None and _follows(part, value):
            part += value
        elif known and _UNITS.match(word):
            continue
        else:
            return None
        known = True
    return total + part if known else None


def _follows(part: int, value: int) -> bool:
    """Tell whether a word may follow what was said: "twenty five" may, "two three" may not."""
    if value < 10:
        return part % 10 == 0 and part % 100 != 10
    return part % 100 == 0


def _chinese(text: str) -> int | None:
    total = section = digit = 0
    for char in text:
        if char in _HAN:
            digit = _HAN[char]
        elif char in _HAN_UNITS:
            section += (digit or 1) * _HAN_UNITS[char]
            digit = 0
        elif char in _HAN_LARGE:
            total += (section + digit or 1) * _HAN_LARGE[char]
            section = digit = 0
        else:
            return None
    return total + section + digit
