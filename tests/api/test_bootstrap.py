"""The first start: a tenant and an admin key, made once."""

from __future__ import annotations

import asyncio

import pytest

from harness_common.core.errors import Conflict, Invalid, Permanent
from harness_common.settings import Settings
from harness_common.store import keys
from harness_common.store.bootstrap import bootstrap
from harness_common.store.db import Database
from harness_common.store.new_tenant import make_tenant
from harness_common.store.postgres import pg


@pytest.fixture
def bare(config: Settings) -> Settings:
    """Settings without a pepper, as at a first start."""
    return config.model_copy(update={"api": config.api.model_copy(update={"key_pepper": None})})


async def count(db: Database, table: str) -> int:
    async with db.connection() as conn:
        row = await (await pg(conn).execute(f"SELECT count(*) AS n FROM {table}")).fetchone()
    assert row is not None
    return int(row["n"])


async def test_a_first_start_makes_a_tenant_and_a_key_that_works(db, bare):
    path, made = await bootstrap(db, bare)
    assert made
    assert {p.stat().st_mode & 0o777 for p in (path, path.with_name("pepper"))} == {0o600}
    parsed = keys.parse(path.read_text().strip())
    assert parsed is not None
    row = await keys.find_key(db, parsed[0])
    assert row is not None
    assert keys.verify(keys.load_pepper(bare), *parsed, row["secret_hash"])
    async with db.connection() as conn:
        slots = await (
            await conn.execute("SELECT max_running, granted FROM tenant_slots")
        ).fetchone()
    assert slots == {"max_running": 1000, "granted": 1000}


async def test_a_second_start_changes_nothing(db, bare):
    path, _ = await bootstrap(db, bare)
    text = path.read_text()
    assert await bootstrap(db, bare) == (path, False)
    assert path.read_text() == text
    assert (await count(db, "api_keys"), await count(db, "tenants")) == (1, 1)


async def test_starts_at_once_make_one_tenant_and_leave_a_key_that_works(db, bare):
    await asyncio.gather(*(bootstrap(db, bare) for _ in range(4)))
    assert (await count(db, "tenants"), await count(db, "api_keys")) == (1, 1)
    assert (await bootstrap(db, bare))[1] is False


@pytest.mark.parametrize("text", ["", "nonsense", "hk_abc_def", "hk_é_é"])
async def test_a_key_file_that_does_not_verify_is_replaced(db, bare, text):
    path, _ = await bootstrap(db, bare)
    path.write_text(text)
    assert (await bootstrap(db, bare))[1] is True
    assert (await bootstrap(db, bare))[1] is False


async def test_a_revoked_admin_key_is_replaced(db, bare):
    await bootstrap(db, bare)
    async with db.connection() as conn:
        await conn.execute("UPDATE api_keys SET revoked_at = clock_timestamp()")
    assert (await bootstrap(db, bare))[1] is True


async def test_another_tenant_has_a_key_of_its_own_and_runs_nothing_of_the_platform(db, bare):
    await bootstrap(db, bare)
    made = await make_tenant(db, bare, "acme & sons")
    parsed = keys.parse(made.key)
    assert parsed is not None
    row = await keys.find_key(db, parsed[0])
    assert row is not None
    assert keys.verify(keys.load_pepper(bare), *parsed, row["secret_hash"])
    assert (row["tenant_id"], row["role"], row["operator"]) == (made.tenant_id, "admin", False)
    assert await count(db, "tenant_slots") == 2
    with pytest.raises(Conflict) as taken:
        await make_tenant(db, bare, "acme & sons")
    assert taken.value.error_code == "TENANT_EXISTS"
    assert (await count(db, "tenants"), await count(db, "api_keys")) == (2, 2)


async def test_no_tenant_is_made_whose_key_the_api_would_not_know(db, bare, tmp_path):
    elsewhere = bare.model_copy(update={"data_dir": tmp_path / "elsewhere"})
    with pytest.raises(Permanent, match="HARNESS_API__KEY_PEPPER"):
        await make_tenant(db, elsewhere, "acme")
    assert not (tmp_path / "elsewhere").exists()
    assert await count(db, "tenants") == 0


@pytest.mark.parametrize("name", ["", " ", " acme", "two\nlines", "x" * 101])
async def test_a_name_that_is_none_is_refused(db, bare, name):
    with pytest.raises(Invalid):
        await make_tenant(db, bare, name)
    assert await count(db, "tenants") == 0
