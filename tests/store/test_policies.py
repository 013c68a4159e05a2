"""Policies in a real Postgres: versions that never change, and what a worker reads of them."""

from __future__ import annotations

import asyncio

import pytest

from harness_common.commands import ForkRun, StartRun, fork_run, start_run
from harness_common.core.errors import Invalid, NotFound, Transient
from harness_common.core.ids import encode
from harness_common.core.step import CallOutcome, ToolsDone
from harness_common.core.tool_call import CallStatus
from harness_common.store.audit import Actor
from harness_common.store.audit_reads import list_audit
from harness_common.store.policies import TENANT, PolicyCache, put_policy
from harness_common.store.policy_reads import list_policies, read_policy_row
from tests.store.play import make_tenant, say, sql

ONE = "# mine\nrules: [{name: r, then: deny}]\n"
TWO = "rules: [{name: r, then: ask}]\n"
WHO = Actor("key_x", "req_1")


async def facts(play, run_id, cache=None):
    return await (cache or PolicyCache()).facts(play.db, await play.read(run_id))


def touched(*marks, trust="trusted"):
    outcome = CallOutcome(0, "call_0", "look", CallStatus.SUCCEEDED, "x", trust=trust, marks=marks)
    return ToolsDone((outcome,))


async def test_versions_are_numbered_audited_and_not_made_twice(play, db, tenant_id):
    first, made = await put_policy(db, tenant_id, TENANT, ONE, WHO)
    assert (first["version"], first["source"], made) == (1, ONE, True)
    again, made = await put_policy(db, tenant_id, TENANT, ONE, WHO)
    assert (again["version"], made) == (1, False)
    commented, made = await put_policy(db, tenant_id, TENANT, "# new words\n" + ONE, WHO)
    assert (commented["version"], made) == (2, True)
    assert commented["digest"] == first["digest"], "they say the same"
    back, _ = await put_policy(db, tenant_id, TENANT, ONE, WHO)
    assert back["version"] == 3
    of_agent, _ = await put_policy(db, tenant_id, "a", TWO, WHO)
    assert of_agent["version"] == 1
    rows = await list_policies(db, tenant_id, TENANT, limit=10)
    assert [r["version"] for r in rows] == [3, 2, 1]
    told = await list_audit(db, tenant_id, before=None, limit=10)
    assert {(r["actor"], r["action"], r["request_id"]) for r in told} == {
        ("key_x", "policy.put", "req_1")
    }
    assert [r["target"] for r in told] == ["a@1", "tenant@3", "tenant@2", "tenant@1"]


async def test_bad_rules_leave_nothing_behind(db, tenant_id):
    with pytest.raises(Invalid, match="/rules/0/then"):
        await put_policy(db, tenant_id, TENANT, "rules: [{name: r, then: maybe}]", WHO)
    assert (await read_policy_row(db, tenant_id, TENANT))["version"] == 0
    assert await list_audit(db, tenant_id, before=None, limit=10) == []
    with pytest.raises(NotFound, match="no version 2"):
        await read_policy_row(db, tenant_id, TENANT, 2)


async def test_two_writers_get_two_versions(db, tenant_id):
    sources = [f"# {i}\n{TWO}" for i in range(4)]
    made = await asyncio.gather(*(put_policy(db, tenant_id, TENANT, s, WHO) for s in sources))
    assert sorted(row["version"] for row, _ in made) == [1, 2, 3, 4]


async def test_a_worker_reads_what_applies_now_and_keeps_what_never_changes(play, db):
    run_id, cache = await play.start(), PolicyCache()
    assert (await facts(play, run_id, cache)).policies.version == "tenant@0 agent@0 builtin@1"
    await put_policy(db, play.tenant_id, TENANT, ONE, WHO)
    await put_policy(db, play.tenant_id, "a", TWO, WHO)
    await put_policy(db, play.tenant_id, "other", TWO, WHO)
    found = (await facts(play, run_id, cache)).policies
    assert found.version == "tenant@1 agent@1 builtin@1"
    assert [r.then for r in (*found.tenant.rules, *found.agent.rules)] == ["deny", "ask"]
    again = (await facts(play, run_id, cache)).policies
    assert again.tenant is found.tenant
    await put_policy(db, play.tenant_id, TENANT, TWO, WHO)
    newer = (await facts(play, run_id, cache)).policies
    assert newer.version == "tenant@2 agent@1 builtin@1"
    assert newer.agent is found.agent


async def test_rules_of_another_tenant_do_not_apply(play, db):
    other = await make_tenant(db)
    await put_policy(db, other, TENANT, ONE, WHO)
    await put_policy(db, other, "a", ONE, WHO)
    found = await facts(play, await play.start())
    assert found.policies.version == "tenant@0 agent@0 builtin@1"


async def test_rules_that_are_not_understood_allow_nothing(play, db):
    await put_policy(db, play.tenant_id, TENANT, ONE, WHO)
    await sql(db, "UPDATE policies SET rules = '{\"from_the_future\": 1}'")
    with pytest.raises(Transient) as caught:
        await facts(play, await play.start())
    assert caught.value.error_code == "POLICY_UNREADABLE"


async def key_row(db, tenant_id, role):
    (row,) = await sql(
        db,
        "INSERT INTO api_keys (tenant_id, name, public_id, secret_hash, role) "
        "VALUES (:t, 'k', gen_random_uuid()::text, '', :r) RETURNING id",
        t=tenant_id,
        r=role,
    )
    return encode("api_key", row["id"])


async def test_who_started_it_and_with_which_role(play, db, tenant_id):
    key = await key_row(db, tenant_id, "operator")
    run_id = await play.start(created_by=key)
    assert (await facts(play, run_id)).role == "operator"
    assert (await facts(play, run_id)).principal == key
    for nobody in ("", "ann", "key_nonsense", "sched_" + "0" * 32):
        found = await facts(play, await play.start(created_by=nobody))
        assert (found.principal, found.role) == (nobody, None)
    other = await make_tenant(db)
    stranger = await key_row(db, other, "admin")
    assert (await facts(play, await play.start(created_by=stranger))).role is None


async def test_a_schedule_acts_for_who_made_it(play, db, tenant_id):
    key = await key_row(db, tenant_id, "admin")
    columns = "tenant_id, name, spec, created_by"
    (row,) = await sql(
        db,
        f"INSERT INTO schedules ({columns}) VALUES (:t, 's', '{{}}', :k) RETURNING id",
        t=tenant_id,
        k=key,
    )
    run_id = await play.start(created_by=encode("schedule", row["id"]))
    found = await facts(play, run_id)
    assert (found.principal, found.role) == (key, "admin")


async def test_a_child_acts_for_who_started_the_topmost_run(play, db, tenant_id):
    from harness_common.commands.request import Parent

    key = await key_row(db, tenant_id, "operator")
    parent = await play.start(created_by=key)
    for depth in (1, 2):
        request = StartRun(
            "a", "x", parent=Parent(parent, 1, 0, depth), created_by=encode("run", parent)
        )
        parent = (await start_run(db, tenant_id, request)).run_id
    assert (await facts(play, parent)).role == "operator"


async def test_what_the_session_has_touched_comes_along(play):
    first = await play.start()
    session = (await play.read(first)).session_id
    await play.step(first, say(tools=["look"]))
    await play.step(first, touched("private", trust="untrusted"))
    await play.step(first, say())
    second = await play.start(session_id=session)
    assert (await facts(play, second)).earlier_marks == {"private", "untrusted"}
    await play.step(second, say())
    third = await play.start(session_id=session)
    assert (await facts(play, third)).earlier_marks == {"private", "untrusted"}
    assert (await facts(play, await play.start())).earlier_marks == frozenset()


async def test_a_fork_has_what_its_checkpoint_had(play):
    source = await play.start()
    await play.step(source, say(tools=["look"]))
    await play.step(source, touched("outbound", trust="untrusted"))
    for step, marks in ((1, None), (2, ["outbound", "untrusted"])):
        request = ForkRun(step=step, created_by="ann")
        made = await fork_run(play.db, play.tenant_id, source, request)
        assert (await play.read(made.run_id)).state.memo.get("marks") == marks


async def test_what_is_left_of_today(play, db, tenant_id):
    run_id = await play.start()
    assert (await facts(play, run_id)).left_usd is None
    await sql(db, "UPDATE tenant_slots SET cost_usd_per_day = 10 WHERE tenant_id = :t", t=tenant_id)
    assert (await facts(play, run_id)).left_usd == 10
    await sql(
        db,
        "INSERT INTO tenant_days (tenant_id, day, cost_usd, reserved_usd) VALUES "
        "(:t, (now() AT TIME ZONE 'UTC')::date, 6, 1), (:t, '2020-01-01', 99, 0)",
        t=tenant_id,
    )
    assert (await facts(play, run_id)).left_usd == 3
    await sql(
        db,
        "INSERT INTO platform (name, cost_usd_per_day) VALUES ('global', 2) "
        "ON CONFLICT (name) DO UPDATE SET cost_usd_per_day = 2",
    )
    assert (await facts(play, run_id)).left_usd == 2


async def test_the_decision_is_written_with_the_outcome(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    policy = {"verdict": "deny", "rule": "tenant.r", "reasons": ["no"], "version": "v"}
    outcome = CallOutcome(
        0, "call_0", "look", CallStatus.REJECTED, "no", "PERMISSION_DENIED", policy=policy
    )
    await play.step(run_id, ToolsDone((outcome,)))
    (call,) = await play.calls(run_id)
    assert call["policy"] == policy
    (event,) = [e for e in await play.events(run_id) if e["type"] == "tool.rejected"]
    assert event["payload"]["policy"] == policy
