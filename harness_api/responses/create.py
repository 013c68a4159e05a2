"""What a create of the Responses face does: start a run, go on from one, answer one that waits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from harness_api.auth import Caller
from harness_api.deps import Services
from harness_api.responses.ids import CallRef, Ref, read_model, read_ref
from harness_api.responses.items import Said, read_input
from harness_api.routes.announce import announce, announce_change
from harness_api.schemas.responses import ConversationRef, FunctionTool, ResponseCreate
from harness_common.commands import StartRun, answer_calls, start_run
from harness_common.contracts.request_options import REQUEST, ClientTool, RequestOptions, options_of
from harness_common.core import events as ev
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.ids import decode
from harness_common.core.run import TERMINAL, Status
from harness_common.store.connection import Row
from harness_common.store.run_reads import read_events, read_tool_calls, view_run


async def create(
    services: Services, caller: Caller, body: ResponseCreate, key: str | None, trace_id: str
) -> Ref:
    """Do what a request wants; returns the response to show."""
    said = read_input(body.input)
    answered = await _answer(services, caller, body, said)
    if answered is not None:
        return answered
    request = await _start_request(services, caller, body, said)
    started = await start_run(
        services.db,
        caller.tenant_id,
        StartRun(
            **request,
            created_by=caller.name,
            trace_id=trace_id,
            idempotency_key=key,
            body_digest=_digest(body),
            idempotency_ttl_s=services.config.api.idempotency_ttl_s,
        ),
        actor=caller.actor,
    )
    if not started.replayed:
        await announce(services, started)
    return Ref(started.run_id)


def _digest(body: ResponseCreate) -> str:
    text = orjson.dumps(body.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


# --- a new run ----------------------------------------------------------------------------------


async def _start_request(
    services: Services, caller: Caller, body: ResponseCreate, said: Said
) -> dict[str, Any]:
    agent, version = read_model(body.model)
    earlier, text = said.split()
    options = RequestOptions(
        instructions=body.instructions or "",
        tools=tuple(_client_tool(t) for t in body.tools),
        temperature=body.temperature,
        max_output_tokens=body.max_output_tokens,
        background=body.background,
        earlier=len(earlier),
    )
    out: dict[str, Any] = {
        "agent": agent,
        "agent_version": version,
        "input": text,
        "earlier": earlier,
        "tags": body.metadata,
        "user_id": body.user or body.safety_identifier,
        "overrides": {REQUEST: options.model_dump(mode="json", exclude_defaults=True)},
    }
    if out["overrides"][REQUEST] == {}:
        out["overrides"] = {}
    if body.previous_response_id is not None:
        return out | await _after(services, caller, body)
    if body.conversation is not None:
        out["session_id"] = _session(body.conversation)
    return out


def _session(given: str | ConversationRef) -> UUID:
    text = given.id if isinstance(given, ConversationRef) else given
    try:
        return decode("session", text)
    except Invalid as error:
        raise Invalid(error.message, field="conversation", value=text[:80]) from None


def _client_tool(given: FunctionTool) -> ClientTool:
    known = {"type": "object", "properties": {}}
    return ClientTool(
        name=given.name, description=given.description or "", parameters=given.parameters or known
    )


async def _after(services: Services, caller: Caller, body: ResponseCreate) -> dict[str, Any]:
    """Go on after the run of `previous_response_id`, which must be over."""
    assert body.previous_response_id is not None
    if body.conversation is not None:
        raise Invalid(
            "send previous_response_id or conversation, not both", field="previous_response_id"
        )
    row = await _run_of(services, caller, read_ref(body.previous_response_id))
    if Status(row["status"]) not in TERMINAL:
        raise Conflict(
            f"the run of {body.previous_response_id} is {row['status']}: wait until its response "
            "is completed, or cancel it",
            code="PREVIOUS_RESPONSE_NOT_OVER",
            field="previous_response_id",
        )
    return {"session_id": row["session_id"], "follows": row["id"]}


async def _run_of(services: Services, caller: Caller, ref: Ref) -> Row:
    try:
        return await view_run(services.db, caller.tenant_id, ref.run_id)
    except NotFound:
        raise NotFound(f"no response {ref}", field="previous_response_id", value=str(ref)) from None


# --- an answer to a run that waits --------------------------------------------------------------


async def _answer(
    services: Services, caller: Caller, body: ResponseCreate, said: Said
) -> Ref | None:
    """Answer the run that waits for what the input holds; None when there is none."""
    calls = said.calls()
    run_id = next(reversed(calls)).run_id if calls else None
    if body.previous_response_id is not None:
        run_id = read_ref(body.previous_response_id).run_id
    if run_id is None:
        return None
    row = await _run_of(services, caller, Ref(run_id))
    asked = _open_calls(row)
    given = {ref.call: text for ref, text in calls.items() if ref.run_id == run_id}
    if not asked:
        return await _replayed(services, caller, run_id, given) if said.ends_with_output else None
    clients = await _client_calls(services, caller, row, asked)
    answers, also = _answers(run_id, asked, clients, given, said)
    done = await answer_calls(
        services.db,
        caller.tenant_id,
        run_id,
        answers=answers,
        also=also,
        by=caller.name,
        actor=caller.actor,
    )
    await announce_change(services, run_id, done)
    return Ref(run_id, done.last_seq)


def _open_calls(row: Row) -> list[str]:
    waiting = row["waiting"] or {}
    asks = Status(row["status"]) in {Status.WAITING_INPUT, Status.WAITING_APPROVAL}
    calls = waiting.get("calls", ()) if asks else ()
    return [c["call"] for c in calls if isinstance(c, dict) and c["kind"] == "input"]


async def _client_calls(
    services: Services, caller: Caller, row: Row, asked: list[str]
) -> frozenset[str]:
    """Return those of the open calls that the client is to carry out."""
    options = options_of(row["overrides"])
    if options is None or not options.tools:
        return frozenset()
    step = int(asked[0].partition(".")[0])
    rows = await read_tool_calls(
        services.db, caller.tenant_id, row["id"], after=(step, -1), to_step=step, limit=1_000
    )
    names = {f"{r['step']}.{r['idx']}": r["name"] for r in rows}
    return frozenset(call for call in asked if names.get(call) in options.names)


def _answers(
    run_id: UUID,
    asked: list[str],
    clients: frozenset[str],
    given: Mapping[str, str],
    said: Said,
) -> tuple[dict[str, str], str | None]:
    """Match what the input holds to what the run waits for; raises `Invalid` for what is left."""
    missing = sorted(clients - given.keys())
    if missing:
        step, _, index = missing[0].partition(".")
        call_id = CallRef(run_id, int(step), int(index))
        raise Invalid(
            f"No tool output found for function call {call_id}: the run waits for the outputs of "
            "all its calls, in one input",
            code="MISSING_TOOL_OUTPUT",
            field="input",
        )
    answers = {call: given[call] for call in asked if call in clients}
    text = said.after_outputs if said.outputs else said.split()[1]
    others = [call for call in asked if call not in clients]
    if not others:
        return answers, text
    if len(others) > 1 or text is None:
        raise Invalid(
            f"the run asks {len(others)} questions of a person ({', '.join(others)}); send the "
            "answer as the text of a user message, or answer each at POST /v1/runs/{id}/input",
            field="input",
        )
    return answers | {others[0]: text}, None


async def _replayed(
    services: Services, caller: Caller, run_id: UUID, given: Mapping[str, str]
) -> Ref | None:
    """Find the response that the same outputs led to before; None when they were never given."""
    if not given:
        return None
    last, after = 0, 0
    while True:
        page = await read_events(services.db, caller.tenant_id, run_id, after=after, limit=200)
        for row in page.events:
            after = row["seq"]
            if (row["type"] == ev.RUN_INPUT_GIVEN and row["payload"].get("call") in given) or (
                row["type"] == ev.RUN_STEERED and after == last + 1
            ):
                last = after
        if page.is_last or not page.events:
            return Ref(run_id, last) if last else None
