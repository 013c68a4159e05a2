"""Why a run stopped and what its guards did, as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from harness_api.cli.narrate import Narrator
from harness_api.client import Event
from tests.fakes.harness_server import RUN, Answer, event, page, run_view
from tests.unit.test_cli import Done, harness, server

__all__ = ["Done", "harness", "server"]


def _serve(server: Any, run: dict[str, Any]) -> None:
    server.on(f"GET /v1/runs/{RUN}", Answer(body=run))
    for part in ("steps", "attempts", "artifacts"):
        server.on(f"GET /v1/runs/{RUN}/{part}", page())


def test_show_says_why_a_run_stopped_and_who_acts(server, harness):
    acting = {"name": "billing", "version": 3}
    _serve(server, run_view("failed", stop_reason="dead_loop", acting=acting, handoffs=2))
    out = harness("runs", "show", RUN).out
    assert "failed (dead_loop)" in out
    assert "stopped because" in out
    assert "the model went on with the same calls, to the same results" in out
    assert "handed to billing v3 (2 hand-offs)" in out


def test_show_says_nothing_of_a_stop_while_it_goes_on(server, harness):
    _serve(server, run_view("running"))
    out = harness("runs", "show", RUN).out
    assert "stopped because" not in out
    assert "handed to" not in out


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        (
            "guard.hinted",
            {"guard": "dead_loop", "rounds": 3, "tools": ["file_read"]},
            "dead loop after 3 rounds of file_read: the model is told",
        ),
        (
            "guard.hinted",
            {"guard": "budget", "budget": "cost_usd", "used": 0.8, "limit": 1.0},
            "cost usd nearly used up (0.8 of 1.0)",
        ),
        ("guard.hinted", {"guard": "give_up", "errors": ["TIMEOUT"]}, "asked to go on"),
        (
            "guard.stopped",
            {"guard": "ping_pong", "rounds": 6, "tools": ["a", "b"]},
            "ping pong: 6 rounds of a, b, so the run is ended",
        ),
        (
            "guard.blocked",
            {"call": "4.0", "tool": "look", "why": "REPEATED_CALL"},
            "look (4.0) is not run: it has failed twice in the same way",
        ),
        (
            "guardrail.blocked",
            {"rail": "pii", "where": "input", "why": "it holds personal data (email)"},
            "pii refuses the input: it holds personal data (email)",
        ),
        (
            "guardrail.rewrote",
            {"rail": "pii", "where": "output", "why": "x"},
            "rewrites the output",
        ),
        ("guardrail.asked_again", {"rail": "judge critic", "why": "rude"}, "asks for another"),
        ("run.handed_off", {"from": "a@1", "to": "b@2"}, "handed from a@1 to b@2"),
        ("run.condition_met", {"condition": "tool", "value": "submit"}, "met: tool submit"),
    ],
)
def test_what_guards_do_is_told_in_lines(kind: str, payload: dict[str, Any], text: str):
    assert text in Narrator().line(Event.model_validate(event(1, kind, 2, **payload)))
