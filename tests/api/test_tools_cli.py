"""`harness tools` and `harness egress` against the real API."""

from __future__ import annotations

import asyncio
import json

import pytest

from harness_api.cli.main import run
from harness_api.client import AsyncClient

DOCUMENT = """
openapi: 3.1.0
servers: [{url: "https://api.example.com"}]
paths:
  /a/{id}:
    get:
      operationId: getA
      parameters: [{name: id, in: path, required: true, schema: {type: string, format: date,
        example: 2026-01-31}}]
  /b:
    post: {operationId: makeB, requestBody: {required: true, content: {image/png: {}}}}
"""


@pytest.fixture
def harness(url, tenant, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HARNESS_API_URL", url)
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["admin"])
    monkeypatch.chdir(tmp_path)

    async def call(*argv):
        code = await asyncio.to_thread(run, list(argv))
        captured = capsys.readouterr()
        # The API runs in this process and logs to the same place.
        lines = captured.out.splitlines(keepends=True)
        out = "".join(line for line in lines if "request.served" not in line)
        return code, out, captured.err

    return call


async def test_a_tool_from_a_file_and_back(harness, tmp_path):
    definition = {"name": "look", "description": "Look.", "http": {"url": "http://x.test/"}}
    (tmp_path / "look.json").write_text(json.dumps(definition))
    (tmp_path / "look.toml").write_text(
        'name = "look"\ndescription = "Look."\nrisk = "high"\n[http]\nurl = "http://x.test/"\n'
    )
    assert (await harness("tools", "add", "look.json"))[1].startswith(
        "look is enabled at version 1"
    )
    assert "version 1" in (await harness("tools", "add", "look.json"))[1]
    assert "version 2" in (await harness("tools", "add", "look.toml"))[1]
    _, out, _ = await harness("tools", "list", "--json")
    assert [(t["name"], t["risk"]) for t in json.loads(out)["data"]] == [("look", "high")]
    assert len((await harness("tools", "versions", "look"))[1].splitlines()) == 3
    assert "http://x.test/" in (await harness("tools", "show", "look", "--version", "1"))[1]
    assert "disabled" in (await harness("tools", "disable", "look"))[1]
    assert "enabled" in (await harness("tools", "enable", "look"))[1]
    assert (await harness("tools", "remove", "look"))[0] == 0
    code, _, err = await harness("tools", "remove", "look")
    assert (code, "TOOL_NOT_FOUND" in err) == (1, True)


async def test_a_bad_file_is_refused_with_the_place(harness, tmp_path):
    (tmp_path / "bad.json").write_text(
        json.dumps({
            "name": "bad", "description": "x", "http": {"url": "http://x.test/"},
            "input_schema": {"type": "object", "properties": {"a": {"type": "text"}}},
        })
    )  # fmt: skip
    code, out, err = await harness("tools", "add", "bad.json")
    assert (code, out) == (1, "")
    assert "/properties/a/type" in err


async def test_a_document_is_previewed_and_imported(harness, tmp_path):
    (tmp_path / "api.yaml").write_text(DOCUMENT)
    code, out, err = await harness("tools", "import", "api.yaml", "--dry-run")
    assert (code, "GET:/a/{id}" in out) == (0, True)
    assert "skipped: POST:/b: it takes a body of image/png" in err
    assert json.loads((await harness("tools", "list", "--json"))[1])["data"] == []
    code, out, _ = await harness("tools", "import", "api.yaml", "--only", "getA", "--json")
    made = json.loads(out)
    assert [(t["name"], t["version"]) for t in made["tools"]] == [("getA", "1")]
    assert made["skipped"] == []
    assert (await harness("tools", "import", "api.yaml", "--only", "makeB"))[0] == 1
    code, _, err = await harness("tools", "import", "api.yaml", "--only", "GET:/c")
    assert (code, "GET:/c" in err) == (2, True)


async def test_hosts(harness):
    assert "every public host" in (await harness("egress", "show"))[1]
    _, out, _ = await harness("egress", "set", "--allow", "A.example.com", "--deny", "::1")
    assert "a.example.com" in out
    assert (await harness("egress", "set"))[0] == 2
    assert (await harness("egress", "set", "--everywhere", "--allow", "x.test"))[0] == 2
    code, _, err = await harness("egress", "set", "--allow", "http://x")
    assert (code, "allow[0]" in err) == (1, True)
    assert "every public host" in (await harness("egress", "set", "--everywhere"))[1]


async def test_the_client_has_all_of_it(url, tenant):
    async with AsyncClient(url, tenant.keys["admin"]) as client:
        definition = {"name": "look", "description": "Look.", "http": {"url": "http://x.test/"}}
        assert (await client.tools.put(definition)).version == "1"
        assert (await client.tools.get("look", 1)).effect == "read"
        assert [t.name for t in await client.tools.list()] == ["look"]
        assert [t.version async for t in client.tools.versions("look")] == ["1"]
        document = {"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "a"}}}}
        found = await client.tools.import_openapi(document, server="http://x.test", dry_run=True)
        assert [t.name for t in found.tools] == ["a"]
        assert (await client.egress.set(allow=["x.test"])).allow == ("x.test",)
        assert (await client.egress.get()).allow == ("x.test",)
