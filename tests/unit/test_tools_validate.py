"""Argument validation: refused before the tool runs, in words that a model can act on."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from harness_common.commands.approvals import Decide, _changed
from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.core.errors import Invalid
from harness_worker.tools.validate import result_problems, validate_arguments

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "page": {"type": "string", "format": "uri"},
        "mail": {"type": "string", "format": "email"},
        "near": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        "free": {"type": "object"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    },
    "required": ["city"],
}


def spec(schema=None, name="weather", version="1"):
    return ToolSpec(name, "Weather.", schema or SCHEMA, EffectClass.READ, version)


def problems(arguments, schema=None):
    with pytest.raises(Invalid) as caught:
        validate_arguments(spec(schema), arguments)
    assert caught.value.error_code == "ARGUMENTS_INVALID"
    assert "'weather' was not run" in caught.value.message
    assert "call the tool again" in caught.value.message
    found: dict[str, str] = {}
    for problem in caught.value.detail["problems"]:
        before = found.get(problem["path"], "")
        found[problem["path"]] = f"{before} {problem['cause']}".strip()
    return found


def test_good_arguments_pass():
    validate_arguments(
        spec(),
        {
            "city": "Ulm",
            "days": 3,
            "unit": "C",
            "day": "2024-02-29",
            "at": "2024-05-31T08:00:00.5+02:00",
            "page": "https://example.org/a?b=c",
            "mail": "a@example.org",
            "near": {"lat": 1.5},
            "free": {"anything": [1]},
            "tags": ["x"],
            "limit": None,
        },
    )


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        ({}, "city", "required"),
        ({"city": 1}, "city", "must be of type string, not integer"),
        ({"city": ""}, "city", "shorter than 1"),
        ({"city": "ulm"}, "city", "pattern"),
        ({"city": "U", "days": 99}, "days", "above the maximum of 14"),
        ({"city": "U", "days": 0}, "days", "below the minimum of 1"),
        ({"city": "U", "days": True}, "days", "boolean"),
        ({"city": "U", "days": "3"}, "days", "not string"),
        ({"city": "U", "unit": "K"}, "unit", 'one of ["C", "F"]'),
        ({"city": "U", "day": "2023-02-29"}, "day", "not a valid date"),
        ({"city": "U", "day": "20240531"}, "day", "2024-05-31"),
        ({"city": "U", "at": "2024-05-31T08:00:00"}, "at", "offset"),
        ({"city": "U", "at": "2024-13-31T08:00:00Z"}, "at", "date-time"),
        ({"city": "U", "page": "example.org"}, "page", "uri"),
        ({"city": "U", "page": "http://a b"}, "page", "uri"),
        ({"city": "U", "page": "http://a:99999/"}, "page", "uri"),
        ({"city": "U", "mail": "a@@b"}, "mail", "email"),
        ({"city": "U", "near": {}}, "near.lat", "required"),
        ({"city": "U", "near": {"lat": 1, "lon": 2}}, "near.lon", "not a field"),
        ({"city": "U", "tags": ["a", 1]}, "tags[1]", "string"),
        ({"city": "U", "tags": ["a", "b", "c"]}, "tags", "more than 2"),
        ({"city": "U", "limit": 0}, "limit", "below the minimum"),
        ({"city": "U", "dayz": 1}, "dayz", "did you mean `day"),
        ({"city": "U", "zzzz": 1}, "zzzz", "known: at, city"),
        ({"city": "U", "near": {"lat": float("nan")}}, "near.lat", "finite"),
        ([], "arguments", "must be an object, not array"),
        (None, "arguments", "null"),
        ("{}", "arguments", "string"),
    ],
)
def test_each_problem_names_path_and_cause(arguments, path, words):
    found = problems(arguments)
    assert words in found[path]


def test_all_problems_are_told_at_once_up_to_eight():
    assert set(problems({"days": 0, "unit": "K"})) == {"city", "days", "unit"}
    found = problems({"city": "U", **{f"x{i}": 1 for i in range(20)}})
    assert len(found) == 8


def test_long_values_are_not_repeated():
    with pytest.raises(Invalid) as caught:
        validate_arguments(spec(), {"city": "U", "unit": "x" * 100_000})
    assert len(caught.value.message) < 1_000


def test_unknown_fields_are_refused_through_composition():
    schema = {
        "type": "object",
        "allOf": [{"properties": {"a": {"type": "integer"}}}],
        "properties": {"b": {"type": "integer"}},
    }
    validate_arguments(spec(schema), {"a": 1, "b": 2})
    assert "not a field" in problems({"a": 1, "c": 3}, schema)["c"]


def test_unknown_fields_are_refused_in_referenced_objects():
    schema = {
        "type": "object",
        "properties": {"near": {"$ref": "#/$defs/Point"}},
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }
    validate_arguments(spec(schema), {"near": {"x": 1}})
    assert "not a field" in problems({"near": {"y": 1}}, schema)["near.y"]


def test_a_schema_that_allows_more_is_obeyed():
    schema = {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}
    validate_arguments(spec(schema), {"x": 1})
    assert "integer" in problems({"x": "1"}, schema)["x"]


def test_same_name_and_version_with_another_schema_is_not_mixed_up():
    validate_arguments(spec(), {"city": "Ulm"})
    other = {"type": "object", "properties": {"n": {"type": "integer"}}}
    validate_arguments(spec(other), {"n": 1})
    validate_arguments(spec(), {"city": "Ulm"})


def test_the_schema_itself_is_not_changed():
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    before = repr(schema)
    validate_arguments(spec(schema), {})
    assert repr(schema) == before


def test_patterns_of_results_and_of_changed_arguments_take_linear_time_too():
    """The first are checked in workers, the second in the API."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    value = {"a": "a" * 26 + "!"}
    begun = time.monotonic()
    (found,) = result_problems(replace(spec(), output_schema=schema), value)
    assert "pattern" in found[1]
    row = {"tool": "weather", "digest": "", "input_schema": schema}
    with pytest.raises(Invalid, match="does not match"):
        _changed(row, Decide("approved", None, arguments=value))
    assert time.monotonic() - begun < 1


def test_a_pattern_takes_linear_time():
    """Python's own engine needs hours for this: one tenant's pattern would stop all runs."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    spec = ToolSpec("t", "A tool.", schema, EffectClass.READ)
    began = time.monotonic()
    with pytest.raises(Invalid, match="`a`"):
        validate_arguments(spec, {"a": "a" * 5_000 + "!"})
    assert time.monotonic() - began < 1


def test_a_schema_that_runs_in_a_circle_is_a_refusal():
    schema = {"type": "object", "allOf": [{"$ref": "#"}]}
    with pytest.raises(Invalid, match="nested"):
        validate_arguments(ToolSpec("t", "A tool.", schema, EffectClass.READ), {})
