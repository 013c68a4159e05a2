"""The API as a process: how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from harness_common.embedded.process import free_port


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_ends_with_0(database_url, valkey, tmp_path, how):
    """A supervisor takes anything else for a failure: systemd restarts, Kubernetes counts it."""
    port = free_port()
    env = os.environ | {
        "HARNESS_DATABASE_URL": database_url,
        "HARNESS_REDIS_URL": valkey.url,
        "HARNESS_DATA_DIR": str(tmp_path),
        "HARNESS_API__PORT": str(port),
        "HARNESS_API__KEY_PEPPER": "p" * 32,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "harness_api"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        _wait(process, port)
        process.send_signal(how)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0, said
    finally:
        process.kill()


def _wait(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=1).raise_for_status()
        except httpx.TransportError:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return
