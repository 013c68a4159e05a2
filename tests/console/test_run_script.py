"""The script of a run's page, played by Node against the little of a browser that it touches."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.node_servers import NODE

SCRIPT = Path(__file__).parents[2] / "harness_api" / "console" / "static" / "run.js"
BROWSER = """
const area = { textContent: "" }, heard = {};
const place = { dataset: { runLive: "/live" } };
globalThis.document = {
  visibilityState: "visible", body: { addEventListener() {}, dispatchEvent() {} },
  querySelector: () => place, getElementById: (id) => (id === "tokens" ? area : null),
  addEventListener() {},
};
globalThis.EventSource = class {
  addEventListener(name, handle) { heard[name] = handle; }
  close() {}
};
"""


def shown(deltas: list[dict[str, Any]]) -> list[str]:
    """Return what stands on the page after each of them."""
    play = (
        f"const out = []; for (const one of {json.dumps(deltas)})"
        " { heard.delta({ data: JSON.stringify(one) }); out.push(area.textContent); }"
        " console.log(JSON.stringify(out));"
    )
    text = BROWSER + SCRIPT.read_text() + play
    done = subprocess.run(
        [NODE, "-"], input=text, capture_output=True, text=True, timeout=60, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def told(*pieces: str, at: int | None = 0, step: int = 1) -> list[dict[str, Any]]:
    """Make deltas of an answer as the server does: places count characters."""
    out: list[dict[str, Any]] = []
    for piece in pieces:
        out.append({"step": step, "text": piece} | ({} if at is None else {"at": at}))
        at = None if at is None else at + len(piece)
    return out


@pytest.mark.parametrize("at", [0, None])
def test_an_answer_grows_whatever_signs_it_has(at):
    pieces = ["Fine \U0001f600", " and \U0001f9d1\u200d\U0001f680", " done."]
    assert shown(told(*pieces, at=at))[-1] == "".join(pieces)


def test_what_is_told_again_stands_once():
    assert shown([*told("one ", "two "), *told("two ", "three", at=4)])[-1] == "one two three"


def test_what_began_before_says_so_and_goes_on():
    assert shown(told("a", "b", "c", at=1)) == ["… a", "… ab", "… abc"]


def test_another_try_and_another_step_begin_anew():
    assert shown([*told("one"), *told("two")])[-1] == "two"
    assert shown([*told("one"), *told("two", step=2)])[-1] == "two"
