"""Unknown effects over HTTP: shown with what is known, resolved once, by whoever may."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from harness_common.contracts.tool import EffectClass
from harness_common.core.ids import decode, encode
from harness_common.core.inputs import Admit
from harness_common.core.step import ToolsUnknown
from harness_common.core.tool_call import CallStatus
from harness_worker.tools.call import PendingCall
from harness_worker.tools.ledger import Ledger
from tests.store.play import Play, say, sql
from tests.worker.runtime import make_runtime, make_tool


@pytest.fixture
async def unknown(api, play: Play, db) -> Any:
    """Bring a run to two payments of which nobody knows whether they happened."""
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "pay"})).json()
    run_id = decode("run", run["id"])
    await sql(
        db,
        "INSERT INTO workers (incarnation, name, host, pid, version) VALUES (:w, 'w7', 'h', 1, '')",
        w=play.worker,
    )
    await play.step(run_id, say(tools=["pay", "pay"]))
    owned = await play.claim(run_id)
    tool = make_tool("pay", EffectClass.WRITE, lambda ctx, i: i)
    runtime = await make_runtime(db, tools=[tool])
    for index in range(2):
        (row,) = await sql(
            db, "SELECT to_jsonb(c) AS call FROM tool_calls c WHERE run_id = :r AND idx = :i",
            r=run_id, i=index,
        )  # fmt: skip
        ledger, call, attempt = _ledger(runtime, owned), PendingCall.from_row(row["call"]), uuid4()
        await ledger.intend(call, tool, attempt)
        assert await ledger.give_up(call, attempt, CallStatus.UNKNOWN, "the process is gone")
    await play.settle(owned, ToolsUnknown((), (0, 1)))
    return run


def _ledger(runtime: Any, owned: Any) -> Ledger:
    scope: Any = _Scope(runtime.db, owned, owned.state.step + 1)
    return Ledger(scope)


class _Scope:
    """What the ledger needs of a step."""

    def __init__(self, db: Any, run: Any, step: int) -> None:
        self.db, self.run, self.step = db, run, step

    def key(self, index: int) -> dict[str, Any]:
        return {
            "tenant_id": self.run.tenant_id, "run_id": self.run.id, "step": self.step, "idx": index,
        }  # fmt: skip


def path(run: Any, call: str = "2.0") -> str:
    return f"/v1/runs/{run['id']}/calls/{call}"


async def resolve(api, run: Any, outcome: str, call: str = "2.0", status: int = 200, **more) -> Any:
    body = {"outcome": outcome, "reason": "I looked"} | more
    answer = await api.post(f"{path(run, call)}/resolve", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def status_of(api, run: Any) -> str:
    return str((await api.get(f"/v1/runs/{run['id']}")).json()["status"])


async def test_what_is_unknown_is_shown_with_all_that_is_known(api, unknown):
    assert await status_of(api, unknown) == "waiting_approval"
    listed = (await api.get("/v1/effects", params={"status": "unknown"})).json()["data"]
    assert [e["call"] for e in listed] == ["2.0", "2.1"]
    one = listed[0]
    assert (one["run_id"], one["tool"], one["arguments"]) == (unknown["id"], "pay", {"i": 0})
    assert one["idempotency_key"] == f"{unknown['id']}.2.0"
    assert (one["attempts"], one["worker"], one["why"]) == (1, "w7", "the process is gone")
    assert one["started_at"] is not None
    assert one["evidence"]["attempt_id"]
    assert (await api.get(path(unknown))).json() == one
    first = (await api.get("/v1/effects", params={"limit": 1})).json()
    rest = (await api.get("/v1/effects", params={"cursor": first["next_cursor"]})).json()
    assert first["data"] + rest["data"] == listed
    mine = await api.get("/v1/effects", params={"run_id": encode("run", uuid4())})
    assert mine.json()["data"] == []


async def test_the_run_goes_on_when_the_last_one_is_resolved(api, unknown, play, tenant):
    done = await resolve(api, unknown, "succeeded", result="paid: receipt 7")
    assert (done["status"], done["result"]) == ("succeeded", "paid: receipt 7")
    assert done["resolution"]["outcome"] == "succeeded"
    assert done["resolution"]["by"] == encode("api_key", tenant.rows["admin"]["id"])
    assert done["resolution"]["reason"] == "I looked"
    assert done["resolution"]["evidence"]["why"] == "the process is gone"
    assert await status_of(api, unknown) == "waiting_approval"
    failed = await resolve(api, unknown, "failed", "2.1")
    assert (failed["status"], failed["error_type"]) == ("failed", "NOT_DONE")
    assert "I looked" in failed["result"]
    assert await status_of(api, unknown) == "queued"
    events = await play.events(decode("run", unknown["id"]))
    assert events[-1]["type"] == "run.effects_resolved"
    await play.check_whole(decode("run", unknown["id"]))
    rows = (await api.get("/v1/audit")).json()["data"]
    entry = next(r for r in rows if r["target"] == f"{unknown['id']}.2.1")
    assert (entry["action"], entry["detail"]["outcome"]) == ("effect.resolve", "failed")
    assert (await api.get("/v1/effects")).json()["data"] == []


async def test_run_again_begins_a_new_attempt_under_the_same_key(api, unknown, play, db):
    again = await resolve(api, unknown, "run_again")
    assert (again["status"], again["authorised"], again["attempts"]) == ("proposed", 2, 1)
    assert (again["evidence"], again["result"]) == (None, None)
    assert again["resolution"]["evidence"]["why"] == "the process is gone"
    assert again["idempotency_key"] == f"{unknown['id']}.2.0"
    await resolve(api, unknown, "failed", "2.1")
    run_id = decode("run", unknown["id"])
    assert await play.apply(await play.read(run_id), Admit())
    owned = await play.claim(run_id)
    (row,) = await sql(
        db, "SELECT to_jsonb(c) AS call FROM tool_calls c WHERE run_id = :r AND idx = 0", r=run_id
    )
    ledger, call = _ledger(await make_runtime(db), owned), PendingCall.from_row(row["call"])
    attempt = uuid4()
    await ledger.intend(call, make_tool("pay", EffectClass.WRITE, lambda ctx, i: i), attempt)
    assert await ledger.give_up(call, attempt, CallStatus.UNKNOWN, "gone again")
    await play.settle(owned, ToolsUnknown((), (0,)))
    twice = await resolve(api, unknown, "succeeded")
    assert twice["attempts"] == 2
    assert twice["resolution"]["before"]["outcome"] == "run_again"
    assert await status_of(api, unknown) == "queued"


async def test_of_two_people_at_once_one_wins(api, unknown):
    answers = await asyncio.gather(
        *(
            api.post(f"{path(unknown)}/resolve", json={"outcome": o, "reason": f"because {o}"})
            for o in ("succeeded", "failed", "run_again") * 2
        )
    )
    won = [a.json() for a in answers if a.status_code == 200]
    assert len(won) == 1
    lost = [a.json() for a in answers if a.status_code == 409]
    assert len(lost) == 5
    assert {x["code"] for x in lost} == {"EFFECT_RESOLVED"}
    assert {x["resolution"]["outcome"] for x in lost} == {won[0]["resolution"]["outcome"]}
    assert won[0]["resolution"]["by"] in lost[0]["detail"]


async def test_an_ended_run_is_not_revived(api, unknown):
    await api.post(f"/v1/runs/{unknown['id']}/cancel")
    refused = await resolve(api, unknown, "run_again", status=409)
    assert (refused["code"], refused["field"]) == ("RUN_OVER", "outcome")
    for call in ("2.0", "2.1"):
        await resolve(api, unknown, "succeeded", call)
    assert await status_of(api, unknown) == "cancelled"


async def test_nobody_decides_while_a_worker_is_at_the_step(api, unknown, play):
    """Its owner has read the ledger: it would wait for a decision that was made already."""
    run_id = decode("run", unknown["id"])
    await sql(
        play.db,
        "UPDATE runs SET status = 'running', claim_id = :c, claimed_by = :w WHERE id = :r",
        c=uuid4(), w=play.worker, r=run_id,
    )  # fmt: skip
    refused = await resolve(api, unknown, "succeeded", status=409)
    assert refused["code"] == "RUN_WORKING"


async def test_what_cannot_be_resolved_says_why(api, unknown, play):
    await resolve(api, unknown, "succeeded", "9.0", status=404)
    blank = await resolve(api, unknown, "failed", status=422, reason=" ")
    assert blank["field"] == "reason"
    odd = await resolve(api, unknown, "run_again", status=422, result="x")
    assert odd["field"] == "result"
    await resolve(api, unknown, "succeeded")
    await sql(play.db, "UPDATE tool_calls SET resolution = NULL WHERE idx = 0")
    known = await resolve(api, unknown, "failed", status=409)
    assert (known["code"], known["value"]) == ("EFFECT_NOT_UNKNOWN", "2.0")


@pytest.mark.parametrize(
    ("role", "reads", "writes"),
    [("viewer", 200, 403), ("operator", 200, 403), ("approver", 200, 200), ("admin", 200, 200)],
)
async def test_roles(api, unknown, tenant, role, reads, writes):
    headers = tenant.headers(role)
    assert (await api.get("/v1/effects", headers=headers)).status_code == reads
    body = {"outcome": "succeeded", "reason": "r"}
    answer = await api.post(f"{path(unknown)}/resolve", json=body, headers=headers)
    assert answer.status_code == writes
