"""The command line for policy: what is sent, and what people read."""

from __future__ import annotations

import json

from tests.fakes.harness_server import AT, RUN, Answer, page, problem
from tests.unit.test_cli import Done, harness, server

__all__ = ["Done", "harness", "server"]


def version(number, source, **more):
    return {
        "agent": None, "version": number, "source": source, "rules": {"rules": [{}]},
        "digest": "d" * 64, "created_at": AT, "created_by": "key_1", **more,
    }  # fmt: skip


LOOKS = [
    {"layer": "hard", "rule": "role", "matched": False, "why": "the role may"},
    {"layer": "tenant", "rule": "small", "matched": True, "why": "no\x1b money"},
]
DECISION = {
    "verdict": "ask", "rule": "tenant.small", "reasons": ["no money"], "version": "tenant@1",
    "risk": "low", "approvers": ["admin"], "four_eyes": True, "expires_s": 60.0,
    "facts": {"tool": "pay", "role": "admin", "outbound": False, "marks": []},
    "facts_digest": "f", "looks": LOOKS,
}  # fmt: skip
CALL = {"run_id": RUN, "call": "2.0", "tool": "pay", "arguments": {"usd": 7}, "status": "rejected"}


def test_set(server, harness, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("taint: deny\n")
    server.on("POST /v1/policies", Answer(status=201, body=version(3, "", agent="a")))
    done = harness("policy", "set", str(file), "--agent", "a")
    assert "agent a is at version 3" in done.out
    assert server.seen[-1].body == {"source": "taint: deny\n", "agent": "a"}
    assert json.loads(harness("policy", "set", str(file), "--json").out)["version"] == 3
    assert harness("policy", "set", str(tmp_path / "none.yaml")).code == 2


def test_mistakes_are_shown_each_with_its_pointer(server, harness, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("rules: 3")
    errors = [{"field": f"/rules/{i}", "message": f"/rules/{i} is wrong"} for i in range(2)]
    server.on("POST /v1/policies", problem(422, "POLICY_INVALID", "refused", errors=errors))
    done = harness("policy", "set", str(file))
    assert done.code == 1
    assert "/rules/0 is wrong" in done.err
    assert "/rules/1 is wrong" in done.err


def test_show_and_versions_and_diff(server, harness):
    old, new = version(1, "taint: ask\n"), version(2, "taint: deny\n")
    server.on("GET /v1/policies", Answer(body=new))
    server.on("GET /v1/policies/versions/1", Answer(body=old))
    server.on("GET /v1/policies/versions", page(new, old))
    assert "taint: deny" in harness("policy", "show").out
    assert "taint: ask" in harness("policy", "show", "--version", "1").out
    assert "key_1" in harness("policy", "versions").out
    shown = harness("policy", "diff").out
    assert "-taint: ask" in shown
    assert "+taint: deny" in shown
    assert json.loads(harness("policy", "diff", "--json").out)["old"] == 1
    server.on("GET /v1/policies", Answer(body=version(0, "", created_at=None, created_by="")))
    assert "No policy was set" in harness("policy", "show", "--agent", "a").out


def test_test(server, harness, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("rules: []")
    server.on("POST /v1/policies/test", Answer(body=DECISION))
    done = harness(
        "policy", "test", "pay", "--effect", "write", "--tag", "x", "--tag", "y", "--tainted",
        "--arguments", '{"usd": 7}', "--file", str(file),
    )  # fmt: skip
    body = server.seen[-1].body
    assert (body["tool"]["name"], body["tool"]["permission_tags"]) == ("pay", ["x", "y"])
    assert (body["tainted"], body["arguments"], body["source"]) == (True, {"usd": 7}, "rules: []")
    assert "agent" not in body
    assert "ASK" in done.out
    assert "four eyes   yes" in done.out
    assert "=>  tenant  small" in done.out
    assert "\x1b" not in done.out
    assert harness("policy", "test", "pay", "--arguments", "[1]").code == 2


def test_explain(server, harness):
    path = f"GET /v1/runs/{RUN}/calls/2.0/policy"
    server.on(path, Answer(body=DECISION | CALL | {"error_type": "E", "same": True}))
    done = harness("policy", "explain", RUN, "2.0")
    assert "rejected (E)" in done.out
    assert "tenant.small" in done.out
    assert "otherwise" not in done.out
    server.on(path, Answer(body=DECISION | CALL | {"error_type": None, "same": False}))
    assert "comes out otherwise" in harness("policy", "explain", RUN, "2.0").out
    assert json.loads(harness("policy", "explain", RUN, "2.0", "--json").out)["same"] is False
    assert harness("policy", "explain", RUN, "x").code == 2
