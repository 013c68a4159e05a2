"""Servers that speak Chat Completions in their own way: vLLM, llama.cpp, `transformers serve`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_common.contracts.model import ChatRequest, Usage
from harness_common.core.errors import Limited, Permanent, Transient
from harness_common.core.message import Message, ToolResult, ToolUse, user
from harness_worker.models.capabilities import built_in
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.prices import load_prices
from tests.conformance.model_calls import ASK, DONE, TOOL, ask, fails, run, stream
from tests.fakes.openai_server import Answer, chunk, refusal, sse, tool_delta


def sent(request, name="gpt-4.1", **changed):
    async def work(server, client):
        can = replace(built_in().of(f"openai/{name}"), **changed)
        model = OpenAIChat(
            client, name, prices=load_prices(), base_url=server.base_url, capabilities=can
        )
        await model.chat(request)
        return server.requests[0]["body"]

    return run(work)


# vLLM


def test_vllm_ends_a_named_tool_choice_with_stop():
    """`tool_choice` names a tool, `finish_reason` is "stop": the calls decide."""
    call = chunk({"tool_calls": [tool_delta(0, "chatcmpl-tool-1", "add", '{"a": 1}')]})
    result = ask(
        stream(call, chunk({}, finish="stop"), tail=DONE), request=replace(ASK, tool_choice="add")
    )
    assert result.finish == "tool_calls"
    assert [u.input for u in result.message.tool_uses()] == [{"a": 1}]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        # up to 0.9 flat, then as OpenAI does; `code` is the status, a number
        ({"object": "error", "type": "NotFoundError", "code": 404, "param": None,
          "message": "The model `x` does not exist."}, "MODEL_NOT_FOUND"),
        ({"error": {"type": "BadRequestError", "code": 400, "param": None,
                    "message": "Invalid grammar"}}, "MODEL_BAD_REQUEST"),
        ({"error": {"type": "BadRequestError", "code": 400, "param": "input_tokens", "message":
                    "This model's maximum context length is 8192 tokens. However, your request "
                    "has 9001 input tokens. Please reduce the length of the input messages."}},
         "CONTEXT_OVERFLOW"),
        ({"error": {"type": "BadRequestError", "code": 400, "param": None, "message":
                    "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's "
                    "maximum context length is 8192 tokens and your request has 10 input tokens"}},
         "CONTEXT_OVERFLOW"),
    ],
)  # fmt: skip
def test_vllm_errors_have_a_number_for_a_code(body, code):
    error = body.get("error", body)
    assert fails(Permanent, Answer(status=error["code"], body=body)).error_code == code
    events = Answer(raw=(sse(chunk({"role": "assistant"})), sse(body), DONE))
    assert fails(Permanent, events).error_code == code


def test_vllm_says_that_its_engine_died():
    body = {"error": {"type": "InternalServerError", "code": 500, "message": "EngineCore died"}}
    assert fails(Transient, Answer(status=500, body=body)).error_code == "MODEL_UNAVAILABLE"


def test_vllm_reasoning_is_neither_shown_nor_kept():
    shown: list[str] = []
    events = [chunk({"reasoning": "The user"}), chunk({"reasoning": None, "content": "42"})]
    result = ask(stream(*events), shown=shown)
    assert (result.message.text(), result.message.extra, shown) == ("42", None, ["42"])


@pytest.mark.parametrize("option", ["guided_choice", "guided_json", "guided_regex"])
def test_vllm_would_ignore_guided_options(option):
    with pytest.raises(Permanent, match="structured_outputs") as caught:
        sent(replace(ASK, options={option: ["a", "b"]}))
    assert caught.value.detail["option"] == option


def test_vllm_takes_structured_outputs_as_they_are():
    wanted = {"choice": ["yes", "no"]}
    assert (
        sent(replace(ASK, options={"structured_outputs": wanted}))["structured_outputs"] == wanted
    )


def test_vllm_required_may_break_the_schema_and_the_call_is_kept_as_it_came():
    result = ask(
        stream(chunk({"tool_calls": [tool_delta(0, "c", "add", '{"a": "one", "zz": []}')]})),
        request=replace(ASK, tool_choice="required"),
    )
    assert result.message.tool_uses() == (ToolUse("c", "add", {"a": "one", "zz": []}),)


# llama.cpp


def test_llama_cpp_overflow():
    body = {
        "error": {
            "code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5000,
            "n_ctx": 2048,
            "message": "request (5000 tokens) exceeds the available context size (2048 tokens)",
        }
    }  # fmt: skip
    assert fails(Permanent, Answer(status=400, body=body)).error_code == "CONTEXT_OVERFLOW"
    assert fails(Permanent, Answer(raw=(sse(body),))).error_code == "CONTEXT_OVERFLOW"


def test_llama_cpp_is_still_loading_its_model():
    body = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    assert fails(Transient, Answer(status=503, body=body)).error_code == "MODEL_UNAVAILABLE"


def test_llama_cpp_ignores_a_forced_tool_and_the_answer_still_counts():
    result = ask(Answer(), request=replace(ASK, tool_choice="required"))
    assert (result.finish, result.message.text()) == ("stop", "Hello there.")


SCHEMA = {
    "type": "object",
    "properties": {"name": {"const": "add"}, "arguments": TOOL.input_schema},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("choice", ["add", "required"])
@pytest.mark.parametrize(
    ("said", "use"),
    [
        ('{"name": "add", "arguments": {"a": 2}}', {"a": 2}),
        ('\n{"name":"add","arguments":{}}\n', {}),
        ('{"name": "rm", "arguments": {}}', None),
        ('{"name": "add", "arguments": 5}', None),
        ('{"name": "add", "argu', None),
        ("2 + 3 = 5", None),
    ],
)
def test_llama_cpp_keeps_to_a_schema_where_it_ignores_a_forced_tool(choice, said, use):
    """The call is asked for as JSON; nothing of it is shown, and what is no call stays text."""
    request = replace(ASK, system="Be brief.", tool_choice=choice)
    shown: list[str] = []

    async def on_delta(text):
        shown.append(text)

    async def work(server, client):
        server.default = Answer(pieces=(said,))
        can = replace(built_in().of("openai/m"), tool_choice="schema")
        model = OpenAIChat(
            client, "m", prices=load_prices(), base_url=server.base_url, capabilities=can
        )
        return await model.chat(request, on_delta), server.requests[0]["body"]

    result, body = run(work)
    assert body["response_format"]["json_schema"]["schema"] == body["json_schema"] == SCHEMA
    assert {"tools", "tool_choice"}.isdisjoint(body)
    system = body["messages"][0]["content"]
    assert system.startswith("Be brief.\n")
    assert "- add: Add two numbers. {" in system
    if use is None:
        assert shown == [said]
        assert (result.message.text(), result.finish) == (said, "stop")
    else:
        assert shown == []
        (made,) = result.message.tool_uses()
        assert (made.name, made.input, result.finish) == ("add", use, "tool_calls")
        assert result.message.text() == ""


def test_one_of_several_tools_is_forced_by_the_schema_of_any():
    other = replace(TOOL, name="sub")
    request = replace(ASK, tools=(TOOL, other), tool_choice="required")
    schema = sent(request, "m", tool_choice="schema")["response_format"]["json_schema"]["schema"]
    assert [s["properties"]["name"]["const"] for s in schema["anyOf"]] == ["add", "sub"]
    named = sent(replace(request, tool_choice="sub"), "m", tool_choice="schema")
    form = named["response_format"]["json_schema"]["schema"]
    assert form["properties"]["name"] == {"const": "sub"}
    assert sent(replace(request, tool_choice="auto"), "m", tool_choice="schema")["tools"]


# transformers serve


@pytest.mark.parametrize(
    ("status", "detail", "kind", "code"),
    [
        (422, "Unexpected keys in the request: {'seed2'}", Permanent, "MODEL_BAD_REQUEST"),
        (422, [{"loc": ["body"], "msg": "Field required"}], Permanent, "MODEL_BAD_REQUEST"),
        (404, "Not Found", Permanent, "MODEL_NOT_FOUND"),
        (500, "Internal Server Error", Transient, "MODEL_UNAVAILABLE"),
        (429, "Too many requests", Limited, "LIMITED"),
    ],
)
def test_transformers_serve_says_detail(status, detail, kind, code):
    error = fails(kind, Answer(status=status, body={"detail": detail}))
    assert error.error_code == code
    assert str(detail if isinstance(detail, str) else "Field required") in error.message


# All of them


@pytest.mark.parametrize("choice", ["auto", "required", "none", "add"])
def test_a_tool_is_forced(choice):
    named = {"type": "function", "function": {"name": "add"}}
    wanted = named if choice == "add" else choice
    request = replace(ASK, tool_choice=choice)
    assert sent(request)["tool_choice"] == wanted
    assert "tool_choice" not in sent(replace(request, tools=()))
    assert "tool_choice" not in sent(request, tool_choice="none")
    assert "tool_choice" not in sent(ASK)


def test_every_sampling_parameter_is_left_out_for_a_model_that_refuses_them():
    options = {"top_p": 1, "presence_penalty": 0, "logprobs": True, "top_k": 5, "seed": 1}
    request = replace(ASK, temperature=0.0, options=options)
    body = sent(request, "o3")
    assert {"temperature", *options} & set(body) == {"seed"}
    assert {"temperature", *options} <= set(sent(request))


def test_the_length_of_an_answer_is_what_the_model_can_give():
    assert sent(replace(ASK, max_tokens=50_000))["max_tokens"] == 32_768
    assert sent(replace(ASK, max_tokens=50_000), "mine")["max_tokens"] == 50_000
    body = sent(ASK, max_tokens_field="max_completion_tokens")
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == ASK.max_tokens


def test_ids_that_repeat_or_are_empty_are_written_anew_and_both_answered():
    uses = (ToolUse("c", "add", {"a": 1}), ToolUse("c", "add", {"a": 2}), ToolUse("", "add", {}))
    results = (ToolResult("c", "one"), ToolResult("c", "two"), ToolResult("", "three"))
    conversation = (user("Go."), Message("assistant", uses), Message("tool", results))
    messages = sent(ChatRequest("m", conversation))["messages"]
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert all(ids)
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == list(
        zip(ids, ["one", "two", "three"], strict=True)
    )
    assert messages == sent(ChatRequest("m", conversation))["messages"]


def test_a_usage_chunk_without_choices_counts_and_a_missing_one_is_estimated():
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": None}
    last = {**chunk({}), "choices": [], "usage": usage}
    assert ask(stream(chunk({"content": "x"}), last)).usage == Usage(7, 3, 0)
    assert ask(stream(chunk({"content": "x"}))).usage.estimated


def test_a_limit_of_a_gateway_that_gives_no_body():
    answer = Answer(status=429, body=b"", headers={"Retry-After": "2"})
    assert fails(Limited, answer).retry_after_s == 2
    assert fails(Limited, refusal(529, "overloaded")).retry_after_s is None
