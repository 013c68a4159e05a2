"""`http_get`: what it returns, and every way into the operator's network that was thought of.

Nothing here leaves this machine: hostile names are resolved by a stand-in, and a permitted
connection goes to loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import pytest

from harness_common.contracts.tool import EffectClass, Reach
from harness_common.core.errors import Denied, Limited, Permanent, Transient
from harness_common.settings import Settings, ToolSettings
from harness_worker.egress.client import Egress
from harness_worker.tools import http_get
from harness_worker.tools.http_get import Fetcher
from tests.fakes.tool_context import call

PNG = b"\x89PNG\r\n\0data"


TEXT = {"Content-Type": "text/plain"}
PAGES = {
    "/": (200, {"Content-Type": "text/plain; charset=iso-8859-1"}, "Grüße".encode("latin1")),
    "/json": (200, {"Content-Type": "application/json"}, b'{"a": 1}'),
    "/image.png": (200, {"Content-Type": "image/png"}, PNG),
    "/long": (200, TEXT, b"x" * (3 << 20)),
    "/bomb": (200, {**TEXT, "Content-Encoding": "gzip"}, gzip.compress(b"x" * (32 << 20))),
    "/brotli": (200, {**TEXT, "Content-Encoding": "br"}, b"x"),
    "/long.bin": (200, {"Content-Type": "application/zip"}, b"\0" * (3 << 20)),
    "/loop": (302, {"Location": "/loop"}, b""),
    "/hop": (302, {"Location": "/json?from=hop"}, b""),
    "/evil": (302, {"Location": "http://127.0.0.2:1/"}, b""),
    "/metadata": (302, {"Location": "http://169.254.169.254/latest/meta-data/"}, b""),
    "/file": (302, {"Location": "file:///etc/passwd"}, b""),
    "/busy": (429, {"Retry-After": "7"}, b""),
}


class Server(ThreadingHTTPServer):
    """Keeps what was asked of it."""

    seen: list[tuple[str, dict[str, str]]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]
        status, headers, body = PAGES.get(path) or (int(path[1:]), {}, b"")
        self.server.seen.append((self.path, dict(self.headers)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        # The client hangs up once it has enough.
        with contextlib.suppress(OSError):
            self.wfile.write(body)


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as httpd:
        httpd.seen = []
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


def tool(*allow):
    (built,) = http_get.build(Settings(tool=ToolSettings(http_allow=allow)))
    return built


TENANT = UUID(int=1)


def fetch(url, allow=(), resolver=None):
    settings = Settings(tool=ToolSettings(http_allow=allow))
    return asyncio.run(Fetcher(Egress(settings, resolver=resolver)).get(url, TENANT))


def get(url, *allow):
    return call(tool(*(allow or ("127.0.0.1/32",))), url=url)


def test_spec():
    spec = tool().spec
    assert (spec.effect, spec.reach, spec.untrusted_output) == (
        EffectClass.READ,
        Reach.EXTERNAL,
        True,
    )


def test_text_is_decoded(server):
    assert get(server.url + "/").content == {
        "url": server.url + "/",
        "status": 200,
        "content_type": "text/plain",
        "size_bytes": 7 - 2,
        "text": "Grüße",
        "truncated": False,
    }
    assert get(server.url + "/json").content["text"] == '{"a": 1}'


def test_binary_is_kept_as_an_artifact(server):
    out = get(server.url + "/image.png")
    assert out.content["artifact"] == "image.png"
    assert out.content["text"] == ""
    assert [(a.name, a.media_type, a.data) for a in out.artifacts] == [
        ("image.png", "image/png", PNG)
    ]


def test_size_is_capped_also_when_compressed(server):
    for path in ("/long", "/bomb"):
        content = get(server.url + path).content
        assert content["truncated"]
        assert len(content["text"]) == 2 << 20
    with pytest.raises(Permanent) as caught:
        get(server.url + "/long.bin")
    assert caught.value.error_code == "RESPONSE_TOO_LARGE"
    with pytest.raises(Permanent) as caught:
        get(server.url + "/brotli")
    assert caught.value.error_code == "UNSUPPORTED_ENCODING"


@pytest.mark.parametrize(
    ("path", "branch", "code"),
    [
        ("/404", Permanent, "HTTP_404"),
        ("/401", Permanent, "HTTP_401"),
        ("/500", Transient, "HTTP_500"),
        ("/503", Transient, "HTTP_503"),
        ("/408", Transient, "HTTP_408"),
        ("/busy", Limited, "HTTP_429"),
    ],
)
def test_statuses(server, path, branch, code):
    with pytest.raises(branch) as caught:
        get(server.url + path + "?key=secret")
    assert caught.value.error_code == code
    assert "'http_get'" in caught.value.message
    assert "secret" not in caught.value.message


def test_retry_after_is_carried(server):
    with pytest.raises(Limited) as caught:
        get(server.url + "/busy")
    assert caught.value.retry_after_s == 7


def test_redirects_are_followed_and_counted(server):
    content = get(server.url + "/hop").content
    assert content["url"] == server.url + "/json?from=hop"
    server.seen.clear()
    with pytest.raises(Permanent) as caught:
        get(server.url + "/loop")
    assert caught.value.error_code == "TOO_MANY_REDIRECTS"
    assert len(server.seen) == 6


@pytest.mark.parametrize("path", ["/evil", "/metadata", "/file"])
def test_redirects_are_checked_like_the_first_address(server, path):
    with pytest.raises(Denied) as caught:
        get(server.url + path)
    assert caught.value.error_code == "E403"


def test_no_credentials_and_no_proxy_from_the_environment(server, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password canary\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert get(server.url + "/json").content["status"] == 200
    ((_, headers),) = server.seen
    assert {"authorization", "cookie"}.isdisjoint(h.lower() for h in headers)


def test_nobody_there_is_transient():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        with pytest.raises(Transient) as caught:
            get(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert caught.value.error_code == "CONNECTION_FAILED"


HOSTILE = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0177.0.0.1/",
    "http://0x7f.0.0.1/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0/",
    "http://0.0.0.0/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.0.1/",
    "http://100.64.0.1/",
    "http://100.100.100.200/",
    "http://169.254.169.254/latest/meta-data/",
    "http://168.63.129.16/",
    "http://192.0.0.1/",
    "http://192.0.0.9/",
    "http://192.0.0.192/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::808:808]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:808:808::]/",
    "http://[2001:0:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[fec0::1]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[ff02::1]/",
    "http://①②⑦.⓪.⓪.①/",
    "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
    "http://127。0。0。1/",
    "http://127%2e0%2e0%2e1/",
    "http://public.test@127.0.0.1/",
    "http://public.test:80@127.0.0.1/",
    "http://127.0.0.1\\@public.test/",
    "http://public.test\\@127.0.0.1/",
    "http://127.0.0.1#@public.test/",
    "http://127.0.0.1:80?@public.test/",
    "http://public.test:22/",
    "http://public.test:6379/",
    "http://public.test\r\nHost: x/",
    "http://public.test\t/",
    " http://127.0.0.1/",
    "//127.0.0.1/",
    "127.0.0.1",
    "http:///",
    "http://",
    "http:127.0.0.1",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ftp://public.test/",
    "dict://127.0.0.1:11211/",
    "data:text/plain,x",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "http://[::1",
    "http://[127.0.0.1]/",
    "http://" + "a" * 300 + ".test/",
    "http://127.0.0.1./",
]


def answers(*addresses):
    """Build a resolver that gives these answers and counts its calls."""
    calls: list[str] = []

    def resolver(host, port, *args):
        calls.append(host)
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, port, 0, 0) if ":" in address else (address, port),
            )
            for address in addresses
        ]

    return resolver, calls


class Connected(Exception):
    """Raised in place of a connection: a form that slips through is seen and reaches nobody."""


@pytest.fixture
def no_connections(monkeypatch):
    """Turn every outgoing connection into a loud failure."""

    async def connect(*args, **kwargs):
        raise Connected(args, kwargs)

    monkeypatch.setattr("anyio.connect_tcp", connect)


@pytest.mark.usefixtures("no_connections")
@pytest.mark.parametrize("url", HOSTILE)
def test_hostile_forms_are_refused_before_a_connection(url):
    def literal_only(host, port, family=0, kind=0, proto=0, flags=0):
        # As the C library does it, octal and hex forms included; names are "public".
        if host.endswith(".test"):
            return answers("93.184.215.14")[0](host, port)
        return socket.getaddrinfo(host, port, 0, kind, proto, socket.AI_NUMERICHOST)

    with pytest.raises(Denied) as caught:
        fetch(url, resolver=literal_only)
    assert caught.value.error_code == "E403"
    assert "'http_get' refused" in caught.value.message


@pytest.mark.usefixtures("no_connections")
def test_the_control_reaches_the_connection():
    """Show that the table above can fail: a public name does get as far as connecting."""
    with pytest.raises(Connected):
        fetch("http://public.test/", resolver=answers("93.184.215.14")[0])


@pytest.mark.usefixtures("no_connections")
@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["::1"],
        ["169.254.169.254"],
        ["64:ff9b::a9fe:a9fe"],
        ["::ffff:10.0.0.1"],
        ["168.63.129.16"],
        ["93.184.215.14", "127.0.0.1"],
    ],
    ids="+".join,
)
def test_names_that_lead_inside_are_refused(found):
    with pytest.raises(Denied):
        fetch("http://public.test/", resolver=answers(*found)[0])


def test_a_name_is_resolved_once_and_connected_where_it_was_checked(server):
    resolver, calls = answers("127.0.0.1")
    url = f"http://inside.test:{server.server_port}/json"
    answer = fetch(url, ["inside.test"], resolver)
    assert answer.body == b'{"a": 1}'
    assert calls == ["inside.test"]
    ((_, headers),) = server.seen
    assert headers["Host"] == f"inside.test:{server.server_port}"


def test_the_address_of_a_name_opens_no_ports(server):
    with pytest.raises(Denied, match="port"):
        fetch(f"http://public.test:{server.server_port}/", ["127.0.0.1"], answers("127.0.0.1")[0])


@pytest.mark.usefixtures("no_connections")
@pytest.mark.parametrize(
    "found", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "fe80::1"]
)
def test_a_listed_name_still_may_not_be_a_metadata_service(found):
    with pytest.raises(Denied):
        fetch("http://inside.test/", ["inside.test"], answers(found)[0])


def test_a_list_entry_opens_nothing_else(server):
    with pytest.raises(Denied):
        get(server.url + "/", "10.0.0.0/8")
    with pytest.raises(Denied):
        get(f"http://127.0.0.2:{server.server_port}/", "127.0.0.1")
