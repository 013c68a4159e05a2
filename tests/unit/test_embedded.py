"""The embedded servers: real starts, two starters, a starter that is killed, leftovers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from harness_common.core.errors import Conflict, Invalid
from harness_common.embedded import (
    EmbeddedPostgres,
    EmbeddedValkey,
    clone_database,
    create_database,
    drop_database,
)
from harness_common.embedded.process import free_port

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that `nobody` can pass through; pytest's own are 0700."""
    path = Path(tempfile.mkdtemp(prefix="harness-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(folder / "shared") as server:
        yield server


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path) as server:
        yield server


def wait_until(condition: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def value(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as conn:
        cursor = conn.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def ask_valkey(url: str, *commands: str) -> str:
    password, address = url.removeprefix("redis://:").split("@")
    host, port = address.removesuffix("/0").split(":")
    with socket.create_connection((host, int(port)), timeout=2) as conn:
        conn.sendall("".join(f"{c}\r\n" for c in (f"AUTH {password}", *commands)).encode())
        conn.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: conn.recv(4096), b"")).decode()


def test_postgres_is_durable_private_and_has_pgvector(postgres: EmbeddedPostgres) -> None:
    assert value(postgres.url, "SELECT current_database()") == "harness"
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert value(postgres.url, f"SHOW {name}") == "on"
    assert value(postgres.url, "SHOW listen_addresses") == "127.0.0.1"
    assert value(postgres.url, "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'") == 1
    assert (postgres.data_dir / "postgres.json").stat().st_mode & 0o077 == 0
    password = postgres.url.split(":")[2].split("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url.replace(password, "wrong"))
    assert password not in " ".join(psutil.Process(postgres.pid).cmdline())


def test_databases_are_created_cloned_and_dropped(postgres: EmbeddedPostgres) -> None:
    template = create_database(postgres.admin_url, "template_a")
    value(template, "CREATE TABLE t AS SELECT 7 AS n")
    copy = clone_database(postgres.admin_url, "template_a", "copy_a")
    assert value(copy, "SELECT n FROM t") == 7
    drop_database(postgres.admin_url, "copy_a")
    drop_database(postgres.admin_url, "copy_a")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(copy)


def test_a_second_start_says_who_holds_the_folder(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(Conflict, match=rf"held by process {os.getpid()} ") as refused:
        EmbeddedPostgres(postgres.data_dir).start()
    assert refused.value.error_code == "ALREADY_RUNNING"
    assert postgres.start() is postgres, "starting what runs is no error"


@pytest.mark.parametrize("end", ["stop", "kill", "kill_immediate"])
def test_postgres_keeps_data_and_url_over_every_end(postgres: EmbeddedPostgres, end: str) -> None:
    url = postgres.url
    value(url, f"CREATE TABLE kept_{end} (n int)")
    value(url, f"INSERT INTO kept_{end} VALUES (1)")
    getattr(postgres, end)()
    assert postgres.pid is None
    assert postgres.start().url == url
    assert value(url, f"SELECT n FROM kept_{end}") == 1


def test_a_stale_pid_file_whose_pid_is_somebody_else_is_no_obstacle(
    postgres: EmbeddedPostgres,
) -> None:
    postgres.kill()
    path = postgres.cluster / "postmaster.pid"
    bystander = subprocess.Popen(
        ["sleep", "60"], user=path.stat().st_uid if os.geteuid() == 0 else None
    )
    try:
        path.write_text("\n".join([str(bystander.pid), *path.read_text().split("\n")[1:]]))
        assert value(postgres.start().url, "SELECT 1") == 1
    finally:
        bystander.kill()
        bystander.wait()


def test_valkey_keeps_its_port_over_restart_and_kill_and_forgets_data(
    valkey: EmbeddedValkey,
) -> None:
    url = valkey.url
    assert "+OK" in ask_valkey(url, "SET a 1")
    assert "noeviction" in ask_valkey(url, "CONFIG GET maxmemory-policy")
    assert valkey.restart().url == url
    valkey.kill()
    with pytest.raises(ConnectionRefusedError):
        ask_valkey(url, "PING")
    assert valkey.start().url == url
    assert "$-1" in ask_valkey(url, "GET a")


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.1)  # a death signal would have come at once
    assert "PONG" in ask_valkey(server.url, "PING")
    server.stop()


def test_valkey_refuses_strangers(valkey: EmbeddedValkey) -> None:
    reply = ask_valkey(valkey.url.replace(valkey.url.split(":")[2].split("@")[0], "wrong"), "GET a")
    assert "NOAUTH" in reply


def test_a_port_that_is_taken_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as other:
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=rf"{port} .* taken by process {os.getpid()}"):
            EmbeddedValkey(tmp_path, port).start()
        EmbeddedValkey(tmp_path, free_port()).start().stop()


def test_a_remembered_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as first:
        port = first.port
    with socket.create_server(("127.0.0.1", port)), EmbeddedValkey(tmp_path) as second:
        assert second.port != port


FOREGROUND = """
import encodings.idna, os, sys
import psycopg
from harness_common.embedded.__main__ import main
if uid := int(sys.argv[1]):  # only now: the interpreter itself may be out of its reach
    os.setgroups([]), os.setgid(uid), os.setuid(uid)
raise SystemExit(main(["--data-dir", sys.argv[2]]))
"""


def start_foreground(data_dir: Path, uid: int = 0) -> tuple[subprocess.Popen[str], str]:
    """Run `python -m harness_common.embedded`, as `uid` if given, until it has printed its URLs."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(uid), str(data_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout
    first = process.stdout.readline()
    assert first.startswith("HARNESS_DATABASE_URL="), first + process.stdout.read()
    assert process.stdout.readline().startswith("HARNESS_REDIS_URL=redis://")
    return process, first.strip().split("=", 1)[1]


def test_kill_9_of_the_starter_leaves_no_child_and_the_next_start_works(folder: Path) -> None:
    data_dir = folder / "killed"
    starter, url = start_foreground(data_dir)
    value(url, "CREATE TABLE t AS SELECT 5 AS n")
    children = psutil.Process(starter.pid).children(recursive=True)
    names = {child.name() for child in children}
    assert {"postgres", "valkey-server"} <= names
    starter.kill()
    starter.wait()
    wait_until(lambda: not any(child.is_running() for child in children))
    with EmbeddedPostgres(data_dir) as postgres:
        assert postgres.url == url
        assert value(url, "SELECT n FROM t") == 5


@as_root
def test_an_ordinary_user_can_run_it_and_sigterm_ends_it_cleanly(folder: Path) -> None:
    data_dir = folder / "user"
    data_dir.mkdir()
    os.chown(data_dir, NOBODY, NOBODY)
    starter, url = start_foreground(data_dir, uid=NOBODY)
    assert (data_dir / "postgres").stat().st_uid == NOBODY
    assert value(url, "SELECT 1") == 1
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(15) == 0
    assert "database system is shut down" in (data_dir / "logs" / "postgres.log").read_text()


@as_root
def test_root_puts_the_cluster_where_nobody_can_reach_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    postgres = EmbeddedPostgres(tmp_path / "data")
    try:
        with postgres:
            assert not postgres.cluster.is_relative_to(tmp_path)
            assert postgres.cluster.stat().st_uid == NOBODY
            cluster = postgres.cluster
            value(postgres.url, "CREATE TABLE t AS SELECT 3 AS n")
        with EmbeddedPostgres(tmp_path / "data") as again:
            assert again.cluster == cluster
            assert value(again.url, "SELECT n FROM t") == 3
    finally:
        postgres.destroy()
    assert not cluster.exists()


def test_a_cluster_of_another_user_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.cluster.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: server.cluster.stat().st_uid + 1)
    with pytest.raises(Invalid, match="belongs to uid"):
        server.start()
