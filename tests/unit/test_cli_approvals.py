"""`harness approvals`: what people read, what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_api.cli.narrate import Narrator
from harness_api.client import Event
from tests.fakes.harness_server import AT, RUN, Answer, event, page, problem, run_view
from tests.unit.test_cli import Done, harness, server

__all__ = ["Done", "harness", "server"]

APPR = "appr_" + "6" * 32
ONE = f"/v1/approvals/{APPR}"
DIGEST = "5b" * 32


def view(status: str = "pending", **more: Any) -> dict[str, Any]:
    return {
        "id": APPR, "run_id": RUN, "call": "2.0", "agent": "a", "run_status": "waiting_approval",
        "tool": "pay", "tool_version": "1", "policy_version": "p", "effect": "write",
        "arguments": {"to": "ann\x1b", "amount": 3}, "digest": DIGEST,
        "preview": {"kind": "tool", "text": "Dear ann"}, "risk": "high", "rule": None,
        "reasons": ["it is much"], "provenance": {"step": 1, "message": 2, "tainted": True,
        "started_by": "key_1"}, "input_schema": {}, "approver_roles": ["approver", "admin"],
        "four_eyes": True, "status": status, "created_at": AT, "expires_at": AT,
        "decided_at": None, "decided_by": None, "reason": None, "used_at": None,
        "original_arguments": None, "original_digest": None, "edited_by": None, **more,
    }  # fmt: skip


def body_of(server: Any, route: str) -> Any:
    return server.requests(route)[-1].body


def test_the_list_shows_what_waits(server, harness):
    server.on("GET /v1/approvals", page(view()))
    done = harness("approvals", "list", "--run", RUN)
    assert done.code == 0
    assert APPR in done.out
    assert "\x1b" not in done.out
    query = server.requests("GET /v1/approvals")[-1].query
    assert (query["status"], query["run_id"]) == (["pending"], [RUN])
    harness("approvals", "list", "--status", "all")
    assert "status" not in server.requests("GET /v1/approvals")[-1].query
    server.on("GET /v1/approvals", page())
    assert "Nothing waits for approval." in harness("approvals", "list").out


def test_show_says_what_is_needed_to_decide(server, harness):
    server.on(f"GET {ONE}", Answer(body=view()))
    out = harness("approvals", "show", APPR).out
    for text in (
        "Dear ann", "it is much", "after reading content from outside", "approver or admin",
        "not by who started the run", DIGEST, '"amount": 3', f"approvals approve {APPR}",
    ):  # fmt: skip
        assert text in out
    assert "\x1b" not in out
    assert harness("approvals", "show", APPR, "--json").json["id"] == APPR


def test_approve_sends_the_digest_that_was_shown(server, harness, tmp_path):
    server.on(f"GET {ONE}", Answer(body=view()))
    server.on(f"POST {ONE}/approve", Answer(body=view("approved")))
    done = harness("approvals", "approve", APPR, "--yes", "--reason", "ok")
    assert (done.code, body_of(server, f"POST {ONE}/approve")) == (
        0, {"expected_digest": DIGEST, "reason": "ok"},
    ), done.err  # fmt: skip
    assert "Dear ann" in done.out
    assert f"{APPR} is approved" in done.out
    harness("approvals", "approve", APPR, "--yes", "--set", "amount=1", "--set", "note=for you")
    assert body_of(server, f"POST {ONE}/approve")["arguments"] == {
        "to": "ann\x1b", "amount": 1, "note": "for you",
    }  # fmt: skip
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"to": "bob"}))
    harness("approvals", "approve", APPR, "--edit", str(file), "--digest", "0" * 64, "--json")
    sent = body_of(server, f"POST {ONE}/approve")
    assert sent == {"expected_digest": "0" * 64, "arguments": {"to": "bob"}}


@pytest.mark.parametrize(
    "more", [(), ("--json",), ("--set", "a=1", "--edit", "x"), ("--yes", "--set", "nothing")]
)
def test_nothing_is_approved_without_a_person_or_a_digest(server, harness, more):
    server.on(f"GET {ONE}", Answer(body=view()))
    done = harness("approvals", "approve", APPR, *more)
    assert done.code == 2
    assert not server.requests(f"POST {ONE}/approve")


def test_a_mismatch_is_told(server, harness):
    server.on(f"GET {ONE}", Answer(body=view()))
    server.on(f"POST {ONE}/approve", problem(409, "DIGEST_MISMATCH", "not those", digest="1" * 64))
    done = harness("approvals", "approve", APPR, "--yes")
    assert (done.code, "DIGEST_MISMATCH" in done.err) == (1, True)


def test_deny_sends_the_reason(server, harness):
    server.on(f"POST {ONE}/deny", Answer(body=view("denied")))
    done = harness("approvals", "deny", APPR, "--reason", "no")
    assert (done.code, body_of(server, f"POST {ONE}/deny")) == (0, {"reason": "no"})
    assert harness("approvals", "deny", APPR).code == 2


def test_a_run_says_how_to_answer(server, harness):
    call = {
        "call": "2.0", "kind": "approval", "index": 0, "until": AT, "approval": APPR,
        "tool": "pay", "risk": "high", "reasons": ["it is much"], "digest": DIGEST,
    }  # fmt: skip
    waiting = {"for": "approval", "calls": [call]}
    server.on(f"GET /v1/runs/{RUN}", Answer(body=run_view("waiting_approval", waiting=waiting)))
    for route in ("steps", "attempts", "artifacts"):
        server.on(f"GET /v1/runs/{RUN}/{route}", page())
    out = harness("runs", "show", RUN).out
    assert "approval of pay (2.0)" in out
    assert "It needs approval (2.0): pay, it is much" in out
    assert f"harness approvals approve|deny {APPR}" in out


@pytest.mark.parametrize(
    ("type_", "payload", "words"),
    [
        ("approval.requested", {"approval": APPR, "tool": "pay", "call": "2.0", "until": AT,
                                "reasons": ["much"]}, (APPR, "pay (2.0): much", AT)),
        ("approval.decided", {"by": "key_1", "verdict": "approved", "tool": "pay", "call": "2.0",
                              "edited": True}, ("key_1 has approved pay", "changed arguments")),
        ("approval.expired", {"tool": "pay", "call": "2.0"}, ("nobody decided about pay",)),
        ("run.waiting", {"for": "approval", "calls": [{"kind": "approval", "tool": "pay"}]},
         ("a person to approve pay",)),
    ],
)  # fmt: skip
def test_what_happened_is_told(type_, payload, words):
    line = Narrator().line(Event.model_validate(event(1, type_, 2, **payload)))
    for text in words:
        assert text in line
