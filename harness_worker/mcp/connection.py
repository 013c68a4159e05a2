"""One connection to one server of one tenant, owned by a task of its own.

The protocol's client must be entered and left by the same task, so this one opens it, waits until
nobody needs it and closes it. Calls are made from the tasks of the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from pydantic import TypeAdapter, ValidationError

from harness_common.contracts.tool import EffectClass
from harness_common.core.errors import HarnessError, Transient
from harness_common.core.mcp import MAX_TOOLS
from harness_worker.mcp.ask import Asked, asked_of, cancelled, declined
from harness_worker.mcp.faults import ConnectionLost, SessionGone, Unavailable, raise_fault

Opener = Callable[[], AbstractAsyncContextManager[TransportStreams]]
Answer = types.CallToolResult | types.InputRequiredResult

_ANSWER: Final[TypeAdapter[Answer]] = TypeAdapter(Answer)
_CLIENT: Final = types.Implementation(name="harness", version="0.1.0")
_END_AFTER_ASKING_S: Final = 5.0
"""How long a call may go on whose question was put off: its answer is not used."""
_MAX_PAGES: Final = 100


@dataclass(slots=True, eq=False)
class Call:
    """One call under way."""

    effect: EffectClass
    answer_to: Callable[[Asked], types.ElicitResult | None] = lambda asked: None
    """Gives what a person has answered to a question in mid-call already."""
    asked: Asked | None = None
    """What the server asked, when nobody has answered that yet."""
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    declined: list[str] = field(default_factory=list)
    """Questions that could not be put to anybody."""
    disturbed: bool = False
    """A question came that may have been another call's."""


@dataclass(slots=True, eq=False)
class _Watched:
    """A transport that says when what it reads from has ended."""

    inner: AbstractAsyncContextManager[TransportStreams]
    on_end: Callable[[], None]

    async def __aenter__(self) -> TransportStreams:
        read, write = await self.inner.__aenter__()
        return _WatchedReads(read, self.on_end), write

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self.inner.__aexit__(*error)


class _WatchedReads:
    def __init__(self, inner: Any, on_end: Callable[[], None]) -> None:  # noqa: ANN401 - a stream
        self._inner, self._on_end = inner, on_end

    @property
    def last_context(self) -> Any:  # noqa: ANN401 - as the stream has it
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:  # noqa: ANN401 - what the stream gives
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise

    def __aiter__(self) -> _WatchedReads:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - what the stream gives
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _WatchedReads:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        found: bool | None = await self._inner.__aexit__(*error)
        return found


class Connection:
    """A client that is connected, or was; `is_open` tells."""

    def __init__(
        self, server: str, opener: Opener, idle_s: float, fault_of: Callable[[MCPError], str | None]
    ) -> None:
        self.server = server
        self.is_open = False
        self.is_stale = True
        """The tool list has to be read before the next call."""
        self.listed_at = 0.0
        self.hashes: dict[str, str] = {}
        """Digests of the tools that it lists, by name."""
        self.listing = asyncio.Lock()
        self.asks = False
        """It has asked something while several calls were under way: they go one by one since."""
        self.calls: list[Call] = []
        self._opener, self._idle_s, self._fault_of = opener, idle_s, fault_of
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._left = asyncio.Condition()
        self._used_at = time.monotonic()
        self._task = asyncio.create_task(self._own(), name=f"mcp {server}")

    @property
    def client(self) -> Client:
        """Return the connected client; raises `SessionGone` without one: nothing can be sent."""
        if self._client is None or not self.is_open:
            raise SessionGone("it is closed")
        return self._client

    @property
    def is_started(self) -> bool:
        """Tell whether it is connected, or failed to."""
        return self._ready.done()

    @property
    def is_idle(self) -> bool:
        """Tell whether nobody is using it."""
        return not self.calls and not self.listing.locked() and self._ready.done()

    @property
    def used_at(self) -> float:
        """Return when it was last used, in monotonic time."""
        return self._used_at

    async def ready(self) -> None:
        """Wait until it is connected; raises what kept it from it."""
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Close it and wait until that is done; calls under way are lost."""
        self.stop()
        await asyncio.wait([self._task])

    def stop(self) -> None:
        """Begin to close it."""
        self.is_open = False
        self._stop.set()

    async def _own(self) -> None:
        try:
            client = Client(
                _Watched(self._opener(), self._ended),
                mode="auto",
                client_info=_CLIENT,
                elicitation_callback=self._elicit,
                message_handler=self._heard,
                cache=None,
            )
            async with client:
                self._client, self.is_open = client, True
                self._ready.set_result(None)
                await self._until_unused()
                self.is_open = False
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(self._reason(error))
                self._ready.exception()  # looked at: the waiter may have left
            elif not isinstance(error, Exception):
                raise
        finally:
            self.is_open = False
            if not self._ready.done():
                self._ready.cancel()

    def _reason(self, error: BaseException) -> BaseException:
        """Return why it could not be connected."""
        found = _first(error)
        if isinstance(found, MCPError):
            try:
                raise_fault(found, self.server, self._fault_of(found), is_open=True)
            except HarnessError as named:
                return named
            except Exception as lost:  # noqa: BLE001 - marks of this package
                found = lost
        if isinstance(found, HarnessError):
            return found
        return Unavailable(f"the MCP server {self.server!r} cannot be used: {found!s:.500}")

    async def _until_unused(self) -> None:
        while not self._stop.is_set():
            left_s = self._idle_s - (time.monotonic() - self._used_at)
            if left_s <= 0 and self.is_idle:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), max(left_s, 0.05))

    def _ended(self) -> None:
        self.stop()

    async def _heard(self, message: Any) -> None:  # noqa: ANN401 - notifications and faults
        if isinstance(message, types.ToolListChangedNotification):
            self.is_stale = True

    async def list_tools(self) -> list[dict[str, Any]]:
        """Read the whole tool list."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        with self._in_use():
            for _ in range(_MAX_PAGES):
                page = await self._ask(
                    self.client.session.list_tools(
                        params=types.PaginatedRequestParams(cursor=cursor)
                    )
                )
                found += [
                    tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                    for tool in page.tools
                ]
                cursor = page.next_cursor
                if cursor is None or len(found) > MAX_TOOLS:
                    break
        return found

    async def call_tool(
        self,
        call: Call,
        params: types.CallToolRequestParams,
        progress: ProgressFnT,
        *,
        limit_s: float = 60.0,
        wait_s: float = 30.0,
    ) -> Answer:
        """Call a tool once, within `limit_s` from when it is its turn.

        Raises `ConnectionLost` (it may have happened), `SessionGone` (it has not), `Unavailable`,
        `MCPError` (the server's own answer).
        """
        await self._turn(wait_s)
        self.calls.append(call)
        try:
            with self._in_use():
                async with asyncio.timeout(limit_s):
                    return await self._ended_or_asked(call, params, progress)
        finally:
            self.calls.remove(call)
            async with self._left:
                self._left.notify_all()

    async def _turn(self, wait_s: float) -> None:
        """Wait until no other call is under way, if this server's calls go one by one."""
        if not self.asks:
            return
        try:
            async with asyncio.timeout(wait_s), self._left:
                await self._left.wait_for(lambda: not self.calls)
        except TimeoutError as error:
            raise Transient(
                f"the MCP server {self.server!r} asks questions, so its calls go one by one, and "
                f"others took more than {wait_s:g} s"
            ) from error

    async def _ended_or_asked(
        self, call: Call, params: types.CallToolRequestParams, progress: ProgressFnT
    ) -> Answer:
        request = types.CallToolRequest(params=params)
        session = self.client.session
        work = asyncio.ensure_future(
            self._ask(session.send_request(request, _ANSWER, progress_callback=progress))
        )
        asked = asyncio.ensure_future(call.was_asked.wait())
        try:
            await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait([work], timeout=_END_AFTER_ASKING_S)
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
                return types.CallToolResult(content=[], is_error=True)
            answer: Answer = await work
            return answer
        finally:
            for task in (work, asked):
                task.cancel()
            await asyncio.gather(work, asked, return_exceptions=True)

    async def _ask(self, request: Awaitable[Any]) -> Any:  # noqa: ANN401 - what was asked for
        try:
            return await request
        except MCPError as error:
            raise_fault(error, self.server, self._fault_of(error), is_open=self.is_open)
            raise
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise ConnectionLost("it was closed") from error
        except ValidationError as error:
            raise ConnectionLost(f"its answer is none of the protocol's: {error!s:.300}") from error

    @contextlib.contextmanager
    def _in_use(self) -> Any:  # noqa: ANN401 - a context manager
        self._used_at = time.monotonic()
        try:
            yield
        finally:
            self._used_at = time.monotonic()

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """Answer a question that comes in the middle of a call (protocols before 2026).

        It does not say to which call it belongs, so it is answered only when there is one.
        """
        del context
        if len(self.calls) != 1:
            self.asks = True
            for call in self.calls:
                call.disturbed = True
            return cancelled()
        (call,) = self.calls
        question = asked_of(params)
        if (known := call.answer_to(question)) is not None:
            return known
        if call.effect is EffectClass.WRITE:
            call.declined.append(question.message)
            return declined()
        call.asked = question
        call.was_asked.set()
        return cancelled()


def _first(error: BaseException) -> BaseException:
    """Return the first single error of a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Disturbed(Transient):
    """A server asked while several calls were under way; the calls go one by one since."""

    code = "MCP_DISTURBED"
