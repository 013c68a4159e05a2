"""Tools that a tenant declares: from the row to the request, the ledger and the model."""

from __future__ import annotations

import json
import logging
import socket

import pytest
from structlog.testing import capture_logs

from harness_common.contracts.http_tool import ToolDefinition, check_definition
from harness_common.contracts.tool import EffectClass
from harness_common.core.errors import NotFound
from harness_common.core.host_rules import HostRules
from harness_common.core.step import ToolsUnknown
from harness_common.core.tool_call import CallStatus
from harness_common.settings import EgressSettings, Settings
from harness_common.store import tools as store
from harness_common.store.audit import Actor
from harness_worker.egress.client import Egress
from harness_worker.steps import tools as tools_step
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.http_tools import TenantTools, rules_of
from harness_worker.tools.registry import ToolRegistry
from tests.fakes.http_server import Page, serving
from tests.store.play import make_key, make_tenant, say
from tests.worker.runtime import claim_tools_step, make_runtime

ME = Actor("key_test")
CANARY = "s3cr3t/canary+value=="


@pytest.fixture
def server():
    with serving() as running:
        yield running


class Vault:
    """Secrets of one tenant, in memory."""

    def __init__(self, tenant_id, **values):
        self.tenant_id, self.values = tenant_id, values

    async def resolve(self, tenant_id, text):
        name = text.removeprefix("secret://")
        if tenant_id != self.tenant_id or name not in self.values:
            raise NotFound(f"there is no secret {text}", code="SECRET_NOT_FOUND")
        return self.values[name]


def definition(url, method="POST", **more):
    http = {"method": method, "url": url, **more.pop("http", {})}
    made = ToolDefinition.model_validate(
        {
            "name": "remote",
            "description": "A tool of a test.",
            "input_schema": {"type": "object", "properties": {"i": {"type": "integer"}}},
            "http": http,
            **more,
        }
    )
    check_definition(made)
    return made


class Bench:
    """A worker whose catalog has the tenant's tools behind it."""

    def __init__(self, db, play, runtime, source, key):
        self.db, self.play, self.runtime, self.source = db, play, runtime, source
        self.key = key

    async def put(self, *args, **more):
        row, _ = await store.put_tool(self.db, self.play.tenant_id, definition(*args, **more), ME)
        return row

    async def call(self, name="remote"):
        """Let a run call the tool; return the step's result."""
        self.run_id = await self.play.start(created_by=self.key)
        await self.play.step(self.run_id, say(tools=[name]))
        ctx = await claim_tools_step(self.runtime, self.play, self.run_id)
        from dataclasses import replace

        spec = ctx.spec.model_copy(update={"tools": (name,)})
        result = await tools_step.run(replace(ctx, spec=spec))
        await self.play.settle(ctx.run, result)
        return result

    async def outcome(self, name="remote"):
        (outcome,) = (await self.call(name)).outcomes
        return outcome

    async def data(self):
        outcome = await self.outcome()
        assert outcome.status is CallStatus.SUCCEEDED, outcome.content
        return json.loads(outcome.content)


@pytest.fixture
async def bench(db, play):
    settings = Settings(egress=EgressSettings(loopback=True))
    egress = Egress(settings, lambda tenant_id: rules_of(db, tenant_id))
    source = TenantTools(db, egress, Vault(play.tenant_id, token=CANARY))
    runtime = await make_runtime(db)
    runtime.catalog = Catalog(ToolRegistry(), [source])
    return Bench(db, play, runtime, source, await make_key(db, play.tenant_id))


async def test_a_declared_tool_is_called_and_recorded_with_its_version(bench, server):
    server.pages["/pay"] = Page(b'{"ok": true, "receipt": 7}')
    await bench.put(server.url + "/pay", http={"body": {"amount": "{i}", "currency": "EUR"}})
    assert await bench.data() == {"status": 200, "data": {"ok": True, "receipt": 7}}
    (seen,) = server.seen
    assert (seen.method, json.loads(seen.body)) == ("POST", {"amount": 0, "currency": "EUR"})
    (call,) = await bench.play.calls(bench.run_id)
    assert (call["tool_version"], call["effect"], call["status"]) == ("1", "write", "succeeded")
    assert seen.headers["Idempotency-Key"] == f"run_{bench.run_id.hex}.2.0"


async def test_a_change_counts_from_the_next_step_and_nothing_is_restarted(bench, server):
    server.pages["/a"], server.pages["/b"] = Page(b'"a"'), Page(b'"b"')
    await bench.put(server.url + "/a", "GET")
    assert (await bench.data())["data"] == "a"
    await bench.put(server.url + "/b", "GET")
    assert (await bench.data())["data"] == "b"
    assert (await bench.play.calls(bench.run_id))[0]["tool_version"] == "2"
    await store.set_tool(bench.db, bench.play.tenant_id, "remote", ME, disabled=True)
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_type) == (CallStatus.FAILED, "TOOL_DISABLED")
    await store.set_tool(bench.db, bench.play.tenant_id, "remote", ME, disabled=False)
    assert (await bench.data())["data"] == "b"
    await store.remove_tool(bench.db, bench.play.tenant_id, "remote", ME)
    assert (await bench.outcome()).error_type == "TOOL_REMOVED"
    assert (await bench.put(server.url + "/a", "GET"))["version"] == 3
    assert (await bench.data())["data"] == "a"
    assert len(server.seen) == 4


async def test_a_step_keeps_the_version_that_it_began_with(bench, server):
    server.pages["/a"], server.pages["/b"] = Page(b'"a"'), Page(b'"b"')
    await bench.put(server.url + "/a", "GET")
    registry = await bench.runtime.catalog.registry(bench.play.tenant_id, ["remote"])
    await bench.put(server.url + "/b", "GET")
    assert registry.get("remote").spec.version == "1"


async def test_another_tenant_has_no_such_tool(bench, server, db):
    await bench.put(server.url + "/a", "GET")
    other = await make_tenant(db)
    assert await bench.source.find(other, ["remote"]) == []
    assert [t.spec.name for t in await bench.source.find(bench.play.tenant_id, ["remote"])] == [
        "remote"
    ]


@pytest.mark.parametrize(
    ("page", "status", "error"),
    [
        (Page(b'{"error": "no"}', 400), "failed", "HTTP_400"),
        (Page(b"", 404), "failed", "HTTP_404"),
        (Page(b"", 429, {"Retry-After": "7"}), "failed", "HTTP_429"),
        (Page(b"", 503, {"Retry-After": "7"}), "failed", "HTTP_503"),
        (Page(b"", 303, {"Location": "/done"}), "succeeded", None),
        (Page(b"", 307, {"Location": "/done"}), "failed", "HTTP_307"),
        (Page(b"", 302, {"Location": "/done"}), "unknown", None),
        (Page(b"", 500), "unknown", None),
        (Page(b"", 502), "unknown", None),
        (Page(b"", 503), "unknown", None),
        (Page(cut=True), "unknown", None),
        (Page(b'{"a": 1', cut_body=True), "succeeded", None),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Page) else None,
)
async def test_a_write_that_may_have_happened_is_unknown(bench, server, page, status, error):
    server.pages["/pay"] = page
    await bench.put(server.url + "/pay")
    result = await bench.call()
    (call,) = await bench.play.calls(bench.run_id)
    assert (call["status"], call["error_type"] if error else None) == (status, error)
    assert isinstance(result, ToolsUnknown) == (status == "unknown")
    assert len(server.seen) == 1  # neither followed nor sent again
    if page.status == 429:
        assert "not before 7 s" in call["result"]


@pytest.mark.parametrize(
    ("page", "error", "asked"),
    [
        (Page(b"", 500), "TRANSIENT", 2),
        (Page(cut=True), "TRANSIENT", 2),
        (Page(b'{"a": 1', cut_body=True), "TRANSIENT", 2),
        (Page(b"", 429), "HTTP_429", 1),
        (Page(b'{"why": "gone"}', 410), "HTTP_410", 1),
    ],
    ids=["500", "cut", "cut body", "429", "410"],
)
async def test_a_read_that_failed_is_only_a_failure(bench, server, page, error, asked):
    server.pages["/look"] = page
    await bench.put(server.url + "/look", "GET")
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_type) == (CallStatus.FAILED, error)
    assert len(server.seen) == asked
    if page.status == 410:
        assert '{"why": "gone"}' in outcome.content


async def test_a_write_that_reached_nobody_is_a_failure(bench):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        await bench.put(f"http://127.0.0.1:{taken.getsockname()[1]}/pay")
        outcome = await bench.outcome()
    assert (outcome.status, outcome.error_type) == (CallStatus.FAILED, "TRANSIENT")
    assert "nothing was sent" in outcome.content


async def test_secrets_go_into_the_request_and_nowhere_else(bench, server, play, caplog):
    import base64
    from urllib.parse import quote

    caplog.set_level(logging.DEBUG)
    forms = [CANARY, quote(CANARY, safe=""), CANARY.encode().hex()]
    forms += [base64.b64encode(CANARY.encode()).decode()]
    echo = {form: form for form in forms} | {
        "wrapped": base64.b64encode(b"user:" + CANARY.encode()).decode()
    }
    body = json.dumps(echo).encode()
    http = {
        "headers": {"Authorization": "Bearer secret://token"},
        "query": {"key": "secret://token"},
        "body": {"k": "secret://token", "i": "{i}"},
    }
    with capture_logs() as logs:
        for page in (Page(body), Page(body, 400), Page(body, 500)):
            server.pages["/s"] = page
            await bench.put(server.url + "/s", http=http, effect="idempotent")
            await bench.call()
            for row in [
                *await play.calls(bench.run_id),
                *await play.events(bench.run_id),
                *await play.messages(bench.run_id),
            ]:
                text = str(row)
                assert not any(form in text for form in forms), text
                assert echo["wrapped"][8:-4] not in text
    assert [s.headers["Authorization"] for s in server.seen] == [f"Bearer {CANARY}"] * 3
    assert json.loads(server.seen[0].body)["k"] == CANARY
    assert quote(CANARY, safe="") in server.seen[0].target
    assert not any(form in f"{logs}" for form in forms)
    assert not any(
        form in record.getMessage()
        for record in caplog.records
        for form in forms
        if record.name.startswith("harness")
    )


async def test_an_argument_is_never_read_as_a_secret_or_a_placeholder(bench, server):
    schema = {"type": "object", "properties": {"i": {"type": "string"}}}
    server.pages["/echo"] = Page(b"{}")
    tool = definition(
        server.url + "/echo", http={"body": {"k": "{i}"}}, input_schema=schema, effect="read"
    )
    await store.put_tool(bench.db, bench.play.tenant_id, tool, ME)
    (made,) = await bench.source.find(bench.play.tenant_id, ["remote"])
    from tests.fakes.tool_context import FakeContext

    await made.fn(FakeContext(), i="secret://token {i}")
    assert json.loads(server.seen[0].body) == {"k": "secret://token {i}"}


async def test_an_unknown_secret_stops_the_call_before_it_is_sent(bench, server):
    await bench.put(server.url + "/s", http={"headers": {"X-Key": "secret://other"}})
    outcome = await bench.outcome()
    assert (outcome.error_type, server.seen) == ("SECRET_NOT_FOUND", [])


async def test_the_tenants_hosts_are_asked_and_a_change_is_seen_within_a_second(bench, server):
    server.pages["/a"] = Page(b'"a"')
    await bench.put(server.url + "/a", "GET")
    assert (await bench.data())["data"] == "a"
    rules = HostRules(allow=("api.example.com",))
    await store.set_egress(bench.db, bench.play.tenant_id, rules, ME)
    import time

    deadline = time.monotonic() + 1.5
    while (outcome := await bench.outcome()).status is CallStatus.SUCCEEDED:
        assert time.monotonic() < deadline
    assert outcome.error_type == "E403"
    assert "allow-list" in outcome.content


async def test_without_the_setting_loopback_is_refused(bench, server, db):
    source = TenantTools(db, Egress(Settings()))
    bench.runtime.catalog = Catalog(ToolRegistry(), [source])
    await bench.put(server.url + "/a")
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_type) == (CallStatus.FAILED, "E403")
    assert server.seen == []


async def test_pages_carry_their_cursor(bench, server):
    page = {"meta": {"next": "p2"}, "rows": [1, 2]}
    server.pages["/rows"] = Page(json.dumps(page).encode())
    http = {"result": "/rows", "next_cursor": "/meta/next"}
    await bench.put(server.url + "/rows", "GET", http=http)
    assert await bench.data() == {"status": 200, "data": [1, 2], "next_cursor": "p2"}


async def test_a_long_answer_is_refused_to_a_read_and_noted_for_a_write(bench, server):
    server.pages["/big"] = Page(b'"' + b"x" * 2000 + b'"')
    http = {"max_response_bytes": 1000}
    await bench.put(server.url + "/big", "GET", http=http)
    assert (await bench.outcome()).error_type == "RESPONSE_TOO_LARGE"
    await bench.put(server.url + "/big", "POST", http=http)
    assert "larger than 1000 bytes" in (await bench.data())["note"]


async def test_effects_follow_the_method_unless_declared(bench, server):
    assert definition(server.url, "GET").effect_class is EffectClass.READ
    assert definition(server.url, "PUT").effect_class is EffectClass.IDEMPOTENT
    assert definition(server.url, "PATCH").effect_class is EffectClass.WRITE
    assert definition(server.url, "POST", effect="read").effect_class is EffectClass.READ
