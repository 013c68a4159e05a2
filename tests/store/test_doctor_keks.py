"""`harness doctor` looks at the key that encrypts: there, private, and the one that was used."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from harness_api.cli import keks
from harness_common.crypto.keks import make_kek, parse_keks
from harness_common.settings import SecretSettings, Settings
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring
from tests.store.play import make_tenant

FIRST, OTHER = make_kek("k1"), make_kek("k2")


@pytest.fixture
def config(database_url, tmp_path):
    return Settings(database_url=database_url, data_dir=tmp_path)


@pytest.fixture
async def used(db: Database):
    """Let a tenant have a data key, wrapped by the first."""
    tenant = await make_tenant(db)
    async with db.transaction() as conn:
        await Keyring(parse_keks(FIRST)).newest(conn, tenant, db.timeout_s)


def found(config, kek: str | None = None) -> list[tuple[str, str]]:
    if kek is not None:
        config = config.model_copy(update={"secrets": SecretSettings(kek=SecretStr(kek))})
    findings = list(keks.check(config))
    assert all(FIRST.partition(":")[2] not in f.text + f.advice for f in findings)
    return [(str(f.state), f.text) for f in findings]


async def test_the_key_that_was_used_is_tried(config, used):
    assert found(config, FIRST) == [("ok", "k1: opens a data key of each of k1")]
    assert found(config, f"{OTHER},{FIRST}") == [("ok", "k2, k1: opens a data key of each of k1")]


async def test_a_key_that_is_gone_or_another_is_a_failure(config, used):
    ((state, text),) = found(config, OTHER)
    assert state == "fail"
    assert "k1 (1 data keys), which is not here" in text
    ((state, text),) = found(config)
    assert state == "fail"
    assert text.startswith("none is set")
    ((state, text),) = found(config, make_kek("k1"))
    assert state == "fail"
    assert "other bytes" in text


async def test_nothing_stored_yet(config, db):
    assert found(config, FIRST) == [("ok", "k1: unused yet")]
    ((state, text),) = found(config)
    assert state == "warn"
    assert "secrets and encryption are refused" in text


async def test_a_file_has_to_be_private_and_readable(config, tmp_path, used):
    file = tmp_path / "kek"
    file.write_text(FIRST)
    file.chmod(0o600)
    assert [state for state, _ in found(config)] == ["ok"]
    file.chmod(0o640)
    (told, tried) = found(config)
    assert told == ("warn", f"{file} has mode 0640: others than its owner may read or change it")
    assert tried[0] == "ok"
    file.write_text("k1:short")
    file.chmod(0o600)
    ((state, text),) = found(config)
    assert (state, text) == ("fail", f"{file}: key-encryption key 'k1' is not base64")
    elsewhere = SecretSettings(kek_file=tmp_path / "gone")
    ((state, text),) = found(config.model_copy(update={"secrets": elsewhere}))
    assert (state, text) == ("fail", f"{tmp_path / 'gone'}: No such file or directory")


async def test_without_a_database_it_is_read_only():
    nowhere = Settings(database_url="postgresql://u:p@127.0.0.1:1/x")
    ((state, text),) = found(nowhere, FIRST)
    assert state == "ok"
    assert text.startswith("k1; not tried: ")
