"""Traces of requests: the span of a request, and whose trace the run that it makes belongs to."""

from __future__ import annotations

from harness_common.core.ids import decode
from harness_common.telemetry.traces import Place, accept_span, run_span, trace_of, traces
from tests.unit.test_traces import tracing

TRACE, SPAN = "ab" * 16, "cd" * 8
RUN = {"agent": "a", "input": "canary-of-a-tenant"}


async def test_a_run_without_a_caller_is_in_the_trace_of_its_own_id(api):
    with tracing() as kept:
        run = (await api.post("/v1/runs", json=RUN)).json()
        await api.get(f"/v1/runs/{run['id']}")
        await api.get("/healthz")
    run_id = decode("run", run["id"])
    made, read = (s for s in kept.spans if s.kind == "server")
    assert made.name == "POST /v1/runs"
    assert made.place == Place(run_id.int, accept_span(run_id))
    assert made.parent_id == 0
    assert run["trace_id"] == run_id.hex == f"{made.place.trace_id:032x}"
    assert read.name == "GET /v1/runs/{run_id}"
    assert read.place.trace_id != run_id.int
    assert read.attributes["harness.run_id"] == run["id"]
    assert read.attributes["http.response.status_code"] == 200
    assert "canary" not in repr(kept.spans)


async def test_the_trace_of_the_caller_is_kept(api):
    with tracing() as kept:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        run = (await api.post("/v1/runs", json=RUN, headers=headers)).json()
    (made,) = (s for s in kept.spans if s.kind == "server")
    assert run["trace_id"] == TRACE
    assert made.place == Place(int(TRACE, 16), accept_span(decode("run", run["id"])))
    assert made.parent_id == int(SPAN, 16)


async def test_a_fork_links_to_the_run_it_came_from(api):
    source = (await api.post("/v1/runs", json=RUN)).json()
    with tracing() as kept:
        answer = await api.post(f"/v1/runs/{source['id']}/fork", json={"step": 0})
        assert answer.status_code == 202, answer.text
    (made,) = (s for s in kept.spans if s.kind == "server")
    source_id = decode("run", source["id"])
    (link,) = made.links
    assert (link.how, link.place) == (
        "forked_from",
        Place(trace_of(source_id, ""), run_span(source_id)),
    )
    assert made.place.trace_id == decode("run", answer.json()["id"]).int


async def test_a_refused_request_makes_no_place_in_the_trace_of_a_run(api):
    with tracing() as kept:
        assert (await api.post("/v1/runs", json={"agent": "no", "input": "x"})).status_code == 404
        assert (await api.get("/v1/runs/no-run")).status_code == 422
    assert [s.attributes["http.response.status_code"] for s in kept.spans] == [404, 422]
    assert all("harness.run_id" not in s.attributes for s in kept.spans)


async def test_a_run_that_ends_in_the_api_has_its_span(api):
    """A cancel of a run that nobody works on is committed by the API."""
    with tracing() as kept:
        run = (await api.post("/v1/runs", json=RUN)).json()
        await api.post(f"/v1/runs/{run['id']}/cancel")
    ended = [s for s in kept.spans if s.name.startswith("invoke_agent")]
    status = (await api.get(f"/v1/runs/{run['id']}")).json()["status"]
    assert len(ended) == (status == "cancelled")


async def test_without_a_collector_no_request_has_a_span(api):
    assert not traces.on
    run = (await api.post("/v1/runs", json=RUN)).json()
    assert run["trace_id"] == decode("run", run["id"]).hex
