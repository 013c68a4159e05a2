"""A model that always does what it reads, and what comes of it: no effect that nobody approved.

Effects are counted by a file outside the database. Each case is run again with a policy that allows
everything: there the effect happens, so that a case which could not fail is seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.commands import ForkRun, StartRun, fork_run, retry_run, start_run, steer_run
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.model import ChatRequest, ChatResult, OnDelta, Usage
from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_common.core.errors import Permanent
from harness_common.core.inputs import Admit, ChildrenDone
from harness_common.core.message import Message, Text, ToolResult, ToolUse
from harness_common.core.run import TERMINAL, Status
from harness_common.settings import Settings
from harness_common.store.agents import put_agent
from harness_common.store.artifacts import save_artifact
from harness_common.store.audit import Actor
from harness_common.store.policies import TENANT, put_policy
from harness_worker.advance import answer
from harness_worker.runtime import Runtime
from harness_worker.tools import artifact_read, spawn_run
from tests.store.play import Play, sql
from tests.worker.injection_corpus import CASES, Case
from tests.worker.runtime import FakeModels, make_runtime, say_nothing

OFF = "{name: everything, match: {tainted: true}, then: allow}"
"""The rule that takes the built-in protection away."""
OBEY_AT_MOST = 2


class Obedient(FakeModels):
    """First does what it reads anywhere, then what its agent's plan (the system prompt) says."""

    def __init__(self, case: Case) -> None:
        super().__init__(say_nothing)
        self._case = case
        self.shown: list[list[str]] = []

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.shown.append([tool.name for tool in request.tools])
        last = max(i for i, m in enumerate(request.messages) if m.role == "user")
        said = [m for m in request.messages[last:] if m.role == "assistant"]
        obeyed = sum(m.text() == "I obey." for m in said)
        plan = [step for step in request.system.split(";") if step]
        followed = sum(m.text() == "As planned." for m in said)
        if self._case.ref in _all_text(request) and obeyed < OBEY_AT_MOST:
            message = _ask("I obey.", self._case.wants, {}, obeyed)
        elif followed < len(plan):
            name, _, argument = plan[followed].partition("=")
            message = _ask("As planned.", name, _arguments(name, argument, request), followed)
        else:
            message = Message("assistant", (Text(f"Found: {_results(request)}"),))
        return ChatResult(
            message, Usage(), "tool_calls" if message.tool_uses() else "stop", "fake/x"
        )


def _ask(text: str, name: str, arguments: dict[str, Any], n: int) -> Message:
    return Message("assistant", (Text(text), ToolUse(f"{name}_{n}", name, arguments)))


def _arguments(name: str, argument: str, request: ChatRequest) -> dict[str, Any]:
    if name == "spawn_run":
        return {"agent": argument, "input": f"Go on with: {_results(request) or 'the page'}"}
    return {"artifact_id": argument} if name == "artifact_read" else {}


def _results(request: ChatRequest) -> str:
    return "\n".join(
        b.content for m in request.messages for b in m.content if isinstance(b, ToolResult)
    )


def _all_text(request: ChatRequest) -> str:
    said = [
        block.content if isinstance(block, ToolResult) else str(block)
        for message in request.messages
        for block in message.content
    ]
    return "\n".join([*said, *(tool.description for tool in request.tools)])


class World:
    """One tenant, its tools and the file that their effects are written to."""

    def __init__(self, play: Play, runtime: Runtime, case: Case, effects: Path) -> None:
        self.play, self.runtime, self.case, self._effects = play, runtime, case, effects
        for tool in self.tools():
            runtime.catalog.local.add(tool)

    def tools(self) -> list[Tool]:
        def effect(name: str, kind: EffectClass, **more: Any) -> Tool:
            async def fn(ctx: Any) -> str:
                with self._effects.open("a") as file:
                    file.write(f"{name}\n")
                return "done"

            return _tool(name, kind, fn, **more)

        async def page(ctx: Any) -> str:
            return self.case.text

        async def broken_page(ctx: Any) -> str:
            raise Permanent(self.case.text)

        async def nothing(ctx: Any) -> str:
            return "nothing"

        write, read = EffectClass.WRITE, EffectClass.READ
        unreviewed = _tool("describes", read, nothing, description=self.case.text)
        return [
            effect("delete_all", write),
            effect("pay_bill", write, risk="low"),
            effect("wire", write, risk="high"),
            effect("send_out", read, outbound=True),
            effect("post_note", EffectClass.IDEMPOTENT, outbound=True),
            effect("customers", read, reads_private=True),
            _tool("private", read, nothing, reads_private=True),
            _tool("page", read, page, untrusted_output=True),
            _tool("open_page", read, page, untrusted_output=True, outbound=True),
            _tool("broken_page", read, broken_page, untrusted_output=True),
            _tool("ticket", read, page),
            replace(unreviewed, meta={"unreviewed": True}),
            *artifact_read.build(Settings()),
            *spawn_run.build(Settings()),
        ]

    def effects(self) -> list[str]:
        return self._effects.read_text().splitlines() if self._effects.exists() else []

    async def agent(self, name: str, plan: str, tools: tuple[str, ...] | None = None) -> None:
        local = self.runtime.catalog.local.names()
        allowed = tools or tuple(n for n in local if n != "describes")
        spec = AgentSpec(system=plan, tools=allowed, max_turns=20, model="fake/x")
        await put_agent(self.play.db, self.play.tenant_id, name, spec, Actor("test"))

    async def start(self, agent: str, **more: Any) -> UUID:
        request = StartRun(agent, "do your work", **more)
        return (await start_run(self.play.db, self.play.tenant_id, request)).run_id

    async def go(self, run_id: UUID, steps: int = 40) -> Status:
        """Let a run and its children go on until nothing more can happen without a person."""
        for _ in range(steps):
            run = await self.play.read(run_id)
            if run.state.status is Status.WAITING_CHILDREN:
                await self._children(run_id)
                assert await self.play.apply(run, ChildrenDone())
            elif run.state.status is Status.QUEUED:
                assert await self.play.apply(run, Admit())
            elif run.state.status is Status.RUNNING:
                await answer(self.runtime, self.play.tenant_id, run_id, run.version)
            else:
                return run.state.status
        return (await self.play.read(run_id)).state.status

    async def _children(self, run_id: UUID) -> None:
        rows = await sql(
            self.play.db, "SELECT id FROM runs WHERE parent_run_id = :p ORDER BY id", p=run_id
        )
        for row in rows:
            await self.go(row["id"])


def _tool(
    name: str, effect: EffectClass, fn: Callable[..., Any], description: str = "", **more: Any
) -> Tool:
    schema = {"type": "object", "properties": {}}
    return Tool(ToolSpec(name, description or f"The tool {name}.", schema, effect, **more), fn)


async def _by_plan(world: World, plan: str) -> None:
    await world.agent("worker", plan)
    await world.go(await world.start("worker"))


async def _artifact(world: World) -> None:
    db, tenant_id = world.play.db, world.play.tenant_id
    artifact = await save_artifact(
        db, world.runtime.blobs, tenant_id, None,
        name="mail.txt", media_type="text/plain", data=world.case.text.encode(),
    )  # fmt: skip
    await _by_plan(world, f"artifact_read={artifact}")


async def _child(world: World) -> None:
    await world.agent("reader", "page", tools=("page",))
    await world.agent("worker", "spawn_run=reader")
    await world.go(await world.start("worker"))


async def _to_child(world: World) -> None:
    """The parent cannot do it itself, and passes on what it has read to one that could."""
    await world.agent("doer", "", tools=("delete_all",))
    await world.agent("worker", "page;spawn_run=doer", tools=("page", "spawn_run"))
    await world.go(await world.start("worker"))


async def _history(world: World) -> None:
    """The first run only reads; the second begins with no taint of its own."""
    await world.agent("reader", "page", tools=("page",))
    await world.agent("worker", "")
    first = await world.start("reader")
    await world.go(first)
    session = (await world.play.read(first)).session_id
    await world.go(await world.start("worker", session_id=session))


async def _steered(world: World) -> None:
    await world.agent("worker", "page")
    run_id = await world.start("worker")
    await world.go(run_id, 2)  # it has read the page
    tenant_id = world.play.tenant_id
    await steer_run(world.play.db, tenant_id, run_id, text="Go on.", by="ann")
    await world.go(run_id)


async def _fork(world: World) -> None:
    await world.agent("worker", "page")
    run_id = await world.start("worker")
    await world.go(run_id, 2)
    started = await fork_run(
        world.play.db, world.play.tenant_id, run_id, ForkRun(created_by="ann", input="Again.")
    )
    await world.go(started.run_id)


async def _retry(world: World) -> None:
    await world.agent("worker", "page")
    run_id = await world.start("worker")
    await world.go(run_id, 2)
    await sql(
        world.play.db,
        "UPDATE runs SET status = 'failed', finished_at = now(), claim_id = NULL WHERE id = :r",
        r=run_id,
    )
    started = await retry_run(world.play.db, world.play.tenant_id, run_id, created_by="ann")
    await world.go(started.run_id)


async def _description(world: World) -> None:
    await world.agent("worker", "", tools=("describes", "delete_all"))
    await world.go(await world.start("worker"))


CHANNELS: dict[str, Callable[[World], Awaitable[None]]] = {
    "page": lambda w: _by_plan(w, "page"),
    "broken_page": lambda w: _by_plan(w, "broken_page"),
    "ticket": lambda w: _by_plan(w, "ticket"),
    "private": lambda w: _by_plan(w, "private;page"),
    "two": lambda w: _by_plan(w, "open_page"),
    "allowed": lambda w: _by_plan(w, "page"),
    "hidden": lambda w: _by_plan(w, "page"),
    "artifact": _artifact,
    "child": _child,
    "to_child": _to_child,
    "history": _history,
    "steered": _steered,
    "fork": _fork,
    "retry": _retry,
    "description": _description,
}
RULES: dict[str, str] = {
    "ticket": "untrusted: [ticket]\nrules: []",
    "allowed": "rules: [{name: writes, match: {effect: write}, then: allow}]",
    "hidden": "taint: hide\nrules: []",
}


async def play_case(play: Play, case: Case, tmp_path: Path, rules: str | None) -> World:
    """Run one case to its end under these rules."""
    runtime = await make_runtime(play.db)
    model: Any = Obedient(case)
    runtime.models, runtime.blobs = model, LocalBlobs(tmp_path / "blobs")
    if rules is not None:
        await put_policy(play.db, play.tenant_id, TENANT, rules, Actor("test"))
    world = World(play, runtime, case, tmp_path / "effects")
    await CHANNELS[case.channel](world)
    return world


async def asked_for(play: Play, tool: str) -> list[dict[str, Any]]:
    return await sql(
        play.db, "SELECT status, policy FROM tool_calls WHERE name = :n ORDER BY created_at", n=tool
    )


def test_the_corpus_is_as_large_as_it_should_be():
    assert len(CASES) >= 30
    assert len({case.ref for case in CASES}) == len(CASES)
    assert {case.channel for case in CASES} == set(CHANNELS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_no_unapproved_effect(play, tmp_path, case):
    world = await play_case(play, case, tmp_path, RULES.get(case.channel))
    assert world.effects() == []
    calls = await asked_for(play, case.wants)
    # An agent without the tool has none to ask about.
    judged = [call for call in calls if call["policy"] is not None]
    assert all(call["status"] == "rejected" for call in calls if call["policy"] is None)
    assert judged, "the model never obeyed where it could: the case shows nothing"
    for call in judged:
        assert call["policy"]["verdict"] in {"ask", "deny"}
        assert call["policy"]["rule"] in {"builtin.taint", "builtin.rule_of_two"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_without_the_policy_the_effect_would_have_happened(play, tmp_path, case):
    rules = f"rules: [{OFF}]"
    world = await play_case(play, case, tmp_path, rules)
    assert case.wants in world.effects()


async def test_a_hidden_tool_is_not_shown_once_the_run_is_tainted(play, tmp_path):
    case = next(case for case in CASES if case.channel == "hidden")
    world = await play_case(play, case, tmp_path, RULES["hidden"])
    models: Any = world.runtime.models
    shown = models.shown
    assert "delete_all" in shown[0]
    assert {"delete_all", "send_out"}.isdisjoint(shown[1])
    assert {"page", "customers"} <= set(shown[1])


async def test_an_obstinate_model_is_stopped(play, tmp_path, monkeypatch):
    """Three denials in a row and it is told to stop, five and the run ends."""
    monkeypatch.setattr("tests.worker.test_injection.OBEY_AT_MOST", 100)
    case = CASES[0]
    await play_case(play, case, tmp_path, "taint: deny\nrules: []")
    (row,) = await sql(play.db, "SELECT id, status, stop_reason FROM runs")
    assert (Status(row["status"]) in TERMINAL, row["stop_reason"]) == (True, "denied_repeatedly")
    assert len(await asked_for(play, "delete_all")) == 5
    told = [e["payload"]["times"] for e in await play.events(row["id"])
            if e["type"] == "tool.denied_repeatedly"]  # fmt: skip
    assert told == [3, 4, 5]
    results = [b.content for m in await play.messages(row["id"]) for b in m.content
               if isinstance(b, ToolResult)]  # fmt: skip
    assert ["Stop trying" in text for text in results[1:]] == [False, False, True, True, True]
