"""The escape list: nothing gets out of either tier, and the same list without a cage does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness_common.contracts.sandbox import CageJob, SandboxTier
from harness_worker.sandbox import bubblewrap
from harness_worker.sandbox.attempts import ATTEMPTS
from harness_worker.sandbox.layout import shown_in_cage
from harness_worker.sandbox.probe import read_lines, try_tier, victims
from tests.sandbox.conftest import TIERS

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tier", TIERS)
async def test_no_escape_from_a_cage(sandbox, tier):
    async with victims() as env:
        tried = await try_tier(sandbox, tier, env)
    assert tried.failure == ""
    assert dict(tried.escaped) == {}
    assert len(tried.blocked) == len(ATTEMPTS) >= 42


def test_escape_list_without_a_cage_gets_out():
    """The control: a throw-away world with every power over itself, no filter, no Landlock."""
    tried = uncaged()
    assert tried.failure == ""
    assert len(tried.escaped) > 20, sorted(tried.escaped)


@pytest.mark.parametrize("tier", TIERS)
async def test_escape_by_destroying_things_does_nothing_outside(sandbox, tier, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for script in ("rm -rf --no-preserve-root / /usr/bin", "dd if=/dev/zero of=/dev/sda count=1"):
        result = await sandbox.run_in(tier, CageJob("shell", script))
        assert (result.exit_code, result.blocked is None) == (127, False), (script, result)
    assert kept.read_text() == "kept"
    assert Path("/usr/bin/env").exists()
    assert not Path("/dev/sda").exists()


def uncaged():
    """Run the list in namespaces of its own over a tmpfs, as a user that owns nothing here."""
    bwrap = bubblewrap.find(None)
    assert bwrap.path is not None
    argv = [bwrap.path, "--unshare-all", "--die-with-parent", "--uid", "0", "--gid", "0"]
    argv += ["--cap-add", "ALL", "--clearenv", "--hostname", "control"]
    for path in ("/usr", "/lib", "/lib64", "/bin", "/sbin"):
        if Path(path).is_symlink():
            argv += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            argv += ["--ro-bind", path, path]
    if not sys.base_prefix.startswith("/usr"):
        argv += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    for package in ("harness_worker", "tests"):
        argv += ["--ro-bind", str(ROOT / package), f"/code/{package}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--dir", "/etc", "--tmpfs", "/var/tmp"]
    argv += ["--tmpfs", "/work", "--tmpfs", "/tmp", "--chdir", "/work"]
    python = str(Path(sys.base_prefix, "bin", "python3"))
    start = (
        "import sys; sys.path.insert(0, '/code'); from tests.sandbox.control import main; main()"
    )
    argv += ["--", python, "-I", "-c", start]
    enter = [sys.executable, "-m", "tests.sandbox.control_enter", json.dumps(bwrap.folders), *argv]
    done = subprocess.run(enter, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    return read_lines(done.stdout, done.stderr)


async def test_an_escape_is_noticed_by_the_self_test(sandbox):
    """The self-test must be able to fail: a victim file that the cage may read is one."""
    async with victims() as env:
        tried = await try_tier(
            sandbox,
            SandboxTier.A,
            {**env, "HX_SECRET": shown_in_cage(f"{sys.prefix}/pyvenv.cfg")},
        )
    assert "read_host_secret" in tried.escaped
    assert "got out" in tried.why_not


def test_every_attempt_is_named_once():
    assert len(ATTEMPTS) == len(set(ATTEMPTS))
    assert json.dumps(sorted(ATTEMPTS))
