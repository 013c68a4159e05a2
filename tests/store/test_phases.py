"""The schema of two versions at once: what is done before and after the processes are replaced."""

from __future__ import annotations

import psycopg
import pytest
from alembic.script import ScriptDirectory

from harness_common import VERSION
from harness_common.core.errors import Conflict
from harness_common.logins import derive
from harness_common.revisions import VERSIONS, Revision, fault, floor_comment, known, target
from harness_common.store.db import Database
from harness_common.store.migrate import migrate
from harness_common.store.schema_check import SchemaUnusable, check_schema, wait_for_schema
from tests.store.play import Play, make_tenant, make_worker, sql

A, B, C, D = (
    Revision("0001"),
    Revision("0002"),
    Revision("0003", is_post=True),
    Revision("0004"),
)


def test_the_revisions_are_those_of_alembic():
    script = ScriptDirectory(str(VERSIONS.parent))
    assert [r.id for r in known()] == [r.revision for r in reversed([*script.walk_revisions()])]


@pytest.mark.parametrize(
    ("found", "phase", "to"),
    [
        (None, "pre", "0003"),
        ("0001", "pre", "0002"),
        ("0001", "all", "0003"),
        ("0002", "pre", "0002"),
        ("0002", "post", "0003"),
        ("0003", "post", "0003"),
        ("0009", "pre", "0009"),
    ],
)
def test_each_phase_goes_so_far(found, phase, to):
    assert target(found, phase, [A, B, C]) == to


def test_a_phase_that_cannot_be_done_says_what_to_do():
    with pytest.raises(Conflict, match="between") as skipped:
        target("0001", "pre", [A, B, C, D])
    assert skipped.value.error_code == "UPGRADE_SKIPS_A_RELEASE"
    with pytest.raises(Conflict, match="--phase pre") as early:
        target("0001", "post", [A, B, C])
    assert early.value.error_code == "PHASE_PRE_MISSING"
    assert target("0003", "pre", [A, B, C, D]) == "0004"


def test_who_can_use_which_schema():
    old, new = [A], [A, B, C]
    assert fault(None, None, new) == "the database is empty: run `harness migrate`"
    assert "harness migrate --phase pre" in str(fault("0001", None, new))
    assert fault("0002", None, new) is None
    assert fault("0002", floor_comment("0002", new), old) is None
    assert "install a newer" in str(fault("0003", floor_comment("0003", new), old))
    assert fault("0003", floor_comment("0003", new), [A, B]) is None


OF_NEXT = """
revision = "{id}"
down_revision = "{before}"
{phase}
from alembic import op
def upgrade():
    op.execute("{does}")
"""


@pytest.fixture
def next_version(tmp_path):
    """Give the migrations of a version to come: one that adds and one that takes away."""
    folder = tmp_path / "versions"
    folder.mkdir()
    for file in VERSIONS.glob("[0-9]*.py"):
        (folder / file.name).symlink_to(file)
    (folder / "9001_add.py").write_text(
        OF_NEXT.format(
            id="9001", before=known()[-1].id, phase="", does="ALTER TABLE platform ADD a int"
        )
    )
    (folder / "9002_drop.py").write_text(
        OF_NEXT.format(
            id="9002", before="9001", phase='phase = "post"', does="ALTER TABLE platform DROP a"
        )
    )
    return folder


async def test_old_processes_work_until_the_post_phase(fresh_database_url, next_version):
    url = fresh_database_url
    async with Database(derive(url, "system")) as db, Database(derive(url, "api")) as api:
        await db.ready()
        play = Play(db, await make_tenant(db), await make_worker(db))
        migrate(url, 1, phase="pre", versions=next_version)
        await wait_for_schema(db, 0)
        run_id = await play.start()
        assert await play.try_claim(run_id, 1) is not None
        await sql(db, "UPDATE workers SET version = '0.0.9', seen_at = clock_timestamp()")
        with pytest.raises(Conflict, match=r"0\.0\.9") as refused:
            migrate(url, 1, phase="post", versions=next_version)
        assert refused.value.error_code == "OLD_WORKERS_ALIVE"
        await sql(db, "UPDATE workers SET version = :v", v=VERSION)
        migrate(url, 1, phase="post", versions=next_version)
        for who in (db, api):
            async with who.connection() as conn:
                with pytest.raises(SchemaUnusable, match="install a newer"):
                    await check_schema(conn, 5)
        migrate(url, 1)  # an old `harness migrate` by mistake
        assert await sql(db, "SELECT version_num FROM alembic_version") == [{"version_num": "9002"}]


async def test_new_processes_wait_for_the_pre_phase(fresh_database_url):
    async with Database(derive(fresh_database_url, "system")) as db:
        await db.ready()
        await wait_for_schema(db, 0)
        with psycopg.connect(fresh_database_url, autocommit=True) as owner:
            owner.execute("UPDATE alembic_version SET version_num = %s", [known()[-2].id])
            with pytest.raises(SchemaUnusable, match="--phase pre"):
                await wait_for_schema(db, 0)
            owner.execute("DROP TABLE alembic_version")
        with pytest.raises(SchemaUnusable, match="empty"):
            await wait_for_schema(db, 0)


async def test_a_table_in_use_is_waited_for(fresh_database_url, next_version):
    """The lock timeout lets others pass; the migration itself comes again."""
    busy = psycopg.connect(fresh_database_url)
    busy.execute("LOCK TABLE platform IN ACCESS SHARE MODE")
    busy.execute("SET idle_in_transaction_session_timeout = '6s'")
    migrate(fresh_database_url, 1, phase="pre", versions=next_version)
    busy.close()
    with psycopg.connect(fresh_database_url) as conn:
        assert conn.execute("SELECT version_num FROM alembic_version").fetchone() == ("9001",)
