"""`harness dev`: the whole platform with one command, and nothing to install besides.

Starts Postgres and Valkey of its own unless `HARNESS_DATABASE_URL` and `HARNESS_REDIS_URL` name
others, prepares the database, and supervises API, scheduler, worker and Flower. It imports none of
them: each is `python -m …`. `<data_dir>/dev.json` tells other commands where everything is.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from harness_api.cli import demo_agent
from harness_api.cli.dev_file import DEFAULT_DATA_DIR, read_dev_file
from harness_api.cli.process_log import ProcessLog
from harness_api.cli.supervise import Outcome, ProcessSpec, Supervisor, run_to_end
from harness_common.core.errors import Conflict, HarnessError, Permanent
from harness_common.crypto.keks import KEK_FILE, make_kek
from harness_common.embedded import EmbeddedPostgres, EmbeddedValkey
from harness_common.embedded.files import make_data_dir, write_private
from harness_common.embedded.lock import FolderLock
from harness_common.embedded.process import LOOPBACK, port_holder, port_is_free
from harness_common.logins import Login, derive, login_of
from harness_common.settings import Settings

__all__ = ["DevOptions", "Plan", "default_plan", "read_dev_file", "run_dev"]

NEXT_COMMAND = f'harness runs submit {demo_agent.NAME} "{demo_agent.QUESTION}" --follow'


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What `harness dev` may be told."""

    data_dir: Path = DEFAULT_DATA_DIR
    database_url: str | None = None
    """None starts an embedded Postgres."""
    redis_url: str | None = None
    """None starts an embedded Valkey."""
    api_host: str = LOOPBACK
    api_port: int = 8700
    flower_port: int | None = 5555
    """None starts no Flower."""
    processes: int = 2
    """Worker processes."""
    worker_grace_s: float = 10.0
    start_timeout_s: float = 180.0
    """The first start compiles everything; a process that ends is seen sooner."""
    tools: Sequence[str] = ()
    """Modules with user tools; empty leaves it to the environment."""
    has_kek: bool = False
    """The settings name the key-encryption keys; otherwise the data folder gets one."""
    demo_model: str | None = None
    """The model of the agent `demo`, made at first start; None makes none."""

    @classmethod
    def from_settings(
        cls,
        config: Settings,
        *,
        flower_port: int | None = 5555,
        processes: int | None = None,
        tools: Sequence[str] = (),
    ) -> Self:
        """Take everything else from the settings."""
        return cls(
            data_dir=config.data_dir,
            database_url=config.database_url,
            redis_url=config.redis_url,
            api_host=config.api.host,
            api_port=config.api.port,
            flower_port=flower_port,
            processes=processes or config.worker.processes,
            worker_grace_s=config.worker.grace_s,
            tools=tuple(tools),
            has_kek=config.secrets.kek is not None or config.secrets.kek_file is not None,
            demo_model=config.model.default_model,
        )

    def env(self, data_dir: Path) -> dict[str, str]:
        """Return what all processes are told, but for the databases."""
        told = {
            "HARNESS_DATA_DIR": str(data_dir),
            "HARNESS_API__HOST": self.api_host,
            "HARNESS_API__PORT": str(self.api_port),
        }
        if "HARNESS_MCP__COMMANDS" not in os.environ:
            told["HARNESS_MCP__COMMANDS"] = '["*"]'  # one's own machine
        if self.tools:
            told["HARNESS_WORKER__TOOLS"] = json.dumps(list(self.tools))
        return told

    @property
    def api_url(self) -> str:
        """Where this machine reaches the API."""
        host = LOOPBACK if self.api_host in {"0.0.0.0", "::", ""} else self.api_host  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.api_port}"

    @property
    def flower_url(self) -> str | None:
        """Where people find Flower, if it is wanted: behind the login of the API."""
        return None if self.flower_port is None else f"{self.api_url}/flower/"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: first `setup` one by one to its end, then `processes` side by side."""

    setup: Sequence[ProcessSpec] = field(default_factory=tuple)
    processes: Sequence[ProcessSpec] = field(default_factory=tuple)


def default_plan(options: DevOptions, data_dir: Path, env: Mapping[str, str]) -> Plan:
    """Return the processes of the platform; all of them get `env`."""

    def module(
        name: str, *argv: str, label: str = "", login: Login = "system", **more: Any
    ) -> ProcessSpec:
        more = {"env": _with_login(env, login), **more}
        return ProcessSpec(label or name, (sys.executable, "-m", name, *argv), **more)

    flower = {} if options.flower_port is None else _flower_env(options.flower_port, data_dir)
    processes = [
        module("harness_api", label="api", env={**_with_login(env, "api"), **flower}),
        module("harness_worker.scheduler", label="scheduler"),
        module(
            *("harness_worker", "--processes", str(options.processes)),
            label="worker",
            stop_grace_s=options.worker_grace_s + 5,
        ),
    ]
    if options.flower_port is not None:
        processes.append(
            module(
                "harness_common.flower",
                label="flower",
                env={**_with_login(env, "system"), **flower},
                stop_grace_s=3,
                required=False,
            )
        )
    return Plan(
        setup=[
            module("harness_common.store.migrate", label="migrate", login="owner"),
            module("harness_common.store.bootstrap", label="bootstrap"),
        ],
        processes=processes,
    )


def _with_login(env: Mapping[str, str], login: Login) -> Mapping[str, str]:
    """Give a process the database login that it needs, and not the owner's."""
    url = env.get("HARNESS_DATABASE_URL")
    if url is None or login_of(url) != "owner":
        return env
    return {**env, "HARNESS_DATABASE_URL": derive(url, login)}


def run_dev(options: DevOptions, make_plan: Callable[..., Plan] = default_plan) -> int:
    """Run until Ctrl-C or SIGTERM (0), or until it cannot go on (1). Call it in the main thread."""
    data_dir = make_data_dir(options.data_dir)
    lock = FolderLock(
        data_dir / "dev.lock", "harness dev", ((0, signal.SIGTERM), (8, signal.SIGKILL))
    )
    dev = _Dev(options, data_dir, lock)
    try:
        lock.acquire()
    except Conflict as error:
        print(_already_running(data_dir, error), file=sys.stderr)
        return 1
    try:
        with dev.signals():
            return dev.run(make_plan)
    finally:
        lock.release()


class _Dev:
    """One life of `harness dev`, holding its lock."""

    def __init__(self, options: DevOptions, data_dir: Path, lock: FolderLock) -> None:
        self._options = options
        self._data_dir = data_dir
        self._lock = lock
        self._dev_file = data_dir / "dev.json"
        self._log = ProcessLog(data_dir / "logs")
        self._servers: list[EmbeddedPostgres | EmbeddedValkey] = []
        self._supervisor: Supervisor | None = None
        self._ready = False
        self._interrupted = False

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt, the next into haste."""

        def on_signal(_signum: int, _frame: FrameType | None) -> None:
            if self._interrupted:
                if self._supervisor:
                    self._supervisor.hurry()
                return
            self._interrupted = True
            raise KeyboardInterrupt

        before = {
            signum: signal.getsignal(signum)
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        if before[signal.SIGHUP] == signal.SIG_IGN:  # under nohup
            del before[signal.SIGHUP]
        for signum in before:
            signal.signal(signum, on_signal)
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def run(self, make_plan: Callable[..., Plan]) -> int:
        """Start all, keep it up and stop it; return the exit code."""
        self._dev_file.unlink(missing_ok=True)  # of a start that ended by kill -9
        try:
            self._check_ports()
            plan = make_plan(self._options, self._data_dir, self._start_servers())
            self._set_up(plan)
            return self._supervise(plan)
        except KeyboardInterrupt:
            return 0
        except HarnessError as error:
            self._say(error.message)
            return 1
        finally:
            self._interrupted = True  # from here on signals only make it faster
            self._stop()

    def _check_ports(self) -> None:
        options = self._options
        _require_port(options.api_host, options.api_port, "the API", "HARNESS_API__PORT=<port>")
        if options.flower_port is not None:
            advice = "--flower-port <port> or --no-flower"
            _require_port(LOOPBACK, options.flower_port, "Flower", advice)

    def _start_servers(self) -> dict[str, str]:
        """Start what is missing and return the environment of all processes."""
        env = self._options.env(self._data_dir)
        self._make_kek()
        urls = {
            "HARNESS_DATABASE_URL": (self._options.database_url, EmbeddedPostgres),
            "HARNESS_REDIS_URL": (self._options.redis_url, EmbeddedValkey),
        }
        for name, (url, server_class) in urls.items():
            if url is None:
                server = server_class(self._data_dir)
                self._servers.append(server)
                server.start()
                self._say(f"{server.title} listens on port {server.port}")
                url = server.url  # noqa: PLW2901
            env[name] = url
        return env

    def _make_kek(self) -> None:
        """Make the key-encryption key of this data folder, unless the settings name another."""
        path = self._data_dir / KEK_FILE
        if path.exists() or self._options.has_kek:
            return
        # A name of its own: after the loss of the file, errors name the key that is missing.
        write_private(path, make_kek(f"dev-{secrets.token_hex(3)}") + "\n")
        self._say(
            f"made the key that secrets are encrypted with: {_shown(path)}. Keep a copy: without "
            "it they cannot be read"
        )

    def _set_up(self, plan: Plan) -> None:
        for spec in plan.setup:
            code, last_lines = run_to_end(spec, self._log, pass_fds=[self._lock.fd])
            if code != 0:
                raise Permanent(
                    f"{spec.name} failed with code {code}. Its last lines:\n    "
                    + "\n    ".join(last_lines or ["(it wrote nothing)"])
                )

    def _supervise(self, plan: Plan) -> int:
        supervisor = self._supervisor = Supervisor(
            plan.processes,
            self._log,
            pass_fds=[self._lock.fd],
            on_change=self._note,
            on_tick=self._revive_servers,
        )
        supervisor.start()
        outcome = supervisor.run(until=self._api_answers, timeout_s=self._options.start_timeout_s)
        if outcome is Outcome.TIMED_OUT:
            raise Permanent(
                f"The API did not answer on {self._options.api_url}/healthz within "
                f"{self._options.start_timeout_s:.0f} s. See {self._data_dir / 'logs' / 'api.log'}."
            )
        if outcome is Outcome.REACHED:
            self._make_demo_agent()
            self._ready = True
            self._note(supervisor.pids)
            self._log.banner(self._banner())
            outcome = supervisor.run()
        self._say("a process that is needed gave up: stopping everything")
        return 1

    def _make_demo_agent(self) -> None:
        model, key_file = self._options.demo_model, self._data_dir / "admin.key"
        if model is None:
            return
        if why := demo_agent.ensure(self._options.api_url, key_file, model):
            self._say(f"the agent {demo_agent.NAME!r} could not be made: {why}")

    def _api_answers(self) -> bool:
        address = self._options.api_url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=1)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _revive_servers(self) -> None:
        for server in self._servers:
            if server.pid is None:
                self._say(f"{server.title} ended by itself: starting it again")
                server.start()

    def _note(self, pids: Mapping[str, int]) -> None:
        """Write dev.json for other commands, and the pids for whoever finds the lock held."""
        self._lock.note(*pids.values())
        servers = {server.name: server for server in self._servers}
        found = {
            "pid": os.getpid(),
            "ready": self._ready,
            "api_url": self._options.api_url,
            "flower_url": self._options.flower_url,
            "admin_key_file": str(self._data_dir / "admin.key"),
            # Only our own: the secrets of other servers are not ours to write down.
            "embedded_urls": {name: server.url for name, server in servers.items()},
            "ports": {
                "api": self._options.api_port,
                "flower": self._options.flower_port,
                **{name: server.port for name, server in servers.items()},
            },
            "pids": {**pids, **{name: server.pid for name, server in servers.items()}},
        }
        write_private(self._dev_file, json.dumps(found, indent=2) + "\n")

    def _banner(self) -> str:
        rows = {
            "API": f"{self._options.api_url}  (docs: {self._options.api_url}/docs)",
            "Console": f"{self._options.api_url}/console  (log in with the admin key)",
            "Flower": self._options.flower_url,
            "Admin key": _shown(self._data_dir / "admin.key"),
            "Logs": f"{_shown(self._data_dir / 'logs')}/",
            "Try": NEXT_COMMAND,
            "Stop": "Ctrl-C",
        }
        if self._data_dir != DEFAULT_DATA_DIR.resolve():
            rows["Try"] = f"HARNESS_DATA_DIR={_shown(self._data_dir)} {NEXT_COMMAND}"
        if shutil.which("harness") is None:
            command = _shown(Path(sys.executable).with_name("harness"))
            rows["Try"] = str(rows["Try"]).replace("harness runs", f"{command} runs")
        lines = [f"  {name:<10} {text}" for name, text in rows.items() if text]
        return "\n".join(["", "Harness is running.", "", *lines, "", ""])

    def _stop(self) -> None:
        if self._supervisor:
            self._say("stopping")
            self._supervisor.stop()
        for server in reversed(self._servers):
            server.stop()
        self._dev_file.unlink(missing_ok=True)
        if self._supervisor:
            self._say("stopped")
        self._log.close()

    def _say(self, text: str) -> None:
        for line in text.splitlines():
            self._log.write("dev", line)


def _require_port(host: str, port: int, what: str, advice: str) -> None:
    if not port_is_free(port, host):
        raise Conflict(
            f"Port {port} for {what} is taken by {port_holder(port)}. Stop that, or set {advice}.",
            code="PORT_TAKEN",
            port=port,
        )


def _already_running(data_dir: Path, error: Conflict) -> str:
    found = read_dev_file(data_dir) or {}
    pid = found.get("pid") or error.detail.get("pid")
    where = f" on {found['api_url']}" if "api_url" in found else ""
    return (
        f"harness dev is already running in {_shown(data_dir)}: process {pid}{where}. "
        f"Stop it with `kill {pid}`, or use another HARNESS_DATA_DIR and HARNESS_API__PORT."
    )


def _flower_env(port: int, data_dir: Path) -> dict[str, str]:
    """Return what Flower and the API are told of each other; the password keeps other accounts of
    this machine out, and stays the same over starts.
    """
    path = data_dir / "flower.secret"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(48))
    return {
        "HARNESS_FLOWER_URL": f"http://{LOOPBACK}:{port}",
        "HARNESS_FLOWER__HOST": LOOPBACK,
        "HARNESS_FLOWER__PORT": str(port),
        "HARNESS_FLOWER__PASSWORD": path.read_text(encoding="utf-8"),
    }


def _shown(path: Path) -> str:
    """Return a path as short as the reader can use it."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
