"""Ages, exports, erasures and storage over HTTP, through the client and on the command line."""

from __future__ import annotations

import json
import tracemalloc

import httpx
import pytest

from harness_api.client import ApiError, AsyncClient
from harness_api.client.export import Check, NotWhole, artifact_bytes, read_export
from harness_common.blobs.local import LocalBlobs
from harness_common.core.ids import encode
from harness_common.crypto.aead import CannotDecrypt
from harness_common.crypto.keks import make_kek
from harness_common.logins import derive
from harness_common.settings import RetentionSettings, SecretSettings
from harness_common.store import export, keyring
from harness_common.store.artifacts import save_artifact
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from harness_common.store.schema import metadata
from tests.store.play import Play, ran, say, sql


@pytest.fixture
def config(config):
    return config.model_copy(
        update={
            "retention": RetentionSettings(events_days=30),
            "secrets": SecretSettings(kek=make_kek("one")),
        }
    )


@pytest.fixture
def blobs(config):
    return LocalBlobs(config.data_dir.resolve() / "blobs")


def client_of(app, tenant, role="admin") -> AsyncClient:
    return AsyncClient("http://api", tenant.keys[role], transport=httpx.ASGITransport(app))


async def finished(play: Play, **more):
    run_id = await play.start(**more)
    await play.step(run_id, say("first", tools=["look"]))
    await play.step(run_id, ran("one"))
    await play.step(run_id, say("the end"))
    return run_id


async def whole(pieces) -> list[dict]:
    return list(read_export([piece async for piece in pieces]))


def of(records, kind):
    return [r for r in records if r["kind"] == kind]


# --- ages -----------------------------------------------------------------------------------------


async def test_ages_are_set_bounded_and_taken_back(api):
    path = "/v1/tenant/retention"
    assert (await api.get(path)).json()["holds"]["events_days"] == 30
    body = {"events_days": 10, "runs_days": 20}
    changed = (await api.patch(path, json=body)).json()
    assert changed["own"] == {
        "events_days": 10, "checkpoints_days": None, "artifacts_days": None, "runs_days": 20,
    }  # fmt: skip
    assert set(changed["holds"].values()) == {10, 20}, "what goes with the run goes no later"
    back = (await api.patch(path, json={"events_days": None})).json()
    assert (back["own"]["events_days"], back["holds"]["events_days"]) == (None, 20)
    for wrong in ({"events_days": 0}, {"events_days": 40_000}, {"weeks": 1}):
        answer = await api.patch(path, json=wrong)
        assert answer.status_code == 422
    (entry, *_) = (await api.get("/v1/audit")).json()["data"]
    assert (entry["action"], entry["detail"]) == (
        "tenant.set_retention", {"events_days": {"from": 10, "to": None}},
    )  # fmt: skip


# --- exports --------------------------------------------------------------------------------------


async def test_an_export_has_all_that_is_stored_of_a_run(app, api, db, tenant, blobs):
    play = Play(db, tenant.id)
    run_id = await finished(play, input="what is it?", tags={"k": "v"})
    data = bytes(range(256)) * 2000
    art = await save_artifact(
        db, blobs, tenant.id, run_id, name="n", media_type="text/plain", data=data
    )
    shown = encode("run", run_id)
    fork = (await api.post(f"/v1/runs/{shown}/fork", json={})).json()
    async with client_of(app, tenant) as client:
        records = await whole(client.runs.export(shown))
        bare = await whole(client.runs.export(shown, content=False))
    assert records[0]["format"] == "harness-export/1"
    (run,) = of(records, "run")
    assert (run["id"], run["input"], run["output"]) == (shown, "what is it?", "the end")
    assert [r["id"] for r in of(records, "relative")] == [fork["id"]]
    for kind, table, keys in export.OF_RUN:
        rows = await sql(
            db, f"SELECT * FROM {table.name} WHERE run_id = :r ORDER BY {', '.join(keys)}",
            r=run_id,
        )  # fmt: skip
        found = of(records, kind)
        assert len(found) == len(rows), kind
        for row, record in zip(rows, found, strict=True):
            for name in row.keys() - export.LEFT_OUT - {"run_id", "id"}:
                told = record["of_kind" if name == "kind" else name]
                assert told == json.loads(json.dumps(row[name], default=_text)), name
    assert [e["seq"] for e in of(records, "event")] == [*range(1, len(of(records, "event")) + 1)]
    assert artifact_bytes(records) == {art: data}
    assert of(bare, "artifact_bytes") == []
    assert records[-1]["records"]["message"] == 4


def _text(value):
    from datetime import datetime
    from uuid import UUID

    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID) else value


async def test_what_is_encrypted_is_exported_in_the_open(app, api, config, tenant, blobs):
    await api.put("/v1/tenant/encryption", json={"on": True})
    ring = keyring.Keyring(keyring.load_keks(config))
    async with Database(config.database_login("system"), keyring=ring) as db:
        play = Play(db, tenant.id)
        run_id = await finished(play, input="a secret question")
        art = await save_artifact(
            db, blobs, tenant.id, run_id, name="n", media_type="text/plain", data=b"hidden"
        )
        stored = await db.fetch("read_run", {"tenant_id": tenant.id, "run_id": run_id})
        assert stored[0]["output"] == "the end"
        async with client_of(app, tenant) as client:
            records = await whole(client.runs.export(encode("run", run_id)))
    assert "hsealed1" not in json.dumps(records)
    assert of(records, "run")[0]["input"] == "a secret question"
    assert artifact_bytes(records) == {art: b"hidden"}


async def test_an_export_of_a_user_or_a_tenant_holds_theirs_alone(
    app, db, tenant, other_tenant, api
):
    play = Play(db, tenant.id)
    ann, bob = [await finished(play, input=f"i am {n}", user_id=n) for n in ("ann", "bob")]
    await finished(Play(db, other_tenant.id), input="i am eve", user_id="ann")
    await api.post("/v1/memories", json={"namespace": "a", "text": "Likes tea", "user_id": "ann"})
    async with client_of(app, tenant) as client:
        hers = await whole(client.data.export("ann"))
        all_ = await whole(client.data.export())
    trail = (await api.get("/v1/audit")).json()["data"]
    shown = encode("tenant", tenant.id)
    assert [(one["action"], one["target"], one["detail"].get("user_id")) for one in trail[:2]] == [
        ("tenant.export", shown, None),
        ("user.export", shown, "ann"),
    ]
    assert [r["id"] for r in of(hers, "run")] == [encode("run", ann)]
    assert [m["body"] for m in of(hers, "memory")] == ["Likes tea"]
    assert {r["id"] for r in of(all_, "run")} == {encode("run", ann), encode("run", bob)}
    assert len(of(all_, "agent")) == 1
    text = json.dumps(all_)
    assert "i am eve" not in text
    assert "secret_hash" not in text
    async with client_of(app, tenant, "viewer") as viewer:
        with pytest.raises(ApiError) as refused:
            await whole(viewer.data.export("ann"))
    assert refused.value.status == 403


async def test_no_value_of_an_mcp_servers_headers_is_exported(app, api, tenant):
    headers = {"x-team": "a plain value", "authorization": "secret://token"}
    server = {"name": "files", "url": "https://mcp.example.com/", "headers": headers}
    assert (await api.post("/v1/mcp-servers", json=server)).status_code == 201
    async with client_of(app, tenant) as client:
        records = await whole(client.data.export())
    (told,) = of(records, "mcp_server")
    assert told["target"]["headers"] == {"x-team": "***", "authorization": "secret://token"}
    assert told["target"]["url"] == server["url"]
    assert "a plain value" not in json.dumps(records)


async def test_files_need_their_own_permission(app, api, db, tenant):
    run = encode("run", await finished(Play(db, tenant.id)))
    await tenant.add_key("narrow", "viewer", ["runs:read"])
    headers = {"Authorization": f"Bearer {tenant.keys['narrow']}"}
    assert (await api.get(f"/v1/runs/{run}/export", headers=headers)).status_code == 403
    path = f"/v1/runs/{run}/export?content=false"
    assert (await api.get(path, headers=headers)).status_code == 200
    assert (await api.get(f"/v1/runs/run_{'0' * 32}/export")).status_code == 404


def test_every_table_is_exported_or_said_to_be_left_out():
    told = {t.name for _, t, _ in (*export.OF_TENANT, *export.OF_RUN)}
    told |= {"runs", "sessions", "memories", "artifacts", "tenants"} | export.NOT_TOLD
    of_tenants = {t.name for t in metadata.sorted_tables if "tenant_id" in t.columns}
    assert of_tenants == told


async def test_pages_of_an_export_go_by_what_makes_a_row_one_of_its_kind(db, tenant):
    """Fifty agents whose rules have the same version would be all that is told of rules."""
    await sql(
        db,
        "INSERT INTO policies (tenant_id, agent_name, version, source, rules, digest, created_by) "
        "SELECT :t, 'a' || n, 1, '', '{}', '', '' FROM generate_series(1, 60) AS n",
        t=tenant.id,
    )
    exporter = export.Exporter(db, LocalBlobs.__new__(LocalBlobs), tenant.id)
    records = [record async for record in exporter.tenant()]
    assert len(of(records, "policy")) == 60
    for fixed, tables in (("", export.OF_TENANT), ("run_id", export.OF_RUN)):
        for _, table, keys in tables:
            assert {c.name for c in table.primary_key} <= {"tenant_id", fixed, *keys}, table.name


@pytest.mark.parametrize("change", ["cut", "changed", "more", "line_lost"])
async def test_an_export_that_is_not_whole_is_found_out(app, db, tenant, change):
    run = encode("run", await finished(Play(db, tenant.id)))
    async with client_of(app, tenant) as client:
        data = b"".join([piece async for piece in client.runs.export(run)])
    lines = data.splitlines(keepends=True)
    spoilt = {
        "cut": data[: -len(lines[-1])],
        "changed": data.replace(b"the end", b"the eNd"),
        "more": data + b"{}\n",
        "line_lost": b"".join([*lines[:2], *lines[3:]]),
    }[change]
    assert len(list(read_export([data]))) == len(lines)
    with pytest.raises(NotWhole):
        list(read_export([spoilt[i : i + 100] for i in range(0, len(spoilt), 100)]))


async def test_a_big_run_is_exported_in_little_memory(app, api, db, tenant):
    run_id = await finished(Play(db, tenant.id))
    await sql(
        db,
        "INSERT INTO events (tenant_id, run_id, seq, type, payload) "
        "SELECT :t, :r, 100 + n, 'x', jsonb_build_object('text', repeat('0123456789', 1000)) "
        "FROM generate_series(1, 6000) AS n",
        t=tenant.id, r=run_id,
    )  # fmt: skip
    await sql(db, "UPDATE runs SET next_seq = 6101 WHERE id = :r", r=run_id)
    exporter = export.Exporter(db, LocalBlobs.__new__(LocalBlobs), tenant.id)
    size = 0
    tracemalloc.start()
    try:
        async for record in exporter.run(run_id):
            size += len(str(record))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 60_000_000
    assert peak < 20_000_000, f"{peak:,} bytes at once"


def test_a_reader_takes_pieces_of_any_size():
    check = Check()
    with pytest.raises(NotWhole):
        check.feed(b"nothing\n")


# --- erasures -------------------------------------------------------------------------------------


async def test_an_erasure_is_previewed_asked_for_and_followed(app, api, db, tenant):
    play = Play(db, tenant.id)
    await finished(play, user_id="ann")
    body = {"user_id": "ann"}
    preview = (await api.post("/v1/erasures/preview", json=body)).json()
    assert (preview["runs"], preview["sessions"], preview["live_runs"]) == (1, 1, 0)
    assert await sql(db, "SELECT 1 FROM erasures") == []
    asked = await api.post("/v1/erasures", json=body)
    assert (asked.status_code, asked.json()["phase"]) == (202, "stopping")
    assert (await api.post("/v1/erasures", json=body)).json()["id"] == asked.json()["id"]
    found = (await api.get(asked.headers["location"])).json()
    assert found == asked.json()
    async with client_of(app, tenant) as client:
        assert [e.id async for e in client.data.erasures()] == [found["id"]]
        assert (await client.data.preview_erasure("nobody")).runs == 0
    trail = (await api.get("/v1/audit")).json()["data"]
    entry = next(e for e in trail if e["action"] == "user.erase")
    assert "ann" not in json.dumps(entry)
    for role in ("viewer", "operator", "approver"):
        answer = await api.post("/v1/erasures", json=body, headers=tenant.headers(role))
        assert answer.status_code == 403


async def test_only_who_runs_the_platform_erases_tenants(app, api, db, tenant, other_tenant):
    await sql(db, "UPDATE tenants SET operator = (tenant_id = :t)", t=tenant.id)
    await finished(Play(db, other_tenant.id))
    mine, theirs = encode("tenant", tenant.id), encode("tenant", other_tenant.id)
    async with client_of(app, other_tenant) as client:
        with pytest.raises(ApiError) as refused:
            await client.data.erase(tenant_id=mine)
        assert refused.value.status == 403
        with pytest.raises(ApiError) as refused:
            await client.data.storage()
        assert refused.value.status == 403
    async with client_of(app, tenant) as client:
        assert (await client.data.preview_erasure(tenant_id=theirs)).runs == 1
        one = await client.data.erase(tenant_id=theirs)
        assert (one.subject, one.tenant_id) == ("tenant", theirs)
        with pytest.raises(ApiError) as refused:
            await client.data.erase(tenant_id=mine)
        assert refused.value.code == "OPERATOR_TENANT"
        with pytest.raises(ApiError) as refused:
            await client.data.erase(tenant_id=f"ten_{'0' * 32}")
        assert refused.value.status == 404


# --- storage --------------------------------------------------------------------------------------


async def test_storage_tells_sizes_shares_and_what_is_due(app, db, tenant, other_tenant):
    await sql(db, "UPDATE tenants SET operator = (tenant_id = :t)", t=tenant.id)
    for _ in range(3):
        await finished(Play(db, tenant.id))
    old = await finished(Play(db, other_tenant.id))
    await sql(db, "UPDATE runs SET finished_at = now() - interval '31 days' WHERE id = :r", r=old)
    async with client_of(app, tenant) as client:
        found = await client.data.storage()
    tables = {t.table: t for t in found.tables}
    assert tables["events"].bytes > 0
    assert not any(name.startswith("events_") for name in tables)
    assert {p.table for p in found.partitions} == {"events", "checkpoints"}
    shares = {t.tenant_id: t for t in found.tenants}
    mine = shares[encode("tenant", tenant.id)]
    theirs = shares[encode("tenant", other_tenant.id)]
    assert (mine.runs, theirs.runs) == (3, 1)
    assert mine.bytes > 2 * theirs.bytes > 0
    assert (mine.due_events, theirs.due_events, theirs.due_runs) == (0, 1, 0)
    assert not found.is_sample


async def test_rows_are_told_before_anybody_has_analyzed_a_table(fresh_database_url):
    """A fresh installation has no estimates."""
    async with Database(derive(fresh_database_url, "system")) as db:
        async with db.transaction() as conn:
            await pg(conn).execute("INSERT INTO tenants (name) VALUES ('counted')")
            await pg(conn).execute("SELECT pg_stat_force_next_flush()")
        rows = {row["table"]: row["rows"] for row in await db.fetch("storage_tables", {})}
    assert rows["tenants"] == 1


async def test_storage_of_tenants_is_for_the_operator_even_below_the_api(db, config, tenant):
    ages = dict.fromkeys(("events_days", "checkpoints_days", "artifacts_days", "runs_days"))
    for is_operator, count in ((False, 0), (True, 1)):
        await sql(db, "UPDATE tenants SET operator = :o", o=is_operator)
        async with (
            Database(config.database_login("api")) as api_db,
            api_db.tenant_transaction(tenant.id) as conn,
        ):
            cursor = await pg(conn).execute(
                "SELECT * FROM storage_of_tenants(100, NULL, NULL, NULL, NULL)"
            )
            assert len(await cursor.fetchall()) == count
    assert ages


# --- what is gone ---------------------------------------------------------------------------------


async def test_a_stream_of_a_run_whose_events_are_gone_ends(app, db, tenant):
    run_id = await finished(Play(db, tenant.id))
    await sql(db, "DELETE FROM events WHERE run_id = :r", r=run_id)
    async with client_of(app, tenant) as client:
        assert [e async for e in client.runs.stream(encode("run", run_id))] == []


async def test_what_was_encrypted_is_unreadable_once_its_key_is_destroyed(
    api, config, tenant, blobs
):
    await api.put("/v1/tenant/encryption", json={"on": True})
    ring = keyring.Keyring(keyring.load_keks(config))
    async with Database(config.database_login("system"), keyring=ring) as db:
        run_id = await finished(Play(db, tenant.id), input="a secret question")
        await db.fetch("erase_keys", {"tenant_id": tenant.id})
    fresh = keyring.Keyring(keyring.load_keks(config))
    async with Database(config.database_login("system"), keyring=fresh) as db:
        with pytest.raises(CannotDecrypt):
            await db.fetch("read_run", {"tenant_id": tenant.id, "run_id": run_id})
