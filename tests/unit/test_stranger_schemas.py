"""Schemas that a tenant or a server wrote: what they match is looked for in linear time, and they
make nobody fetch anything.
"""

from __future__ import annotations

import time
from uuid import UUID

import pytest
from referencing.exceptions import Unresolvable

from harness_common.commands.approvals import Decide, _changed
from harness_common.contracts.request_options import ClientTool
from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.contracts.tool_schema import check_tenant_schema, stranger_validator
from harness_common.core.errors import Invalid
from harness_worker.mcp.ask import Asked, NotAnswered, result_of
from harness_worker.tools.registry import check_foreign_spec, check_spec
from harness_worker.tools.validate import result_problems

SLOW = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
TEXT = "a" * 26 + "!"
"""Two seconds and more for an expression that tries every way."""


@pytest.fixture(autouse=True)
def quick():
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 0.5


def test_a_result():
    spec = ToolSpec("t", "A tool.", {"type": "object"}, EffectClass.READ, output_schema=SLOW)
    assert [path for path, _ in result_problems(spec, {"a": TEXT})] == ["a"]
    assert result_problems(spec, {"a": "aaa"}) == []


def test_arguments_that_a_person_changed():
    row = {"id": UUID(int=1), "tool": "t", "digest": "", "input_schema": SLOW}
    with pytest.raises(Invalid, match="does not match"):
        _changed(row, Decide("approved", "", arguments={"a": TEXT}))
    assert _changed(row, Decide("approved", "", arguments={"a": "aaa"})) == {"a": "aaa"}


def test_an_answer_to_a_server():
    asked = Asked("which?", SLOW, None, "")
    with pytest.raises(NotAnswered, match="does not match"):
        result_of(asked, TEXT)
    assert result_of(asked, "aaa").content == {"a": "aaa"}


@pytest.mark.parametrize(
    "more", [{"pattern": "(?=a)(a+)+$"}, {"patternProperties": {"^(a+)+$": {}}}]
)
def test_what_cannot_be_linear_is_not_run(more):
    found = stranger_validator({"properties": {"a": more}, "patternProperties": {"^(a+)+$": False}})
    assert found.is_valid({"a": TEXT, TEXT: 1})
    schema = {"type": "object", "properties": {"a": more}}
    spec = ToolSpec("s__t", "A tool.", schema, EffectClass.READ)
    check_spec(spec)  # the operator's own may
    for check in (lambda: check_foreign_spec(spec), ClientTool(name="t", parameters=schema).check):
        with pytest.raises(Invalid, match=r"RE2|is not taken"):
            check()


@pytest.mark.parametrize("keyword", ["properties", "$defs", "dependentSchemas"])
@pytest.mark.parametrize("name", ["$id", "$ref", "$anchor", "$dynamicRef", "patternProperties"])
def test_a_name_is_no_keyword(keyword, name):
    check_tenant_schema("t", {"type": "object", keyword: {name: {"type": "string"}}})


@pytest.mark.parametrize(
    "inner",
    [
        {"$id": "http://x.test/"},
        {"$anchor": "a"},
        {"patternProperties": {"^(a+)+$": {}}},
        {"properties": {"properties": {"patternProperties": {"^(a+)+$": {}}}}},
        {"properties": {"patternProperties": {"^(a+)+$": {}}}, "items": {"$ref": "#/properties"}},
        {"$ref": "#/$defs", "$defs": {"patternProperties": {"^(a+)+$": {}}}},
    ],
)
def test_a_keyword_is_one_wherever_it_stands(inner):
    """Also in what is no schema where it stands, but is read as one by a reference."""
    with pytest.raises(Invalid, match=r"is not taken|is no schema"):
        check_tenant_schema("t", {"type": "object", **inner})


def test_nothing_is_fetched():
    with pytest.raises(Unresolvable):
        stranger_validator({"$ref": "http://127.0.0.1:1/schema"}).is_valid({})
