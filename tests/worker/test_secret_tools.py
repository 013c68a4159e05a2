"""What a tool may ask for, and that what it says is clean wherever it goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_common import redaction
from harness_common.blobs.local import LocalBlobs
from harness_common.contracts.tool import AskUser, EffectClass, NewArtifact, StartChild, ToolOutput
from harness_common.core.errors import Permanent
from harness_common.core.step import ToolsDone
from harness_common.crypto.keks import make_kek, parse_keks
from harness_common.redaction import MARK, Redactor
from harness_common.store.artifacts import read_artifact
from harness_common.store.audit import Actor
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring
from harness_common.store.secrets import put_secret
from harness_worker.sdk import tool
from harness_worker.steps import tools
from tests.store.play import Play, say
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool

VALUE = "hunter-22-and-more"


@pytest.fixture
async def mine(database_url, db, play, tenant_id, monkeypatch):
    """Give a tenant that has the secret TOKEN, in a process that knows no value yet."""
    fresh = Redactor()
    for module in ("harness_worker.tools.call_context", "harness_common.store.secret_values"):
        monkeypatch.setattr(f"{module}.redactor", fresh)
    monkeypatch.setattr(redaction, "redactor", fresh)
    async with Database(database_url, keyring=Keyring(parse_keks(make_kek("k1")))) as keyed:
        await put_secret(keyed, tenant_id, "TOKEN", VALUE, Actor("a test"))
        yield Play(keyed, tenant_id)


async def one_call(mine, tmp_path, fn, effect=EffectClass.READ, declared=("TOKEN",)):
    made = make_tool("look", effect, fn)
    made = replace(made, spec=replace(made.spec, secrets=declared))
    runtime = await make_runtime(mine.db, tools=[made])
    runtime.secrets._known = redaction.redactor
    runtime.blobs = LocalBlobs(tmp_path)
    run_id = await mine.start()
    await mine.step(run_id, say(tools=["look"]))
    ctx = await claim_tools_step(runtime, mine, run_id)
    result = await tools.run(ctx)
    return runtime, run_id, result


async def test_a_declared_secret_is_given(mine, tmp_path):
    got = []

    async def look(ctx, i):
        got.append(await ctx.secret("TOKEN"))
        return "fine"

    _, _, result = await one_call(mine, tmp_path, look)
    assert isinstance(result, ToolsDone)
    assert (got, result.outcomes[0].content) == ([VALUE], "fine")


async def test_one_that_is_not_declared_is_denied(mine, tmp_path):
    async def look(ctx, i):
        return await ctx.secret("TOKEN")

    _, _, result = await one_call(mine, tmp_path, look, declared=())
    (outcome,) = result.outcomes
    assert outcome.error_type == "SECRET_NOT_DECLARED"
    assert "add it to `secrets`" in outcome.content


async def test_one_that_the_tenant_does_not_have_is_named(mine, tmp_path):
    async def look(ctx, i):
        return await ctx.secret("OTHER")

    _, _, result = await one_call(mine, tmp_path, look, declared=("OTHER",))
    (outcome,) = result.outcomes
    assert outcome.error_type == "SECRET_NOT_FOUND"
    assert "harness secrets set OTHER" in outcome.content


async def test_results_artifacts_and_progress_are_clean(mine, tmp_path):
    async def look(ctx, i):
        value = await ctx.secret("TOKEN")
        await ctx.progress("x" * 495 + value)
        file = NewArtifact(f"{value}.txt", "text/plain", f"it is {value}".encode())
        return ToolOutput({"a": [value], value: 1}, (file,))

    runtime, run_id, result = await one_call(mine, tmp_path, look)
    (outcome,) = result.outcomes
    assert VALUE not in outcome.content
    assert outcome.content.count(MARK) == 3  # twice in the result, once in the artifact's name
    row, data = await read_artifact(mine.db, runtime.blobs, mine.tenant_id, outcome.artifacts[0])
    assert (row["name"], data) == (f"{MARK}.txt", f"it is {MARK}".encode())
    (event,) = [e for e in await mine.events(run_id) if e["type"] == "tool.progress"]
    assert event["payload"]["message"] == "x" * 495 + MARK[:5]  # cleaned before it is cut


async def test_a_cut_result_is_cleaned_before_it_is_cut(mine, tmp_path):
    async def look(ctx, i):
        return "." * (16 * 1024 - 5) + await ctx.secret("TOKEN") + "." * 100

    _, _, result = await one_call(mine, tmp_path, look)
    assert "hunte" not in result.outcomes[0].content


@pytest.mark.parametrize("effect", [EffectClass.READ, EffectClass.WRITE])
async def test_errors_are_clean_before_they_are_cut(mine, tmp_path, effect):
    async def look(ctx, i):
        raise ValueError("x" * 1995 + await ctx.secret("TOKEN"))

    _, run_id, result = await one_call(mine, tmp_path, look, effect)
    assert "hunte" not in repr(result)
    (call,) = await mine.calls(run_id)
    assert "hunte" not in repr(call)


async def test_named_errors_are_clean(mine, tmp_path):
    async def look(ctx, i):
        raise Permanent(f"no {await ctx.secret('TOKEN')}", code="SOME_CODE")

    _, _, result = await one_call(mine, tmp_path, look)
    (outcome,) = result.outcomes
    assert outcome.error_type == "SOME_CODE"
    assert f"no {MARK}" in outcome.content


async def test_the_ledger_gets_an_effects_result_clean(mine, tmp_path):
    async def look(ctx, i):
        return f"it is {await ctx.secret('TOKEN')}"

    _, run_id, _ = await one_call(mine, tmp_path, look, EffectClass.WRITE)
    (call,) = await mine.calls(run_id)
    assert (call["status"], call["result"]) == ("succeeded", f"it is {MARK}")


async def test_questions_are_clean(mine, tmp_path):
    async def look(ctx, i):
        value = await ctx.secret("TOKEN")
        return AskUser(f"is it {value}?", (value, "no"))

    _, _, result = await one_call(mine, tmp_path, look)
    assert VALUE not in repr(result)
    assert f"is it {MARK}?" in repr(result)


async def test_the_input_of_a_child_is_clean(mine, tmp_path):
    async def look(ctx, i):
        return StartChild("a", f"use {await ctx.secret('TOKEN')}")

    _, run_id, _ = await one_call(mine, tmp_path, look)
    async with mine.db.connection() as conn:
        cursor = await conn.execute("SELECT input FROM runs WHERE parent_run_id = %s", [run_id])
        assert [row["input"] for row in await cursor.fetchall()] == [f"use {MARK}"]


def test_a_tool_declares_its_secrets():
    @tool(effect="read", secrets=["TOKEN"])
    def look() -> str:
        """Look."""
        return ""

    assert look.spec.secrets == ("TOKEN",)
