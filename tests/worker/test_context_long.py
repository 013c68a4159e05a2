"""A run of 500 turns: it stays inside its window, its storage is linear, and its last prompt is
built as fast as an early one.
"""

from __future__ import annotations

import time

import pytest

from harness_common.commands import ForkRun, fork_run
from harness_common.core.run import Status
from harness_common.settings import Settings, WorkerSettings
from harness_worker.models.registry import ModelRegistry
from harness_worker.runtime import Held
from harness_worker.steps.context import StepContext
from harness_worker.steps.prompt import build_prompt, shown_of
from tests.store.play import make_key, sql
from tests.worker.context_bench import Bench, CountingServer, look_tool
from tests.worker.runtime import make_runtime

TURNS = 500
WINDOW = 4_000

_ROWS = """
SELECT count(*) AS rows, sum(bytes) AS bytes FROM (
    SELECT pg_column_size(c.*) AS bytes, step FROM checkpoints c WHERE run_id = :r
    UNION ALL SELECT pg_column_size(e.*), step FROM events e WHERE run_id = :r
    UNION ALL SELECT pg_column_size(t.*), step FROM tool_calls t WHERE run_id = :r
    UNION ALL SELECT pg_column_size(m.*), step FROM messages m WHERE run_id = :r
) AS found WHERE step > :after AND step <= :to
"""


@pytest.mark.timeout(300)
async def test_a_run_of_500_turns(db, play):
    tools = [look_tool(200)]
    runtime = await make_runtime(db, tools=tools)
    runtime.settings = Settings(
        steps_per_task=1_000, worker=WorkerSettings(turn_ms=100_000, turn_s=100)
    )
    runtime.models = ModelRegistry(runtime.settings, runtime.http)
    bench = Bench(db, play, runtime, CountingServer(0), await make_key(db, play.tenant_id))
    script = [
        {"text": f"Look {n}.", "tools": [{"name": "look", "input": {"i": n}}]}
        for n in range(1, TURNS)
    ]
    script.append({"text": "All done."})
    await bench.agent(
        model="scripted/long",
        model_options={"script": script},
        context={"window_tokens": WINDOW, "summary_tokens": 400},
    )
    run = await bench.run()
    assert run.state.status is Status.SUCCEEDED, run.state.error
    assert run.state.turn == TURNS
    answered = [
        (e["step"], e["payload"]["context"])
        for e in await play.events(run.id)
        if e["type"] == "model.answered"
    ]
    compactions = await bench.payloads(run.id, "context.compacted")
    assert 5 <= len(compactions) <= 60
    assert max(c["tokens"] for _, c in answered) <= WINDOW * 0.8
    # Storage: the second half takes what the first half takes.
    half = run.state.step // 2
    early, late = [
        (await sql(db, _ROWS, r=run.id, after=a, to=b))[0]
        for a, b in ((0, half), (half, run.state.step))
    ]
    assert late["rows"] == pytest.approx(early["rows"], rel=0.05)
    assert late["bytes"] == pytest.approx(early["bytes"], rel=0.1)
    # What a process that never saw the run loads, and how long it builds.
    first = _largest(answered, 40, 60)
    last = _largest(answered, 480, 500)
    early_ctx, late_ctx = [await _cold(bench, run.id, step) for step in (first, last)]
    assert len(late_ctx.messages) <= 1.5 * len(early_ctx.messages) < 250  # of more than 1,000
    early_ms, late_ms = await _build_ms(early_ctx, late_ctx)
    assert late_ms <= 1.5 * early_ms


def _largest(answered, first, last):
    """Return the step with the largest prompt of these turns."""
    return max(answered[first - 1 : last], key=lambda a: a[1]["tokens"])[0]


async def _cold(bench, run_id, step):
    """Fork the run before a model step and return that step's context as a process loads it that
    never saw the run.
    """
    request = ForkRun(step=step - 1, created_by=bench.key)
    fork = (await fork_run(bench.db, bench.play.tenant_id, run_id, request)).run_id
    version = (await bench.play.read(fork)).version
    claimed = await bench.play.try_claim(fork, version)
    assert claimed is not None
    run = claimed.run
    tail = claimed.tail(bench.runtime.known(run.id))
    assert tail.messages == claimed.messages
    return StepContext(
        run=run,
        spec=await bench.runtime.agent(run),
        history=(),
        messages=tail.messages,
        calls=(),
        started_at=claimed.now,
        runtime=bench.runtime,
        held=Held(run.tenant_id, run.id, "lease", run.claim_id),
        first=tail.first,
    )


async def _build_ms(*contexts):
    """Build the prompts in turns, so that noise hits all of them; the least of many is the time
    that it takes.
    """
    took_ms: list[list[float]] = [[] for _ in contexts]
    for _ in range(60):
        for ctx, of in zip(contexts, took_ms, strict=True):
            model = ctx.runtime.models.get(ctx.spec.model)
            begun = time.perf_counter()
            await build_prompt(ctx, model, (), shown_of(ctx))
            of.append((time.perf_counter() - begun) * 1_000)
    return [min(of) for of in took_ms]
