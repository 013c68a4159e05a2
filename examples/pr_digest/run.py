"""`python -m examples.pr_digest.run`: the digest on a stack of its own, with a worker killed in the
middle of it.

Starts a recorded code-hosting server and a `harness dev` in `.demo-digest/`, runs the graph, kills
the worker process that holds the run with SIGKILL when a part of the map is done, and checks by the
server's own record that no finished part was repeated. Ends with 0 only if all of that holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.analyst.stack import DemoFailed, Stack, make_folders
from examples.pr_digest.graph import SCRIPTED, build
from examples.pr_digest.server import RECORDED, RecordedServer, requests_in
from harness_api.client import Client, Run

ROOT: Final = Path(__file__).parents[2]
REPO: Final = RECORDED["repo"]
KILL_AFTER: Final = 8
"""Calls of the two maps whose results are kept when the worker is killed: the server holds back
what is asked for after these.
"""
_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Killed:
    """The worker that was killed, and what was finished by then."""

    worker: str
    kept: tuple[str, ...]
    """Requests whose result was in the ledger."""


def request_of(call: str, number: int) -> str:
    """Return the line that a call leaves in the server's record."""
    more = "/checks" if call == "fetch_checks" else ""
    return f"GET /repos/{REPO}/pulls/{number}{more}"


def kept_calls(client: Client, run_id: str) -> tuple[str, ...]:
    """List the requests whose results the ledger has."""
    return tuple(
        request_of(call.tool, call.arguments["number"])
        for call in client.runs.tool_calls(run_id)
        if call.tool.startswith("fetch_") and call.status == "succeeded"
    )


def kill_in_the_middle(client: Client, run_id: str, server: RecordedServer) -> Killed:
    """Wait until some parts are done and others are not, then kill -9 the worker of the run."""
    run = client.runs.get(run_id)
    until = time.monotonic() + _LIMIT_S
    kept: tuple[str, ...] = ()
    while time.monotonic() < until:
        kept = kept_calls(client, run_id)
        run = client.runs.get(run_id)
        if len(kept) >= KILL_AFTER and run.worker:
            (pid,) = [w.pid for w in client.workers.list() if w.name == run.worker]
            os.kill(pid, signal.SIGKILL)
            server.go_on()
            return Killed(run.worker, kept)
        if run.is_over:
            break
        time.sleep(0.02)
    raise DemoFailed(
        f"its worker could not be killed in the middle: {run.status} after {len(kept)} parts, "
        f"step {run.step}, {run.error or 'no error'}"
    )


def checks(
    client: Client, run: Run, killed: Killed | None, record: Path
) -> Iterator[tuple[bool, str]]:
    """Say what holds, by the API and by the server's own record."""
    made = requests_in(record)
    parts = [request_of(c, p["number"]) for p in RECORDED["pulls"]
             for c in ("fetch_pr", "fetch_checks")]  # fmt: skip
    yield run.status == "succeeded", f"the run succeeded ({run.status})"
    yield all(made[p] for p in parts), f"all {len(parts)} parts were fetched"
    if killed is not None:
        again = [p for p in killed.kept if made[p] != 1]
        what = f"none of the {len(killed.kept)} parts finished before the kill was repeated"
        yield bool(killed.kept) and not again, f"{what} {again or ''}".rstrip()
        events = [e.type for e in client.runs.events(run.id)]
        yield "run.recovered" in events, "another worker carried on"
    yield made[f"POST /repos/{REPO}/digests"] == 1, "the digest was published once"
    steps = [s.step for s in client.runs.steps(run.id)]
    yield steps == list(range(1, run.step + 1)), "no step was committed twice"


def run_digest(stack: Stack, server: RecordedServer, model: str, *, kill: bool) -> bool:
    """Run the graph on a stack that is starting; return whether every check passed."""
    key = stack.wait(lambda text: print(f"  {text}"))
    with Client(stack.api_url, key) as client:
        graph = build(model)
        agent = client.agents.apply(graph.name, graph.to_spec())
        label = " (scripted: its answer is declared in advance)" if model == SCRIPTED else ""
        print(f"\nagent {agent.name} version {agent.version}, model {model}{label}")
        run = client.runs.create(graph.name, f'{{"repo": "{REPO}"}}')
        print(f"run {run.id} is accepted")
        killed = kill_in_the_middle(client, run.id, server) if kill else None
        if killed is not None:
            print(f"worker {killed.worker} is killed with {len(killed.kept)} parts done\n")
        run = client.runs.wait(run.id, timeout_s=_LIMIT_S)
        print(client.runs.graph(run.id).mermaid)
        print(f"{run.output}\n")
        found = list(checks(client, run, killed, server.record))
    for holds, what in found:
        print(f"{'PASS' if holds else 'FAIL'}  {what}")
    return all(holds for holds, _ in found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.pr_digest.run", description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".demo-digest"))
    parser.add_argument("--model", default=SCRIPTED, help="PROVIDER/MODEL; default: scripted")
    parser.add_argument("--no-kill", action="store_true", help="let the worker live")
    return parser.parse_args()


def main() -> int:
    """Run from the command line; 0 when everything held, 1 when not."""
    args = _arguments()
    try:
        folders = make_folders(args.data_dir, keep=False)
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    answers = None if args.no_kill else KILL_AFTER
    server = RecordedServer(0, folders.root / "requests.txt", answers)
    server.start()
    env = {
        "PR_SERVER": server.url,
        "HARNESS_WORKER__TOOLS": '["examples.pr_digest.tools"]',
        "PYTHONPATH": str(ROOT),
    }
    stack = Stack(folders, flower=False, env=env)
    stack.start()
    try:
        return 0 if run_digest(stack, server, args.model, kill=not args.no_kill) else 1
    except (DemoFailed, KeyboardInterrupt) as error:
        print(f"{error}\n{stack.last_words()}", file=sys.stderr)
        return 1
    finally:
        stack.stop()
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
