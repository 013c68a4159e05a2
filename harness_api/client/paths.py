"""Paths with ids in them, checked first: a mistyped id must never become another path."""

from __future__ import annotations

from urllib.parse import quote

from harness_common.core.errors import Invalid
from harness_common.core.ids import decode


def id_path(template: str, kind: str, text: str) -> str:
    """Fill an id into `template`; raises `Invalid` when it is not the id of a `kind`."""
    decode(kind, text)
    return template.format(text)


def name_path(template: str, name: str) -> str:
    """Fill a name into `template`; raises `Invalid` when it could be a path of its own."""
    if not name.strip(".") or "/" in name:
        raise Invalid(f"{name!r} is not a name", field="name", value=name)
    return template.format(quote(name, safe=""))
