"""The `tool` decorator: what it derives, what it refuses, what it hands to the function."""

from __future__ import annotations

import inspect
from datetime import date
from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import Field

from harness_common.core.errors import Invalid
from harness_worker.sdk import EffectClass, Reach, SandboxTier, Tool, tool
from harness_worker.tools.registry import check_spec
from tests.fakes.tool_context import FakeContext, call

if TYPE_CHECKING:
    from harness_worker.sdk import ToolContext


@tool(effect="read", reach="external", permission_tags=["web"], timeout_s=3, version="2")
async def weather(ctx: ToolContext, city: str, days: Annotated[int, Field(ge=1, le=14)] = 3) -> str:
    """Look up the weather.

    Use it for forecasts.
    """
    return f"{ctx.run_id} {city} {days}"


@tool(effect="write", name="book", description="Books a day.")
def book_day(day: date, schema: str = "x", copy: bool = False) -> list:
    return [day, schema, copy]


def test_spec_is_derived_from_the_function():
    spec = weather.spec
    assert isinstance(weather, Tool)
    assert spec.name == "weather"
    assert spec.description == "Look up the weather.\n\nUse it for forecasts."
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert (spec.effect, spec.reach, spec.version) == (EffectClass.READ, Reach.EXTERNAL, "2")
    assert (spec.timeout_s, spec.permission_tags) == (3, frozenset({"web"}))
    assert spec.sandbox is SandboxTier.NONE
    check_spec(spec)


def test_async_and_sync_functions_stay_so_and_get_typed_arguments():
    assert inspect.iscoroutinefunction(weather.fn)
    assert not inspect.iscoroutinefunction(book_day.fn)
    assert call(weather, city="Ulm") == "run_1 Ulm 3"
    assert call(book_day, day="2024-05-31", copy=True) == [date(2024, 5, 31), "x", True]


def test_argument_names_that_pydantic_uses_itself_are_allowed():
    assert set(book_day.spec.input_schema["properties"]) == {"day", "schema", "copy"}
    assert book_day.spec.input_schema["properties"]["day"] == {"type": "string", "format": "date"}


def test_a_tool_without_arguments():
    @tool(effect="read")
    def now() -> str:
        """Tell the time."""
        return "noon"

    assert now.spec.input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert call(now) == "noon"


def test_a_schema_of_ones_own_gets_plain_values():
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}

    @tool(effect="read", input_schema=schema)
    def plain(ctx, day):
        """Say the day."""
        return ctx.call_id, day

    assert plain.spec.input_schema == schema
    assert call(plain, FakeContext(call_id="c"), day="2024-05-31") == ("c", "2024-05-31")


def test_wrong_values_that_reach_the_function_are_refused():
    with pytest.raises(Invalid) as caught:
        call(weather, city="Ulm", days=99)
    assert caught.value.error_code == "ARGUMENTS_INVALID"
    assert "weather" in caught.value.message
    assert "days" in caught.value.message


def no_words(a: int) -> int:
    return a


def no_types(a):
    """Do something."""
    return a


def any_number(*numbers: int) -> int:
    """Do something."""
    return sum(numbers)


def unknown_type(a: Nowhere) -> object:  # type: ignore[name-defined]  # noqa: F821
    """Do something."""
    return a


@pytest.mark.parametrize(
    ("fn", "cause"),
    [
        (no_words, "description"),
        (no_types, "without a type: a"),
        (any_number, "must have a name"),
        (unknown_type, "Nowhere"),
    ],
)
def test_what_cannot_be_described_is_refused(fn, cause):
    with pytest.raises(Invalid, match=cause) as caught:
        tool(effect="read")(fn)
    assert caught.value.error_code == "TOOL_INVALID"
