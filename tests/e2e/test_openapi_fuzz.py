"""Schemathesis over the OpenAPI document for a while: whatever is sent, no answer is a 500."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness_common.crypto.keks import make_kek
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.mark.parametrize("seconds", [20, pytest.param(120, marks=pytest.mark.nightly)])
def test_no_request_makes_a_500(seconds):
    with Stack(workers=1, processes=1, HARNESS_SECRETS__KEK=make_kek("k1")) as stack:
        url = f"http://127.0.0.1:{stack.api_ports[0]}"
        with stack.client() as client:
            before = client.get("/v1/tenant").json()
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"),
                "run",
                f"{url}/openapi.json",
                "--header",
                f"Authorization: Bearer {stack.key}",
                "--checks",
                "not_a_server_error",
                "--phases",
                "examples,coverage,fuzzing",
                "--max-time",
                str(seconds),
                "--request-timeout",
                "70",  # a long-poll may wait for a minute
                "--exclude-path-regex",
                "/api-keys",  # it would revoke the key it uses
                "--warnings",
                "off",
                "--no-color",
            ],
            cwd=stack.folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        with stack.client() as client:
            assert client.get("/v1/tenant").json()["id"] == before["id"]
            assert client.get("/healthz").status_code == 200
