"""The official `openai` client, unmodified, against the API: durable runs as responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from harness_api.responses.ids import read_ref
from harness_common.contracts.agent import AgentSpec
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor

ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


@pytest.fixture
async def client(url, tenant, worker):
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key=tenant.keys["admin"], max_retries=0, timeout=30
    ) as made:
        yield made


@pytest.fixture
def agent(db, tenant):
    """Make an agent that says what its script holds."""

    async def make(*script, name: str = "b", **more) -> str:
        spec = AgentSpec(
            model="scripted/x", model_options={"script": [*script]}, max_turns=20, **more
        )
        await put_agent(db, tenant.id, name, spec, Actor("test"))
        return name

    return make


async def test_create_waits_for_the_end(client, agent):
    await agent({"text": "Hello!"})
    made = await client.responses.create(
        model="agent:b@1", input="hi", metadata={"k": "v"}, instructions="Be brief."
    )
    assert made.id.startswith("resp_")
    assert (made.status, made.output_text, made.metadata) == ("completed", "Hello!", {"k": "v"})
    assert (made.model, made.instructions, made.background) == ("agent:b@1", "Be brief.", False)
    assert made.usage.output_tokens > 0
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert await client.responses.retrieve(made.id) == made
    items = await client.responses.input_items.list(made.id)
    assert [i.content[0].text for i in items.data] == ["hi"]


async def test_a_structured_output_is_all_that_the_text_holds(client, agent):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    await agent({"text": "one, I think"}, {"text": '{ "a": 1 }'}, output_schema=schema)
    made = await client.responses.create(model="b", input="how many?")
    assert (made.status, json.loads(made.output_text)) == ("completed", {"a": 1})
    assert await client.responses.retrieve(made.id) == made
    events = await read(await client.responses.retrieve(made.id, stream=True))
    assert events[-1].response == made


async def test_actions_are_no_words_for_a_reader(client, agent):
    def act(name, **given):
        action = {"name": name, "input": given, "confidence": 1}
        return {"text": json.dumps({"thought": "so", "action": action})}

    calls = [act("calculate", expression="1+1"), act("respond_directly")]
    always = {"actions": "always"}
    await agent(*calls, {"text": "It is two."}, tools=("calculate",), contract=always)
    made = await client.responses.create(model="b", input="1+1?")
    assert [i.type for i in made.output] == ["mcp_call", "message"]
    assert made.output_text == "It is two."
    assert (await read(await client.responses.retrieve(made.id, stream=True)))[-1].response == made


async def test_background_is_polled(client, agent):
    await agent({"text": "later", "delay_s": 0.3})
    made = await client.responses.create(model="b", input="hi", background=True)
    assert made.status in {"queued", "in_progress"}
    assert made.background
    assert made.output == []
    assert made.usage is None
    while made.status in {"queued", "in_progress"}:
        await asyncio.sleep(0.05)
        made = await client.responses.retrieve(made.id)
    assert (made.status, made.output_text) == ("completed", "later")


async def read(stream) -> list:
    return [event async for event in stream]


async def test_a_stream_tells_all_and_goes_on_after_a_cut(client, agent):
    await agent(
        {"stream": ["one ", "two "], "tools": [{"name": "calculate", "input": {"expression": "1+1"}}]},
        {"stream": ["three ", "four"]},
        tools=("calculate",),
    )  # fmt: skip
    stream = await client.responses.create(model="b", input="hi", stream=True)
    events = await read(stream)
    kinds = [e.type for e in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    numbers = [e.sequence_number for e in events]
    assert numbers == sorted(set(numbers))
    done = events[-1].response
    assert [i.type for i in done.output] == ["message", "mcp_call", "message"]
    assert json.loads(done.output[1].output)["value"] == 2
    assert done.output_text == "one two three four"
    assert done == await client.responses.retrieve(done.id)
    rest: list[Any] = []
    for cut in numbers:
        rest = await client.responses.retrieve(done.id, stream=True, starting_after=cut)
        again = await read(rest)
        assert texts(events, cut) + texts(again) == texts(events), cut
        if cut < numbers[-1]:
            others = [e for e in again if e.type != "response.output_text.delta"]
            assert others == [
                e for e in events
                if e.sequence_number > cut and e.type != "response.output_text.delta"
            ]  # fmt: skip


def texts(events, until=None) -> str:
    return "".join(
        e.delta
        for e in events
        if e.type == "response.output_text.delta" and (until is None or e.sequence_number <= until)
    )


async def test_a_text_goes_on_in_its_middle(client, agent):
    await agent({"text": "0123456789"})
    made = await client.responses.create(model="b", input="hi")
    whole = await read(await client.responses.retrieve(made.id, stream=True))
    (delta,) = (e for e in whole if e.type == "response.output_text.delta")
    for left in range(10):
        after = delta.sequence_number - left
        rest = await read(
            await client.responses.retrieve(made.id, stream=True, starting_after=after)
        )
        assert texts(rest) == "0123456789"[10 - left :]


async def test_the_stream_helper_of_the_client(client, agent):
    await agent({"stream": ["a", "b"], "tools": [{"name": "add", "input": {"a": 1, "b": 2}}]})
    async with client.responses.stream(model="b", input="hi", tools=[ADD]) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                assert "ab".startswith(event.snapshot)
        done = await stream.get_final_response()
    assert done.output[1].name == "add"


async def test_a_client_carries_out_its_own_tools(client, agent):
    call = {"name": "add", "input": {"a": 1, "b": 2}}
    await agent({"text": "I add.", "tools": [call, call]}, {"text": "It is {{last_result}}."})
    first = await client.responses.create(model="b", input="add", tools=[ADD])
    assert first.status == "completed"
    calls = [i for i in first.output if i.type == "function_call"]
    assert [json.loads(c.arguments) for c in calls] == [{"a": 1, "b": 2}] * 2
    outputs = [
        {"type": "function_call_output", "call_id": c.call_id, "output": str(3 + n)}
        for n, c in enumerate(calls)
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(
            model="b", input=outputs[:1], previous_response_id=first.id, tools=[ADD]
        )
    assert calls[1].call_id in caught.value.message
    second = await client.responses.create(
        model="b", input=outputs, previous_response_id=first.id, tools=[ADD]
    )
    assert (second.status, second.output_text) == ("completed", "It is 4.")
    assert second.id != first.id
    assert second.previous_response_id == first.id
    assert read_ref(second.id).run_id == read_ref(first.id).run_id, "one run"
    assert await client.responses.retrieve(first.id) == first
    again = await client.responses.create(model="b", input=outputs, previous_response_id=first.id)
    assert again == second, "handing in the same outputs twice is harmless"


async def test_a_client_that_sends_the_whole_conversation(client, agent):
    call = {"name": "add", "input": {"a": 1, "b": 2}}
    await agent({"tools": [call]}, {"text": "It is {{last_result}}."})
    items = [{"role": "user", "content": "add"}]
    first = await client.responses.create(model="b", input=items, tools=[ADD])
    items += [i.model_dump(exclude_none=True) for i in first.output]
    items.append(
        {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"}
    )
    second = await client.responses.create(model="b", input=items, tools=[ADD])
    assert second.output_text == "It is 3."
    assert read_ref(second.id).run_id == read_ref(first.id).run_id, "nothing is done again"


async def test_previous_response_id_goes_on_in_the_session(client, agent, monkeypatch):
    from harness_worker.models.scripted import Scripted

    whole, seen = Scripted.chat, []

    async def chat(self, request, on_delta=None):
        seen.append([m.text() for m in request.messages])
        return await whole(self, request, on_delta)

    monkeypatch.setattr(Scripted, "chat", chat)
    await agent({"text": "yes"})
    first = await client.responses.create(model="b", input="1")
    second = await client.responses.create(model="b", input="2", previous_response_id=first.id)
    assert seen[-1] == ["1", "yes", "2"]
    assert second.previous_response_id == first.id
    assert second.conversation == first.conversation
    branch = await client.responses.create(model="b", input="2b", previous_response_id=first.id)
    assert seen[-1] == ["1", "yes", "2b"], "a branch knows the first run and not the second"
    assert branch.conversation != first.conversation
    await client.responses.create(model="b", input="3", conversation=first.conversation.id)
    assert seen[-1] == ["1", "yes", "2", "yes", "3"]
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "z"},
    ]
    made = await client.responses.create(model="b", input=items)
    assert seen[-1] == ["Be kind.", "x", "y", "z"]
    page = await client.responses.input_items.list(made.id, order="asc")
    assert [i.role for i in page.data] == ["system", "user", "assistant", "user"]


async def test_a_question_to_a_person_is_answered_by_the_next_input(client, agent):
    ask = {"name": "ask_user", "input": {"question": "Which one?", "choices": ["a", "b"]}}
    await agent({"tools": [ask]}, {"text": "You said {{last_result}}."}, tools=("ask_user",))
    first = await client.responses.create(model="b", input="hi")
    assert (first.status, first.output_text) == ("completed", "Which one?\n- a\n- b")
    second = await client.responses.create(model="b", input="b", previous_response_id=first.id)
    assert second.output_text == "You said b."


async def test_cancel(client, agent, worker):
    await agent({"text": "never", "delay_s": 60})
    made = await client.responses.create(model="b", input="hi", background=True)
    run_id = read_ref(made.id).run_id
    while run_id not in worker.runtime.held:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(client.responses.cancel(made.id))
    await asyncio.sleep(0.05)
    worker.cancel(run_id)
    assert (await asked).status == "cancelled"
    assert (await client.responses.retrieve(made.id)).status == "cancelled"
    events = await read(await client.responses.retrieve(made.id, stream=True))
    assert events[-1].response.status == "cancelled"


async def test_a_failed_run(client, agent):
    await agent({"error": "permanent"})
    made = await client.responses.create(model="b", input="hi")
    assert (made.status, made.error.code) == ("failed", "server_error")
    assert "SCRIPTED_ERROR" in made.error.message


async def test_a_failed_attempt_is_closed_and_told_apart(client, agent, worker, monkeypatch):
    """The text of an attempt that broke off is no part of the answer."""
    from harness_common.core.errors import Transient
    from harness_worker.models.scripted import Scripted

    broken: list[int] = []
    whole = Scripted.chat

    async def chat(self, request, on_delta=None):
        if not broken:
            broken.append(1)
            await on_delta("wro")
            await asyncio.sleep(0.3)
            raise Transient("cut")
        return await whole(self, request, on_delta)

    monkeypatch.setattr(Scripted, "chat", chat)
    await agent({"stream": ["right", " text"]}, retry={"base_s": 0.1})
    events = await read(await client.responses.create(model="b", input="hi", stream=True))
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [(i.status, i.content[0].text) for i in done] == [
        ("incomplete", "wro"),
        ("completed", "right text"),
    ]
    numbers = [e.sequence_number for e in events]
    assert numbers == sorted(set(numbers))
    final = events[-1].response
    assert final.output_text == "right text"
    rest: list[Any] = []
    for cut in numbers:
        rest = await read(
            await client.responses.retrieve(final.id, stream=True, starting_after=cut)
        )
        assert rest[-1].type == "response.completed"
        ids = {e.item_id for e in rest if e.type == "response.output_text.delta"}
        assert ids <= {final.output[0].id}
    assert texts(rest) == ""


@pytest.mark.parametrize(
    ("given", "param", "kind"),
    [
        ({"model": "nobody"}, "agent", openai.NotFoundError),
        ({"model": "gpt 5"}, "model", openai.BadRequestError),
        ({"top_p": 0.5}, None, openai.BadRequestError),
        ({"store": False}, "store", openai.BadRequestError),
        ({"tool_choice": "required"}, "tool_choice", openai.BadRequestError),
        ({"tools": [{"type": "web_search"}]}, "tools.0", openai.BadRequestError),
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type", openai.BadRequestError),
        ({"input": []}, "input", openai.BadRequestError),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", openai.BadRequestError),
        ({"previous_response_id": "resp_" + "0" * 32}, "previous_response_id", openai.NotFoundError),
        ({"conversation": "conv_1"}, "conversation", openai.BadRequestError),
        ({"extra_body": {"colour": "red"}}, "colour", openai.BadRequestError),
    ],
)  # fmt: skip
async def test_refusals(client, agent, given, param, kind):
    await agent({"text": "x"})
    with pytest.raises(kind) as caught:
        await client.responses.create(**{"model": "b", "input": "hi", **given})
    error = caught.value
    assert error.message
    assert (error.param or "").startswith(param or "")


async def test_keys_and_unknown_ids(client, agent, url, tenant):
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_" + "0" * 32)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_x")
    with pytest.raises(openai.AuthenticationError) as caught:
        await client.with_options(api_key="hk_wrong").responses.create(model="a", input="x")
    assert "API key" in caught.value.message
    with pytest.raises(openai.PermissionDeniedError):
        await client.with_options(api_key=tenant.keys["viewer"]).responses.create(
            model="a", input="x"
        )


async def test_idempotency(client, agent):
    await agent({"text": "once"})
    key = {"Idempotency-Key": "k1"}
    first = await client.responses.create(model="b", input="hi", extra_headers=key)
    assert await client.responses.create(model="b", input="hi", extra_headers=key) == first
    with pytest.raises(openai.ConflictError) as caught:
        await client.responses.create(model="b", input="ho", extra_headers=key)
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_another_tenant_sees_nothing(client, agent, other_tenant):
    await agent({"text": "mine"})
    made = await client.responses.create(model="b", input="hi")
    theirs = client.with_options(api_key=other_tenant.keys["admin"])
    for call in (
        theirs.responses.retrieve(made.id),
        theirs.responses.cancel(made.id),
        theirs.responses.input_items.list(made.id),
        theirs.responses.create(model="a", input="x", previous_response_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await call


async def test_a_client_tool_never_opens_a_tool_of_the_worker(client, agent):
    """A name that only the client declared leads to the client."""
    await agent({"tools": [{"name": "calculate", "input": {"expression": "1+1"}}]})
    tool = ADD | {"name": "calculate", "parameters": {"type": "object", "properties": {}}}
    made = await client.responses.create(model="b", input="hi", tools=[tool])
    assert [i.type for i in made.output] == ["function_call"]
    await agent({"text": "x"}, name="c", tools=("calculate",))
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="c", input="hi", tools=[tool])
    assert "calculate" in caught.value.message
