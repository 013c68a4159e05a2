"""Which versions of skills a run keeps to, and what they say.

`commands.insert` pins them when a run starts; workers keep the versions they have seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from harness_common.contracts.skill import Pin, PinnedSkill, SkillSpec
from harness_common.contracts.stored import read_stored
from harness_common.core.errors import NotFound, Permanent
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.db import Database

_CACHED: Final = 500


def no_skill(name: str, version: int | None, field_: str = "name") -> NotFound:
    """Say that there is no such skill."""
    which = f" version {version}" if version is not None else ""
    return NotFound(
        f"no skill {name!r}{which}; make it with `harness skills apply FILE`",
        code="SKILL_NOT_FOUND",
        field=field_,
        value=name if version is None else f"{name}@{version}",
    )


async def pin(
    conn: Connection,
    tenant_id: UUID,
    of_agent: Sequence[str],
    asked: Sequence[str],
    timeout_s: float,
) -> list[Json]:
    """Choose the versions that a run keeps to: those that its agent names and those that the
    request asks for, which are active. Raises `NotFound` (`SKILL_NOT_FOUND`).
    """
    refs = dict.fromkeys((*asked, *of_agent))
    if not refs:
        return []
    found = await _find(conn, tenant_id, [_parsed(ref) for ref in refs], timeout_s)
    pins: dict[str, Pin] = {}
    for row, ref in zip(found, refs, strict=True):
        if row["version"] is None:
            raise no_skill(row["name"], row["wanted"], "skills")
        # What the request asks for comes first, and goes before the agent's version of it.
        pins.setdefault(row["name"], Pin(row["name"], row["version"], ref in asked))
    return [one.to_json() for one in pins.values()]


async def missing_skills(db: Database, tenant_id: UUID, refs: Sequence[str]) -> list[str]:
    """Return those of `refs` that the tenant does not have."""
    if not refs:
        return []
    async with db.tenant_transaction(tenant_id) as conn:
        found = await _find(conn, tenant_id, [_parsed(ref) for ref in refs], db.timeout_s)
    return [ref for ref, row in zip(refs, found, strict=True) if row["version"] is None]


def _parsed(ref: str) -> tuple[str, int | None]:
    name, _, version = ref.partition("@")
    return name, int(version) if version else None


async def _find(
    conn: Connection, tenant_id: UUID, wanted: Sequence[tuple[str, int | None]], timeout_s: float
) -> list[Row]:
    rows = [{"n": n, "name": name, "version": v} for n, (name, v) in enumerate(wanted)]
    params = {"tenant_id": tenant_id, "wanted": json_codec.dumps_text(rows)}
    return await run_sql(conn, "skills_find", params, timeout_s)


@dataclass(slots=True)
class SkillCache:
    """The versions of skills that this process has read. They never change, so they are kept."""

    _known: OrderedDict[tuple[UUID, Pin], PinnedSkill] = field(default_factory=OrderedDict)

    async def load(
        self, db: Database, tenant_id: UUID, pins: Sequence[Pin]
    ) -> tuple[PinnedSkill, ...]:
        """Return what a run's skills say; raises `Permanent` when one is gone."""
        missing = [one for one in pins if (tenant_id, one) not in self._known]
        if missing:
            wanted = [(one.name, one.version) for one in missing]
            async with db.tenant_transaction(tenant_id) as conn:
                rows = await _find(conn, tenant_id, wanted, db.timeout_s)
            for one, row in zip(missing, rows, strict=True):
                self._known[tenant_id, one] = PinnedSkill(one, _spec(one, row))
        found = tuple(self._known[tenant_id, one] for one in pins)
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return found


def _spec(one: Pin, row: Mapping[str, Any]) -> SkillSpec:
    if row["version"] is None:
        raise Permanent(f"the skill {one.ref} of the run is gone", code="SKILL_NOT_FOUND")
    return read_stored(SkillSpec, row["spec"], f"the skill {one.ref}")
