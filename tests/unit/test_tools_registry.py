"""The tool registry: what gets in, how it is found, what one agent sees."""

from __future__ import annotations

import sys
import types

import pytest

from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_common.core.errors import Invalid, NotFound
from harness_common.settings import Settings, ToolSettings, WorkerSettings
from harness_worker.tools.registry import BUILTINS, ToolRegistry

EMPTY = {"type": "object", "properties": {}}


def make(name="lookup", schema=EMPTY, description="Looks up."):
    return Tool(ToolSpec(name, description, schema, EffectClass.READ), lambda ctx: None)


def test_all_builtins_register_and_are_described_like_a_manual():
    registry = ToolRegistry.from_settings(Settings())
    # sql_query brings sql_schema, python_run shell_run; http_get is beside
    assert len(registry) == len(BUILTINS) + 3
    assert set(registry.names()) == {
        *("append_line", "artifact_read", "calculate", "chart", "file_list", "file_read"),
        *("http_get", "run_program", "sql_query", "sql_schema", "wait", "write_report"),
        *("ask_user", "spawn_run", "python_run", "shell_run", "file_write"),
        *("memory_forget", "memory_save", "memory_search", "skill_read"),
    }
    for spec in registry.specs():
        assert "Use it" in spec.description, spec.name
        assert "eturns" in spec.description, spec.name
        assert spec.input_schema["additionalProperties"] is False


def test_effects_of_the_builtins():
    effects = {s.name: s.effect for s in ToolRegistry.from_settings(Settings()).specs()}
    writes = {name for name, effect in effects.items() if effect is EffectClass.WRITE}
    assert writes == {"append_line", "memory_forget", "memory_save", "run_program", "write_report"}
    same = {name for name, effect in effects.items() if effect is EffectClass.IDEMPOTENT}
    assert same == {"ask_user", "file_write", "spawn_run"}


def test_unknown_tool_names_close_ones():
    registry = ToolRegistry([make("file_read"), make("file_list")])
    with pytest.raises(NotFound) as caught:
        registry.get("file_raed")
    assert caught.value.error_code == "TOOL_NOT_FOUND"
    assert caught.value.detail["similar"][0] == "file_read"
    assert "Did you mean file_read" in caught.value.message


def test_add_remove_and_view():
    registry = ToolRegistry([make("a"), make("b"), make("c")])
    view = registry.view(["c", "a"])
    assert view.names() == ("c", "a")
    assert "b" not in view
    with pytest.raises(NotFound):
        view.get("b")
    assert registry.remove("a").spec.name == "a"
    assert registry.names() == ("b", "c")
    assert "a" in view  # a running agent keeps what it was given
    with pytest.raises(NotFound):
        registry.view(["a"])


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "a" * 65, "a\n", "../a", "名"])
def test_bad_names_are_refused(name):
    with pytest.raises(Invalid, match="bad name"):
        ToolRegistry([make(name)])


def test_duplicates_and_silence_are_refused():
    with pytest.raises(Invalid, match="already registered"):
        ToolRegistry([make(), make()])
    with pytest.raises(Invalid, match="no description"):
        ToolRegistry([make(description=" ")])


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (None, ""),
        ([], ""),
        ({"type": "string"}, ""),
        ({"properties": {}}, ""),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "/properties/a/type"),
        ({"type": "object", "properties": {"a/b": {"minimum": "1"}}}, "/properties/a~1b/minimum"),
        ({"type": "object", "required": "a"}, "/required"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "/properties/a/pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "/properties/a/$ref"),
        (
            {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}},
            "/properties/a/$ref",
        ),
    ],
)
def test_bad_schemas_are_refused_with_tool_and_pointer(schema, pointer):
    with pytest.raises(Invalid) as caught:
        ToolRegistry([make(schema=schema)])
    assert caught.value.error_code == "TOOL_INVALID"
    assert caught.value.detail["tool"] == "lookup"
    assert caught.value.detail["pointer"] == pointer
    assert "'lookup'" in caught.value.message
    assert pointer in caught.value.message


def test_user_modules(monkeypatch):
    module = types.ModuleType("my_tools")
    one = make("one")
    vars(module).update(one=one, again=one, two=make("two"), other=1)
    monkeypatch.setitem(sys.modules, "my_tools", module)
    settings = Settings(worker=WorkerSettings(tools=("my_tools",)), tool=ToolSettings())
    registry = ToolRegistry.from_settings(settings)
    assert {"one", "two"} <= set(registry.names())
    with pytest.raises(Invalid, match="cannot be imported"):
        registry.load_module("no_such_module_anywhere")
    monkeypatch.setitem(sys.modules, "no_tools", types.ModuleType("no_tools"))
    with pytest.raises(Invalid, match="holds no tool"):
        registry.load_module("no_tools")
