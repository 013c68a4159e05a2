"""Servers from Debian's packages, for the nightly tests: installed when missing, or skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PLACES = "/usr/sbin:/usr/bin:/usr/lib/rabbitmq/bin:/usr/local/bin"
_NO_START = Path("/usr/sbin/policy-rc.d")
"""Debian's way of saying that a package must not start its service at once."""


def need(program: str, package: str) -> Path:
    """Return the path of a program, installing its package if we may; skips the test otherwise."""
    found = shutil.which(program, path=_PLACES)
    if found is None:
        _install(package)
        found = shutil.which(program, path=_PLACES)
    if found is None:
        pytest.skip(f"{program} is not there, and apt-get could not install {package}")
    return Path(found)


def _install(package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"{package} is not installed, and only root on Debian can install it")
    ours = not _NO_START.exists()
    if ours:
        _NO_START.write_text("#!/bin/sh\nexit 101\n")
        _NO_START.chmod(0o755)
    try:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for argv in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "-qq", *argv], env=env, capture_output=True, check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{package} could not be installed: {error.stderr.decode().strip()[-200:]}")
    finally:
        if ours:
            _NO_START.unlink(missing_ok=True)
