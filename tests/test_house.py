"""The house itself: the rules of layout and purity that no other tool checks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness_common.core.rules import SUSPECT_DEATHS

ROOT = Path(__file__).parents[1]
CORE = sorted((ROOT / "harness_common" / "core").rglob("*.py"))
TARGETS = {
    *("help", "setup", "demo", "dev", "test", "check", "fmt", "bench"),
    *("sim", "chaos", "nightly", "migrate", "diagrams", "docs"),
}
# Put together here, so that this file does not hold what it looks for.
REGISTRIES = tuple("".join(p) for p in [("py", "pi."), ("pythonhosted", "."), ("npm", "js.")])


def tracked_files() -> list[Path]:
    """List what git would commit: tracked files, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [p for p in (ROOT / n for n in listed.stdout.split("\0") if n) if p.is_file()]


def core_violations(source: str) -> list[str]:
    """List what a core module does that depends on more than its arguments."""
    found = []
    clocks = {"now", "utcnow", "today", "fromtimestamp"}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(n.name == "uuid" for n in names):
                found.append("import uuid: import the type UUID only")
            case ast.ImportFrom(module="uuid", names=names):
                found += [f"uuid.{n.name}" for n in names if n.name != "UUID"]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=attr)):
                found += [f"datetime.{attr}"] if attr in clocks else []
            case ast.Call(func=ast.Name(id="open" | "print" | "input" as name)):
                found.append(f"{name}()")
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda p: p.name)
def test_core_is_pure(path: Path) -> None:
    assert core_violations(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import uuid",
        "from uuid import uuid4",
        "from datetime import datetime\ndatetime.now()",
        "open('x')",
    ],
)
def test_core_purity_check_sees_violations(source: str) -> None:
    assert core_violations(source)


@pytest.mark.parametrize(
    ("contract", "method"), [("models", "chat"), ("loops", "run_once")], ids=["models", "loops"]
)
def test_every_provider_and_loop_is_in_its_import_contract(contract: str, method: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = [c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == contract]
    named = set(re.findall(r"\w+", " ".join(found["layers"])))
    package = ROOT.joinpath(*found["containers"][0].split("."))
    having = {p.stem for p in package.glob("*.py") if f"async def {method}(" in p.read_text()}
    # `looper` holds the protocol of a loop, and is none.
    assert having - named - {"looper"} == set()


def test_make_help_lists_every_target_of_the_house() -> None:
    help_text = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    listed = set(re.findall(r"^  make (\w+) +\S", help_text, flags=re.MULTILINE))
    assert listed >= TARGETS


def test_no_file_names_a_package_registry() -> None:
    """A clone must work behind any mirror: where packages come from is the machine's business."""
    named = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if any(host in path.read_text(encoding="utf-8", errors="ignore") for host in REGISTRIES)
    ]
    assert named == []


def test_docs_states_page_is_what_the_code_says() -> None:
    check = subprocess.run(
        [sys.executable, "docs/diagrams.py", "--check"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr


def test_docs_adrs_have_their_four_parts() -> None:
    for page in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert headings == [
            "Context",
            "Decision",
            "Consequences",
            "What would change our mind",
        ], page.name


def test_the_sql_calls_suspect_what_the_rules_do():
    """A statement cannot import `SUSPECT_DEATHS`: the number stands in each that asks."""
    folder = ROOT / "harness_common" / "store" / "sql"
    found = {
        (path.name, number)
        for path in folder.glob("*.sql")
        for number in re.findall(r"\bdeaths (?:<|>=) (\d+)", path.read_text())
    }
    assert {name for name, _ in found} >= {"claim.sql", "suspects.sql", "worker_died.sql"}
    assert {number for _, number in found} == {str(SUSPECT_DEATHS)}


_STEPS_NEED_NOT = ("sqlalchemy", "fastapi", "flower", "alembic", "mcp")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("harness_worker.child", _STEPS_NEED_NOT),
        ("harness_worker.scheduler.admit", _STEPS_NEED_NOT),
        ("harness_api.app", ("mcp", "flower", "alembic", "duckdb", "matplotlib")),
    ],
)
def test_a_process_loads_no_library_that_it_may_not_need(module, heavy):
    """SQLAlchemy is 16 MB and a third of a second of a worker process, MCP 25 MB and a fifth of an
    API process's start.
    """
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "HARNESS_REDIS_URL": "redis://127.0.0.1:1/0"},
    )
    assert done.stdout.strip() == "[]"
