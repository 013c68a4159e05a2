"""How one implementation gives a blocking and an async surface.

Everything is written once as `async def` over a `Wire`. `AsyncClient` has a wire that awaits.
`Client` has one whose coroutines block and never suspend, so that `finish` runs any of ours to its
end with a single `send`: no threads, no event loop. The decorators `operation` (one result) and
`flow` (an iterator) choose at attribute access, and tell type checkers which of the two it is.
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    final,
    overload,
)

from harness_api.client.http import Http

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M")


@final
class Blocking:
    """Mark of a resource whose methods return results. Never instantiated."""


@final
class Awaiting:
    """Mark of a resource whose methods return awaitables. Never instantiated."""


class Resource(Generic[M]):
    """A noun of the API; `M` is `Blocking` or `Awaiting`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    @property
    def is_blocking(self) -> bool:
        """Tell which of the two surfaces this is."""
        return self._http.wire.blocking


def finish(step: Awaitable[T]) -> T:
    """Run a coroutine that never suspends to its end."""
    iterator = step.__await__()
    try:
        next(iterator)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise RuntimeError("a blocking client tried to wait for an event loop")


def iterate(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Turn an async generator that never suspends into a generator."""
    try:
        while True:
            try:
                item = finish(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        finish(items.aclose())


class operation(Generic[P, T]):
    """A method with one result: `T` on `Client`, awaitable on `AsyncClient`."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        functools.update_wrapper(cast("Any", self), function)

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Resource[Blocking], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, owner: Resource[Awaiting], kind: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Resource[Any] | None, kind: type) -> Any:
        """Bind to a resource."""
        if owner is None:
            return self
        bound = self._function.__get__(owner)
        if not owner.is_blocking:
            return bound

        @functools.wraps(self._function)
        def blocking(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T = finish(bound(*args, **kwargs))
            return result

        return blocking


class flow(Generic[P, T]):
    """A method with many results: an iterator on `Client`, an async one on `AsyncClient`."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncGenerator[T, None]]) -> None:
        self._function = function
        functools.update_wrapper(cast("Any", self), function)

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Resource[Blocking], kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: Resource[Awaiting], kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, owner: Resource[Any] | None, kind: type) -> Any:
        """Bind to a resource."""
        if owner is None:
            return self
        bound = self._function.__get__(owner)
        if not owner.is_blocking:
            return bound

        @functools.wraps(self._function)
        def blocking(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return iterate(bound(*args, **kwargs))

        return blocking
