"""What telemetry costs a step, in one process: `python -m benchmarks.telemetry`.

A step is what a worker wraps around one (an attempt with one model call or one tool call, metrics
included) without the step itself. Off: no collector is set. On: spans are made, encoded,
compressed and sent to a server on loopback in another process; `cpu` counts the thread that sends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from harness_common.contracts.model import ChatRequest, ChatResult, Usage
from harness_common.core.ids import encode
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text, user
from harness_common.core.run import RunState
from harness_common.core.step import ModelAnswered
from harness_common.settings import TelemetrySettings
from harness_common.store.rows import StoredRun
from harness_common.telemetry.start import start_traces
from harness_common.telemetry.traces import traces
from harness_worker.telemetry.model_calls import ModelCall
from harness_worker.telemetry.steps import Attempt

STEPS = 10_000
_NOW = datetime.now(UTC)
RUN = StoredRun(
    tenant_id=UUID(int=1), id=UUID("0199aaaa-bbbb-7ccc-8ddd-eeeeffff0001"), session_id=UUID(int=2),
    agent_id=UUID(int=3), agent_name="walker", agent_version=1, queue="steps.default", priority=6,
    trace_id="", prev_run_id=None, attempt=1, fence=3, claim_id=UUID(int=3), claimed_by=UUID(int=9),
    committed_by=None, last_input_n=0, rings=1, state=RunState(),
)  # fmt: skip
REQUEST = ChatRequest("gpt-5-mini", [user("hello")])
ANSWER = ChatResult(Message("assistant", (Text("hi"),)), Usage(9, 3), "stop", "openai/gpt-5-mini")
SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Take(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


async def seen() -> None:
    """Go through a step as a worker does, with nothing in it."""
    outcome = StepDone(ModelAnswered(ANSWER.message, "stop", ANSWER.model, 9, 3), _NOW)
    with Attempt(RUN) as attempt:
        with ModelCall(RUN, "openai", REQUEST) as call:
            call.answered(ANSWER)
        attempt.ran(outcome)


def measure(name: str, count: int = STEPS) -> None:
    """Time so many steps and print what one costs."""

    async def loop() -> None:
        for n in range(count):
            await seen()
            if n % 100 == 0:
                await asyncio.sleep(0)

    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(loop())
    wall_us = (time.perf_counter() - wall) / count * 1e6
    traces.stop(30.0)
    cpu_us = (time.process_time() - cpu) / count * 1e6
    print(f"{name:28} {wall_us:7.1f} us a step, {cpu_us:7.1f} us of CPU with sending")


def boolean() -> None:
    """Time the look at the switch itself."""
    check: Callable[[], bool] = lambda: traces.on  # noqa: E731
    begun = time.perf_counter()
    for _ in range(1_000_000):
        check()
    print(f"{'the switch':28} {(time.perf_counter() - begun):7.3f} us a look")


def main() -> None:
    """Measure off, on, and with a tenth of the traces kept."""
    print(f"{encode('run', RUN.id)}, {STEPS} steps each")
    boolean()
    measure("warm-up", 2_000)
    measure("traces off")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        counted: dict[str, int] = {}

        def count(outcome: str, n: int) -> None:
            counted[outcome] = counted.get(outcome, 0) + n

        for ratio in (1.0, 0.0):
            config = TelemetrySettings(
                otlp_endpoint=url, sample_ratio=ratio, max_queued_spans=100_000
            )
            start_traces(config, "harness-benchmark", "1", count)
            measure(f"traces on, ratio {ratio:g}")
        print(f"spans: {counted}")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
