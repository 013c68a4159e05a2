"""PgBouncer in transaction mode, and a platform whose every process goes through it."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from harness_common.embedded.process import LOOPBACK, Account, end_process, free_port, spawn
from harness_common.logins import derive, user_and_password
from tests.deploy.debian import need
from tests.e2e.stack import Stack


class Bouncer:
    """A pooler in front of a Postgres; it knows the two logins that serve."""

    def __init__(self, folder: Path, owner_url: str, pool_size: int) -> None:
        self._program = need("pgbouncer", "pgbouncer")
        self._folder, self._owner_url, self._pool_size = folder, owner_url, pool_size
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, login: str) -> str:
        """Return the URL of a login through the pooler."""
        assert login in {"api", "system"}
        direct = derive(self._owner_url, login)  # type: ignore[arg-type]
        return direct.replace(f":{urlsplit(self._owner_url).port}/", f":{self.port}/")

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        to = urlsplit(self._owner_url)
        self._folder.mkdir(mode=0o755, exist_ok=True)
        users = [user_and_password(self.url(login)) for login in ("api", "system")]
        lines = "".join(f'"{user}" "{password}"\n' for user, password in users)
        (self._folder / "users.txt").write_text(lines)
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={to.hostname} port={to.port}\n"
            f"[pgbouncer]\nlisten_addr = {LOOPBACK}\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = scram-sha-256\n"
            f"auth_file = {self._folder / 'users.txt'}\npool_mode = transaction\n"
            f"default_pool_size = {self._pool_size}\nmax_client_conn = 500\n"
            "ignore_startup_parameters = options\n"
            # The logins are made after the first try: it asks again at once, not 15 s later.
            "server_login_retry = 1\n"
        )
        account = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            account = Account(nobody.pw_uid, nobody.pw_gid)
        with (self._folder / "bouncer.log").open("ab") as log:
            argv = [self._program, self._folder / "pgbouncer.ini"]
            self._process = spawn(argv, account=account, stdout=log)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                with psycopg.connect(self._any_url(), connect_timeout=2) as conn:
                    conn.execute("SELECT 1")
                    return
            except psycopg.OperationalError as error:
                # The logins are made after this: what counts is that it answers.
                if "password authentication" in str(error) or "role" in str(error):
                    return
                log = (self._folder / "bouncer.log").read_text()[-1000:]
                assert time.monotonic() < deadline, log
                time.sleep(0.1)

    def _any_url(self) -> str:
        return self.url("system")

    def stop(self) -> None:
        """End it at once: every connection through it breaks."""
        if self._process is not None:
            end_process(self._process, ())


class PooledStack(Stack):
    """A platform behind a pooler; only the migration speaks to Postgres itself."""

    pool_size = 6
    bouncer: Bouncer

    def _open(self) -> None:
        self.postgres.start()
        self.bouncer = Bouncer(self.folder / "bouncer", self.postgres.url, self.pool_size)
        self.bouncer.start()
        self._extra |= {
            "HARNESS_OWNER_DATABASE_URL": self.postgres.url,
            "HARNESS_DATABASE_URL": self.bouncer.url("api"),
            "HARNESS_SYSTEM_DATABASE_URL": self.bouncer.url("system"),
            "HARNESS_DATABASE__PREPARE_THRESHOLD": "off",
        }
        super()._open()

    def _close(self) -> None:
        super()._close()
        if hasattr(self, "bouncer"):
            self.bouncer.stop()
