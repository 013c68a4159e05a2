"""The examples of pages that promise to be run: each prints what its comments say."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from types import CodeType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("notebooks.md", "ends.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SAYS = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)

EXAMPLES = [
    pytest.param(page, number, id=f"{page}-{number}")
    for page in PAGES
    for number, _ in enumerate(_BLOCK.findall((DOCS / page).read_text()))
]


def compiled(source: str, name: str) -> CodeType:
    """Compile as a notebook does: `await` may stand outside a function."""
    code: CodeType = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
async def test_an_example_does_what_it_says(page, number, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = _BLOCK.findall((DOCS / page).read_text())[number]
    says = _SAYS.findall(source)
    assert says, "an example says what it prints"
    names = {"asyncio": asyncio, "__name__": "example"}
    async with asyncio.timeout(30):
        coroutine = eval(compiled(source, f"{page}:{number}"), names)
        if coroutine is not None:
            await coroutine
    lines = [line for line in capsys.readouterr().out.splitlines() if "[info" not in line]
    assert lines == says
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_the_first_example_is_short():
    first = _BLOCK.findall((DOCS / "notebooks.md").read_text())[0]
    lines = [line for line in first.splitlines() if line.strip()]
    assert len(lines) <= 15
