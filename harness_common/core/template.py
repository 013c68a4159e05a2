"""Texts with holes: `{argument}` is filled by a call, `secret://name` by the tool runtime.

The two never mix: what an argument brings is never read as a placeholder or as a secret, since the
text is taken apart before anything is filled in. `{{` and `}}` are braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from harness_common.core.errors import Invalid
from harness_common.core.message import Json

_PART: Final = re.compile(
    r"(?P<brace>\{\{|\}\})|\{(?P<arg>[A-Za-z0-9_.-]+|\*)\}"
    r"|(?P<secret>secret://[A-Za-z0-9][A-Za-z0-9_.-]*)|(?P<bad>[{}])"
)
Kind = Literal["text", "arg", "secret"]


class Missing(Exception):
    """An argument that the text needs was not given: whatever holds the text is left out."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text, taken apart."""

    parts: tuple[tuple[Kind, str], ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Name the arguments that it takes."""
        return tuple(value for kind, value in self.parts if kind == "arg")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Name the secrets that it takes, as `secret://name`."""
        return tuple(value for kind, value in self.parts if kind == "secret")

    @property
    def whole(self) -> str | None:
        """Return the argument that is all of the text: its value keeps its JSON type."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == "arg" else None

    def fill(
        self,
        arguments: Mapping[str, Json],
        secrets: Mapping[str, str],
        quote: Callable[[str], str] = lambda text: text,
    ) -> str:
        """Return the text; arguments and secrets pass through `quote`. Raises `Missing`."""
        return "".join(
            self._part(kind, value, arguments, secrets, quote) for kind, value in self.parts
        )

    @staticmethod
    def _part(
        kind: Kind,
        value: str,
        arguments: Mapping[str, Json],
        secrets: Mapping[str, str],
        quote: Callable[[str], str],
    ) -> str:
        if kind == "text":
            return value
        if kind == "secret":
            return quote(secrets[value])
        if arguments.get(value) is None:
            raise Missing(value)
        return quote(plain(arguments[value]))


def parse(text: str) -> Template:
    """Take a text apart; raises `Invalid` for a brace that opens or closes nothing."""
    parts: list[tuple[Kind, str]] = []
    end, kept = 0, ""
    for match in _PART.finditer(text):
        kept += text[end : match.start()]
        end = match.end()
        if match["bad"]:
            raise Invalid(
                f"{text[:80]!r} has a lone {match['bad']} at character {match.start()}: write "
                "{argument} for an argument and {{ or }} for a brace",
                code="TOOL_INVALID",
            )
        if match["brace"]:
            kept += match["brace"][0]
            continue
        if kept:
            parts.append(("text", kept))
            kept = ""
        parts.append(("arg", match["arg"]) if match["arg"] else ("secret", match["secret"]))
    kept += text[end:]
    if kept:
        parts.append(("text", kept))
    return Template(tuple(parts))


def plain(value: Json) -> str:
    """Write an argument where a text is wanted: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
