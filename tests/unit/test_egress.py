"""The way out: hops of redirects, what crosses an origin, tenants' hosts, interceptors."""

from __future__ import annotations

import base64
import socket
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from harness_common.core.errors import Invalid
from harness_common.core.host_rules import HostRules, read_entries
from harness_common.settings import EgressSettings, Settings
from harness_worker.egress.client import Ask, Egress, TooManyRedirects, load_interceptor
from harness_worker.egress.redact import CallSecrets
from harness_worker.egress.transport import Refused
from tests.fakes.http_server import Page, serving

TENANT, OTHER = UUID(int=1), UUID(int=2)
LOOPBACK = Settings(egress=EgressSettings(loopback=True))


@pytest.fixture
def server():
    with serving() as running:
        yield running


@pytest.fixture
def elsewhere():
    with serving() as running:
        yield running


def rules(**by_tenant):
    async def rules_of(tenant_id):
        return by_tenant.get(f"t{tenant_id.int}", HostRules())

    return rules_of


def resolver(**names):
    """Resolve names of a test; everything is on this machine or refused before it is reached."""
    calls = []

    def resolve(host, port, *args):
        calls.append(host)
        address = names[host.partition(".")[0]]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    return resolve, calls


async def test_headers_stay_behind_when_the_origin_changes(server, elsewhere):
    secret = {"Authorization": "Bearer s", "X-Key": "s"}
    server.pages["/a"] = Page(status=302, headers={"Location": "/b"})
    server.pages["/b"] = Page(status=302, headers={"Location": elsewhere.url + "/c"})
    elsewhere.pages["/c"] = Page(b"{}")
    ask = Ask("GET", server.url + "/a", secret, follow=True)
    answer = await Egress(LOOPBACK).send(TENANT, ask)
    assert (answer.status, answer.url) == (200, elsewhere.url + "/c")
    assert [s.headers.get("X-Key") for s in server.seen] == ["s", "s"]
    (last,) = elsewhere.seen
    assert {"Authorization", "X-Key"}.isdisjoint(last.headers)


async def test_each_hop_is_asked_about(server):
    server.pages["/a"] = Page(status=302, headers={"Location": "http://169.254.169.254/x"})
    egress = Egress(LOOPBACK)
    with pytest.raises(Refused):
        await egress.send(TENANT, Ask("GET", server.url + "/a", follow=True))
    server.pages["/a"] = Page(status=302, headers={"Location": "/a"})
    with pytest.raises(TooManyRedirects):
        await egress.send(TENANT, Ask("GET", server.url + "/a", follow=True))
    answer = await egress.send(TENANT, Ask("GET", server.url + "/a"))
    assert answer.status == 302
    assert (egress.counts.refused, egress.counts.sent) == (1, 8)


async def test_tenants_have_rules_of_their_own(server):
    egress = Egress(LOOPBACK, rules(t1=HostRules(allow=("api.example.com",))))
    with pytest.raises(Refused, match="allow-list"):
        await egress.send(TENANT, Ask("GET", server.url + "/"))
    assert (await egress.send(OTHER, Ask("GET", server.url + "/"))).status == 404


async def test_a_client_for_others_is_checked_at_every_hop(server):
    """What an MCP client is given follows redirects by itself."""
    server.pages["/a"] = Page(status=307, headers={"Location": "http://10.0.0.1/"})
    async with await Egress(LOOPBACK).client(TENANT, follow_redirects=True) as client:
        with pytest.raises(Refused):
            await client.get(server.url + "/a")
    assert len(server.seen) == 1


async def test_a_denied_network_is_reached_by_no_name():
    egress = Egress(
        Settings(),
        rules(t1=HostRules(deny=("93.184.0.0/16",))),
        resolver=resolver(public="93.184.215.14")[0],
    )
    with pytest.raises(Refused, match="deny-list"):
        await egress.send(TENANT, Ask("GET", "http://public.test/"))


async def test_a_name_is_resolved_once_and_connected_where_it_was_checked(server):
    """A second answer that leads elsewhere is never asked for."""
    resolve, calls = resolver(inside="127.0.0.1")
    settings = Settings.model_validate({"tool": {"http_allow": ("inside.test",)}})
    ask = Ask("GET", f"http://inside.test:{server.server_port}/")
    await Egress(settings, resolver=resolve).send(TENANT, ask)
    assert calls == ["inside.test"]
    assert server.seen[0].headers["Host"] == f"inside.test:{server.server_port}"


async def test_the_interceptor_adds_headers_and_sees_no_secret(server):
    told = []

    async def mesh(outgoing):
        told.append(outgoing)
        return {"X-Mesh": f"for {outgoing.host}"}

    ask = Ask("POST", server.url + "/p?key=canary", {"Authorization": "canary"}, b"canary")
    with capture_logs() as logs:
        await Egress(LOOPBACK, interceptor=mesh).send(TENANT, ask)
    assert server.seen[0].headers["X-Mesh"] == "for 127.0.0.1"
    assert (told[0].method, told[0].path) == ("POST", "/p")
    assert "canary" not in f"{told}{logs}"
    (line,) = [entry for entry in logs if entry["event"] == "egress.sent"]
    assert (line["host"], line["outcome"]) == ("127.0.0.1", 404)


def test_an_interceptor_that_is_not_there_is_refused_at_start():
    assert callable(load_interceptor("httpx:get"))
    with pytest.raises(ValueError, match="module:function"):
        load_interceptor("httpx:nothing")


async def test_the_environment_has_no_say(server, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password canary\n")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NETRC", str(netrc))
    await Egress(LOOPBACK).send(TENANT, Ask("GET", server.url + "/"))
    assert "Authorization" not in server.seen[0].headers


@pytest.mark.parametrize(
    ("entries", "host", "refused"),
    [
        (("example.com",), "example.com", False),
        (("example.com",), "a.example.com", True),
        (("*.example.com",), "a.b.example.com", False),
        (("*.example.com",), "example.com", True),
        (("*.example.com",), "notexample.com", True),
        (("10.0.0.0/8",), "10.1.2.3", False),
        (("10.0.0.0/8",), "11.1.2.3", True),
        (("fd00::/8",), "fd00::1", False),
        (("1.2.3.4",), "1.2.3.4", False),
    ],
)
def test_entries_match_hosts(entries, host, refused):
    assert (HostRules(allow=read_entries(entries, "allow")).refusal(host) is not None) == refused
    assert (HostRules(deny=read_entries(entries, "deny")).refusal(host) is None) == refused


@pytest.mark.parametrize("bad", ["http://a.com", "a.com/b", "a b", "*", "a..b", "1.2.3", "0x7f.1"])
def test_bad_entries_are_refused(bad):
    with pytest.raises(Invalid):
        read_entries([bad], "allow")


def test_a_redactor_finds_each_form_wherever_it_begins():
    secret = "p@ss/wörd+1"
    hide = CallSecrets([secret])
    for lead in range(3):
        wrapped = base64.b64encode(b"x" * lead + secret.encode() + b"yy").decode()
        assert "[redacted]" in hide.text(wrapped), lead
    assert hide.text("key=p%40ss%2Fw%C3%B6rd%2B1;") == "key=[redacted];"
    assert hide.json({"a": [secret], secret: 1}) == {"a": ["[redacted]"], "[redacted]": 1}
    assert CallSecrets(["ab"]).text("absent") == "absent"
    for length in range(4, len(secret)):
        assert hide.cut("key " + secret[:length]) == "key [redacted]"
    assert hide.cut("key p@s") == "key p@s"
