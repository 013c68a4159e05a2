"""Plugins as packages that are really installed: found, used, and harmless when broken."""

from __future__ import annotations

import importlib
import json
import sys

import httpx
import pytest

from harness_api.cli.main import run
from harness_api.cli.skills import of_plugin
from harness_common.blobs.registry import blobs_of
from harness_common.core.errors import Invalid
from harness_common.embeddings.registry import embedder_of
from harness_common.plugins import discover
from harness_common.settings import EmbeddingSettings, Settings
from harness_common.store.artifacts import read_artifact, save_artifact
from harness_worker.models.registry import ModelRegistry
from harness_worker.plugins import adopt, merged
from harness_worker.runtime import register
from harness_worker.tools.registry import ToolRegistry
from tests.fakes.plugin_package import GOOD, install
from tests.store.play import make_worker, sql

pytestmark = pytest.mark.anyio
TOOL = """
from harness_common.contracts.plugin import Plugin
from harness_worker.sdk import tool

@tool(effect="read", name={name!r})
def one(key: str) -> str:
    "Say something."
    return key

@tool(effect="read", name="fresh")
def two(key: str) -> str:
    "Say something else."
    return key

plugin = Plugin(tools=(two, one){more})
"""
BAD = {
    "crashes": ("raise RuntimeError('no licence')", "no licence"),
    "leaves": ("raise SystemExit(3)", "SystemExit"),
    "wrong": ("plugin = 42", "is a int, not a Plugin"),
    "shadow": (TOOL.format(name="calculate", more=""), "already registered"),
    "provider": (
        TOOL.format(name="p", more=", providers={'openai': print}"),
        "model provider 'openai' is built in",
    ),
    "store": (
        TOOL.format(name="s", more=", blobs={'file': print}"),
        "'file' of blobs is built in",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give a folder on `sys.path` that packages can be installed into."""
    target = tmp_path / "site"
    target.mkdir()
    monkeypatch.syspath_prepend(str(target))
    discover.cache_clear()
    yield target
    discover.cache_clear()
    for path in target.glob("*.py"):
        sys.modules.pop(path.stem, None)


def put(folder, name, source, value="plugin"):
    install(folder, f"pkg_{name}", source, {name: f"pkg_{name}:{value}"})
    importlib.invalidate_caches()
    discover.cache_clear()


async def test_what_a_plugin_brings_is_used(folder, db, tmp_path):
    put(folder, "acme", GOOD)
    settings = Settings(data_dir=tmp_path)
    registry = ToolRegistry.from_settings(settings)
    plugins = adopt(discover(), registry)
    assert [(p.name, p.version, p.problem) for p in plugins] == [("acme", "1.2", "")]
    assert registry.get("acme_lookup").spec.description == "Look a key up in Acme's register."
    async with httpx.AsyncClient() as client:
        models = ModelRegistry(settings, client, merged(plugins, "providers"))
        assert models.get("acme/big").provider == "scripted"
        with pytest.raises(Invalid, match="known are acme, anthropic, openai, "):
            models.get("nobody/x")
        named = settings.model_copy(update={"embeddings": EmbeddingSettings(provider="acme")})
        embedder = embedder_of(named, client)
        assert embedder is not None
        assert await embedder.embed(["abba"]) == [[2.0, 2.0, 0, 0, 0, 0, 0, 0]]
    worker = await make_worker(db)
    await register(db, settings, worker, "w")
    (row,) = await sql(db, "SELECT plugins FROM workers WHERE incarnation = :w", w=worker)
    assert row["plugins"] == []


async def test_the_store_of_a_plugin_keeps_artifacts(folder, play, db, tmp_path):
    put(folder, "acme", GOOD)
    blobs = blobs_of(Settings(data_dir=tmp_path, blobs="acme:bucket/7"))
    made = await save_artifact(
        db, blobs, play.tenant_id, None, name="n", media_type="text/plain", data=b"hello"
    )
    assert (await read_artifact(db, blobs, play.tenant_id, made))[1] == b"hello"
    assert vars(blobs)["where"] == "bucket/7"
    assert list(tmp_path.glob("blobs/*")) == []
    with pytest.raises(Invalid, match="known are acme, file, memory, s3"):
        blobs_of(Settings(blobs="gcs://b"))
    with pytest.raises(Invalid, match="whole path"):
        blobs_of(Settings(blobs="file:relative"))
    digest = await blobs_of(Settings(blobs=f"file://{tmp_path}/b")).put(b"x")
    assert (tmp_path / "b" / digest[:2] / digest[2:4] / digest).read_bytes() == b"x"


@pytest.mark.parametrize("name", sorted(BAD))
async def test_a_broken_plugin_brings_nothing_and_stops_nobody(folder, db, name):
    source, problem = BAD[name]
    put(folder, name, source)
    put(folder, "acme", GOOD)
    registry = ToolRegistry.from_settings(Settings())
    own = set(registry.names())
    good, bad = sorted(adopt(discover(), registry), key=lambda p: bool(p.problem))
    assert good.name == "acme"
    assert bad.plugin is None
    assert problem in bad.problem
    assert set(registry.names()) - own == {"acme_lookup"}
    assert registry.get("calculate").spec.effect == "read"
    worker = (await sql(db, "SELECT uuid7() AS id"))[0]["id"]
    await register(db, Settings(), worker, "w", (good, bad))
    (row,) = await sql(db, "SELECT plugins FROM workers WHERE incarnation = :w", w=worker)
    assert [p["name"] for p in row["plugins"]] == ["acme", name]
    assert problem in row["plugins"][1]["problem"]


async def test_two_plugins_cannot_have_one_name(folder):
    put(folder, "acme", GOOD)
    put(folder, "zeta", GOOD)
    first, second = discover()
    assert (first.problem, second.plugin) == ("", None)
    assert "is the plugin acme's already" in second.problem


async def test_the_settings_say_which_are_loaded(folder):
    put(folder, "acme", GOOD)
    put(folder, "crashes", BAD["crashes"][0])
    assert [p.plugin is not None for p in discover(("acme",))] == [True, False]
    assert "left out" in discover(("acme",))[1].problem
    assert "pkg_crashes" not in sys.modules


def test_a_skill_of_a_plugin_can_be_applied(folder):
    put(folder, "acme", GOOD)
    offered = ("acme-audit", {"description": "Audits.", "prompt": "Look up every key."})
    assert of_plugin("acme", None) == of_plugin("acme", "acme-audit") == offered
    for plugin, name in (("acme", "other"), ("nobody", None)):
        with pytest.raises(Invalid):
            of_plugin(plugin, name)


def test_the_command_lists_what_is_installed_here(folder, capsys):
    put(folder, "acme", GOOD)
    put(folder, "crashes", BAD["crashes"][0])
    assert run(["plugins", "--here", "--json"]) == 0
    acme, crashes = json.loads(capsys.readouterr().out)["data"]
    assert acme["parts"]["tools"] == ["acme_lookup"]
    assert "no licence" in crashes["problem"]
    assert run(["plugins", "--here"]) == 0
    assert "tools: acme_lookup; providers: acme" in capsys.readouterr().out
