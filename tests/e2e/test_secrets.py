"""Canaries on real processes: what is secret is nowhere to be found, in no form; and with
encryption on nothing that a run says is to be found in the database.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import zstandard

from harness_common.crypto.keks import make_kek
from harness_common.redaction import MARK
from tests.e2e.secret_tools import NAME
from tests.e2e.stack import Stack
from tests.fakes.openai_server import Answer, FakeOpenAI

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LEAKS = ("leak", "leak_crash", "leak_named", "leak_much", "leak_write", "leak_undeclared")


def forms(value: str) -> dict[str, str]:
    """Return what to look for, made here on its own: not with the code under test."""
    raw = value.encode()
    out = {
        "raw": value,
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "url": quote(value, safe=""),
        "url lower": quote(value, safe="").lower(),
        "json": json.dumps(value)[1:-1],
    }
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw).decode()
        part = whole[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        out[f"base64+{before}"] = part
        out[f"base64url+{before}"] = part.replace("+", "-").replace("/", "_")
    return out


def hits(value: str, places: dict[str, str]) -> set[tuple[str, str]]:
    return {
        (place, form)
        for place, text in places.items()
        for form, looked_for in forms(value).items()
        if looked_for in text
    }


@contextlib.contextmanager
def model_server() -> Iterator[tuple[FakeOpenAI, str]]:
    """Run the fake provider on a loop of its own: these tests block theirs."""
    fake, loop, up = FakeOpenAI(), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async with fake:
            up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert up.wait(10)
    try:
        yield fake, fake.base_url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def tables(stack: Stack) -> str:
    """Return every row of every table as text, bytes in hex, snapshots also unpacked."""
    found = stack.query(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
    )
    assert {"runs", "events", "messages", "tool_calls", "secrets"} <= {t["relname"] for t in found}
    rows = [
        row["t"]
        for table in found
        for row in stack.query(f"SELECT t::text AS t FROM {table['relname']} t")
    ]
    for row in stack.query("SELECT snapshot FROM checkpoints WHERE snapshot IS NOT NULL"):
        with contextlib.suppress(zstandard.ZstdError):
            rows.append(zstandard.decompress(row["snapshot"]).decode())
    # Text within text (JSON in a column of a row) is quoted twice.
    return "\n".join(rows).replace('""', '"')


def places(stack: Stack, fake: FakeOpenAI, streams: list[str]) -> dict[str, str]:
    blobs = [p.read_bytes() for p in (stack.folder / "blobs").rglob("*") if p.is_file()]
    return {
        "tables": tables(stack),
        "logs": "\n".join(p.read_text(errors="replace") for p in stack.folder.glob("*.log")),
        "prompts": json.dumps(fake.requests) + json.dumps(fake.requests, ensure_ascii=False),
        "artifacts": "\n".join(b.decode(errors="replace") + b.hex() for b in blobs),
        "api": "\n".join(streams),
    }


def apply(client: httpx.Client, name: str, queue: str, *tools: str) -> None:
    spec = {"model": f"openai/{name}", "tools": list(tools), "queue": queue}
    answer = client.post("/v1/agents", json={"name": name, "spec": spec})
    assert answer.status_code in {200, 201}, answer.text


def run_to_end(client: httpx.Client, agent: str, text: str, streams: list[str]) -> dict[str, Any]:
    """Run an agent and keep all that the API says about it."""
    run = client.post("/v1/runs", json={"agent": agent, "input": text}).json()
    path = f"/v1/runs/{run['id']}"
    with client.stream("GET", f"{path}/stream", timeout=120) as stream:
        streams.append("".join(stream.iter_text()))
    for rest in (
        "",
        "/events",
        "/messages",
        "/tool-calls",
        "/steps",
        "/attempts",
        "/checkpoints",
        "/artifacts",
    ):
        answer = client.get(path + rest)
        assert answer.status_code == 200, (rest, answer.text)
        streams.append(answer.text)
    kept = client.get(f"{path}/artifacts").json()["data"]
    streams.extend(client.get(artifact["links"]["content"]).text for artifact in kept)
    return dict(client.get(path).json())


def answers(*tools: tuple[str, str], text: str = "done") -> list[Answer]:
    return [Answer(pieces=("calling",), tools=tools), Answer(pieces=(text,))]


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Stack, FakeOpenAI]]:
    with (
        model_server() as (fake, url),
        Stack(
            processes=2,
            HARNESS_OPENAI_BASE_URL=url,
            HARNESS_OPENAI_API_KEY="sk-test-000000",
            HARNESS_WORKER__TOOLS='["tests.e2e.secret_tools"]',
            HARNESS_SECRETS__KEK=make_kek("k1"),
            HARNESS_DATABASE__SNAPSHOT_EVERY="2",
        ) as stack,
    ):
        stack.env["UNREDACTED"] = "1"
        stack.add_worker("worker-control", "--queues", "steps.control")
        del stack.env["UNREDACTED"]
        yield stack, fake


def test_a_canary_is_nowhere_in_any_form_and_the_control_is_everywhere(
    world: tuple[Stack, FakeOpenAI],
) -> None:
    stack, fake = world
    canary = f'cnry/{secrets.token_hex(6)}+ü&"{secrets.token_hex(6)}'
    control = f'ctrl/{secrets.token_hex(6)}+ü&"{secrets.token_hex(6)}'
    streams: list[str] = []
    with stack.client() as client:
        apply(client, "clean", "steps.default", *LEAKS)
        apply(client, "control", "steps.control", *LEAKS)

        def play(agent: str, value: str) -> dict[str, Any]:
            done = client.put(f"/v1/secrets/{NAME}", json={"value": value})
            assert done.status_code == 200
            streams.append(
                done.text + client.get("/v1/secrets").text + client.get("/v1/audit").text
            )
            fake.answers.extend(answers(*((name, "{}") for name in LEAKS)))
            run = run_to_end(client, agent, "go", streams)
            assert run["status"] == "succeeded", run
            calls = client.get(f"/v1/runs/{run['id']}/tool-calls").json()["data"]
            return {c["tool"]: c for c in calls}

        calls = play("clean", canary)
        assert MARK in calls["leak"]["result"]
        assert MARK in calls["leak_write"]["result"]
        assert calls["leak_undeclared"]["error_type"] == "SECRET_NOT_DECLARED"
        found = places(stack, fake, streams)
        assert found["logs"].count(MARK) >= 3  # structlog, a library's logger, print
        assert hits(canary, found) == set()
        assert client.get("/v1/secrets").json()["data"][0]["last_used_at"] is not None

        play("control", control)
        seen = hits(control, places(stack, fake, streams))
        assert {place for place, _ in seen} == {"tables", "logs", "prompts", "artifacts", "api"}
        assert {form for _, form in seen} == set(forms(control))
        assert hits(canary, places(stack, fake, streams)) == set()


def test_with_encryption_on_nothing_that_a_run_says_is_in_the_database(
    world: tuple[Stack, FakeOpenAI],
) -> None:
    stack, fake = world
    plain, sealed = (f"note {secrets.token_hex(8)} ü {secrets.token_hex(8)}" for _ in range(2))

    def play(client: httpx.Client, note: str, streams: list[str]) -> dict[str, Any]:
        note_input = json.dumps({"note": note}, ensure_ascii=False)
        fake.answers.extend(answers(("leaky_notes", note_input), text=f"I noted {note}"))
        run = run_to_end(client, "notes", f"note this: {note}", streams)
        assert run["status"] == "succeeded", run
        assert run["output"] == f"I noted {note}"
        return run

    def stored(note: str) -> set[tuple[str, str]]:
        found = places(stack, fake, [])
        return hits(note, {k: found[k] for k in ("tables", "artifacts", "logs")})

    with stack.client() as client:
        apply(client, "notes", "steps.default", "leaky_notes")
        before: list[str] = []
        old = play(client, plain, before)
        assert {place for place, _ in stored(plain)} == {"tables", "artifacts"}

        on = client.put("/v1/tenant/encryption", json={"on": True})
        assert on.status_code == 200, on.text
        time.sleep(5.2)  # keyring.FRESH_S: until then other processes may write plainly
        after: list[str] = []
        run = play(client, sealed, after)
        assert stored(sealed) == set()

        # Whoever may read sees what there was to see before.
        for streams, note in ((before, plain), (after, sealed)):
            text = "\n".join(streams)
            assert text.count(note) > 5
            assert f"noting {note}" in text
        again = client.get(f"/v1/runs/{old['id']}").json()
        assert (again["input"], again["output"]) == (old["input"], old["output"])

        # A fork of it and a dry run read what was encrypted.
        dry = client.post(f"/v1/runs/{run['id']}/fork", json={"dry_run": True})
        assert dry.status_code == 202, dry.text
        fake.answers.extend([Answer(pieces=(f"forked {sealed}",))])
        forked = client.post(f"/v1/runs/{run['id']}/fork", json={"step": 2})
        assert forked.status_code == 202, forked.text
        for made, output in ((dry, f"I noted {sealed}"), (forked, f"forked {sealed}")):
            ended = client.get(f"/v1/runs/{made.json()['id']}", params={"wait": 30}).json()
            assert ended["status"] == "succeeded", ended
            assert ended["output"] == output
        assert sealed in json.dumps(fake.requests[-1], ensure_ascii=False)
        assert stored(sealed) == set()

        off = client.put("/v1/tenant/encryption", json={"on": False}).json()
        assert off["on"] is False
        assert client.get(f"/v1/runs/{run['id']}").json()["output"] == f"I noted {sealed}"
