"""Facts in a real Postgres: with and without the extension, encrypted or not, and their end."""

from __future__ import annotations

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine

from harness_api.cli import ends
from harness_common.core.errors import Transient
from harness_common.crypto.keks import make_kek, parse_keks
from harness_common.embeddings.local import LocalEmbedder
from harness_common.logins import derive
from harness_common.settings import Settings
from harness_common.store import memories
from harness_common.store.audit import Actor
from harness_common.store.db import Database, sqlalchemy_url
from harness_common.store.encryption import set_encryption
from harness_common.store.keyring import Keyring
from harness_common.store.memories import NewFact, Whose
from harness_common.store.memory_admin import MemoryFilter, forget_many
from harness_common.store.migrate import alembic_config, migrate
from harness_worker.scheduler.prune import PruneLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import make_tenant, sql
from tests.worker.runtime import make_shared

pytestmark = pytest.mark.anyio
ACTOR = Actor("a test")
LOCAL = LocalEmbedder()
FACTS = (
    "The customer prefers invoices in euros",
    "Maria lives in Lisbon and works at a bakery",
    "Deploys happen on Tuesdays after ten",
    "她喜欢喝绿茶, 不喝咖啡",
)


async def keep(db, whose, *texts, embedder=LOCAL, **more):
    for text in texts:
        await memories.save(db, whose, NewFact(text, **more), embedder, 100)


async def find(db, whose, query, embedder=LOCAL, **more):
    found = await memories.search(db, whose, query, embedder, limit=more.pop("limit", 3), **more)
    return [one.text for one in found]


@pytest.fixture
async def ann(db):
    return Whose(await make_tenant(db), "a", "ann")


@pytest.mark.parametrize(
    ("query", "number", "by"),
    [
        ("invoice", 0, "words"),  # the stem, not the word
        ("what currency should the bill be in?", 0, "meaning"),
        ("which city is the home of Maria?", 1, "words"),
        ("绿茶", 3, "words"),
        ("when do we release?", 2, "meaning"),
    ],
)
async def test_words_and_meaning_find_together(db, ann, query, number, by):
    await keep(db, ann, *FACTS)
    first = (await memories.search(db, ann, query, LOCAL, limit=3))[0]
    assert first.text == FACTS[number]
    assert by in first.by
    words_alone = await memories.search(db, ann, query, None, limit=3)
    assert (by == "words") == (bool(words_alone) and words_alone[0].text == FACTS[number])


async def test_what_has_nothing_to_do_with_it_is_not_related(db, ann):
    await keep(db, ann, *FACTS)
    assert await find(db, ann, "42", related=True) == []
    assert await find(db, ann, "invoices", related=True, limit=1) == [FACTS[0]]


async def test_vectors_of_two_models_are_never_compared(db, ann):
    class Other(LocalEmbedder):
        name = "other/model"

    await keep(db, ann, FACTS[0])
    assert await find(db, ann, "currency of a bill", Other()) == []
    await keep(db, ann, FACTS[0], embedder=Other())  # said again, it is known by the other's
    assert await find(db, ann, "currency of a bill", Other()) == [FACTS[0]]


async def test_a_model_that_does_not_answer_costs_the_meaning_only(db, ann):
    class Down(LocalEmbedder):
        async def embed(self, texts):
            raise Transient("no answer")

    await keep(db, ann, FACTS[0], embedder=Down())
    assert await find(db, ann, "invoices", Down()) == [FACTS[0]]


async def test_a_fact_ends_and_is_then_deleted(db, ann, database_url):
    await keep(db, ann, FACTS[0], expires_days=3)
    await keep(db, ann, FACTS[1])
    await sql(db, "UPDATE memories SET expires_at = clock_timestamp() WHERE expires_at > now()")
    assert await find(db, ann, "invoices Lisbon") == [FACTS[1]]
    shared = await make_shared(db, settings=Settings(database_url=database_url))
    await PruneLoop(shared).run_once(await look_once(shared))
    assert [r["body"] for r in await sql(db, "SELECT body FROM memories")] == [FACTS[1]]


async def test_what_is_known_is_kept_once_and_may_become_more_trusted(db, ann):
    await keep(db, ann, FACTS[0], trust="untrusted", expires_days=1)
    assert await find(db, ann, "invoices", trusts=memories.TRUSTED) == []
    await keep(db, ann, FACTS[0].upper(), trust="trusted", expires_days=30)
    await keep(db, ann, FACTS[0], trust="untrusted", expires_days=1)
    (row,) = await sql(db, "SELECT trust, expires_at - now() > '29 days' AS late FROM memories")
    assert (row["trust"], row["late"]) == ("trusted", True)


async def test_nothing_of_an_encrypted_fact_is_readable_and_it_is_found(db, database_url):
    keyring = Keyring(parse_keks(make_kek("k1")))
    async with Database(derive(database_url, "system"), keyring=keyring) as keyed:
        tenant_id = await make_tenant(keyed)
        whose = Whose(tenant_id, "a", "ann")
        await keep(keyed, whose, FACTS[2])  # before: in plain
        await set_encryption(keyed, keyring, tenant_id, on=True, new_key=False, actor=ACTOR)
        await keep(keyed, whose, *FACTS[:2], FACTS[3])
        (dump,) = await sql(
            db, "SELECT string_agg(to_jsonb(m)::text, '') AS t FROM memories m "
            "WHERE body LIKE 'hsealed%'"
        )  # fmt: skip
        for word in ("euros", "euro", "invoic", "Lisbon", "bakeri", "绿茶", "wordllama-256@"):
            assert word not in dump["t"]
        assert '"words": null' in dump["t"]
        assert '"embedding": null' in dump["t"]
        assert await find(keyed, whose, "invoice", limit=1) == [FACTS[0]]
        assert await find(keyed, whose, "currency of a bill", limit=1) == [FACTS[0]]
        assert await find(keyed, whose, "绿茶", limit=1) == [FACTS[3]]
        assert await find(keyed, whose, "deploys", limit=1) == [FACTS[2]]
        assert await find(keyed, Whose(tenant_id, "a", "bob"), "invoice euros") == []
        wanted = MemoryFilter(user_id="ann")
        gone = await forget_many(keyed, tenant_id, wanted, "Lisbon", dry_run=False, actor=ACTOR)
        assert gone == (1, False)
        assert FACTS[1] not in await find(keyed, whose, "Lisbon")


async def test_without_the_extension_words_alone_find(fresh_database_url):
    """As on a server that lacks pgvector: the migration passes, the doctor says it."""
    with psycopg.connect(fresh_database_url, autocommit=True) as conn:
        assert ends.vectors(conn).state == "ok"
    engine = create_engine(sqlalchemy_url(fresh_database_url))
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), "0014")
        connection.commit()
    engine.dispose()
    with psycopg.connect(fresh_database_url, autocommit=True) as conn:
        conn.execute("DROP EXTENSION vector")
        conn.execute("CREATE DOMAIN vector AS text")  # in its way: it cannot be installed
    migrate(fresh_database_url)
    with psycopg.connect(fresh_database_url, autocommit=True) as conn:
        finding = ends.vectors(conn)
        assert finding.state == "warn"
        assert "words alone" in finding.advice
        assert "CREATE EXTENSION vector" in finding.advice
    async with Database(derive(fresh_database_url, "system")) as bare:
        whose = Whose(await make_tenant(bare), "a", "ann")
        await keep(bare, whose, *FACTS)
        assert await find(bare, whose, "invoices", limit=1) == [FACTS[0]]
        assert await find(bare, whose, "currency of a bill") == []
