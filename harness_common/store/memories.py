"""Facts that agents remember, in Postgres: saving, finding by words and by meaning, forgetting.

Whose memory something is, is tenant, namespace and user: every statement names all three. A tenant
that has its bodies encrypted gets neither words nor vectors in plain, which would tell what the
fact says: such facts (the newest 1,000 of a user) are opened and ranked in this process.
"""

from __future__ import annotations

import array
import base64
import hashlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

import structlog

from harness_common.contracts.embeddings import Embedder
from harness_common.contracts.memory import MAX_CHARS, MAX_QUERY_CHARS, Remembered
from harness_common.core.errors import HarnessError, Limited
from harness_common.core.fact import clean_fact, fused, search_words, words_of
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row, run_sql, run_together
from harness_common.store.db import Database
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_json, seal_text

log = structlog.get_logger()

TRUSTED: Final = ("trusted", "approved")
ANY_TRUST: Final = (*TRUSTED, "untrusted")
_BEST: Final = 50
"""How many a ranking gives at most."""


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose memory: `user_id` is None for what all users share, '' for runs of no user."""

    tenant_id: UUID
    scope: str
    user_id: str | None

    def key(self) -> dict[str, object]:
        """Name it in a statement."""
        return {"tenant_id": self.tenant_id, "scope": self.scope, "user_id": self.user_id}


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to keep, checked already."""

    text: str
    kind: str = "fact"
    trust: str = "trusted"
    provenance: dict[str, Json] = field(default_factory=dict)
    once: str = ""
    """What makes a repeated request the same one, where equal texts cannot be told."""
    expires_days: int | None = None


@dataclass(frozen=True, slots=True)
class Vector:
    """What a text means, by some model."""

    values: list[float]
    by: str
    floor: float = 0.0


def checked(text: str) -> str:
    """Return a fact as it is kept; raises `Invalid` and `Denied`."""
    return clean_fact(text, MAX_CHARS)


async def vector_of(embedder: Embedder | None, text: str) -> Vector | None:
    """Embed a text; None without a model, or while it does not answer: words do without."""
    if embedder is None:
        return None
    try:
        (values,) = await embedder.embed([text[:MAX_QUERY_CHARS]])
    except HarnessError as error:
        log.warning("embedding.failed", model=embedder.name, code=error.error_code)
        return None
    return Vector(values, embedder.name, embedder.floor)


async def owner_of(db: Database, tenant_id: UUID, session_id: UUID) -> str:
    """Return the user of a session, '' for none."""
    row = await db.fetch_one("memory_owner", {"tenant_id": tenant_id, "session_id": session_id})
    return row["user_id"] if row else ""


async def save(
    db: Database, whose: Whose, fact: NewFact, embedder: Embedder | None, max_facts: int
) -> Row:
    """Keep a fact: `id`, `made` (False: it was known), `trust`, `expires_at`. Safe to repeat.

    Raises `Limited` (`MEMORY_FULL`).
    """
    vector = await vector_of(embedder, fact.text)
    async with db.tenant_transaction(whose.tenant_id) as conn:
        return await save_in(conn, whose, fact, vector, max_facts, db.timeout_s)


async def save_in(
    conn: Connection,
    whose: Whose,
    fact: NewFact,
    vector: Vector | None,
    max_facts: int,
    timeout_s: float,
) -> Row:
    """Do what `save` does within the caller's transaction."""
    key = await writing_key(conn, whose.tenant_id, timeout_s)
    params = whose.key() | {
        "body": seal_json(key, fact.text),
        "kind": fact.kind,
        "trust": fact.trust,
        "digest": hashlib.sha256(fact.text.casefold().encode()).hexdigest(),
        "words": search_words(fact.text),
        "embedding": vector.values if vector else None,
        "embedded_by": vector.by if vector else None,
        "sealed": None,
        "provenance": json_codec.dumps_text(fact.provenance),
        "expires_days": fact.expires_days,
        "max_facts": max_facts,
    }
    if key is not None:
        sealed = seal_text(key, _packed(vector.values)) if vector else None
        # A digest would confirm a guess of what the fact says.
        params |= {"digest": fact.once or uuid4().hex, "words": None, "embedding": None}
        params |= {"sealed": sealed}
    rows = await run_sql(conn, "memory_save", params, timeout_s)
    if not rows:
        raise Limited(
            f"this memory holds {max_facts} facts already, which is the most: forget some first "
            "(`harness memory forget`), or raise HARNESS_MEMORY__MAX_FACTS",
            code="MEMORY_FULL",
            limit=max_facts,
        )
    return rows[0]


async def search(
    db: Database,
    whose: Whose,
    query: str,
    embedder: Embedder | None,
    *,
    limit: int,
    trusts: Sequence[str] = ANY_TRUST,
    related: bool = False,
) -> list[Remembered]:
    """Return the facts that fit a query best, those for all users among them.

    With `related` a fact that no word of the query is in counts only if its meaning is closer than
    the model's floor.
    """
    query = query[:MAX_QUERY_CHARS]
    vector = await vector_of(embedder, query)
    async with db.tenant_transaction(whose.tenant_id) as conn:
        return await search_in(
            conn, whose, query, vector,
            limit=limit, trusts=trusts, related=related, timeout_s=db.timeout_s,
        )  # fmt: skip


async def search_in(
    conn: Connection,
    whose: Whose,
    query: str,
    vector: Vector | None,
    *,
    limit: int,
    trusts: Sequence[str],
    related: bool,
    timeout_s: float,
) -> list[Remembered]:
    """Do what `search` does within the caller's transaction."""
    params = whose.key() | {"trusts": list(trusts), "words": search_words(query)}
    if vector is not None and await has_vectors(conn, timeout_s):
        params |= {"embedding": vector.values, "embedded_by": vector.by}
        statement = "memory_search"
    else:
        statement = "memory_search_words"
    plain, sealed = await run_together(
        conn, [(statement, params), ("memory_sealed", params)], timeout_s
    )
    rows = {row["id"]: row for row in (*plain, *_ranked(sealed, query, vector))}
    floor = vector.floor if vector and related else -1.0
    by_words = _order(rows, "rank", 0.0)
    by_meaning = _order(rows, "similarity", floor)
    found = fused(by_words, by_meaning)[:limit]
    return [
        _remembered(rows[one], score, one in by_words, one in by_meaning) for one, score in found
    ]


def _order(rows: dict[UUID, Row], by: str, floor: float) -> list[UUID]:
    ranked = [i for i, row in rows.items() if row[by] is not None and row[by] > floor]
    return sorted(ranked, key=lambda i: (-rows[i][by], -rows[i]["id"].int))[:_BEST]


def _ranked(sealed: list[Row], query: str, vector: Vector | None) -> list[Row]:
    """Rank opened facts as the database ranks plain ones: by words, and by meaning."""
    wanted = words_of(query)
    for row in sealed:
        words = words_of(row["body"])
        row["rank"] = len(wanted & words) / math.sqrt(len(words) + 1) or None
        row["similarity"] = None
        if vector is not None and row["sealed"] and row["embedded_by"] == vector.by:
            row["similarity"] = _cosine(vector.values, _unpacked(row["sealed"]))
    return [r for r in sealed if r["rank"] is not None or r["similarity"] is not None]


async def has_vectors(conn: Connection, timeout_s: float) -> bool:
    """Tell whether this server has the extension `vector`."""
    (row,) = await run_sql(conn, "memory_vectors", {}, timeout_s)
    return bool(row["vectors"])


async def read(db: Database, whose: Whose, ids: Sequence[UUID]) -> list[Remembered]:
    """Return the facts of these ids that are there still, in their order: one round trip."""
    rows = await db.fetch("memory_read", whose.key() | {"ids": list(ids)})
    by_id = {row["id"]: row for row in rows}
    return [_remembered(by_id[i], 0.0, False, False) for i in ids if i in by_id]


async def forget(db: Database, whose: Whose, memory_id: UUID) -> bool:
    """Delete a fact of a user for good; False when there is none. Safe to repeat."""
    return bool(await db.fetch("memory_forget", whose.key() | {"id": memory_id}))


def _remembered(row: Row, score: float, by_words: bool, by_meaning: bool) -> Remembered:
    ways = (("words", by_words), ("meaning", by_meaning))
    return Remembered(
        id=encode("memory", row["id"]),
        text=row["body"],
        kind=row["kind"],
        trust=row["trust"],
        shared=row["user_id"] is None,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        score=round(score, 6),
        by=tuple(way for way, yes in ways if yes),
        provenance=row["provenance"],
    )


def _packed(values: Sequence[float]) -> str:
    return base64.b64encode(array.array("f", values).tobytes()).decode()


def _unpacked(text: str) -> array.array[float]:
    return array.array("f", base64.b64decode(text))


def _cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    if len(a) != len(b):
        return None
    size = math.sqrt(_dot(a, a) * _dot(b, b))
    return _dot(a, b) / size if size else None


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return float(sum(map(operator.mul, a, b)))
