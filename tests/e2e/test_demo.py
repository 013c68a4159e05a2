"""The demo as a newcomer runs it, and its script against the real tools."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.analyst.agent import BY_ORIGIN, BY_YEAR, COLUMNS, ROWS, agent, script
from examples.analyst.prepare import prepare
from harness_common.settings import Settings, ToolSettings
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.validate import validate_arguments
from tests.fakes.tool_context import acall

ROOT = Path(__file__).parents[2]
CHECKS = (
    "the run succeeded",
    "it took 6 steps or more and 2 queries or more",
    "a worker was killed during a step, and another ended that step",
    "no step was committed twice",
    "each step was reported complete once",
    "events have no gap, and the stream showed each once",
    "the line was written once (by the file outside the database)",
    "the report was written once",
    "the chart is a PNG and the report refers to it",
    "the same request again started no second run",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that the account of Postgres can pass through."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="harness-demo-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def tools(tmp_path: Path) -> ToolRegistry:
    prepare(tmp_path / "data")
    return ToolRegistry.from_settings(
        Settings(tool=ToolSettings(sql_sources=tmp_path / "data", file_root=tmp_path))
    )


@pytest.mark.e2e
@pytest.mark.timeout(200)  # it takes 30 s on two idle cores, and tests run side by side
def test_demo_survives_a_killed_worker_and_proves_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HARNESS_OPENAI_BASE_URL", "HARNESS_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-m", "examples.analyst.demo", "--no-flower"]
    demo = subprocess.Popen(
        [*command, "--data-dir", str(folder / "demo")],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = demo.communicate(timeout=160)
    except BaseException:
        demo.terminate()  # it stops its stack
        demo.communicate(timeout=30)
        raise
    assert demo.returncode == 0, output
    assert "scripted model: answers are declared in advance; tools and data are real" in output
    assert [f"PASS  {check}  " in output for check in CHECKS] == [True] * len(CHECKS), output
    assert "FAIL" not in output
    assert "during step 9" in output
    assert {p.suffix for p in (folder / "demo" / "out").iterdir()} == {".md", ".png"}


def test_every_tool_call_of_the_script_is_one_the_tools_take(tools: ToolRegistry) -> None:
    async def play() -> None:
        for answer in script():
            for asked in answer.get("tools", ()):
                tool = tools.get(asked["name"])
                validate_arguments(tool.spec, asked["input"])
                await acall(tool, None, **asked["input"])

    asyncio.run(play())
    assert set(agent()["spec"]["tools"]) <= set(tools.names())


def test_what_the_script_declares_is_what_the_data_say(tools: ToolRegistry) -> None:
    query = tools.get("sql_query")
    by_year = asyncio.run(acall(query, None, sql=BY_YEAR))
    by_origin = asyncio.run(acall(query, None, sql=BY_ORIGIN))
    assert (tuple(by_year["columns"]), [tuple(r) for r in by_year["rows"]]) == (COLUMNS, list(ROWS))
    assert [row[0] for row in by_origin["rows"]] == ["Japan", "Europe", "USA"]
    assert sum(row[1] for row in by_origin["rows"]) == 406 - 8
    gains = {c: ROWS[-1][i] / ROWS[0][i] for i, c in enumerate(COLUMNS) if i}
    assert max(gains, key=lambda c: gains[c]) == "usa"
    assert min(COLUMNS[1:4], key=lambda c: ROWS[0][COLUMNS.index(c)]) == "usa"


def test_another_model_brings_no_script() -> None:
    spec = agent("openai/some-model")["spec"]
    assert (spec["model"], "model_options" in spec) == ("openai/some-model", False)
