"""Which revisions of the schema this version knows, and whether it can use the one that it finds.

A revision is `pre` unless its file says `phase = "post"`. A `pre` revision only adds, so that the
old version and the new one work side by side while processes are replaced. A `post` revision takes
away what only the old version needed; from then on the database says from which revision on a
version has to know it to be usable. Read without Alembic: workers and the API look at each start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from harness_common.core.errors import Conflict

Phase = Literal["pre", "post", "all"]
VERSIONS: Final = Path(__file__).parent / "store" / "migrations" / "versions"
_POST: Final = re.compile(r'^phase = "post"$', re.MULTILINE)
_FLOOR: Final = "oldest usable: "


@dataclass(frozen=True, slots=True)
class Revision:
    """One migration."""

    id: str
    is_post: bool = False


@cache
def known(folder: Path = VERSIONS) -> tuple[Revision, ...]:
    """List the revisions of a folder of migrations, oldest first."""
    files = sorted(folder.glob("[0-9]*_*.py"))
    return tuple(
        Revision(f.name.partition("_")[0], bool(_POST.search(f.read_text()))) for f in files
    )


def fault(found: str | None, comment: str | None, ours: Sequence[Revision]) -> str | None:
    """Say why this version cannot use a schema; None when it can.

    `found` is the revision of the database and `comment` what `floor_comment` wrote there. A newer
    schema is usable until a `post` revision took away something that this version needs.
    """
    ids = [one.id for one in ours]
    if found is None:
        return "the database is empty: run `harness migrate`"
    if found not in ids:
        floor = (comment or "").removeprefix(_FLOOR)
        if not floor or floor in ids:
            return None
        return (
            f"the schema is at {found} and can be used by versions that know {floor}; this one is "
            f"older and ends at {ids[-1]}: install a newer Harness"
        )
    needed = next(one.id for one in reversed(ours) if not one.is_post)
    if ids.index(found) < ids.index(needed):
        return (
            f"the schema is at {found}, this version of Harness needs {needed}: run "
            "`harness migrate --phase pre`"
        )
    return None


def floor_comment(current: str, ours: Sequence[Revision]) -> str | None:
    """Return what the database is to say of itself at a revision: who can still use it."""
    ids = [one.id for one in ours]
    applied = [n for n, one in enumerate(ours) if one.is_post and n <= ids.index(current)]
    return f"{_FLOOR}{ids[applied[-1] - 1]}" if applied else None


def target(found: str | None, phase: Phase, ours: Sequence[Revision]) -> str:
    """Return the revision to go to; raises `Conflict` when the phase cannot be done now."""
    ids = [one.id for one in ours]
    if found is not None and found not in ids:
        return found  # a newer version was here: there is nothing for us to do
    pending = ours if found is None else ours[ids.index(found) + 1 :]
    if found is None or phase == "all" or not pending:
        return ids[-1]
    return _before_roll(found, pending) if phase == "pre" else _after_roll(found, pending)


def _before_roll(found: str, pending: Sequence[Revision]) -> str:
    first_post = next((n for n, one in enumerate(pending) if one.is_post), len(pending))
    if late := [one.id for one in pending[first_post:] if not one.is_post]:
        raise Conflict(
            f"{late[0]} comes after {pending[first_post].id}, which takes away what the version "
            f"that runs now may need (the schema is at {found}). Go through the release between "
            "(pre, replace all processes, post), or stop every process and run `harness migrate`.",
            code="UPGRADE_SKIPS_A_RELEASE",
        )
    return pending[first_post - 1].id if first_post else found


def _after_roll(found: str, pending: Sequence[Revision]) -> str:
    if early := [one.id for one in pending if not one.is_post]:
        raise Conflict(
            f"the schema is at {found} and {early[0]} is still to be done before: run "
            "`harness migrate --phase pre`, replace every process, then come back.",
            code="PHASE_PRE_MISSING",
        )
    return pending[-1].id
