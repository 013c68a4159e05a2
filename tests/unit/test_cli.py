"""The command line: exit codes, JSON shapes, what people read, and where errors go."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest

from harness_api.cli.main import run
from harness_api.cli.processes import worker_arguments
from tests.fakes.harness_server import (
    ARTIFACT,
    AT,
    CUT,
    END,
    KEY,
    RUN,
    SESSION,
    WAIT,
    Answer,
    FakeServer,
    event,
    page,
    problem,
    run_view,
    serve,
    stream,
)

ONE = f"/v1/runs/{RUN}"


@dataclass
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[FakeServer]:
    with serve() as fake:
        monkeypatch.setenv("HARNESS_API_URL", fake.url)
        monkeypatch.setenv("HARNESS_API_KEY", "hk_x_y")
        monkeypatch.setenv("HARNESS_DATA_DIR", str(tmp_path))
        yield fake


@pytest.fixture
def harness(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*argv: str) -> Done:
        code = run(list(argv))
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


# -- exit codes and errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1), ("waiting_approval", 1)]
)
def test_the_exit_code_tells_how_a_run_ended(server, harness, status, code):
    server.on("POST /v1/runs", Answer(202, run_view()))
    server.on(f"GET {ONE}", Answer(body=run_view(status)))
    assert harness("runs", "submit", "a", "hi", "--wait").code == code
    assert harness("runs", "wait", RUN, "--json").code == code


@pytest.mark.parametrize(
    "argv",
    [
        ["runs", "submit", "a"],
        ["runs", "nosuch"],
        ["runs", "submit", "a", "b", "--max-turns", "0"],
        ["runs", "submit", "a", "b", "--tag", "novalue"],
        ["runs", "submit", "a", "b", "--follow", "--wait"],
        ["runs", "show", "run_1"],
        ["agents", "apply", "nosuch.json"],
    ],
)
def test_wrong_usage_is_2_and_asks_nobody(server, harness, argv):
    done = harness(*argv)
    assert (done.code, done.out) == (2, "")
    assert done.err
    assert server.seen == []


def test_a_run_that_is_not_over_in_time_is_1(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("running")))
    done = harness("runs", "wait", RUN, "--wait-timeout", "0", "--json")
    assert (done.code, done.out) == (1, "")
    assert json.loads(done.err)["error"]["code"] == "TIMEOUT"


def test_no_server_is_2(server, harness, monkeypatch):
    monkeypatch.delenv("HARNESS_API_URL")
    done = harness("runs", "list")
    assert done.code == 2
    assert "harness dev" in done.err
    assert "NO_SERVER" in done.err
    assert harness("--url", "http://127.0.0.1:9", "sessions", "create").code == 2


def test_a_broken_connection_is_2(server, harness):
    server.on("POST /v1/sessions", CUT)
    done = harness("sessions", "create")
    assert done.code == 2
    assert "UNREACHABLE" in done.err


def test_a_refusal_is_1_and_one_clear_line(server, harness):
    server.on(f"GET {ONE}", problem(404, "NOT_FOUND", f"no run {RUN}", field="run_id"))
    done = harness("runs", "show", RUN)
    assert (done.code, done.out) == (1, "")
    first, hint = done.err.splitlines()
    assert first == f"error: no run {RUN} [NOT_FOUND, request req_1]"
    assert "harness runs list" in hint


def test_a_refusal_as_json_is_one_document_on_stderr(server, harness):
    server.on(f"GET {ONE}", problem(404, "NOT_FOUND", "no run", field="run_id"))
    done = harness("runs", "show", RUN, "--json")
    assert (done.code, done.out) == (1, "")
    assert json.loads(done.err)["error"] == {
        "code": "NOT_FOUND",
        "message": "no run",
        "status": 404,
        "request_id": "req_1",
        "field": "run_id",
    }


def test_wrong_settings_are_named_without_their_value(harness, monkeypatch):
    monkeypatch.setenv("HARNESS_API__PORT", "s3cret")
    done = harness("doctor")
    assert done.code == 1
    assert "HARNESS_API__PORT" in done.out
    assert "s3cret" not in done.out


def test_help_names_every_command(harness):
    done = harness("--help")
    assert done.code == 0
    for name in [
        "dev",
        "api",
        "worker",
        "scheduler",
        "migrate",
        "doctor",
        "runs",
        "agents",
        "sessions",
        "schedules",
        "keys",
        "audit",
    ]:
        assert name in done.out
    assert "harness runs submit" in harness("runs", "submit", "--help").out


# -- runs ------------------------------------------------------------------------------------------


def test_submit_sends_what_was_given(server, harness, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a file\n"))
    server.on("POST /v1/runs", Answer(202, run_view()))
    options = ["--session", SESSION, "--tag", "a=b=c", "--max-turns", "3"]
    done = harness("runs", "submit", "a", "-", *options, "--idempotency-key", "k")
    assert (done.code, done.out) == (0, f"{RUN}\n")
    assert server.seen[0].headers["idempotency-key"] == "k"
    assert server.seen[0].body == {
        "agent": "a",
        "input": "from a file\n",
        "session_id": SESSION,
        "tags": {"a": "b=c"},
        "max_turns": 3,
    }


def test_submit_as_json_is_the_run(server, harness):
    server.on("POST /v1/runs", Answer(202, run_view()))
    assert harness("runs", "submit", "a", "hi", "--json").json["id"] == RUN


def test_list(server, harness):
    server.on("GET /v1/runs", page(run_view("failed", input="two\nlines")))
    done = harness("runs", "list", "--status", "failed", "--tag", "a=b", "--limit", "5")
    assert server.seen[0].query == {"status": ["failed"], "tag": ["a:b"], "limit": ["5"]}
    header, row = done.out.splitlines()
    assert header.startswith("ID")
    assert "failed (scripted)" in row
    assert "two lines" in row
    assert harness("runs", "list", "--json").json["data"][0]["status"] == "failed"


STEP = {
    "step": 1,
    "kind": "model",
    "attempt": 1,
    "fence": 1,
    "worker": "w",
    "ms": 12.3,
    "model": "m",
    "finish": "stop",
    "tokens": {"input": 5, "output": 7},
    "cost_usd": 0.5,
    "scripted": True,
}
REFUSED = {
    "seq": 3,
    "step": 1,
    "attempt": 1,
    "kind": "model",
    "category": "limited",
    "code": "LIMITED",
    "message": "slow down",
    "retry_after_s": 1.5,
    "scope": "openai:gpt-4o:abc",
    "at": AT,
}
THROTTLE = {
    "scope": "openai:gpt-4o:abc",
    "provider": "openai",
    "model": "gpt-4o",
    "credential": "abc",
    "until": AT,
    "next_at": AT,
    "interval_s": 1.1,
    "limit_per_s": 1.0,
    "code": "LIMITED",
    "reason": "slow down",
    "hits": 1,
    "since": AT,
    "updated_at": AT,
    "waiting": 42,
}
TOOLS = STEP | {"step": 2, "kind": "tools"}
TOOLS["tools"] = [{"call": "2.0", "tool": "look", "status": "succeeded", "ms": 1.0}]


def test_show_tells_the_timeline_and_the_result(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("succeeded", output="forty\x1b[31m two")))
    server.on(f"GET {ONE}/steps", page(STEP, TOOLS))
    server.on(f"GET {ONE}/attempts", page(REFUSED))
    file = {"id": ARTIFACT, "name": "chart.png", "media_type": "image/png", "sha256": "0"}
    server.on(f"GET {ONE}/artifacts", page(file | {"size_bytes": 2048, "created_at": AT}))
    done = harness("runs", "show", RUN)
    assert done.code == 0
    assert "m (scripted) → stop" in done.out
    assert "2.0 look succeeded 1 ms" in done.out
    assert "step 1 try 1" in done.out
    assert "LIMITED: slow down, again after 1.5 s" in done.out
    assert "chart.png  2.0 KiB" in done.out
    assert "Result (scripted):\n\nforty\ufffd[31m two" in done.out
    document = harness("runs", "show", RUN, "--json").json
    assert set(document) == {"run", "steps", "attempts", "artifacts"}


def test_throttles_says_who_is_held_back(server, harness):
    server.on("GET /v1/throttles", page(THROTTLE))
    done = harness("throttles")
    assert done.code == 0
    for text in ("openai", "gpt-4o", "1 in 1.1 s", "LIMITED: slow down", "42"):
        assert text in done.out
    assert harness("throttles", "--json").json["data"][0]["scope"] == THROTTLE["scope"]
    server.on("GET /v1/throttles", page())
    assert "Nothing is throttled." in harness("throttles").out


EVENTS = [
    event(1, "run.created", agent="a@1"),
    event(2, "run.started", kind="model", step=0),
    {"type": "answer.delta", "step": 1, "text": "4", "durable": False},
    event(3, "step.started", 1, kind="model"),
    event(4, "model.answered", 1, model="m", input_tokens=5, output_tokens=7, scripted=True),
    event(5, "step.completed", 1, kind="model"),
    event(6, "tool.timeout", 2, tool="slow", status="failed", error_type="TIMEOUT", ms=10.0),
    event(7, "run.recovered", 2, worker="w", why="killed by signal 9", deaths=1),
    event(8, "of.tomorrow", None, x=1),
    event(9, "run.completed", status="succeeded", stop_reason="final_answer", steps=2),
]


def test_follow_is_plain_lines_where_there_is_no_terminal(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("succeeded")))
    server.on(f"GET {ONE}/stream", stream(*EVENTS[:5], cut=True), stream(*EVENTS[5:], END))
    done = harness("runs", "follow", RUN)
    assert done.code == 0
    lines = done.out.splitlines()
    told = [line for line in lines if line.startswith("+")]
    assert len(told) == 7
    assert "step 1  model  m (scripted)  0 ms  5 in, 7 out  $?" in told[2]
    assert "slow  failed: TIMEOUT" in told[3]
    assert "another one goes on" in told[4]
    assert "of.tomorrow" in told[5]
    assert lines[-3:] == ["Result (scripted):", "", "42"]
    assert "\x1b" not in done.out


def test_follow_as_json_is_lines_that_end_with_the_run(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("failed")))
    server.on(f"GET {ONE}/stream", stream(*EVENTS, END))
    done = harness("runs", "follow", RUN, "--json")
    assert done.code == 1
    items = [json.loads(line) for line in done.out.splitlines()]
    assert [i["seq"] for i in items if "seq" in i] == list(range(1, 10))
    assert items[2] == {"type": "answer.delta", "step": 1, "text": "4", "durable": False}
    assert items[-1]["type"] == "result"
    assert items[-1]["run"]["status"] == "failed"


WAITING = event(2, "run.waiting", None, **{"for": "unknown_effect", "calls": ["2.0"]})


@pytest.mark.parametrize("status", ["waiting_approval", "waiting_input", "paused"])
def test_follow_ends_when_the_run_needs_a_person(server, harness, status):
    server.on("POST /v1/runs", Answer(202, run_view()))
    server.on(f"POST {ONE}/retry", Answer(202, run_view()))
    server.on(f"GET {ONE}/stream", stream(EVENTS[0], WAITING, WAIT, event(3, "of.tomorrow")))
    server.on(f"GET {ONE}", Answer(body=run_view(status)))
    hints = []
    for argv in (["submit", "a", "hi", "--follow"], ["retry", RUN, "--follow"]):
        done = harness("runs", *argv)
        assert done.code == 1
        assert f"`harness runs cancel {RUN}` stops it" in done.out.splitlines()[-1]
        assert "of.tomorrow" not in done.out
        hints.append(done.out.splitlines()[-1])
    assert set(hints) == {harness("runs", "wait", RUN).out.splitlines()[-1]}


def test_follow_as_json_of_a_run_that_waits_ends_with_the_run(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("waiting_approval")))
    server.on(f"GET {ONE}/stream", stream(EVENTS[0], WAITING, WAIT))
    done = harness("runs", "follow", RUN, "--json")
    assert done.code == 1
    items = [json.loads(line) for line in done.out.splitlines()]
    assert [i["type"] for i in items] == ["run.created", "run.waiting", "result"]


def test_follow_goes_on_after_a_wait_that_is_over(server, harness):
    server.on(f"GET {ONE}", Answer(body=run_view("succeeded")))
    server.on(f"GET {ONE}/stream", stream(EVENTS[0], WAITING, event(3, "of.tomorrow"), END))
    done = harness("runs", "follow", RUN)
    assert done.code == 0
    assert "of.tomorrow" in done.out


@pytest.mark.parametrize(
    ("status", "category", "retry"),
    [
        ("failed", "permanent", False),
        ("failed", "transient", True),
        ("failed", "limited", True),
        ("cancelled", None, True),
    ],
)
def test_a_retry_is_advised_only_where_it_may_help(server, harness, status, category, retry):
    error = {"category": category, "code": "C", "message": "m"} if category else None
    server.on(f"GET {ONE}", Answer(body=run_view(status, error=error)))
    out = harness("runs", "wait", RUN).out
    assert (f"harness runs retry {RUN}" in out) is retry
    assert ("harness runs submit a" in out) is not retry


@pytest.mark.parametrize(
    "reason",
    [
        "max_iterations_exceeded",
        "token_budget_exceeded",
        "cost_budget_exceeded",
        "deadline_exceeded",
    ],
)
def test_a_run_that_used_up_what_it_had_may_be_retried(server, harness, reason):
    error = {"category": "permanent", "code": reason.upper(), "message": "m"}
    server.on(f"GET {ONE}", Answer(body=run_view("failed", error=error, stop_reason=reason)))
    out = harness("runs", "wait", RUN).out
    assert f"harness runs retry {RUN}" in out
    assert "harness runs submit" not in out


def test_cancel_and_retry(server, harness):
    server.on(f"POST {ONE}/cancel", Answer(202, run_view("cancelling")))
    server.on(f"POST {ONE}/retry", Answer(202, run_view()))
    assert harness("runs", "cancel", RUN, "--reason", "no").out == f"{RUN} is cancelling\n"
    assert server.seen[0].body == {"reason": "no"}
    assert harness("runs", "retry", RUN).out == f"{RUN}\n"


def test_events(server, harness):
    server.on(f"GET {ONE}/events", page(*(e for e in EVENTS if "seq" in e)))
    assert len(harness("runs", "events", RUN).out.splitlines()) == 9
    rows = harness("runs", "events", RUN, "--json").out.splitlines()
    assert [json.loads(row)["seq"] for row in rows] == list(range(1, 10))


# -- the other groups ------------------------------------------------------------------------------

AGENT = {"id": "g", "name": "a", "version": 2, "spec": {"model": "m"}, "digest": "d" * 64}


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("x.json", '{"name": "a", "spec": {"model": "m"}}', "a"),
        ("x.json", '{"name": "a", "model": "m"}', "a"),
        ("x.toml", 'model = "m"', "x"),
        ("x.toml", 'name = "a"\n[spec]\nmodel = "m"', "a"),
    ],
)
def test_apply_reads_json_and_toml(server, harness, tmp_path, file, text, name):
    server.on("POST /v1/agents", Answer(201, AGENT | {"created_at": AT}))
    (tmp_path / file).write_text(text)
    assert harness("agents", "apply", str(tmp_path / file)).out.startswith("a is at version 2")
    assert server.seen[0].body == {"name": name, "spec": {"model": "m"}}


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("x.ini", "a: 1", "neither"),
        ("x.yaml", "a: [", "not valid YAML"),
        ("x.json", "{", "not valid JSON"),
        ("x.json", "[]", "no object"),
    ],
)
def test_apply_says_what_is_wrong_with_a_file(server, harness, tmp_path, file, text, says):
    (tmp_path / file).write_text(text)
    done = harness("agents", "apply", str(tmp_path / file))
    assert done.code == 2
    assert says in done.err


def test_a_secret_is_alone_on_stdout(server, harness):
    made = {"id": KEY, "name": "ci", "role": "viewer", "created_at": AT, "secret": "hk_a_b"}
    server.on("POST /v1/api-keys", Answer(201, made))
    done = harness("keys", "create", "ci", "--role", "viewer", "--scope", "runs:read")
    assert (done.code, done.out) == (0, "hk_a_b\n")
    assert server.seen[0].body == {"name": "ci", "role": "viewer", "scopes": ["runs:read"]}


def test_an_artifact_never_leaves_the_folder_by_its_name(server, harness, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {"id": ARTIFACT, "name": "../../evil", "media_type": "text/plain", "sha256": "0"}
    route = f"GET /v1/artifacts/{ARTIFACT}"
    server.on(route, Answer(body=found | {"size_bytes": 2, "created_at": AT}))
    server.on(f"{route}/content", Answer(raw=b"hi"))
    assert harness("artifacts", "get", ARTIFACT).out == "evil\n"
    assert (tmp_path / "evil").read_bytes() == b"hi"
    assert harness("artifacts", "get", ARTIFACT).code == 2, "it exists"
    assert harness("artifacts", "get", ARTIFACT, "--force", "-o", "other").code == 0


SCHEDULE = {
    "id": "sched_" + "5" * 32,
    "name": "s",
    "status": "active",
    "when": {"cron": "0 9 * * *", "time_zone": "Europe/Berlin"},
    "run": {"agent": "a", "input": "hi"},
    "overlap": "skip",
    "catch_up": "last",
    "window_s": 60,
    "next_at": AT,
    "next": [AT],
    "created_at": AT,
}
FIRING = {"at": AT, "outcome": "started", "run_id": RUN, "created_at": AT}
SKIPPED = FIRING | {"outcome": "skipped", "run_id": None, "reason": "a run is not over"}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--cron", "0 9 * * *", "-z", "Europe/Berlin"], {"when": SCHEDULE["when"]}),
        (
            ["--every", "15m", "--jitter", "90s", "--overlap", "allow", "--priority", "1"],
            {
                "when": {"every_s": 900.0},
                "jitter_s": 90.0,
                "overlap": "allow",
                "run": {"agent": "a", "input": "hi", "priority": 1},
            },
        ),
        (["--at", AT, "--paused"], {"when": {"at": AT[:-1] + "+00:00"}, "paused": True}),
        (
            ["--cron", "@daily", "--catch-up", "all", "--window", "2h", "--max-firings", "3"],
            {"when": {"cron": "@daily"}, "catch_up": "all", "window_s": 7200.0, "max_firings": 3},
        ),
    ],
)
def test_schedules_create(server, harness, options, body):
    server.on("POST /v1/schedules", Answer(201, SCHEDULE))
    done = harness("schedules", "create", "s", "a", "hi", *options)
    assert done.code == 0
    assert done.out.startswith("s is active, next 2026-01-31")
    assert server.seen[0].body == {"name": "s", "run": {"agent": "a", "input": "hi"}} | body


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "exactly one of --cron, --every and --at"),
        (["--cron", "@daily", "--every", "5m"], "exactly one"),
        (["--every", "soon"], "such as 15m"),
        (["--at", "2026-01-31T12:00:00"], "with its offset"),
    ],
)
def test_schedules_create_wrong_usage(server, harness, options, says):
    done = harness("schedules", "create", "s", "a", "hi", *options)
    assert (done.code, server.seen) == (2, [])
    assert says in done.err


def test_schedules_show_list_and_firings(server, harness):
    server.on("GET /v1/schedules", page(SCHEDULE))
    server.on("GET /v1/schedules/s", Answer(body=SCHEDULE))
    server.on("GET /v1/schedules/s/firings", page(SKIPPED, FIRING))
    assert "0 9 * * * (Europe/Berlin)" in harness("schedules", "list").out.splitlines()[1]
    shown = harness("schedules", "show", "s").out
    assert "last, within 60 s" in shown
    assert "Coming:" in shown
    assert "a run is not over" in shown
    assert harness("schedules", "show", "s", "--json").json["schedule"]["name"] == "s"
    assert RUN in harness("schedules", "firings", "s").out
    assert len(harness("schedules", "firings", "s", "--json").json["data"]) == 2


def test_schedules_pause_resume_trigger_delete(server, harness):
    route = "POST /v1/schedules/s"
    server.on(f"{route}/pause", Answer(body=SCHEDULE | {"status": "paused", "next_at": None}))
    server.on(f"{route}/resume", Answer(body=SCHEDULE))
    server.on(f"{route}/trigger", Answer(202, FIRING), Answer(202, SKIPPED))
    server.on("DELETE /v1/schedules/s", Answer(204))
    assert harness("schedules", "pause", "s", "--reason", "x").out == "s is paused\n"
    assert server.seen[0].body == {"reason": "x"}
    assert harness("schedules", "resume", "s").out.startswith("s is active")
    assert harness("schedules", "trigger", "s", "--overlap", "allow").out == f"{RUN}\n"
    assert server.seen[2].body == {"overlap": "allow"}
    skipped = harness("schedules", "trigger", "s")
    assert (skipped.code, skipped.out) == (1, "")
    assert skipped.err == "skipped: a run is not over\n"
    assert harness("schedules", "delete", "s").out == "s is deleted\n"
    server.on("GET /v1/schedules/t", problem(404, "NOT_FOUND", "no schedule 't'", field="schedule"))
    assert "harness schedules list" in harness("schedules", "show", "t").err


def test_empty_lists_say_so(server, harness):
    for route in ("sessions", "api-keys", "workers", "audit", "agents", "schedules"):
        server.on(f"GET /v1/{route}", page())
    for argv in (
        ["sessions", "list"],
        ["keys", "list"],
        ["workers"],
        ["audit"],
        ["agents", "list"],
        ["schedules", "list"],
    ):
        done = harness(*argv)
        assert done.code == 0
        assert done.out.startswith("No")
        assert harness(*argv, "--json").json == {"data": []}


def test_tenant(server, harness):
    limits = {"max_running": 5, "weight": 1.0, "starts_per_s": None}
    tenant = {"id": "ten_1", "name": "t", "limits": limits, "running": 1, "queued": 2}
    tenant["slot_seconds"] = 1.5
    server.on("GET /v1/tenant", Answer(body=tenant))
    shown = harness("tenant", "show").out
    assert [line.split() for line in shown.splitlines()[1:4]] == [
        ["max", "running", "5"], ["weight", "1.0"], ["starts", "per", "s", "none"],
    ]  # fmt: skip
    assert harness("tenant", "show", "--json").json == tenant


def test_limits(server, harness):
    tenant = {"id": "ten_1", "name": "t", "limits": {}, "running": 1, "queued": 2}
    server.on("PATCH /v1/tenant/limits", Answer(body=tenant))
    server.on("PATCH /v1/platform/limits", Answer(body={"limits": {}}))
    server.on("GET /v1/platform/limits", Answer(body={"limits": {"max_running": 9}}))
    argv = ["--weight", "3", "--starts-per-s", "none", "--cost-usd-per-day", "2.5"]
    assert harness("tenant", "limits", *argv).code == 0
    assert server.seen[-1].body == {"weight": 3.0, "starts_per_s": None, "cost_usd_per_day": 2.5}
    assert harness("platform", "limits", "--max-running", "none").code == 0
    assert server.seen[-1].body == {"max_running": None}
    assert "max running  9" in harness("platform", "limits").out
    wrong = harness("platform", "limits", "--steps-per-s", "many")
    assert (wrong.code, "--steps-per-s takes a number or `none`" in wrong.err) == (2, True)


@pytest.mark.parametrize("number", ["inf", "nan"])
def test_what_json_has_no_form_for_is_wrong_usage(server, harness, number):
    done = harness("tenant", "limits", "--tokens-per-day", number)
    assert (done.code, "JSON" in done.err, "Traceback" in done.err) == (2, True, False)


def test_a_run_that_waits_says_why(server, harness):
    waiting = {"for": "tenant_limit", "text": "tenant limit 5 running, 3rd in line", "place": 3}
    server.on(f"GET {ONE}", Answer(body=run_view("queued", waiting=waiting)))
    server.on(f"GET {ONE}/steps", page())
    server.on(f"GET {ONE}/attempts", page())
    server.on(f"GET {ONE}/artifacts", page())
    assert "queued: tenant limit 5 running, 3rd in line" in harness("runs", "show", RUN).out


# -- processes and the doctor ----------------------------------------------------------------------


def test_version(harness):
    done = harness("--version")
    assert (done.code, done.out) == (0, f"harness {version('harness')}\n")


def test_dev_tells_its_processes_the_tool_modules(harness, monkeypatch, tmp_path):
    seen = []

    def run_dev(options):
        seen.append(options)
        return 0

    monkeypatch.setattr("harness_api.cli.dev.run_dev", run_dev)
    assert harness("dev", "--tools", "m.a", "--tools", "m.b").code == 0
    assert harness("dev").code == 0
    assert seen[0].env(tmp_path)["HARNESS_WORKER__TOOLS"] == '["m.a", "m.b"]'
    assert "HARNESS_WORKER__TOOLS" not in seen[1].env(tmp_path)


def test_a_worker_is_told_what_was_given():
    given = {"--queues": "steps.a", "--concurrency": 5, "--processes": None}
    expected = ["--queues", "steps.a", "--concurrency", "5", "--tools", "m.a", "--tools", "m.b"]
    assert worker_arguments(given, ["m.a", "m.b"]) == expected


def test_doctor_finds_what_is_missing(server, harness, monkeypatch):
    monkeypatch.setenv("HARNESS_DATABASE_URL", "postgresql://u:s3cret@127.0.0.1:9/x")
    monkeypatch.setenv("HARNESS_REDIS_URL", "redis://:s3cret@127.0.0.1:9/0")
    server.on("GET /readyz", Answer(body={"status": "degraded", "redis": "down"}))
    server.on("GET /v1/tenant", problem(401, "UNAUTHENTICATED", "the key is unknown"))
    done = harness("doctor", "--json")
    assert done.code == 1
    assert "s3cret" not in done.out
    states = {c["name"]: c["state"] for c in done.json["checks"]}
    assert done.json["ok"] is False
    assert (states["python"], states["data folder"]) == ("ok", "ok")
    assert (states["postgres"], states["redis"]) == ("fail", "fail")
    assert done.json["checks"][-1]["text"] == "the key is unknown"
