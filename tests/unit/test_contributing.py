"""What CONTRIBUTING says of adding a tool, done to the letter."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = """
from harness_common.settings import Settings
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.validate import validate_arguments
import harness_worker.tools.registry as where
tool = ToolRegistry.from_settings(Settings()).get("word_count")
validate_arguments(tool.spec, {"text": "a b"})
print(where.__file__, tool.fn(None, text="a b  c"))
"""


def snippet(name: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- tool: {name} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_a_tool_is_one_file_and_one_registry_line(tmp_path):
    for package in ("harness_worker", "harness_common"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc"))
    tools = tmp_path / "harness_worker" / "tools"
    (tools / "word_count.py").write_text(snippet("file"), encoding="utf-8")
    registry = tools / "registry.py"
    text = registry.read_text(encoding="utf-8")
    text = text.replace("    write_report.build,\n", f"    write_report.build,\n{snippet('line')}")
    text = text.replace("    write_report,\n", "    word_count,\n    write_report,\n")
    registry.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 1)[1].strip() == "{'words': 3}"
    assert done.stdout.startswith(str(tmp_path))


def test_the_snippet_passes_the_linter(tmp_path):
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    file = tmp_path / "word_count.py"
    file.write_text(snippet("file"), encoding="utf-8")
    config = str(ROOT / "pyproject.toml")
    for command in (["check"], ["format", "--check"]):
        argv = [sys.executable, "-m", "ruff", *command, "--config", config, str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout
