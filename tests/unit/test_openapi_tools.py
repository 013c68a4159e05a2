"""OpenAPI documents, 3.0 and 3.1, as tools: what is made, what is left out, and why."""

from __future__ import annotations

import pytest

from harness_common.contracts.http_tool import ToolDefinition
from harness_common.contracts.openapi_tools import Wanted, read_openapi
from harness_common.contracts.tool import EffectClass
from harness_common.core.errors import Invalid
from harness_worker.tools.http_call import HttpCall
from harness_worker.tools.validate import validate_arguments
from tests.fakes.tool_context import FakeContext

OK = {"200": {"description": "The pets."}, "404": {"description": "No such pet."}}
PETS = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "https://{at}.example.com/v1", "variables": {"at": {"default": "pets"}}}],
    "security": [{"key": []}],
    "paths": {
        "/pets": {
            "parameters": [{"$ref": "#/components/parameters/Trace"}],
            "get": {
                "operationId": "listPets",
                "summary": "List pets.",
                "description": "Lists pets page by page.",
                "parameters": [
                    {"name": "limit", "in": "query", "description": "How many.",
                     "schema": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}},
                    {"name": "tags", "in": "query",
                     "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "filter", "in": "query", "style": "deepObject",
                     "schema": {"type": "object"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                ],
                "responses": OK,
            },
            "post": {
                "operationId": "add pet!",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}
                    },
                },
                "responses": OK,
            },
        },
        "/pets/{petId}": {
            "get": {
                "parameters": [{"name": "petId", "in": "path", "required": True,
                                "schema": {"type": "string"}}],
            },
            "put": {"operationId": "putPet"},
            "delete": {"operationId": "drop", "parameters": [
                {"name": "petId", "in": "path", "required": True, "schema": {"type": "integer"}},
                {"name": "petId", "in": "query", "schema": {"type": "string"}},
            ]},
        },
        "/login": {
            "post": {
                "operationId": "login",
                "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {
                    "type": "object", "required": ["user"],
                    "properties": {"user": {"type": "string"}, "age": {"type": "integer"}}}}}},
            }
        },
        "/far": {"get": {"operationId": "far", "parameters": [
            {"name": "x", "in": "query", "schema": {"$ref": "other.yaml#/x"}}]}},
        "/picture": {"post": {"operationId": "picture", "requestBody": {
            "required": True, "content": {"image/png": {}}}}},
        "/jar": {"get": {"operationId": "jar", "parameters": [
            {"name": "s", "in": "cookie", "required": True}]}},
        "/ring": {"get": {"operationId": "ring", "parameters": [
            {"$ref": "#/components/parameters/A"}]}},
        "/again": {"get": {"operationId": "listPets"}},
    },
    "components": {
        "parameters": {
            "Trace": {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
            "A": {"$ref": "#/components/parameters/B"},
            "B": {"$ref": "#/components/parameters/A"},
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "example": "Rex"},
                    "nick": {"type": "string", "nullable": True, "enum": ["a", "b"]},
                    "parent": {"$ref": "#/components/schemas/Pet"},
                },
                "discriminator": {"propertyName": "kind"},
            }
        },
    },
}  # fmt: skip


def by_name(wanted=None):
    found = read_openapi(PETS, wanted or Wanted())
    return {t.definition.name: t for t in found.tools}, {
        s.operation: s.reason for s in found.skipped
    }


def request(definition: ToolDefinition, **arguments):
    validate_arguments(definition.spec(1), arguments)
    return HttpCall(definition).ask(FakeContext(), arguments, {"secret://k": "K"})


def test_what_is_made_and_what_is_left_out():
    made, skipped = by_name()
    assert set(made) == {"listPets", "add_pet", "get_pets_petId", "login"}
    assert {k: v.partition("'")[0].strip() for k, v in skipped.items()} == {
        "PUT:/pets/{petId}": "its path has {petId}, which no parameter declares",
        "DELETE:/pets/{petId}": "two of its parameters are called",
        "GET:/far": "it refers to",
        "POST:/picture": "it takes a body of image/png",
        "GET:/jar": "it requires",
        "GET:/ring": "its references run in a circle",
        "GET:/again": "another operation is named",
    }


def test_a_query_is_sent_as_it_is_described():
    made, _ = by_name()
    tool = made["listPets"].definition
    assert tool.effect_class is EffectClass.READ
    assert tool.input_schema["properties"]["limit"] == {
        "type": "integer", "exclusiveMinimum": 0, "description": "How many.",
    }  # fmt: skip
    assert set(tool.input_schema["properties"]) == {"X-Trace", "limit", "tags"}
    ask = request(tool, limit=3, tags=["a b", "c"])
    assert ask.url == "https://pets.example.com/v1/pets?limit=3&tags=a+b&tags=c"
    assert ask.headers == {}
    assert request(tool, **{"X-Trace": "t"}).headers == {"X-Trace": "t"}
    with pytest.raises(Invalid):
        request(tool, limit=0)
    text = tool.description
    assert all(part in text for part in ("page by page", "Returns: The pets.", "404: No such pet."))


def test_a_body_is_one_argument_and_a_schema_may_refer_to_itself():
    made, _ = by_name()
    tool = made["add_pet"].definition
    assert tool.effect_class is EffectClass.WRITE
    ask = request(tool, body={"name": "Rex", "nick": None, "parent": {"name": "Old"}})
    assert ask.content == b'{"name":"Rex","nick":null,"parent":{"name":"Old"}}'
    assert ask.headers["Idempotency-Key"] == "key_1"
    for wrong in ({"nick": "a"}, {"name": "R", "id": 3}, {"name": "R", "nick": "c"}):
        with pytest.raises(Invalid):
            request(tool, body=wrong)
    with pytest.raises(Invalid):
        request(tool)


def test_a_form_has_an_argument_for_each_field():
    made, _ = by_name()
    ask = request(made["login"].definition, user="a&b", age=3)
    assert (ask.content, ask.headers["Content-Type"]) == (
        b"user=a%26b&age=3",
        "application/x-www-form-urlencoded",
    )
    with pytest.raises(Invalid):
        request(made["login"].definition, age=3)


@pytest.mark.parametrize("value", ["", ".", "..", " .. "])
def test_an_argument_cannot_climb_out_of_its_path(value):
    made, _ = by_name()
    tool = made["get_pets_petId"].definition
    assert request(tool, petId="a/../b?c#d").url.endswith("/pets/a%2F..%2Fb%3Fc%23d")
    with pytest.raises(Invalid, match="cannot stand in the address"):
        request(tool, petId=value)


def test_choices_of_the_importer():
    wanted = Wanted(
        only=("GET:/pets", "login"),
        server="https://other.test/x/",
        prefix="p_",
        headers={"Authorization": "Bearer secret://k"},
        effects={"login": "read"},
    )
    made, skipped = by_name(wanted)
    assert (set(made), skipped) == ({"p_listPets", "p_login"}, {})
    assert made["p_login"].definition.effect_class is EffectClass.READ
    assert made["p_listPets"].warnings == ()
    ask = request(made["p_listPets"].definition)
    assert ask.url == "https://other.test/x/pets"
    assert ask.headers == {"Authorization": "Bearer K"}


def test_missing_credentials_are_warned_of():
    made, _ = by_name()
    assert "secret://NAME" in made["listPets"].warnings[0]


@pytest.mark.parametrize(
    ("document", "wanted", "field"),
    [
        ({"swagger": "2.0", "paths": {}}, Wanted(), "document.openapi"),
        ({"openapi": "3.1.0"}, Wanted(), "document.paths"),
        (PETS, Wanted(only=("nobody",)), "only"),
        (PETS, Wanted(effects={"GET:/nowhere": "read"}), "effects"),
    ],
)
def test_what_is_no_document_or_no_operation_is_refused(document, wanted, field):
    with pytest.raises(Invalid) as caught:
        read_openapi(document, wanted)
    assert caught.value.detail["field"] == field


def test_3_1_is_read_as_it_is():
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "http://x.test"}],
        "paths": {"/a": {"post": {"operationId": "a", "requestBody": {"content": {
            "application/vnd.x+json": {"schema": {"type": ["object", "null"], "$defs": {}}}}}}}},
    }  # fmt: skip
    (tool,) = read_openapi(document, Wanted()).tools
    assert request(tool.definition, body=None).content == b"null"
    assert request(tool.definition).content is None


@pytest.mark.parametrize("part", [7, "x", [], [7], {"a": 7}, {"$ref": "#/paths"}, None, [[]]])
@pytest.mark.parametrize("where", ["parameters", "requestBody", "responses", "servers", "security"])
def test_a_malformed_part_costs_no_more_than_its_operation(where, part):
    bad = {"operationId": "bad", where: part}
    paths = {"/bad": {"post": bad}, "/good": {"get": {"operationId": "good"}}}
    document = {"openapi": "3.1.0", "servers": [{"url": "http://x.test"}], "paths": paths}
    found = read_openapi(document, Wanted())
    assert "good" in {t.definition.name for t in found.tools}


@pytest.mark.parametrize(
    "schema", [7, {"type": 7}, {"required": [{}]}, {"properties": 7}, {"allOf": 7}]
)
def test_a_malformed_schema_is_left_out(schema):
    body = {"content": {"application/json": {"schema": {"properties": {"a": schema}}}}}
    paths = {"/bad": {"post": {"operationId": "bad", "requestBody": body}}}
    document = {"openapi": "3.1.0", "servers": [{"url": "http://x.test"}], "paths": paths}
    found = read_openapi(document, Wanted())
    assert [s.operation for s in found.skipped] == ["POST:/bad"] or schema == 7


def test_a_form_whose_required_is_nonsense_is_left_out():
    schema = {"type": "object", "properties": {"a": {}}, "required": [{}]}
    body = {"content": {"application/x-www-form-urlencoded": {"schema": schema}}}
    paths = {"/bad": {"post": {"requestBody": body}}}
    document = {"openapi": "3.1.0", "servers": [{"url": "http://x.test"}], "paths": paths}
    (skipped,) = read_openapi(document, Wanted()).skipped
    assert "not as OpenAPI says" in skipped.reason
