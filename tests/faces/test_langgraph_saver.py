"""Our store as LangGraph's checkpointer: the framework's own conformance suite."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from harness_common.core.errors import LostOwnership
from harness_common.store.foreign import Blob, ForeignStore, Place
from harness_worker.frameworks.saver import HarnessSaver
from tests.store.play import sql


async def test_conformance(db, tenant):
    @checkpointer_test(name="HarnessSaver")
    async def saver():
        yield HarnessSaver(ForeignStore(db, tenant.id))

    report = await validate(saver)
    failed = {name: r.failures for name, r in report.results.items() if r.passed is False}
    assert failed == {}
    assert all(r.passed for r in report.results.values())
    assert sum(r.tests_passed for r in report.results.values()) > 50


async def test_tenants_do_not_meet(db, tenant, other_tenant):
    mine, theirs = ForeignStore(db, tenant.id), ForeignStore(db, other_tenant.id)
    place = Place("t", "", "c1")
    await mine.put(place, Blob("json", b"{}"), {"k": 1})
    assert await theirs.read(place) is None
    assert await theirs.list(None, None) == []
    await theirs.delete(threads=["t"])
    found = await mine.read(place)
    assert found is not None
    assert found["payload"] == {"k": 1}


async def test_a_stale_owner_keeps_nothing(db, tenant, api, play):
    run_id = await play.start()
    first = await play.try_claim(run_id, (await play.read(run_id)).version)
    store = ForeignStore(db, tenant.id, first.run)
    place = Place(run_id.hex, "", "c1")
    await store.put(place, Blob("json", b"1"), {})
    await sql(db, "UPDATE runs SET fence = fence + 1, claim_id = :c", c=uuid4())
    with pytest.raises(LostOwnership):
        await store.put(Place(run_id.hex, "", "c2"), Blob("json", b"2"), {})
    with pytest.raises(LostOwnership):
        await store.put_writes(place, "t", "", [(0, "c", Blob("json", b"3"))])
    found = await store.read(Place(run_id.hex))
    assert found is not None
    assert found["checkpoint_id"] == "c1"
    assert await store.writes(place) == []


async def test_from_a_thread(db, tenant):
    saver = HarnessSaver(ForeignStore(db, tenant.id))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    from langgraph.checkpoint.base import empty_checkpoint

    def work():
        kept = saver.put(config, empty_checkpoint(), {"step": 1}, {})
        saver.put_writes(kept, [("c", "v")], "task")
        return saver.get_tuple(config), list(saver.list(config))

    found, all_of_it = await asyncio.to_thread(work)
    assert found.pending_writes == [("task", "c", "v")]
    assert all_of_it == [found]
