"""Traces and metrics of real processes: one whole trace of a run whose worker is killed and whose
step is tried again, in a collector that decodes what it is sent; pages that Prometheus can read.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness_common.embedded.process import free_port
from tests.e2e.stack import Stack
from tests.e2e.test_throttle import until
from tests.fakes.otlp_collector import Collector, Received

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CANARY = "canary-2f9b1d7c"
CALLER_TRACE, CALLER_SPAN = "ab" * 16, "cd" * 8
SCRIPT = [
    {
        "text": f"I shall calculate {CANARY}",
        "tools": [{"name": "calculate", "input": {"expression": "6*7"}}],
    },
    {"error": "transient", "times": 1, "text": f"two {CANARY}", "continue": True},
    {"text": f"done {CANARY}", "delay_s": 3},
]
AGENT = {
    "name": "walker",
    "spec": {
        "model": "scripted/walker",
        "system": f"Say {CANARY}.",
        "tools": ["calculate"],
        "retry": {"base_s": 0.1},
        "model_options": {"script": SCRIPT},
    },
}


@contextmanager
def traced(collector: Collector, worker_port: int, scheduler_port: int) -> Iterator[Stack]:
    with Stack(
        HARNESS_TELEMETRY__OTLP_ENDPOINT=collector.url,
        HARNESS_TELEMETRY__EXPORT_EVERY_S="0.2",
        HARNESS_TELEMETRY__WORKER_METRICS_PORT=str(worker_port),
        HARNESS_TELEMETRY__SCHEDULER_METRICS_PORT=str(scheduler_port),
    ) as stack:
        yield stack


LOSSES = ("killed", "disconnected", "no_heartbeat")
"""Whoever sees the death first says why."""
EXPECTED = {
    "POST /v1/runs": 1, "invoke_agent walker": 1, "send harness.step": 6, "step model": 5,
    "step tools": 1, "chat walker": 4, "execute_tool calculate": 1,
}  # fmt: skip


def names(spans: list[Received]) -> Counter[str]:
    return Counter(s.name for s in spans if s.trace_id == CALLER_TRACE)


def start_run(client: httpx.Client, **headers: str) -> str:
    body = {"agent": "walker", "input": f"walk {CANARY}"}
    answer = client.post("/v1/runs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def kill_owner(stack: Stack, step: int) -> None:
    """Kill -9 the process that works on a step, once one does."""
    (row,) = until(
        lambda: stack.query(
            "SELECT w.pid FROM runs r JOIN workers w ON w.incarnation = r.claimed_by "
            "WHERE r.step = %s AND r.claim_id IS NOT NULL AND r.claimed_at < clock_timestamp() "
            "- interval '0.5 s'",
            step - 1,
        ),
        30,
    )
    psutil.Process(row["pid"]).send_signal(signal.SIGKILL)


def metrics_at(port: int) -> dict[str, float]:
    """Read a page as Prometheus does: samples by name, labels in the name."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_one_trace_tells_of_a_run_with_a_tool_a_retry_and_a_killed_worker():
    worker_port, scheduler_port = free_port(), free_port()
    with (
        Collector() as collector,
        traced(collector, worker_port, scheduler_port) as stack,
        stack.client() as client,
    ):
        assert client.post("/v1/agents", json=AGENT).status_code == 201
        run_id = start_run(client, traceparent=f"00-{CALLER_TRACE}-{CALLER_SPAN}-01")
        kill_owner(stack, step=4)
        run = client.get(f"/v1/runs/{run_id}", params={"wait": 30}).json()
        assert run["status"] == "succeeded", run
        assert run["trace_id"] == CALLER_TRACE

        def whole(spans: list[Received]) -> list[Received]:
            mine = [s for s in spans if s.trace_id == CALLER_TRACE]
            return mine if any(s.name == "invoke_agent walker" for s in mine) else []

        collector.wait_for(whole)
        # What else is under way to it: a process sends its spans in their order.
        collector.wait_for(lambda spans: names(spans) >= Counter(EXPECTED))
        check_trace(whole(collector.spans), run_id)
        assert not [b for b in collector.bodies if CANARY.encode() in b]
        check_worker(metrics_at(worker_port))
        check_scheduler(metrics_at(scheduler_port))


def check_trace(spans: list[Received], run_id: str) -> None:
    by_name: dict[str, list[Received]] = {}
    for span in sorted(spans, key=lambda s: s.start_ns):
        by_name.setdefault(span.name, []).append(span)
    ids = {s.span_id for s in spans}
    assert len(ids) == len(spans), "an id is used twice"
    assert {s.parent_id for s in spans} <= ids | {CALLER_SPAN}, "a parent is missing"

    (request,), (run,) = by_name["POST /v1/runs"], by_name["invoke_agent walker"]
    assert (request.service, request.kind) == ("harness-api", "server")
    assert request.parent_id == CALLER_SPAN
    assert run.parent_id == request.span_id
    assert run.attributes["harness.status"] == "succeeded"
    assert run.attributes["harness.run_id"] == run_id
    bells = by_name["send harness.step"]
    assert {b.parent_id for b in bells} == {run.span_id}

    models, (tools,) = by_name["step model"], by_name["step tools"]
    assert [m.attributes["harness.step"] for m in models] == [1, 3, 3, 4, 4]
    assert {m.parent_id for m in models} == {run.span_id}
    first, failed, again, lost, last = models
    rung = [k.span_id for s in (*models, tools) for k in s.links if k.how == "doorbell"]
    assert set(rung) <= {b.span_id for b in bells}
    assert len(rung) == 5  # each that was not lost

    assert (failed.error, again.error) == ("MODEL_UNAVAILABLE", None)
    assert [k.span_id for k in again.links if k.how == "previous_attempt"] == [failed.span_id]
    assert again.attributes["harness.attempt"] == 2
    assert (lost.error, lost.service) == ("OWNER_LOST", "harness-scheduler")
    assert lost.attributes["harness.why"] in LOSSES
    assert lost.end_ns - lost.start_ns > 0.4e9
    assert [k.span_id for k in last.links if k.how == "previous_attempt"] == [lost.span_id]
    assert last.attributes["harness.attempt"] == 2
    assert last.attributes["harness.previous_fence"] == lost.attributes["harness.fence"]
    assert last.attributes["harness.claim_id"] != lost.attributes["harness.claim_id"]

    chats = by_name["chat walker"]
    assert [c.parent_id for c in chats] == [s.span_id for s in (first, failed, again, last)]
    told = chats[0].attributes
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "scripted"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "walker"
    assert told["gen_ai.usage.input_tokens"] > 0
    assert told["gen_ai.response.finish_reasons"] == ["tool_calls"]
    (call,) = by_name["execute_tool calculate"]
    assert call.parent_id == tools.span_id
    assert call.attributes["gen_ai.tool.name"] == "calculate"
    assert call.attributes["gen_ai.tool.call.id"] == "call_1_1"
    sessions = {s.attributes.get("gen_ai.conversation.id") for s in (run, *models, *chats, call)}
    assert len(sessions) == 1


def check_worker(found: dict[str, float]) -> None:
    assert found["harness_steps_total{kind=model,outcome=done}"] == 3
    assert found["harness_steps_total{kind=model,outcome=transient}"] == 1
    assert found["harness_steps_total{kind=tools,outcome=done}"] == 1
    assert found["harness_retries_total{code=MODEL_UNAVAILABLE}"] == 1
    assert found["harness_model_calls_total{outcome=answered,provider=scripted}"] == 3
    assert found["harness_tokens_total{direction=input,provider=scripted}"] > 0
    assert found["harness_tool_calls_total{effect=read,status=succeeded}"] == 1
    assert found["harness_commit_seconds_count"] == 5
    assert found["harness_queue_wait_seconds_count"] == 6  # the claim of the killed one too
    assert found["harness_spans_total{outcome=sent}"] > 8


def check_scheduler(found: dict[str, float]) -> None:
    assert found["harness_leader"] == 1
    recovered = sum(found.get(f"harness_recoveries_total{{reason={r}}}", 0) for r in LOSSES)
    assert recovered == 1
    assert found["harness_scheduler_actions_total{action=runs_recovered}"] == 1
    assert found["harness_runs{state=running}"] == 0
    assert found["harness_runs_queued{reason=admission}"] == 0
    assert found["harness_workers_alive"] in {1, 2}  # the one in its place may not be up yet
    assert found["harness_database_answers"] == 1
