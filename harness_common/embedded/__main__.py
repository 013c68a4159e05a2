"""Run Postgres and Valkey in the foreground: `python -m harness_common.embedded --data-dir D`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness_common.core.errors import HarnessError
from harness_common.embedded import EmbeddedPostgres, EmbeddedValkey


def main(argv: Sequence[str] | None = None) -> int:
    """Run both servers until SIGINT or SIGTERM; return 1 when one of them ends by itself."""
    parser = argparse.ArgumentParser(
        prog="python -m harness_common.embedded",
        description="Run Postgres and Valkey in the foreground.",
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--postgres-port", type=int)
    parser.add_argument("--valkey-port", type=int)
    options = parser.parse_args(argv)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)
    try:
        with (
            EmbeddedPostgres(options.data_dir, options.postgres_port) as postgres,
            EmbeddedValkey(options.data_dir, options.valkey_port) as valkey,
        ):
            sys.stdout.write(
                f"HARNESS_DATABASE_URL={postgres.url}\nHARNESS_REDIS_URL={valkey.url}\n"
            )
            sys.stdout.flush()
            while postgres.pid and valkey.pid:
                time.sleep(0.2)
            sys.stdout.write("A server ended by itself; see the logs in the data folder.\n")
            return 1
    except KeyboardInterrupt:
        return 0
    except HarnessError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
