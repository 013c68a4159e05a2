"""Tools in cages as the runner calls them: values, errors, questions, the way out."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from harness_common.contracts.sandbox import SandboxTier
from harness_common.contracts.tool import NeedInput, WaitUntil
from harness_common.core.errors import Denied, Invalid, Permanent, Transient, UnknownOutcome
from harness_common.settings import SandboxSettings, Settings
from harness_worker.sandbox.service import WorkerSandbox
from harness_worker.tools import file_write, python_run
from harness_worker.tools.caged import caged_modules, call_caged, checked_dial
from harness_worker.tools.registry import ToolRegistry, check_spec
from tests.sandbox import caged_tools

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PYTHON, SHELL = python_run.build(Settings())


class FakeContext:
    """What the runner would give; keeps what is asked of it."""

    def __init__(self, **artifacts: bytes):
        self.tenant_id, self.run_id, self.session_id = "ten_1", "run_1", "ses_1"
        self.call_id = self.idempotency_key = "run_1.1.0"
        self.attempt, self.now, self.resumed = 1, NOW, None
        self.config: dict[str, Any] = {}
        self.state: Any = None
        self.answer: str | None = None
        self.kept: dict[str, bytes] = dict(artifacts)
        self.told: list[tuple[str, float | None]] = []

    async def secret(self, name):
        if name != "token":
            raise Denied(f"no {name}", code="SECRET_NOT_DECLARED")
        return "s3cret-token"

    async def progress(self, message, fraction=None):
        self.told.append((message, fraction))

    async def artifact(self, name, media_type, data):
        del media_type
        self.kept[f"art_{name}"] = data
        return f"art_{name}"

    async def read_artifact(self, artifact_id):
        return self.kept[artifact_id]


Context: Any = FakeContext
call: Any = call_caged


async def test_a_user_tool_runs_in_a_cage_with_its_context(sandbox, monkeypatch):
    monkeypatch.setenv("HARNESS_DATABASE_URL", "postgresql://secret")
    ctx = Context()
    tool = caged_tools.caged_echo
    secret = SimpleNamespace(spec=tool.spec, fn=tool.fn, meta={"env": {"TOKEN": "t0k"}})
    output = await call(sandbox, secret, ctx, {"text": "hé", "times": 3})
    assert output.content["text"] == "héhéhé"
    assert output.content["run"] == "run_1"
    assert output.content["uid"] != 0
    assert output.content["folder"] == []
    assert (output.content["token"], output.content["database"]) == ("t0k", None)
    assert [(a.name, a.data) for a in output.artifacts] == [("late.bin", b"\0\1")]
    assert ctx.told == [("half", 0.5)]
    assert ctx.kept == {"art_early.txt": "hé".encode()}


async def test_a_caged_tool_may_need_a_person_and_a_secret(sandbox):
    ctx = Context()
    tool = caged_tools.caged_question
    need = await call(sandbox, tool, ctx, {})
    assert need == NeedInput("which one?", {"seen": [1, 2]}, ("a", "b"), 60.0)
    ctx.state, ctx.answer = need.state, "b"
    output = await call(sandbox, tool, ctx, {})
    assert output.content == {"answer": "b", "state": {"seen": [1, 2]}, "length": 12}


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("denied", Denied, "NOT_YOU"),
        ("plain", Permanent, "KeyError"),
        ("shadow", (Denied, Permanent), "TOOL_EXECUTION_BLOCKED"),
        ("mount", Denied, "TOOL_EXECUTION_BLOCKED"),
        ("exit", Permanent, "RuntimeError"),
        ("vanish", Permanent, "EXECUTION_ERROR"),
    ],
)
async def test_errors_of_a_user_tool_come_out_as_they_went_in(sandbox, kind, error, code):
    with pytest.raises(error) as caught:
        await call(sandbox, caged_tools.caged_errors, Context(), {"kind": kind})
    # In tier A there is no such file to be refused.
    assert caught.value.error_code in {code, "FileNotFoundError" if kind == "shadow" else code}
    if kind == "mount":
        assert "seccomp: mount" in caught.value.message
        assert "exit 127" in caught.value.message


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [("refused", Denied, "NOT_YOU"), ("cut", UnknownOutcome, "ConnectionResetError")],
)
async def test_a_write_with_a_way_out_that_ended_unnamed_is_unknown(sandbox, kind, error, code):
    """As outside of a cage: its effect may have come first."""
    with pytest.raises(error) as caught:
        await call(sandbox, caged_tools.caged_send, Context(), {"kind": kind})
    assert caught.value.error_code == code


class Lost:
    """A sandbox that ends in the middle of a call, or before it."""

    def __init__(self, error):
        self.error = error

    async def run(self, job, minimum, ask=None, *, on_start=lambda: None):
        raise self.error


LOST = Transient("it ended during the call", code="SANDBOX_LOST", began=True)


@pytest.mark.parametrize(
    ("tool", "error", "becomes"),
    [
        (caged_tools.caged_send, LOST, UnknownOutcome),
        (caged_tools.caged_fetch, LOST, Transient),
        (caged_tools.caged_busy, LOST, Transient),
        (caged_tools.caged_send, Transient("no cage", code="SANDBOX_LOST"), Transient),
        (caged_tools.caged_send, Permanent("no frame", code="BAD_RESULT"), UnknownOutcome),
    ],
)
async def test_a_sandbox_that_is_lost_in_a_call_leaves_its_effect_unknown(tool, error, becomes):
    with pytest.raises(becomes):
        await call(Lost(error), tool, Context(), {})


async def test_what_is_kept_in_the_middle_of_a_call_is_bounded(sandbox):
    ctx = Context()
    with pytest.raises(Permanent) as caught:
        await call(sandbox, caged_tools.caged_flood, ctx, {})
    assert caught.value.error_code == "LIMIT_EXCEEDED"
    assert sum(map(len, ctx.kept.values())) == 900


async def test_a_caged_tool_can_wait(sandbox):
    value = await call(sandbox, caged_tools.caged_wait, Context(), {})
    assert value == WaitUntil(NOW)


async def test_python_run_takes_files_and_gives_artifacts(sandbox):
    code = (
        "import sys, pathlib\n"
        "total = sum(map(int, open('in/numbers.txt')))\n"
        "pathlib.Path('out').mkdir()\n"
        "pathlib.Path('out/total.txt').write_text(str(total))\n"
        "print(total, sys.stdin.read())\n"
    )
    arguments = {"code": code, "files": {"in/numbers.txt": "art_n"}, "stdin": "ok"}
    output = await call(sandbox, PYTHON, Context(art_n=b"1\n2\n39\n"), arguments)
    assert output.content == {
        "exit_code": 0,
        "stdout": "42 ok\n",
        "stderr": "",
        "files": ["out/total.txt"],
    }
    assert [(a.name, a.media_type, a.data) for a in output.artifacts] == [
        ("out/total.txt", "text/plain", b"42")
    ]
    assert output.untrusted


async def test_python_run_shows_its_traceback_and_exit_code(sandbox):
    output = await call(sandbox, PYTHON, Context(), {"code": "x = 1\n1 / 0"})
    assert output.content["exit_code"] == 1
    assert 'File "<python_run>", line 2' in output.content["stderr"]
    assert "inside.py" not in output.content["stderr"]
    output = await call(sandbox, PYTHON, Context(), {"code": "raise SystemExit(7)"})
    assert output.content["exit_code"] == 7
    assert not output.untrusted


async def test_files_cannot_be_put_outside_the_work_folder(sandbox):
    arguments = {"code": "1", "files": {"a/../../x": "art_n"}}
    with pytest.raises(Invalid):
        await call(sandbox, PYTHON, Context(art_n=b""), arguments)


async def test_links_and_special_files_are_no_artifacts(sandbox):
    script = "ln -s /etc/passwd link; mkfifo pipe; echo hi > file; ln file second"
    output = await call(sandbox, SHELL, Context(), {"script": script})
    assert sorted(output.content["files"]) == ["file", "second"]
    assert sorted(output.content["files_left_out"]) == ["link", "pipe"]


async def test_shell_run_that_meets_the_cage_is_blocked_with_its_rule(sandbox):
    with pytest.raises(Denied) as caught:
        await call(sandbox, SHELL, Context(), {"script": "rm -rf --no-preserve-root /"})
    assert caught.value.error_code == "TOOL_EXECUTION_BLOCKED"
    assert "Read-only file system" in caught.value.message or "denied" in caught.value.message


async def test_python_run_over_a_limit_names_it(sandbox):
    with pytest.raises(Permanent) as caught:
        await call(
            sandbox, PYTHON, Context(), {"code": "x = bytearray(3 << 30); x[::4096]=x[::4096]"}
        )
    assert caught.value.error_code == "LIMIT_EXCEEDED"
    assert "memory_bytes" in caught.value.message


async def test_file_write_keeps_an_artifact_and_nothing_else():
    tool: Any = file_write.build(Settings())[0]
    output = await tool.fn(Context(), path="/work/data/a.csv", text="a,b\n")
    assert [(a.name, a.media_type, a.data) for a in output.artifacts] == [
        ("data/a.csv", "text/csv", b"a,b\n")
    ]
    for path in ("/etc/passwd", "../x", "/work/../etc/x", "a\\b", "/work"):
        with pytest.raises(Denied):
            await tool.fn(Context(), path=path, text="x")


def test_hosts_need_tier_a():
    from dataclasses import replace

    with pytest.raises(Invalid):
        check_spec(replace(caged_tools.caged_fetch.spec, sandbox=SandboxTier.B))
    check_spec(caged_tools.caged_fetch.spec)


def test_modules_of_caged_user_tools_are_found():
    registry = ToolRegistry([PYTHON, caged_tools.caged_echo, caged_tools.caged_wait])
    assert caged_modules(registry) == ["tests.sandbox.caged_tools"]


# --- egress ---


@pytest.fixture
async def https(tmp_path):
    """An HTTPS server on loopback, port 8443 or another: its certificate is nobody's."""
    argv = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -batch"
    argv += f" -subj /CN=localhost -keyout {tmp_path}/key -out {tmp_path}/cert"
    subprocess.run(argv.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_egress_reaches_declared_hosts_and_nothing_else(https):
    dialled: list[tuple[str, int]] = []

    async def dial(host, port):
        dialled.append((host, port))
        if host == "localhost":
            return await asyncio.open_connection("127.0.0.1", https)
        return await checked_dial(())("127.0.0.1", https)  # what the name would resolve to

    sandbox = WorkerSandbox(
        SandboxSettings(warm=0), modules=["tests.sandbox.caged_tools"], dial=dial
    )
    fetch = caged_tools.caged_fetch
    try:
        got = await call(sandbox, fetch, Context(), {"url": "https://localhost:8443/"})
        assert got.content == "hi"
        for url in ("https://other.test/", f"https://127.0.0.1:{https}/"):
            with pytest.raises(Permanent, match="403"):
                await call(sandbox, fetch, Context(), {"url": url})
        assert dialled == [("localhost", 8443)]
        # Declared, but private by address: the check that was given decides.
        with pytest.raises(Permanent, match="403"):
            await call(sandbox, fetch, Context(), {"url": "https://allowed.test:8443/"})
        assert dialled[-1] == ("allowed.test", 8443)
        assert sandbox.link.folder is not None
        assert not list(sandbox.link.folder.glob("*.sock"))
    finally:
        await sandbox.stop()


async def test_the_default_dial_refuses_private_addresses():
    for host in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "0x7f.1"):
        with pytest.raises(Denied):
            await checked_dial(())(host, 443)
