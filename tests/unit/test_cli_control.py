"""The command line for control: what is sent, what people read, and many runs at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_api.cli.narrate import Narrator
from harness_api.client import Event
from tests.fakes.harness_server import (
    AT,
    RUN,
    SESSION,
    WAIT,
    Answer,
    event,
    page,
    problem,
    run_view,
    stream,
)
from tests.unit.test_cli import Done, harness, server

__all__ = ["Done", "harness", "server"]

ONE = f"/v1/runs/{RUN}"
OTHER = "run_" + "5" * 32
ASKS = {
    "for": "input",
    "calls": [
        {"call": "2.0", "kind": "input", "index": 0, "until": AT, "question": "Which\x1b car?",
         "choices": ["red", "blue"]},
        {"call": "2.1", "kind": "input", "index": 1, "until": None, "question": "How fast?",
         "choices": []},
    ],
}  # fmt: skip


def body_of(server: Any, route: str) -> Any:
    return server.requests(route)[-1].body


@pytest.mark.parametrize(
    ("argv", "route", "body"),
    [
        (["pause", RUN, "--reason", "lunch"], f"POST {ONE}/pause", {"reason": "lunch"}),
        (["resume", RUN], f"POST {ONE}/resume", None),
        (["answer", RUN, "red"], f"POST {ONE}/input", {"text": "red"}),
        (
            ["answer", RUN, "red", "--call", "2.0"],
            f"POST {ONE}/input",
            {"text": "red", "call": "2.0"},
        ),
        (["steer", RUN, "hurry"], f"POST {ONE}/messages", {"text": "hurry"}),
        (["retry", RUN, "--from-step", "3"], f"POST {ONE}/retry", {"from_step": 3}),
        (
            ["fork", RUN, "--step", "2", "--model", "m/x", "--tool", "look", "--input", "again"],
            f"POST {ONE}/fork",
            {"step": 2, "model": "m/x", "tools": ["look"], "input": "again"},
        ),
        (["fork", RUN, "--dry-run"], f"POST {ONE}/fork", {"dry_run": True}),
    ],
)
def test_what_is_sent(server, harness, argv, route, body):
    server.on(route, Answer(202, run_view("running")))
    done = harness("runs", *argv)
    assert (done.code, body_of(server, route)) == (0, body), done.err
    assert RUN in done.out
    assert harness("runs", *argv, "--json").json["id"] == RUN


def test_submit_to_a_busy_session(server, harness):
    server.on("POST /v1/runs", Answer(202, run_view("running", input="the first question")))
    argv = ["submit", "a", "hurry", "--session", SESSION, "--on-busy", "steer"]
    done = harness("runs", *argv, "--concurrency-key", "k", "--concurrency-max", "2")
    assert body_of(server, "POST /v1/runs") == {
        "agent": "a",
        "input": "hurry",
        "session_id": SESSION,
        "on_busy": "steer",
        "concurrency_key": "k",
        "concurrency_max": 2,
    }
    assert "was given the message" in done.err


def test_a_question_is_shown_with_the_command_that_answers_it(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("waiting_input", waiting=ASKS)))
    server.on(f"GET {ONE}/steps", page())
    server.on(f"GET {ONE}/attempts", page())
    server.on(f"GET {ONE}/artifacts", page())
    asked = event(2, "run.waiting", 2, **ASKS)
    server.on(f"GET {ONE}/stream", stream(asked, WAIT))
    for argv in (["show", RUN], ["follow", RUN], ["wait", RUN]):
        out = harness("runs", *argv).out
        assert "It asks (2.0): Which\ufffd car?" in out
        assert "one of: red | blue" in out
        assert f"`harness runs answer {RUN} '…' --call 2.1` answers." in out
    assert "waits for a person: 2.0 asks Which" in harness("runs", "follow", RUN).out


def test_an_unknown_effect_is_shown_with_the_command_that_decides(server, harness):
    waiting = {"for": "unknown_effect", "calls": ["2.0"]}
    server.on(f"GET {ONE}", Answer(body=run_view("waiting_approval", waiting=waiting)))
    out = harness("runs", "wait", RUN).out
    assert f"harness effects resolve {RUN} 2.0 OUTCOME" in out
    server.on(f"GET {ONE}", Answer(body=run_view("paused", waiting={"for": "resume"})))
    assert f"harness runs resume {RUN}" in harness("runs", "wait", RUN).out


def test_what_happens_is_told_in_lines():
    child = {"call": "2.0", "kind": "child", "run": OTHER, "agent": "b"}
    told: list[tuple[str, dict[str, Any], str]] = [
        ("run.created", {"agent": "a@1", "overrides": {"recorded": "x"}}, "a dry run"),
        ("run.paused", {"step": 2}, "paused after step 2"),
        ("run.pause_requested", {"by": "ann", "reason": "lunch"}, "ann asks to pause: lunch"),
        ("run.resume_requested", {"by": "ann"}, "ann lets it go on"),
        ("run.yielded", {"after_step": 2}, "goes back to the queue"),
        ("run.steered", {"by": "ann", "chars": 7}, "ann gives it a message of 7 characters"),
        ("run.input_given", {"by": "ann", "call": "2.0"}, "ann answers 2.0"),
        ("run.effects_resolved", {"by": "ann"}, "ann has decided"),
    ]
    for kind, payload, text in told:
        assert text in Narrator().line(Event.model_validate(event(1, kind, None, **payload)))
    waits = event(1, "run.waiting", 2, **{"for": "children", "calls": [child]})
    line = Narrator().line(Event.model_validate(waits))
    assert f"waits for its children {OTHER} (b)" in line


def test_lineage_and_sessions_cancel(server, harness):
    near = {"run_id": OTHER, "relation": "retry", "status": "failed", "step": 2, "created_at": AT}
    near["agent"] = {"name": "a", "version": 1}
    server.on(f"GET {ONE}/lineage", Answer(body={"run_id": RUN, "forks": [near]}))
    assert f"retry     {OTHER}  failed  a v1   step 2" in harness("runs", "lineage", RUN).out
    server.on(f"POST /v1/sessions/{SESSION}/cancel", page(run_view("cancelled")))
    done = harness("sessions", "cancel", SESSION, "--reason", "no")
    assert done.out == f"{RUN} is cancelled\n"
    assert server.seen[-1].body == {"reason": "no"}


EFFECT = {
    "run_id": RUN, "call": "2.0", "tool": "pay", "arguments": {"eur": 5}, "status": "unknown",
    "attempts": 1, "authorised": 1, "idempotency_key": f"{RUN}.2.0", "started_at": AT,
    "worker": "w", "why": "the process is gone", "evidence": {"x": 1}, "agent": "a",
    "run_status": "waiting_approval",
}  # fmt: skip


def test_effects(server, harness):
    server.on("GET /v1/effects", page(EFFECT))
    server.on(f"GET {ONE}/calls/2.0", Answer(body=EFFECT))
    said = {"outcome": "failed", "by": "me", "at": AT, "reason": "r"}
    done = Answer(body=EFFECT | {"status": "failed", "resolution": said, "run_status": "queued"})
    server.on(f"POST {ONE}/calls/2.0/resolve", done)
    assert "the process is gone" in harness("effects", "list").out
    shown = harness("effects", "show", RUN, "2.0").out
    assert f"harness effects resolve {RUN} 2.0" in shown
    argv = ["resolve", RUN, "2.0", "failed", "--reason", "r"]
    assert f"{RUN} 2.0 is failed; the run is queued" in harness("effects", *argv).out
    assert server.seen[-1].body == {"outcome": "failed", "reason": "r"}
    assert harness("effects", "resolve", RUN, "../x", "failed", "--reason", "r").code == 2
    assert harness("effects", "resolve", RUN, "2.0", "failed").code == 2, "a reason is wanted"


# -- many runs -------------------------------------------------------------------------------------


def failed(number: int) -> dict[str, Any]:
    error = {"category": "limited", "code": "LIMITED", "message": "m"}
    return run_view("failed", error=error) | {"id": f"run_{number:032x}"}


def test_many_are_chosen_shown_done_and_reported(server, harness):
    server.on("GET /v1/runs", page(*(failed(n) for n in range(1, 4))))
    path = "/v1/runs/run_{:032x}/retry"
    server.on(f"POST {path.format(1)}", Answer(202, run_view()))
    server.on(f"POST {path.format(2)}", problem(409, "SESSION_BUSY", "it goes on"))
    server.on(f"POST {path.format(3)}", problem(422, "INVALID", "bad"))
    where = "status=failed,error.code=LIMITED,agent=a,tag.team=sales"
    argv = ["runs", "retry", "--where", where, "--since", "2h", "--yes", "--json"]
    done = harness(*argv)
    assert done.code == 1
    query = server.requests("GET /v1/runs")[0].query
    created = query.pop("created_after")
    assert created
    assert query == {
        "status": ["failed"], "error_code": ["LIMITED"], "agent": ["a"], "tag": ["team:sales"],
        "retried": ["false"], "child": ["false"], "limit": ["200"],
    }  # fmt: skip
    report = done.json
    assert (report["matched"], report["limit_reached"]) == (3, False)
    assert [r["became"] for r in report["made"]] == [RUN]
    assert [r["code"] for r in report["skipped"]] == ["SESSION_BUSY"]
    assert [r["code"] for r in report["failed"]] == ["INVALID"]
    assert "3 runs to retry" in done.err
    assert "failed  LIMITED" in done.err
    text = harness(*argv[:-1])
    assert "retry: 1 made, 1 skipped, 1 failed" in text.out


def test_children_are_retried_with_their_parent_unless_it_is_named(server, harness):
    """Beside it, their work would be done twice."""
    server.on("GET /v1/runs", page())
    harness("runs", "retry", "--where", f"parent={RUN}", "--yes")
    harness("runs", "cancel", "--where", "agent=a", "--yes")
    asked = [seen.query for seen in server.requests("GET /v1/runs")]
    assert [query.get("child") for query in asked] == [None, None]


def test_many_are_not_touched_without_a_yes(server, harness):
    server.on("GET /v1/runs", page(failed(1)))
    done = harness("runs", "cancel", "--where", "agent=a")
    assert done.code == 2
    assert "--yes" in done.err
    assert {s.method for s in server.seen} == {"GET"}


@pytest.mark.parametrize(
    "argv",
    [
        ["retry"],
        ["retry", RUN, "--where", "agent=a"],
        ["cancel", "--where", "color=red"],
        ["pause", "--where", "status"],
        ["resume", "--where", "agent=a", "--since", "soon"],
        ["list", "--until", "soon"],
    ],
)
def test_a_wrong_choice_asks_nobody(server, harness, argv):
    done = harness("runs", *argv, "--yes") if argv[0] != "list" else harness("runs", *argv)
    assert (done.code, server.seen) == (2, [])


def test_each_verb_takes_the_runs_it_is_for(server, harness):
    server.on("GET /v1/runs", page())
    for verb, has, lacks in (
        ("retry", "failed", "cancelled"),
        ("cancel", "paused", "failed"),
        ("pause", "waiting_input", "paused"),
        ("resume", "paused", "running"),
    ):
        done = harness("runs", verb, "--where", "agent=a", "--yes")
        assert (done.code, done.out) == (0, f"No runs to {verb}.\n")
        statuses = server.seen[-1].query["status"]
        assert has in statuses
        assert lacks not in statuses
    assert json.loads(harness("runs", "pause", "--where", "agent=a", "--json").out)["made"] == []
