"""The tiers as an ordinary user has them: no other users, no cgroup, no private mounts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness_worker.sandbox import landlock
from tests.sandbox.conftest import TIERS
from tests.sandbox.ordinary import BOMBS


def test_no_escape_and_no_bomb_as_an_ordinary_user():
    done = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.ordinary"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["uid"] != 0
    assert told["left"] == 0
    for tier in TIERS:
        if tier == "B" and landlock.version() < landlock.SIGNALS_SCOPED:
            continue  # refused beforehand there: see `probe`
        assert told[f"{tier} why not"] == ""
        assert {name: told[f"{tier} {name}"] for name in BOMBS} == {name: name for name in BOMBS}
