"""Schedules over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness_common.core.ids import decode
from tests.store.play import say

DAILY = {"cron": "0 9 * * *", "time_zone": "Europe/Berlin"}
RUN = {"agent": "a", "input": "hello"}


async def make(api, name="s", when=None, **more):
    body = {"name": name, "when": when or DAILY, "run": RUN} | more
    return await api.post("/v1/schedules", json=body)


async def made(api, **more):
    answer = await make(api, **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_schedule_shows_what_was_asked_and_its_coming_times(api):
    answer = await make(api, jitter_s=30, run=RUN | {"priority": 3, "tags": {"k": "v"}})
    view = answer.json()
    assert answer.headers["location"] == "/v1/schedules/s"
    assert (view["status"], view["overlap"], view["catch_up"], view["window_s"]) == (
        "active", "skip", "last", 60,
    )  # fmt: skip
    assert view["when"] == DAILY
    assert view["run"] == RUN | {"priority": 3, "tags": {"k": "v"}}
    times = [datetime.fromisoformat(t) for t in view["next"]]
    assert len(times) == 5
    assert times == sorted(set(times))
    assert all(t.utcoffset() == timedelta(0) and t.hour in {7, 8} for t in times)
    late = datetime.fromisoformat(view["next_at"]) - times[0]
    assert timedelta(0) <= late < timedelta(seconds=30)
    for ref in ("s", view["id"]):
        assert (await api.get(f"/v1/schedules/{ref}")).json() == view
    assert (await api.get("/v1/schedules")).json()["data"] == [view]


async def test_the_other_kinds(api):
    every = await made(api, name="e", when={"every_s": 90}, max_firings=2)
    first = datetime.fromisoformat(every["next"][0]) - datetime.fromisoformat(every["created_at"])
    assert 89 < first.total_seconds() < 91
    assert len(every["next"]) == 2, "no more than it may fire"
    at = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    once = await made(api, name="o", when={"at": at.isoformat()})
    assert [datetime.fromisoformat(t) for t in once["next"]] == [at]
    assert once["window_s"] == 86_400, "who missed it wants it late rather than never"


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"when": {}}, "when", "exactly one of cron, every_s and at; found none"),
        ({"when": {"cron": "* * * * *", "every_s": 5}}, "when", "found cron and every_s"),
        ({"when": {"every_s": 5, "time_zone": "UTC"}}, "when", "time_zone goes with cron"),
        ({"when": {"cron": "61 * * * *"}}, "when.cron", "minute is '61'; it takes 0-59"),
        ({"when": DAILY | {"time_zone": "Mars"}}, "when.time_zone", "Europe/Berlin"),
        ({"when": {"every_s": 0.1}}, "when.every_s", "greater than or equal to 1"),
        ({"when": {"at": "2020-01-01T00:00:00Z"}}, "when.at", "which is over"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at", "never fire"),
        ({"name": "sched_x"}, "name", "must not begin with"),
        ({"overlap": "never"}, "overlap", "skip"),
        ({"max_firings": 0}, "max_firings", "greater than or equal to 1"),
        ({"run": {"agent": "a"}}, "run.input", "required"),
        ({"run": RUN | {"session_id": "x"}}, "run.session_id", "pattern"),
        ({"moon": "full"}, "moon", "unknown field"),
    ],
)
async def test_what_is_wrong_is_named(api, change, field, says):
    body = {"name": "s", "when": DAILY, "run": RUN} | change
    answer = await api.post("/v1/schedules", json=body)
    found = answer.json()
    assert (answer.status_code, found["code"], found["field"]) == (422, "INVALID", field)
    assert says in found["detail"]


async def test_what_it_names_must_exist(api):
    unknown = await make(api, run=RUN | {"agent": "z"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "AGENT_NOT_FOUND")
    unknown = await make(api, run=RUN | {"agent_version": 9})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "AGENT_NOT_FOUND")
    unknown = await make(api, run=RUN | {"session_id": "sess_" + "0" * 32})
    assert (unknown.status_code, unknown.json()["field"]) == (404, "run.session_id")


async def test_a_name_is_taken_once(api, other_tenant):
    await made(api)
    again = await make(api)
    assert (again.status_code, again.json()["code"]) == (409, "SCHEDULE_EXISTS")
    assert "PATCH /v1/schedules/s" in again.json()["detail"]
    body = {"name": "s", "when": DAILY, "run": RUN}
    theirs = await api.post("/v1/schedules", json=body, headers=other_tenant.headers("admin"))
    assert theirs.status_code == 201


async def test_patch_changes_what_is_given_and_null_takes_away(api):
    before = await made(api, max_firings=5, jitter_s=10)
    changed = await api.patch(
        "/v1/schedules/s", json={"overlap": "enqueue", "max_firings": None, "when": {"every_s": 60}}
    )
    view = changed.json()
    assert (view["overlap"], view["max_firings"], view["jitter_s"]) == ("enqueue", None, 10)
    assert view["when"]["every_s"] == 60
    assert view["run"] == before["run"]
    assert (await api.patch("/v1/schedules/s", json={})).json()["updated_at"] == view["updated_at"]
    wrong = await api.patch("/v1/schedules/s", json={"when": {"cron": "x"}})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "when.cron")
    assert (await api.get("/v1/schedules/s")).json() == view
    assert (await api.patch("/v1/schedules/t", json={})).status_code == 404


async def test_pause_resume_delete_and_their_audit(api):
    await made(api)
    paused = (await api.post("/v1/schedules/s/pause", json={"reason": "holiday"})).json()
    assert (paused["status"], paused["pause_reason"]) == ("paused", "holiday")
    assert (paused["next_at"], paused["next"]) == (None, [])
    assert (await api.post("/v1/schedules/s/pause")).json() == paused
    resumed = (await api.post("/v1/schedules/s/resume")).json()
    assert (resumed["status"], resumed["pause_reason"], len(resumed["next"])) == ("active", None, 5)
    assert (await api.delete("/v1/schedules/s")).status_code == 204
    gone = await api.get("/v1/schedules/s")
    assert (gone.status_code, gone.json()["field"]) == (404, "schedule")
    actions = [r["action"] for r in (await api.get("/v1/audit")).json()["data"]]
    assert actions[:4] == [f"schedule.{v}" for v in ("delete", "resume", "pause", "create")]


async def test_trigger_starts_a_run_and_tells_why_not(api, play, tenant):
    await made(api, run=RUN | {"input": "for {schedule} at {scheduled_at}: {keep}"}, paused=True)
    fired = await api.post("/v1/schedules/s/trigger")
    first = fired.json()
    assert (fired.status_code, first["outcome"]) == (202, "started")
    run = (await api.get(f"/v1/runs/{first['run_id']}")).json()
    assert run["input"] == f"for s at {first['at']}: {{keep}}"
    assert run["tags"] == {"schedule": "s"}
    skipped = (await api.post("/v1/schedules/s/trigger")).json()
    assert (skipped["outcome"], skipped["run_id"]) == ("skipped", None)
    assert skipped["reason"] == f"{run['id']} is not over"
    await api.post("/v1/schedules/s/trigger", json={"overlap": "allow"})
    await play.step(decode("run", run["id"]), say())
    listed = (await api.get("/v1/schedules/s/firings", params={"limit": 2})).json()
    rest = await api.get("/v1/schedules/s/firings", params={"cursor": listed["next_cursor"]})
    found = listed["data"] + rest.json()["data"]
    assert [f["outcome"] for f in found] == ["started", "skipped", "started"]
    assert found[-1] == first | {"created_at": found[-1]["created_at"]}
    tagged = (await api.get("/v1/runs", params={"tag": "schedule:s"})).json()["data"]
    assert {r["id"] for r in tagged} == {f["run_id"] for f in found if f["run_id"]}


async def test_who_may_do_what(api, tenant):
    await made(api)
    viewer, operator = tenant.headers("viewer"), tenant.headers("operator")
    assert (await api.get("/v1/schedules/s", headers=viewer)).status_code == 200
    assert (await api.post("/v1/schedules/s/trigger", headers=viewer)).status_code == 403
    assert (await api.post("/v1/schedules/s/trigger", headers=operator)).status_code == 202
    narrow = await tenant.add_key("narrow", "operator", ["schedules:read", "schedules:write"])
    headers = {"Authorization": f"Bearer {narrow}"}
    for method, path, body in (
        ("POST", "", {"name": "t", "when": DAILY, "run": RUN}),
        ("PATCH", "/s", {"jitter_s": 1}),
        ("POST", "/s/trigger", {}),
    ):
        refused = await api.request(method, f"/v1/schedules{path}", json=body, headers=headers)
        assert refused.status_code == 403, refused.text
        assert refused.json()["permission"] == "runs:write"
    assert (await api.post("/v1/schedules/s/pause", headers=headers)).status_code == 200
