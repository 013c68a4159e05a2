"""Runs: start, read, wait, follow, stop, start again."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from harness_api.client.errors import ApiError, BadAnswer, Unreachable
from harness_api.client.http import Call, given, pause_s
from harness_api.client.paths import id_path
from harness_api.client.sse import Frame, frames
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import (
    Artifact,
    Checkpoint,
    Context,
    Event,
    FailedAttempt,
    Graph,
    Lineage,
    Live,
    Message,
    Run,
    Step,
    ToolCall,
    Tree,
)

_WAIT_S: Final = 30.0
_SILENCE_S: Final = 45.0
"""A stream that says nothing for so long is dead: the server pings every 15 s."""
_STREAM_FAILURES: Final = 8
"""So many connections in a row that brought nothing new, and `stream` gives up."""


class Runs(Resource[M]):
    """`client.runs`."""

    @operation
    async def create(  # noqa: PLR0913 - the fields of a request
        self,
        agent: str,
        input: str,
        *,
        agent_version: int | None = None,
        skills: Sequence[str] = (),
        session_id: str | None = None,
        title: str | None = None,
        user_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        timeout_s: float | None = None,
        on_busy: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        concurrency_key: str | None = None,
        concurrency_max: int | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Start a run; it is durable when this returns.

        A call with the same `idempotency_key` and arguments within 24 h returns the same run.
        Without one a fresh key is sent, so that a broken connection never starts a second run.
        `on_busy` says what to do while the session's last run is going: `reject`, `enqueue`,
        `interrupt` or `steer` (which returns that run). With an `output_schema` (JSON Schema) the
        output fits it, and `Run.output_json` has it parsed.
        """
        body = given(
            agent=agent,
            input=input,
            agent_version=agent_version,
            skills=list(skills) or None,
            session_id=session_id,
            title=title,
            user_id=user_id,
            tags=dict(tags) if tags else None,
            priority=priority,
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_cost_usd=max_cost_usd,
            timeout_s=timeout_s,
            on_busy=on_busy,
            output_schema=dict(output_schema) if output_schema is not None else None,
            concurrency_key=concurrency_key,
            concurrency_max=concurrency_max,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid4().hex}
        call = Call("POST", "/v1/runs", body=body, headers=headers, repeatable=True)
        return await self._http.fetch(call, Run)

    @operation
    async def get(self, run_id: str) -> Run:
        """Read a run."""
        return await self._read(run_id)

    @flow
    async def list(  # noqa: PLR0913 - the filters of a request
        self,
        *,
        status: str | Sequence[str] | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        error_code: str | None = None,
        stop_reason: str | None = None,
        parent: str | None = None,
        retried: bool | None = None,
        child: bool | None = None,
        text: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Run, None]:
        """Yield runs, newest first, page after page; all filters must hold."""
        async for run in self._http.pages(
            "/v1/runs",
            Run,
            limit,
            status=status,
            agent=agent,
            session_id=session_id,
            tag=[f"{k}:{v}" for k, v in (tags or {}).items()] or None,
            created_after=created_after.isoformat() if created_after else None,
            created_before=created_before.isoformat() if created_before else None,
            error_code=error_code,
            stop_reason=stop_reason,
            parent=parent,
            retried=retried,
            child=child,
            text=text,
        ):
            yield run

    @operation
    async def wait(self, run_id: str, timeout_s: float | None = None) -> Run:
        """Wait until a run is over or needs a person; look at `status`.

        Raises `TimeoutError` after `timeout_s`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _WAIT_S if until is None else max(0.0, until - time.monotonic())
            run = await self._read(run_id, wait_s=min(_WAIT_S, left_s))
            if run.is_over or run.needs_a_person:
                return run
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{run_id} is still {run.status} after {timeout_s} s")

    @operation
    async def cancel(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to stop. Safe to repeat; a running step may still end."""
        path = id_path("/v1/runs/{}/cancel", "run", run_id)
        return await self._http.fetch(
            Call("POST", path, body={"reason": reason}, repeatable=True), Run
        )

    @operation
    async def pause(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to rest after the step under way. Safe to repeat."""
        path = id_path("/v1/runs/{}/pause", "run", run_id)
        return await self._http.fetch(
            Call("POST", path, body={"reason": reason}, repeatable=True), Run
        )

    @operation
    async def interrupt(self, run_id: str, kind: str, *, step: int, text: str = "") -> Run:
        """Cancel, pause or steer a run, but only while `step` is due (409 `OTHER_STEP` else)."""
        path = id_path("/v1/runs/{}/interrupt", "run", run_id)
        body = {"interrupt_type": kind, "target_step_id": f"{run_id}.{step}", "text": text}
        return await self._http.fetch(Call("POST", path, body=body), Run)

    @operation
    async def resume(self, run_id: str) -> Run:
        """Let a paused run go on. Safe to repeat."""
        path = id_path("/v1/runs/{}/resume", "run", run_id)
        return await self._http.fetch(Call("POST", path, repeatable=True), Run)

    @operation
    async def answer(self, run_id: str, text: str, call: str | None = None) -> Run:
        """Answer a question of a run; `call` says which, when several are open
        (`run.questions`).
        """
        path = id_path("/v1/runs/{}/input", "run", run_id)
        return await self._http.fetch(Call("POST", path, body=given(text=text, call=call)), Run)

    @operation
    async def steer(self, run_id: str, text: str) -> Run:
        """Give a run under way a message that its next model step sees."""
        path = id_path("/v1/runs/{}/messages", "run", run_id)
        return await self._http.fetch(Call("POST", path, body={"text": text}), Run)

    @operation
    async def retry(
        self, run_id: str, from_step: int | None = None, *, if_not_retried: bool = False
    ) -> Run:
        """Start a new run from the last checkpoint of one that failed or was cancelled, or that
        does `from_step` and what follows anew. With `if_not_retried` a second retry is refused.
        """
        path = id_path("/v1/runs/{}/retry", "run", run_id)
        body = given(from_step=from_step, if_not_retried=if_not_retried or None)
        return await self._http.fetch(Call("POST", path, body=body), Run)

    @operation
    async def fork(
        self,
        run_id: str,
        *,
        step: int | None = None,
        input: str | None = None,
        agent_version: int | None = None,
        model: str | None = None,
        tools: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> Run:
        """Start a new run from the checkpoint after `step` (default: the last one), with what is
        given changed. A dry run answers model and tools from the record.
        """
        path = id_path("/v1/runs/{}/fork", "run", run_id)
        body = given(
            step=step,
            input=input,
            agent_version=agent_version,
            model=model,
            tools=None if tools is None else [*tools],
            dry_run=dry_run or None,
        )
        return await self._http.fetch(Call("POST", path, body=body), Run)

    @operation
    async def lineage(self, run_id: str) -> Lineage:
        """Read where a run comes from and what came of it."""
        path = id_path("/v1/runs/{}/lineage", "run", run_id)
        return await self._http.fetch(Call("GET", path), Lineage)

    @flow
    async def events(self, run_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the events there are now with a `seq` above `after`, in order."""
        path = id_path("/v1/runs/{}/events", "run", run_id)
        last = after
        while True:
            count = 0
            async for event in self._http.pages(path, Event, _EVENTS_PAGE, after=last):
                last, count = event.seq, count + 1
                yield event
            if count < _EVENTS_PAGE:
                return

    @flow
    async def stream(
        self, run_id: str, after: int = 0, *, through_waits: bool = False
    ) -> AsyncGenerator[Event | Live, None]:
        """Yield events, and what is live between them, until the run is over or needs a person
        (with `through_waits` until it is over).

        A broken connection is taken up again after the last event: no event is missed or repeated.
        Live items in between may be missed. Raises `Unreachable` when nothing new comes after
        several attempts.
        """
        path = id_path("/v1/runs/{}/stream", "run", run_id)
        last, failures = after, 0
        while True:
            wait_s = None
            try:
                async with aclosing(self._connection(path, last)) as items:
                    async for item in items:
                        if isinstance(item, _Rests):
                            if item.is_over or not through_waits:
                                return
                            continue
                        if isinstance(item, Event):
                            if item.seq <= last:
                                continue
                            last = item.seq
                        failures = 0
                        yield item
                # The server ended it without `end`: it stops, another one will answer.
                failure: Unreachable | ApiError = Unreachable(f"the stream of {run_id} broke off")
            except (Unreachable, ApiError) as error:
                if isinstance(error, ApiError) and error.status not in {429, 502, 503, 504}:
                    raise
                failure, wait_s = error, getattr(error, "retry_after_s", None)
            failures += 1
            if failures > _STREAM_FAILURES:
                raise failure
            await self._http.wire.sleep(pause_s(failures, wait_s))

    @flow
    async def export(self, run_id: str, *, content: bool = True) -> AsyncGenerator[bytes, None]:
        """Yield an export of a run's whole history in pieces (see `client.export`)."""
        path = id_path("/v1/runs/{}/export", "run", run_id)
        params = given(content=None if content else "false")
        async with self._http.open(Call("GET", path, params=params)) as opened:
            async for piece in opened.chunks():
                yield piece

    @flow
    async def steps(self, run_id: str) -> AsyncGenerator[Step, None]:
        """Yield the committed steps, in order."""
        async for step in self._http.pages(id_path("/v1/runs/{}/steps", "run", run_id), Step):
            yield step

    @flow
    async def attempts(self, run_id: str) -> AsyncGenerator[FailedAttempt, None]:
        """Yield the attempts at steps that failed or were put off, in order, with their reasons."""
        path = id_path("/v1/runs/{}/attempts", "run", run_id)
        async for attempt in self._http.pages(path, FailedAttempt):
            yield attempt

    @flow
    async def tool_calls(self, run_id: str) -> AsyncGenerator[ToolCall, None]:
        """Yield the tool calls as the ledger has them, in order."""
        path = id_path("/v1/runs/{}/tool-calls", "run", run_id)
        async for call in self._http.pages(path, ToolCall):
            yield call

    @flow
    async def checkpoints(self, run_id: str) -> AsyncGenerator[Checkpoint, None]:
        """Yield the checkpoints, in order."""
        path = id_path("/v1/runs/{}/checkpoints", "run", run_id)
        async for checkpoint in self._http.pages(path, Checkpoint):
            yield checkpoint

    @flow
    async def messages(self, run_id: str) -> AsyncGenerator[Message, None]:
        """Yield the messages of the run's own conversation, in order."""
        path = id_path("/v1/runs/{}/messages", "run", run_id)
        async for message in self._http.pages(path, Message):
            yield message

    @flow
    async def artifacts(self, run_id: str) -> AsyncGenerator[Artifact, None]:
        """Yield the artifacts of a run."""
        path = id_path("/v1/runs/{}/artifacts", "run", run_id)
        async for artifact in self._http.pages(path, Artifact):
            yield artifact

    @operation
    async def context(self, run_id: str, step: int) -> Context:
        """Read what the model saw in a step, and what was left out."""
        path = id_path("/v1/runs/{}", "run", run_id)
        return await self._http.fetch(Call("GET", f"{path}/steps/{int(step)}/context"), Context)

    @operation
    async def tree(self, run_id: str) -> Tree:
        """Read a run as session, turns, steps and tool calls: all its pages as one."""
        path = id_path("/v1/runs/{}/tree", "run", run_id)
        tree = await self._http.fetch(Call("GET", path), Tree)
        while tree.next_cursor is not None:
            params = {"cursor": tree.next_cursor}
            tree = tree.joined(await self._http.fetch(Call("GET", path, params=params), Tree))
        return tree

    @operation
    async def graph(self, run_id: str) -> Graph:
        """Read how far a graph run is: the state of every node, and the picture."""
        path = id_path("/v1/runs/{}/graph", "run", run_id)
        return await self._http.fetch(Call("GET", path), Graph)

    async def _read(self, run_id: str, wait_s: float = 0.0) -> Run:
        params = given(wait=round(wait_s, 3) or None)
        call = Call(
            "GET", id_path("/v1/runs/{}", "run", run_id), params, read_timeout_s=wait_s + 15.0
        )
        return await self._http.fetch(call, Run)

    async def _connection(
        self, path: str, after: int
    ) -> AsyncGenerator[Event | Live | _Rests, None]:
        """Yield what one connection brings."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if after:
            headers["Last-Event-ID"] = str(after)
        call = Call("GET", path, headers=headers, read_timeout_s=_SILENCE_S)
        async with self._http.open(call) as opened:
            async for frame in frames(opened.chunks()):
                if frame.event in {"end", "wait"}:
                    yield _Rests(is_over=frame.event == "end")
                else:
                    yield _item(frame)


_EVENTS_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class _Rests:
    """Nothing more comes: the run is over, or waits for a person."""

    is_over: bool


def _item(frame: Frame) -> Event | Live:
    try:
        data: dict[str, Any] = json.loads(frame.data)
        if frame.id is not None:
            return Event.model_validate(data)
        return Live.model_validate({**data, "type": frame.event})
    except (ValueError, TypeError, ValidationError) as error:
        raise BadAnswer(
            f"the stream had an item that this client cannot read: {frame.event}"
        ) from error
