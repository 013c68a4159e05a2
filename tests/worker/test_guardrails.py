"""Guardrails around the model of a real run: what it is asked, what it may answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from harness_common.commands import ForkRun, cancel_run, fork_run
from harness_common.contracts.model import ChatRequest, ChatResult, Usage
from harness_common.core.errors import Limited
from harness_common.core.message import Message, Text, ToolResult, ToolUse
from harness_common.core.run import Status
from harness_common.plugins import discover
from harness_common.store import json_codec
from harness_worker.runtime import Runtime
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.registry import ToolRegistry
from tests.store.play import Play, ran, sql
from tests.worker.runtime import FakeModels, make_runtime, say_nothing
from tests.worker.test_handoff import put
from tests.worker.tool_steps import a_tool, asks, events, work


class Talker(FakeModels):
    """A registry whose models give these answers, one after the other; a judge has its own."""

    def __init__(self, answers: list[str], verdicts: list[str]) -> None:
        super().__init__(say_nothing)
        self.answers, self.verdicts, self.asked = answers, verdicts, list[ChatRequest]()

    async def chat(self, request: ChatRequest, on_delta: Any = None) -> ChatResult:
        del on_delta
        self.asked.append(request)
        given = self.verdicts if "You judge a text" in request.system else self.answers
        said = given.pop(0)
        if said == "later":
            raise Limited("later", retry_after_s=60)
        message = Message("assistant", (Text(said),))
        return ChatResult(message, Usage(10, 5), "stop", "fake/x", cost_usd=0.5)


async def guarded(
    play: Play, db: Any, rails: dict[str, Any], *answers: str, verdicts: list[str] | None = None
) -> tuple[Runtime, Talker]:
    """Make a worker whose agent has these guardrails."""
    await sql(
        db,
        "UPDATE agents SET spec = jsonb_set(spec, '{guardrails}', cast(:r AS jsonb))",
        r=json_codec.dumps_text(rails),
    )
    runtime, talker = await make_runtime(db), Talker(list(answers), verdicts or [])
    models: Any = talker
    runtime.models = models
    runtime.plugins = discover()
    return runtime, talker


async def test_an_input_is_refused_before_the_model_is_asked(play, db):
    rails = {"input": [{"kind": "deny", "patterns": ["(?i)launch codes"], "why": "not that"}]}
    runtime, talker = await guarded(play, db, rails)
    run_id = await play.start("tell me the LAUNCH CODES")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.status, state.stop_reason) == (Status.FAILED, "guardrail_blocked")
    assert state.error["message"] == "the agent's guardrail deny refused the input: not that"
    assert talker.asked == []
    (event,) = await events(play, run_id, "guardrail.")
    assert event["type"] == "guardrail.blocked"
    assert "CODES" not in str(event["payload"])
    await play.check_whole(run_id)


async def test_personal_data_does_not_reach_the_model(play, db):
    rails = {"input": [{"kind": "pii", "kinds": ["email"], "action": "rewrite"}]}
    runtime, talker = await guarded(play, db, rails, "done")
    run_id = await play.start("write to ann@example.com")
    await work(runtime, play, run_id)
    assert talker.asked[0].messages[0].text() == "write to [email]"
    (event,) = await events(play, run_id, "guardrail.")
    assert event["type"] == "guardrail.rewrote"
    # Also later in the session, where it is history; told once.
    session = (await play.read(run_id)).session_id
    talker.answers.append("again")
    second = await play.start("and again", session_id=session)
    await work(runtime, play, second)
    assert "ann@" not in str(talker.asked[1].messages)
    assert await events(play, second, "guardrail.") == []


async def test_an_answer_is_rewritten_before_it_is_kept(play, db):
    rails = {"output": [{"kind": "pii", "action": "rewrite"}]}
    runtime, _ = await guarded(play, db, rails, "her address is ann@example.com")
    run_id = await play.start("what is it?")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.status, state.output) == (Status.SUCCEEDED, "her address is [email]")
    assert "ann@" not in str(await play.messages(run_id))


async def test_an_answer_that_does_not_fit_is_asked_for_again(play, db):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    rails = {"output": [{"kind": "schema", "json_schema": schema, "action": "ask_again"}]}
    runtime, talker = await guarded(play, db, rails, "seven", '{"n": "7"}', '{"n": 7}')
    run_id = await play.start("how many?")
    for _ in range(3):
        await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.status, state.output) == (Status.SUCCEEDED, '{"n": 7}')
    assert "it is not JSON" in talker.asked[1].messages[-1].text()
    assert "`n`: must be of type integer" in talker.asked[2].messages[-1].text()
    assert [e["type"] for e in await events(play, run_id, "guardrail.")] == [
        "guardrail.asked_again"
    ] * 2


async def test_an_answer_that_never_fits_is_withheld(play, db):
    rails = {"output": [{"kind": "deny", "patterns": ["s3cret"], "action": "ask_again"}]}
    runtime, _ = await guarded(play, db, rails, *["it is s3cret"] * 3)
    run_id = await play.start("what is it?")
    for _ in range(3):
        await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.status, state.stop_reason) == (Status.FAILED, "guardrail_blocked")
    assert state.output is None
    last = (await play.messages(run_id))[-1]
    assert last.text() == "[This answer was withheld by a guardrail.]"


@pytest.mark.parametrize(
    ("verdict", "ends"),
    [
        ('{"ok": true, "why": ""}', None),
        ('Well: {"ok": false, "why": "it is rude"}', "it is rude"),
        ("I think it is fine", "no verdict that can be read"),
    ],
)
async def test_another_agent_may_be_the_judge(play, db, verdict, ends):
    rails = {"output": [{"kind": "judge", "agent": "critic", "question": "Is it polite?"}]}
    runtime, talker = await guarded(play, db, rails, "hello", verdicts=[verdict])
    await put(play, "critic", system="You are strict.")
    run_id = await play.start("greet me")
    await work(runtime, play, run_id)
    run = await play.read(run_id)
    judge = talker.asked[1]
    assert judge.system.endswith("You are strict.")
    assert "Is it polite?" in judge.messages[0].text()
    assert "<text>\nhello\n</text>" in judge.messages[0].text()
    assert run.state.memo["judges"] == {"critic": 1}
    assert (run.state.input_tokens, run.state.cost_usd) == (20, 1.0), "what it costs is the run's"
    if ends is None:
        assert run.state.output == "hello"
    else:
        assert run.state.stop_reason == "guardrail_blocked"
        assert ends in run.state.error["message"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with guardrails, as a worker would find it."""
    (tmp_path / "rails_of_acme.py").write_text(
        "from harness_common.contracts.guardrails import RailVerdict\n"
        "from harness_common.contracts.plugin import Plugin\n"
        "def no_prices(text, where):\n"
        "    return RailVerdict('EUR' not in text, 'no prices', text.replace('EUR', '***'))\n"
        "def broken(text, where):\n"
        "    raise ValueError('oh')\n"
        "plugin = Plugin(guardrails={'no_prices': no_prices, 'broken': broken})\n"
    )
    info = tmp_path / "rails_of_acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rails-of-acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[harness.plugins]\nacme = rails_of_acme:plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    discover.cache_clear()
    yield
    discover.cache_clear()
    sys.modules.pop("rails_of_acme", None)


@pytest.mark.usefixtures("package")
async def test_a_function_of_a_package_is_a_rail(play, db):
    rails = {"output": [{"kind": "plugin", "name": "no_prices", "action": "rewrite"}]}
    runtime, _ = await guarded(play, db, rails, "12 EUR")
    run_id = await play.start("how much?")
    await work(runtime, play, run_id)
    assert (await play.read(run_id)).state.output == "12 ***"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "code"), [("broken", "GUARDRAIL_BROKEN"), ("unknown", "GUARDRAIL_NOT_HERE")]
)
async def test_nothing_passes_a_rail_that_does_not_work(play, db, name, code):
    runtime, talker = await guarded(play, db, {"input": [{"kind": "plugin", "name": name}]}, "x")
    run_id = await play.start("how much?")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert talker.asked == []
    failed = await events(play, run_id, "step.failed")
    assert failed[0]["payload"]["error"]["code"] == code
    assert state.status is (Status.FAILED if name == "broken" else Status.DELAYED)


async def test_what_a_judge_of_the_input_costs_is_the_runs_also_when_it_says_no(play, db):
    rails = {"input": [{"kind": "judge", "agent": "critic"}]}
    verdict = '{"ok": false, "why": "it is rude"}'
    runtime, talker = await guarded(play, db, rails, verdicts=[verdict])
    await put(play, "critic", system="You are strict.")
    run_id = await play.start("you fool")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.status, state.stop_reason) == (Status.FAILED, "guardrail_blocked")
    assert len(talker.asked) == 1, "the agent's own model was not asked"
    assert (state.input_tokens, state.output_tokens, state.cost_usd) == (10, 5, 0.5)
    (event,) = await events(play, run_id, "guardrail.")
    assert event["payload"]["spent"] == {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.5}


@pytest.mark.parametrize("cap", [None, 15])
async def test_an_answer_that_no_judge_can_look_at_now_is_paid_all_the_same(play, db, cap):
    rails = {"output": [{"kind": "judge", "agent": "critic"}]}
    runtime, _ = await guarded(play, db, rails, "hello", verdicts=["later"])
    await put(play, "critic")
    if cap is not None:
        await sql(
            db,
            "UPDATE agents SET spec = jsonb_set(spec, '{max_tokens_total}', to_jsonb(:n)) "
            "WHERE name = 'a'",
            n=cap,
        )
    run_id = await play.start("greet me")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.input_tokens, state.output_tokens, state.cost_usd) == (10, 5, 0.5)
    if cap is None:
        assert state.status is Status.DELAYED
    else:
        assert (state.status, state.stop_reason) == (Status.FAILED, "token_budget_exceeded")


async def test_a_judge_reads_all_of_a_long_text(play, db):
    rails = {"input": [{"kind": "judge", "agent": "critic"}]}
    verdicts = ['{"ok": true}', '{"ok": false, "why": "it is rude"}']
    runtime, talker = await guarded(play, db, rails, verdicts=verdicts)
    await put(play, "critic")
    run_id = await play.start("a" * 70_000 + "</text> rude")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.stop_reason, state.input_tokens) == ("guardrail_blocked", 20)
    last = talker.asked[-1].messages[0].text()
    assert "(part 2 of 2)" in last
    assert last.count("</text>") == 1


async def test_judges_that_were_asked_before_a_compaction_are_paid(play, db):
    rails = {"input": [{"kind": "judge", "agent": "critic"}]}
    runtime, talker = await guarded(play, db, rails, verdicts=['{"ok": true}'])
    await put(play, "critic")
    await sql(
        db,
        "UPDATE agents SET spec = jsonb_set(spec, '{context,window_tokens}', '1000') "
        "WHERE name = 'a'",
    )
    run_id = await play.start("word " * 4_000)
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (len(talker.asked), state.next_kind) == (1, "compact")
    assert (state.input_tokens, state.output_tokens, state.cost_usd) == (10, 5, 0.5)
    (full,) = await events(play, run_id, "context.full")
    assert full["payload"]["spent"] == {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.5}


async def spec_of(db: Any, **fields: Any) -> None:
    """Change the agent `a`."""
    await sql(
        db,
        "UPDATE agents SET spec = spec || cast(:f AS jsonb) WHERE name = 'a'",
        f=json_codec.dumps_text(fields),
    )


NOTE = {
    "type": "object",
    "properties": {"note": {"type": "string"}},
    "required": ["note"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "rail",
    [
        {"kind": "pii", "kinds": ["credit_card"]},
        {"kind": "deny", "patterns": [r"\b4111 1111 1111 1111\b"]},
    ],
)
@pytest.mark.parametrize("action", ["rewrite", "block"])
async def test_a_json_answer_is_looked_at_as_it_will_be_read(play, db, rail, action):
    """In JSON a line break is `\\n`, whose letter stands right before the word behind it."""
    rails = {"output": [{**rail, "action": action}]}
    said = '{ "note": "paid with\\n4111 1111 1111 1111" }'
    runtime, _ = await guarded(play, db, rails, said)
    await spec_of(db, output_schema=NOTE)
    run_id = await play.start("how was it paid?")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    if action == "block":
        assert (state.status, state.stop_reason) == (Status.FAILED, "guardrail_blocked")
    else:
        name = "credit_card" if rail["kind"] == "pii" else "removed"
        assert state.output == f'{{"note":"paid with\\n[{name}]"}}'
    assert "1111" not in str(await play.messages(run_id))


async def test_an_answer_in_an_action_is_looked_at_as_it_is_given(play, db):
    rails = {
        "output": [
            {"kind": "deny", "patterns": [r"\bsecret\b"], "action": "rewrite"},
            {"kind": "max_chars", "limit": 30},
        ]
    }

    def act(**given: str) -> str:
        action = {"name": "respond_directly", "input": given, "confidence": 1}
        return json.dumps({"thought": "I have what it takes", "action": action})

    runtime, talker = await guarded(play, db, rails, act(answer="Well:\nsecret things"))
    runtime.catalog = Catalog(ToolRegistry([a_tool("look", "read", say_nothing)]))
    await spec_of(db, tools=["look"], contract={"actions": "always"})
    run_id = await play.start("say it")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert (state.status, state.output) == (Status.SUCCEEDED, "Well:\n[removed] things")
    # That the answer comes next is no answer yet, and no rail's business.
    talker.answers += [act(), "short"]
    second = await play.start("say it again")
    for _ in range(2):
        await work(runtime, play, second)
    state = (await play.read(second)).state
    assert (state.status, state.output) == (Status.SUCCEEDED, "short")
    # What a session remembers is the answer, too.
    talker.answers.append(act(answer="fine"))
    third = await play.start("and now?")
    await work(runtime, play, third)
    (session,) = await sql(
        db, "SELECT memory_summary FROM sessions s JOIN runs r ON r.session_id = s.id "
        "WHERE r.id = :r", r=third,
    )  # fmt: skip
    assert session["memory_summary"].endswith("and now? → fine")


@pytest.mark.parametrize("kind", ["deny", "judge"])
async def test_what_was_refused_is_shown_to_no_later_run_of_the_session(play, db, kind):
    rail = {"deny": {"kind": "deny", "patterns": ["(?i)codes"]},
            "judge": {"kind": "judge", "agent": "critic"}}[kind]  # fmt: skip
    verdicts = ['{"ok": false, "why": "it is bad"}', '{"ok": true}']
    runtime, talker = await guarded(play, db, {"input": [rail]}, "no", verdicts=verdicts)
    await put(play, "critic", system="You are strict.")
    first = await play.start("tell me the CODES")
    await work(runtime, play, first)
    refused = await play.read(first)
    assert refused.state.stop_reason == "guardrail_blocked"
    second = await play.start("do what I asked for", session_id=refused.session_id)
    await work(runtime, play, second)
    assert (await play.read(second)).state.output == "no"
    told = [m.text() for m in talker.asked[-1].messages]
    assert told == ["[This message was withheld by a guardrail.]", "do what I asked for"]


async def test_what_no_rail_has_looked_at_is_withheld_from_the_next_run(play, db):
    """A run that was cancelled before its first step leaves its message to the session."""
    rails = {"input": [{"kind": "deny", "patterns": ["(?i)codes"]}]}
    runtime, talker = await guarded(play, db, rails, "no")
    first = await play.start("tell me the CODES")
    session_id = (await play.read(first)).session_id
    await cancel_run(db, play.tenant_id, first, by="ann")
    await work(runtime, play, first)
    assert (await play.read(first)).state.status is Status.CANCELLED
    second = await play.start("do what I asked for", session_id=session_id)
    await work(runtime, play, second)
    assert "CODES" not in str(talker.asked[-1].messages)


async def test_what_no_judge_was_asked_about_is_judged_in_the_next_run(play, db):
    rails = {"input": [{"kind": "judge", "agent": "critic"}]}
    verdicts = ['{"ok": false, "why": "it is bad"}', '{"ok": true}']
    uses = (Text("well"), ToolUse("c", "look", {}))
    runtime, talker = await guarded(play, db, rails, "no", verdicts=verdicts)
    await put(play, "critic", system="You are strict.")
    first = await play.start("tell me the CODES")
    session_id = (await play.read(first)).session_id
    await cancel_run(db, play.tenant_id, first, by="ann")
    await work(runtime, play, first)
    second = await play.start("do what I asked for", session_id=session_id)

    chat = talker.chat

    async def asks_first(request: ChatRequest, on_delta: Any = None) -> ChatResult:
        answer = await chat(request, on_delta)
        if answer.message.text() != "no":
            return answer
        return ChatResult(Message("assistant", uses), Usage(10, 5), "tool_calls", "fake/x")

    await spec_of(db, tools=["look"])
    runtime.catalog = Catalog(ToolRegistry([a_tool("look", "read", say_nothing)]))
    setattr(talker, "chat", asks_first)  # noqa: B010
    await work(runtime, play, second)
    await work(runtime, play, second)
    assert "CODES" in str(talker.asked[0].messages)  # the judge
    # It stays withheld in the next step, and no judge is asked again.
    setattr(talker, "chat", chat)  # noqa: B010
    talker.answers.append("done")
    await work(runtime, play, second)
    assert (await play.read(second)).state.output == "done"
    assert [("CODES" in str(r.messages), r.system[:9]) for r in talker.asked][2:] == [
        (False, ""), (False, "")
    ]  # fmt: skip


@pytest.mark.parametrize("action", ["rewrite", "ask_again"])
async def test_an_answer_that_ends_the_run_by_a_condition_is_looked_at_too(play, db, action):
    rails = {"output": [{"kind": "deny", "patterns": ["s3cret"], "action": action}]}
    runtime, talker = await guarded(play, db, rails)
    await spec_of(db, tools=["look"], stop_when=[{"text": "DONE"}])
    uses = (Text("DONE: s3cret"), ToolUse("c", "look", {}))

    async def chat(request: ChatRequest, on_delta: Any = None) -> ChatResult:
        del request, on_delta
        return ChatResult(Message("assistant", uses), Usage(10, 5), "tool_calls", "fake/x")

    runtime.catalog = Catalog(ToolRegistry([a_tool("look", "read", say_nothing)]))
    setattr(talker, "chat", chat)  # noqa: B010
    run_id = await play.start("go")
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    if action == "rewrite":
        assert (state.status, state.output) == (Status.SUCCEEDED, "DONE: [removed]")
    else:
        assert (state.status, state.stop_reason) == (Status.FAILED, "guardrail_blocked")
    assert "s3cret" not in str(await play.messages(run_id))


async def looking(play: Play, db: Any, rails: dict[str, Any], verdict: str) -> Runtime:
    """Make a worker whose agent looks once, and whose run ends by that."""
    runtime, talker = await guarded(play, db, rails, verdicts=[verdict])
    await put(play, "critic")
    await spec_of(db, tools=["look"], stop_when=[{"tool": "look"}])
    uses = (ToolUse("c", "look", {}),)

    async def leaks(arguments: Any) -> str:
        del arguments
        return "found: s3cret"

    chat = talker.chat

    async def asks_first(request: ChatRequest, on_delta: Any = None) -> ChatResult:
        if "You judge a text" not in request.system:
            return ChatResult(Message("assistant", uses), Usage(10, 5), "tool_calls", "fake/x")
        return await chat(request, on_delta)

    runtime.catalog = Catalog(ToolRegistry([a_tool("look", "read", leaks)]))
    setattr(talker, "chat", asks_first)  # noqa: B010
    return runtime


async def looked(runtime: Runtime, play: Play, run_id: UUID) -> UUID:
    for _ in range(2):  # the answer, then its call
        await work(runtime, play, run_id)
    return run_id


@pytest.mark.parametrize("action", ["rewrite", "block", "judge"])
async def test_a_result_that_ends_the_run_by_a_condition_is_looked_at_too(play, db, action):
    deny = {"kind": "deny", "patterns": ["s3cret"], "action": action}
    judge = {"kind": "judge", "agent": "critic", "action": "block"}
    rails = {"output": [judge if action == "judge" else deny]}
    runtime = await looking(play, db, rails, '{"ok": false, "why": "no"}')
    run_id = await looked(runtime, play, await play.start("go"))
    state = (await play.read(run_id)).state
    if action == "rewrite":
        assert (state.status, state.output) == (Status.SUCCEEDED, "found: [removed]")
    else:
        assert (state.status, state.stop_reason) == (Status.FAILED, "guardrail_blocked")
        assert state.output is None
    assert (state.input_tokens > 10) is (action == "judge")


async def test_a_dry_run_asks_no_judge_of_its_output(play, db):
    rails = {"output": [{"kind": "judge", "agent": "critic", "action": "block"}]}
    runtime = await looking(play, db, rails, '{"ok": true}')  # one verdict, and no second
    source = await looked(runtime, play, await play.start("go"))
    assert (await play.read(source)).state.status is Status.SUCCEEDED
    made = await fork_run(db, play.tenant_id, source, ForkRun(dry_run=True))
    state = (await play.read(await looked(runtime, play, made.run_id))).state
    assert (state.status, state.output) == (Status.SUCCEEDED, "found: s3cret")


async def test_an_answer_to_a_question_is_said_by_a_user_too(play, db):
    rails = {"input": [{"kind": "pii", "kinds": ["email"], "action": "rewrite"},
                       {"kind": "judge", "agent": "critic"}]}  # fmt: skip
    verdicts = ['{"ok": true}', '{"ok": true}', '{"ok": true}', '{"ok": false}', '{"ok": true}']
    runtime, talker = await guarded(play, db, rails, "thanks", "hello", verdicts=verdicts)
    await put(play, "critic")

    async def answered(text: str) -> UUID:
        run_id: UUID = await play.start("hi")
        await play.step(run_id, asks(("ask_user", {"question": "your address?"}), ("look", {})))
        await play.step(run_id, ran(text, "ann@example.com"))
        await work(runtime, play, run_id)
        return run_id

    run_id = await answered("it is ann@example.com")
    assert (await play.read(run_id)).state.output == "thanks"
    results = [b for b in talker.asked[-1].messages[-1].content if isinstance(b, ToolResult)]
    assert [b.content for b in results] == ["it is [email]", "ann@example.com"]
    assert "it is [email]" in talker.asked[1].messages[0].text(), "the judge has read it, too"
    run_id = await answered("do bad things")
    refused = await play.read(run_id)
    assert refused.state.stop_reason == "guardrail_blocked"
    run_id = await play.start("and now?", session_id=refused.session_id)
    await work(runtime, play, run_id)
    assert (await play.read(run_id)).state.output == "hello"
    assert "bad things" not in str(talker.asked[-1].messages)


@pytest.mark.parametrize("action", ["rewrite", "block"])
async def test_an_answer_that_has_not_its_form_is_not_kept_as_it_was_either(play, db, action):
    rails = {"output": [{"kind": "deny", "patterns": ["s3cret"], "action": action}]}
    runtime, talker = await guarded(play, db, rails, *["it is s3cret"] * 3)
    await spec_of(db, output_schema=NOTE)
    run_id = await play.start("what is it?")
    while (state := (await play.read(run_id)).state).status is Status.RUNNING:
        await work(runtime, play, run_id)
    assert state.status is Status.FAILED
    assert "s3cret" not in str(await play.messages(run_id))
    assert "s3cret" not in str(state.error)
    assert "s3cret" not in str(talker.asked[-1].messages)


async def test_the_record_of_a_repair_holds_nothing_that_a_rail_took_out(play, db):
    rails = {"output": [{"kind": "pii", "kinds": ["credit_card"], "action": "rewrite"}]}
    said = '```json\n{"note": "paid\\n4111 1111 1111 1111",}\n```'
    runtime, _ = await guarded(play, db, rails, said)
    await spec_of(db, output_schema=NOTE)
    run_id = await play.start("how was it paid?")
    await work(runtime, play, run_id)
    assert (await play.read(run_id)).state.output == '{"note":"paid\\n[credit_card]"}'
    (repaired,) = await events(play, run_id, "answer.repaired")
    assert "[credit_card]" in str(repaired["payload"])
    assert "1111" not in str(await play.events(run_id))
