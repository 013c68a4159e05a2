"""What a run with skills shows its model, and what `skill_read` gives: pinned when it started."""

from __future__ import annotations

import json

import pytest

from harness_common.contracts.skill import SkillSpec
from harness_common.settings import Settings
from harness_common.store.audit import Actor
from harness_common.store.skills import put_skill
from harness_worker.tools import calculate, skill_read
from tests.store.play import make_key
from tests.worker.runtime import make_runtime
from tests.worker.test_memory import set_spec
from tests.worker.tool_steps import asks, work

pytestmark = pytest.mark.anyio
LONG = "Check each line against its receipt. " * 200


async def a_worker(db, play, **spec):
    prompts = []

    async def chat(request):
        prompts.append(request)

    tools = [t for m in (calculate, skill_read) for t in m.build(Settings())]
    runtime = await make_runtime(db, chat=chat, tools=tools)
    await set_spec(db, play.tenant_id, system="Be brief.", **spec)
    return runtime, prompts


async def put(db, play, name="audit", **more):
    spec = SkillSpec.model_validate({"description": f"About {name}.", "prompt": "Do it."} | more)
    await put_skill(db, play.tenant_id, name, spec, Actor("t"))


async def test_a_small_skill_is_shown_whole_with_its_tools(db, play):
    await put(db, play, prompt="Add twice.", flow=["Read.", "Add."], tools=["calculate"])
    runtime, prompts = await a_worker(db, play, skills=["audit"])
    run_id = await play.start()
    await work(runtime, play, run_id)
    assert prompts[0].system == (
        "Be brief.\n\n<skills>\n## audit\nAbout audit.\n\nAdd twice.\n\n"
        "Do this in order:\n1. Read.\n2. Add.\n</skills>"
    )
    assert [t.name for t in prompts[0].tools] == ["calculate"]


async def test_a_large_skill_is_named_and_read_when_needed(db, play):
    document = {"title": "Rules", "text": "Rule 1: no cash."}
    await put(db, play, prompt=LONG, knowledge=[document])
    runtime, prompts = await a_worker(db, play, skills=["audit"])
    who = await make_key(db, play.tenant_id)
    run_id = await play.start(created_by=who)
    await put(db, play, prompt="Edited in mid-run.")
    calls = [{"name": "audit"}, {"name": "audit", "document": "Rules"}, {"name": "nothing"}]
    await play.step(run_id, asks(*(("skill_read", c) for c in calls)))
    rows = await work(runtime, play, run_id)
    whole, rules = (json.loads(r["result"]) for r in rows[:2])
    assert whole["text"].startswith(LONG.strip())
    assert whole["version"] == 1
    assert rules["text"] == "Rule 1: no cash."
    assert rows[2]["error_type"] == "SKILL_NOT_FOUND"
    await work(runtime, play, run_id)
    (request,) = prompts
    assert LONG not in request.system
    assert "About audit.\nRead it with skill_read" in request.system
    assert [t.name for t in request.tools] == ["skill_read"]


async def test_a_skill_that_the_request_asks_for_is_shown_whole(db, play):
    await put(db, play, prompt=LONG)
    runtime, prompts = await a_worker(db, play)
    await work(runtime, play, await play.start(skills=("audit@1",)))
    assert LONG.strip() in prompts[0].system


async def test_a_run_without_skills_is_as_it_was(db, play):
    await put(db, play)
    runtime, prompts = await a_worker(db, play)
    await work(runtime, play, await play.start())
    assert prompts[0].system == "Be brief."
    assert prompts[0].tools == []
