"""What models accept: the table, and an operator's file over it."""

from __future__ import annotations

import json

import httpx
import pytest

from harness_common.contracts.model import Capabilities
from harness_common.core.errors import Invalid
from harness_common.settings import ModelSettings, Settings
from harness_worker.models.capabilities import built_in, load_capabilities
from harness_worker.models.registry import ModelRegistry


def test_the_longest_name_that_fits_counts():
    table = built_in()
    assert not table.of("openai/gpt-5-mini-2025-08-07").temperature
    assert table.of("openai/gpt-5-chat-latest").temperature
    assert table.of("openai/gpt-4.1").context_window_tokens == 1_047_576
    assert table.of("openai/meta/llama-3") == Capabilities(json_mode=True)
    assert table.of("nobody/x") == Capabilities()
    default = Capabilities(context_window_tokens=9_999)
    assert table.of("nobody/x", default) is default


def test_both_openai_protocols_know_the_same_models():
    table = built_in()
    for name in ("gpt-5-mini", "gpt-4.1", "o3", "other"):
        assert table.of(f"openai-responses/{name}") == table.of(f"openai/{name}")


def test_an_operators_file_changes_what_it_says_and_nothing_else(tmp_path):
    own = tmp_path / "own.json"
    entries = {
        "openai/qwen*": {"context_window_tokens": 8_192, "tool_choice": "schema"},
        "openai/gpt-5.4": {"temperature": True},
        "openai-responses/gpt-5.4": {"reasoning": False},
    }
    own.write_text(json.dumps({"models": entries}))
    table = ModelRegistry(
        Settings(model=ModelSettings(capabilities=own)), httpx.AsyncClient()
    ).capabilities
    qwen = table.of("openai/qwen3-8b")
    assert (qwen.context_window_tokens, qwen.tool_choice, qwen.json_mode) == (8_192, "schema", True)
    mine = table.of("openai/gpt-5.4")
    assert (mine.temperature, mine.reasoning, mine.context_window_tokens) == (True, True, 400_000)
    assert not table.of("openai-responses/gpt-5.4").reasoning
    assert table.of("openai/o3") == built_in().of("openai/o3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a file of capabilities"),
        ('{"models": {"openai/x": {"temprature": true}}}', "temprature"),
        ('{"models": {"openai/x": {"context_window_tokens": 0}}}', "context_window_tokens"),
        ('{"model": {}}', "models"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, text, words):
    own = tmp_path / "own.json"
    own.write_text(text)
    with pytest.raises(Invalid, match=words) as caught:
        load_capabilities(own)
    assert "HARNESS_MODEL__CAPABILITIES" in caught.value.message
    assert caught.value.detail["field"] == "model.capabilities"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(Invalid, match="HARNESS_MODEL__CAPABILITIES"):
        load_capabilities(tmp_path / "none.json")
