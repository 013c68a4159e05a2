"""`make demo`: a run on real data, a worker killed in its middle, and what is left of it.

Starts a stack of its own in `.demo/`, has the agent `analyst` answer a question, kills the worker
process that holds the run with SIGKILL, follows the run to its end on another, and checks from
outside that nothing was done twice. Ends with 0 only when all of that holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final
from uuid import uuid4

import httpx
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from examples.analyst.agent import NOTES, QUESTION, SCRIPTED, agent
from examples.analyst.api import Api, Event
from examples.analyst.checks import Check, Evidence, Kill, check_all, read_lines
from examples.analyst.stack import DemoFailed, Folders, Stack, make_folders

_KILL_AFTER: Final = {True: 8, False: 4}
"""Steps committed before the kill, with the script and with a model of one's own. The script's
eighth is the step that writes a line: what must not happen again has just happened."""

_LIMIT_S: Final = {True: 90.0, False: 900.0}
_INTO_THE_STEP_S: Final = 0.3
_OWNER_S: Final = 20.0
_DEFAULT_MODEL: Final = "gpt-5-mini"


class Screen:
    """What the demo prints; each line with the seconds since the start."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
        self._begun = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        clock = f"[dim]{time.monotonic() - self._begun:6.2f} s[/dim]  "
        shown = f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
        self.console.print(clock + shown, soft_wrap=True)

    def title(self, text: str) -> None:
        """Print a heading."""
        self.console.print()
        self.console.rule(f"[bold]{escape(text)}[/bold]", align="left")


class Follower:
    """One run watched from its first to its last event, with the kill in between."""

    def __init__(self, api: Api, screen: Screen, run_id: str, *, scripted: bool) -> None:
        self.kill: Kill | None = None
        self.streamed: list[int] = []
        self._api, self._screen, self._run_id = api, screen, run_id
        self._kill_after = _KILL_AFTER[scripted]
        self._limit_s = _LIMIT_S[scripted]

    def follow(self) -> None:
        """Print events until the run has ended, and kill its worker when the time has come."""
        until = time.monotonic() + self._limit_s
        for event in self._api.follow(self._run_id):
            if time.monotonic() > until:
                raise DemoFailed(f"The run has not ended within {self._limit_s:.0f} s.")
            if event.seq is None:
                continue  # live only, such as pieces of an answer
            self.streamed.append(event.seq)
            if text := _told(event):
                self._screen.say(*text)
            if event.name == "run.waiting":
                raise DemoFailed("The run waits for a person, so it will not end by itself.")
            if event.name == "run.recovered":
                self._show_successor()
            if event.name == "step.completed" and event.data["step"] >= self._kill_after:
                self._kill_owner()

    def _kill_owner(self) -> None:
        """Send SIGKILL to the process that works on the run, once it is inside a model step.

        Not inside a tools step: an effect that dies half-way is of unknown outcome, and its run
        then rightly waits for a person.
        """
        while self.kill is None:
            run = self._run()
            if run["status"] != "running" or run["next_kind"] != "model":
                return
            if (name := run["worker"]) is not None:
                worker = self._worker(name)
                time.sleep(_INTO_THE_STEP_S)
                now = self._run()
                if (now["worker"], now["step"]) != (name, run["step"]):
                    continue  # that step is over: look at the next one
                os.kill(worker["pid"], signal.SIGKILL)
                self.kill = Kill(name, worker["pid"], run["step"] + 1, time.time())
                self._screen.say(
                    f"killed worker {name} (pid {worker['pid']}) with SIGKILL "
                    f"during step {self.kill.step}",
                    "bold red",
                )

    def _show_successor(self) -> None:
        until = time.monotonic() + _OWNER_S
        while time.monotonic() < until:
            run = self._run()
            if run["status"] != "running":
                return
            if run["worker"] is not None and self.kill and run["worker"] != self.kill.worker:
                text = f"worker {run['worker']} carries on with step {run['step'] + 1}"
                self._screen.say(text, "bold green")
                return
            time.sleep(0.02)

    def _run(self) -> dict[str, Any]:
        found: dict[str, Any] = self._api.get(f"/v1/runs/{self._run_id}")
        return found

    def _worker(self, name: str) -> dict[str, Any]:
        workers: list[dict[str, Any]] = self._api.get("/v1/workers")["data"]
        for worker in workers:
            if worker["name"] == name:
                return worker
        raise DemoFailed(f"The run is held by {name}, which GET /v1/workers does not list.")


def _told(event: Event) -> tuple[str, str] | None:
    """Word an event for people, with a style; None for what another event says as well."""
    step, about = event.data["step"], event.data["payload"]
    match event.name:
        case "model.answered":
            tools = ", ".join(about["tools"])
            what = f"asks for {tools}" if tools else f"ends: {about['finish']}"
            tokens = f"{about['input_tokens']} + {about['output_tokens']} tokens"
            return f"step {step:>2}  model  {about['model']} {what} ({tokens})", "cyan"
        case "tool.completed":
            return f"step {step:>2}  tool   {about['tool']} took {about['ms']:.0f} ms", "green"
        case "tool.failed" | "tool.timeout":
            kind = about.get("error_type") or about["status"]
            return f"step {step:>2}  tool   {about['tool']} failed: {kind}", "yellow"
        case "run.recovered":
            return f"worker {about['worker']} is gone ({about['why']}); the run is free", "red"
        case "run.created" | "run.started" | "run.resumed" | "run.completed":
            return event.name.replace(".", " "), "bold"
        case "run.failed" | "run.waiting" | "run.delayed" | "run.cancelled" | "step.failed":
            return f"{event.name.replace('.', ' ')}: {about}", "bold yellow"
    return None


def choose_model() -> str:
    """Return the model by the environment: one's own when a server or a key is set."""
    base_url = os.environ.get("HARNESS_OPENAI_BASE_URL", "").strip()
    key = os.environ.get("HARNESS_OPENAI_API_KEY", "").strip()
    if not base_url and not key:
        return SCRIPTED
    if name := os.environ.get("HARNESS_DEMO_MODEL", "").strip():
        return f"openai/{name}"
    return f"openai/{_first_model(base_url, key) if base_url else _DEFAULT_MODEL}"


def _first_model(base_url: str, key: str) -> str:
    """Ask the server which model it has; local servers have one."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{base_url.rstrip('/')}/models", headers=headers, timeout=10)
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise DemoFailed(
            f"HARNESS_OPENAI_BASE_URL is set, but {base_url}/models names no model ({error}). "
            "Check the address, or set HARNESS_DEMO_MODEL to the name of a model it has."
        ) from None


def run_demo(stack: Stack, screen: Screen, model: str, question: str) -> bool:
    """Do it all on a stack that is starting; return whether every check passed."""
    screen.title("Starting the stack")
    api = Api(stack.api_url, stack.wait(screen.say))
    if stack.flower_url:
        screen.say(f"Flower is on {stack.flower_url}")

    screen.title("The run")
    if model == SCRIPTED:
        text = "scripted model: answers are declared in advance; tools and data are real"
        screen.say(text, "bold magenta")
    made = api.post("/v1/agents", agent(model)).json()
    screen.say(f"agent {made['name']} version {made['version']}, model {model}")
    screen.say(f"question: {question}")
    notes = stack.folders.files / "outbox" / NOTES
    before = len(read_lines(notes))
    body = {"agent": "analyst", "input": question, "tags": {"demo": "yes"}}
    key = f"demo-{uuid4().hex}"
    run = api.post("/v1/runs", body, Idempotency_Key=key).json()
    screen.say(f"run {run['id']} is accepted")
    follower = Follower(api, screen, run["id"], scripted=model == SCRIPTED)
    follower.follow()

    found = Evidence.read(api, run["id"])
    _show_timeline(screen, found, follower.kill)
    _show_results(screen, found, stack.folders)
    checks = list(
        check_all(
            found,
            kill=follower.kill,
            streamed=follower.streamed,
            lines=read_lines(notes)[before:],
        )
    )
    checks.append(_same_request(api, body, key, run["id"]))
    return _show_checks(screen, checks)


def _same_request(api: Api, body: dict[str, Any], key: str, run_id: str) -> Check:
    again = api.post("/v1/runs", body, Idempotency_Key=key)
    replayed = again.headers.get("Idempotency-Replayed") == "true"
    return Check(
        again.json()["id"] == run_id and replayed,
        "the same request again started no second run",
        f"Idempotency-Replayed: {again.headers.get('Idempotency-Replayed')}",
    )


def _show_timeline(screen: Screen, found: Evidence, kill: Kill | None) -> None:
    screen.title("Timeline")
    table = Table("step", "kind", "worker", "tool", "ms", "tokens in + out", "cost USD", box=None)
    for column in (0, 4, 5, 6):
        table.columns[column].justify = "right"
    for step in found.steps:
        tools = ", ".join(t["tool"] for t in step["tools"])
        tokens = step["tokens"]
        struck = kill is not None and step["step"] == kill.step
        table.add_row(
            str(step["step"]),
            step["kind"] + (" (again)" if struck else ""),
            step["worker"] or "",
            tools,
            f"{step['ms']:.0f}" if step["ms"] is not None else "",
            f"{tokens['input']} + {tokens['output']}" if step["kind"] == "model" else "",
            "unpriced" if step["cost_usd"] is None else f"{step['cost_usd']:.4f}",
            style="bold green" if struck else "",
        )
    screen.console.print(table)
    run = found.run
    usage = run["usage"]
    took_s = (_unix(run["finished_at"]) - _unix(run["created_at"])) if run["finished_at"] else 0.0
    screen.console.print(
        f"\n{run['step']} steps in {took_s:.1f} s, {usage['input_tokens']} + "
        f"{usage['output_tokens']} tokens{' (estimated)' if run['scripted'] else ''}, "
        f"{_cost(found)}"
    )
    if kill is not None:
        _show_recovery(screen, found, kill)


def _cost(found: Evidence) -> str:
    if any(step["cost_usd"] is None for step in found.steps):
        return "cost unknown: the price table does not have this model"
    return f"{found.run['usage']['cost_usd']:.4f} USD"


def _show_recovery(screen: Screen, found: Evidence, kill: Kill) -> None:
    lost = [e["at"] for e in found.events if e["type"] == "run.recovered"]
    begun = [s["started_at"] for s in found.steps if s["step"] == kill.step and s["started_at"]]
    if lost and begun:
        noticed_ms, again_ms = ((_unix(at) - kill.at) * 1000 for at in (lost[0], begun[0]))
        screen.console.print(
            f"recovery: the death was noticed {noticed_ms:.0f} ms after the kill, "
            f"and step {kill.step} ran again after {again_ms:.0f} ms"
        )


def _show_results(screen: Screen, found: Evidence, folders: Folders) -> None:
    """Print the report and save the artifacts, the report with a link to the chart beside it."""
    screen.title("Report")
    charts = found.of_type("image/png")
    for chart in charts:
        (folders.out / Path(chart["name"]).name).write_bytes(found.files[chart["id"]])
    for report in found.of_type("text/markdown"):
        text = found.files[report["id"]].decode()
        for chart in charts:
            text = text.replace(chart["links"]["content"], Path(chart["name"]).name)
        path = folders.out / Path(report["name"]).name
        path.write_text(text, encoding="utf-8")
        screen.console.print(Markdown(text))
        screen.console.print(f"\nreport: {path}", soft_wrap=True)
    for chart in charts:
        screen.console.print(f"chart:  {folders.out / Path(chart['name']).name}", soft_wrap=True)
    screen.console.print(f"answer: {found.run['output']}", markup=False)


def _show_checks(screen: Screen, checks: list[Check]) -> bool:
    screen.title("Checks, from outside")
    for check in checks:
        mark = "[green]PASS[/green]" if check.holds else "[bold red]FAIL[/bold red]"
        screen.console.print(
            f"{mark}  {escape(check.what)}  [dim]{escape(check.seen)}[/dim]", soft_wrap=True
        )
    return all(check.holds for check in checks)


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.analyst.demo", description=__doc__)
    parser.add_argument("question", nargs="?", help="ask this instead (needs a model of your own)")
    parser.add_argument("--data-dir", type=Path, default=Path(".demo"), help="default: .demo")
    parser.add_argument("--keep", action="store_true", help="keep what an earlier demo left")
    parser.add_argument("--leave-up", action="store_true", help="keep the stack running")
    parser.add_argument("--no-flower", action="store_true", help="start without Flower")
    return parser.parse_args()


def _on_sigterm(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run from the command line; 0 when everything held, 1 when not, 130 when interrupted."""
    args, screen = _arguments(), Screen()
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        model = choose_model()
        if model == SCRIPTED and args.question:
            raise DemoFailed("The script answers one question only: set HARNESS_OPENAI_BASE_URL.")
        stack = Stack(make_folders(args.data_dir, keep=args.keep), flower=not args.no_flower)
    except DemoFailed as failure:
        screen.console.print(f"[bold red]{escape(str(failure))}[/bold red]")
        return 1
    return _on_stack(stack, screen, model, args)


def _on_stack(stack: Stack, screen: Screen, model: str, args: argparse.Namespace) -> int:
    logs, code = stack.folders.logs, 1
    try:
        stack.start()
        code = 0 if run_demo(stack, screen, model, args.question or QUESTION) else 1
    except KeyboardInterrupt:
        screen.say("interrupted", "yellow")
        code = 130
    except (DemoFailed, httpx.HTTPError) as failure:
        screen.say(str(failure) or type(failure).__name__, "bold red")
        screen.console.print(f"The end of {logs / 'console.log'}:\n", markup=False)
        screen.console.print(stack.last_words(), markup=False, style="dim")
    finally:
        screen.console.print()
        if args.leave_up and stack.pid and code != 130:
            screen.say(f"the stack stays up on {stack.api_url}; stop it with: kill {stack.pid}")
            screen.say(f"look around with: HARNESS_DATA_DIR={stack.folders.root} harness runs list")
        elif not stack.stop():
            screen.say("the stack did not stop in order", "yellow")
            code = code or 1
        else:
            screen.say("everything is stopped")
        screen.console.print(f"logs: {logs}", soft_wrap=True)
    outcome = {0: "[bold green]PASS", 130: "[yellow]INTERRUPTED"}.get(code, "[bold red]FAIL")
    screen.console.print(f"{outcome}[/]  demo")
    return code


if __name__ == "__main__":
    sys.exit(main())
