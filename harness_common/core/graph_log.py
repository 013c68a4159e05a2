"""The record of a graph run, from which its progress follows, and the plan of its next step.

A graph run says what it does in messages, as an agent's run does: an assistant message asks for the
calls of the next step, a tool message has what they gave. Beside the calls a message keeps (in
`extra`) whose turn came, so that the same record always leads to the same progress, at a cost that
grows with the run and not with the size of its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from harness_common.core import events as ev
from harness_common.core.events import Event
from harness_common.core.graph import CALLS_PER_SLOT, MAX_CALLS, Graph, Node
from harness_common.core.graph_progress import RUNNING, Progress
from harness_common.core.graph_values import BadValue, as_text, parsed
from harness_common.core.message import Json, Message, Text, ToolResult, ToolUse, Trust
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus

MAX_WAIT_S: Final = 31 * 86_400
LOG: Final = "graph"
"""The key of a message's `extra` that holds the record."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a step, and whose it is."""

    node: str
    item: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows from a progress: calls to make, or the end."""

    message: Message
    """The calls with the record, or the last words."""
    events: tuple[Event, ...]
    calls: int = 0
    error: Json = None
    """Why the run fails; None with no calls: it is done."""
    output: str | None = None


def replay(graph: Graph, messages: Sequence[Message], said: Sequence[str] = ()) -> Progress:
    """Return the progress that the run's messages lead to; calls without a result are under way."""
    heard = _heard(messages, said)
    progress = Progress(graph, parsed(messages[0].text(), "auto"), heard[0])
    asked: list[Asked] = []
    for message, known in zip(messages[1:], heard[1:], strict=True):
        progress.said = list(known)
        log = _log_of(message)
        if log is not None:
            asked = [Asked(node, item) for node, item in log["calls"]]
            _repeat(progress, log["ops"], asked)
        elif message.role == "tool" and asked:
            results = [b for b in message.content if isinstance(b, ToolResult)]
            for one, result in zip(asked, results, strict=False):
                error = result.error_type or "FAILED" if result.is_error else None
                progress.result(one.node, one.item, result.content, error)
            asked = []
    progress.said = list(said)
    progress.events.clear()
    return progress


def _log_of(message: Message) -> Json:
    return (message.extra or {}).get(LOG) if message.role == "assistant" else None


def _heard(messages: Sequence[Message], said: Sequence[str]) -> list[tuple[str, ...]]:
    """Return for each message what had been said to the run when it was taken in: as much as the
    plan knew that followed. What was said later changes nothing that is decided.
    """
    known, out = tuple(said), list[tuple[str, ...]]()
    for message in reversed(messages):
        if (log := _log_of(message)) is not None:
            known = tuple(said[: log.get("said", 0)])
        out.append(known)
    return out[::-1]


def asked_in(messages: Sequence[Message]) -> list[Asked]:
    """Return whose calls the last message with a record asked for."""
    for message in reversed(messages):
        if message.role == "assistant" and LOG in (message.extra or {}):
            return [Asked(node, item) for node, item in message.extra[LOG]["calls"]]
    return []


def _repeat(progress: Progress, ops: Sequence[Json], asked: Sequence[Asked]) -> None:
    """Do to a progress what its record says was done; what the graph has no more is left out."""
    for name, *rest in ops:
        if name == "revive":
            progress.revive()
        elif rest[0] not in progress.nodes:
            continue
        elif name == "begin":
            progress.begin(rest[0])
        elif name == "fail":
            progress.fail(*rest)
        elif name == "due":
            progress.nodes[rest[0]].due = rest[1]
    for one in asked:
        if one.node in progress.nodes:
            progress.called(one.node, one.item)


class _Planner:
    """Makes one plan; whatever it does to the progress is written down."""

    def __init__(self, progress: Progress, now: datetime) -> None:
        self.progress, self.now = progress, now
        self.ops: list[Json] = []
        self.uses: list[ToolUse] = []
        self.asked: list[Asked] = []
        self.after: dict[str, Json] = {}

    def begin(self) -> None:
        """Let every node begin whose turn has come: those that may take long only when there is
        nothing else to do.
        """
        while ready := self._impatient():
            for key in ready:
                self._do("begin", key)
        if any(self.progress.due(key) for key in self.progress.nodes):
            self._note_waits()
            return
        for key in self.progress.ready():
            self._do("begin", key)

    def _impatient(self) -> list[str]:
        nodes = self.progress.graph.nodes
        return [k for k in self.progress.ready() if not _is_patient(nodes[k])]

    def _note_waits(self) -> None:
        """Let the time of a wait begin when its turn has come, although it is not looked at yet."""
        for key in self.progress.ready():
            node = self.progress.graph.nodes[key]
            if not node.is_map and self.progress.nodes[key].due is None and _waits(node):
                try:
                    until = _until(self.progress.arguments(key, 0), self.now)
                except BadValue:
                    continue  # told when it begins
                self._do("due", key, until)

    def _do(self, name: str, key: str, *rest: Json) -> None:
        if name == "due":
            self.progress.nodes[key].due = str(rest[0])
        elif name == "fail":
            item, error = rest
            self.progress.fail(key, item, error)
        elif self.progress.nodes[key].status == "pending":
            self.progress.begin(key)
        else:
            return
        self.ops.append([name, key, *rest])

    def call(self) -> None:
        """Ask for the calls that are due, as many as a step may hold."""
        for key, node in self.progress.graph.nodes.items():
            most = min(MAX_CALLS - len(self.uses), node.parallel * CALLS_PER_SLOT)
            for item in self.progress.due(key)[: max(0, most)]:
                self._ask(node, item)

    def _ask(self, node: Node, item: int) -> None:
        assert node.work is not None
        one = self.progress.nodes[node.key]
        try:
            arguments = self.progress.arguments(node.key, item)
            if _waits(node):
                arguments = {"until": one.due or _until(arguments, self.now)}
        except BadValue as error:
            cause = f"{node.place}: {error}"
            self._do("fail", node.key, item, {"code": "NODE_TEMPLATE", "message": cause})
            return
        if failures := one.failures.get(item, 0):
            at = self.now + timedelta(seconds=node.again.after_s(failures))
            self.after[str(len(self.uses))] = at.isoformat()
        self.asked.append(Asked(node.key, item))
        self.uses.append(ToolUse(f"call_{len(self.uses)}", node.work.call, arguments))

    def log(self) -> Json:
        """Return the record of what was done."""
        calls = [[one.node, one.item] for one in self.asked]
        out: dict[str, Json] = {"ops": self.ops, "calls": calls}
        if said := len(self.progress.said):
            out["said"] = said  # how much of it this plan, and the results before it, knew
        return {LOG: out | ({"after": self.after} if self.after else {})}


def plan(progress: Progress, now: datetime) -> Plan:
    """Decide the next step: the calls whose turn has come, or the end of the run.

    A progress that has failed is tried once more where it did: that is what a retry asks for.
    """
    planner = _Planner(progress, now)
    if progress.fatal:
        progress.revive()
        planner.ops.append(["revive"])
    return _planned(planner)


def follow_up(progress: Progress, now: datetime) -> Plan:
    """Do what `plan` does after a step: a failure ends the run."""
    return _planned(_Planner(progress, now))


def _planned(planner: _Planner) -> Plan:
    progress = planner.progress
    while not progress.fatal:
        planner.begin()
        planner.call()
        if planner.uses or not _has_more(progress):
            break
    if progress.fatal:
        return _failed(planner)
    if not planner.uses:
        return _done(planner)
    for one in planner.asked:
        progress.called(one.node, one.item)
    message = Message("assistant", tuple(planner.uses), extra=planner.log())
    return Plan(message, (*progress.events, *_told(progress)), len(planner.uses))


def _has_more(progress: Progress) -> bool:
    return bool(progress.ready()) or any(progress.due(key) for key in progress.nodes)


def _told(progress: Progress) -> list[Event]:
    """Say how far the maps are that take several steps."""
    return [
        Event(ev.NODE_PROGRESS, {"node": key, "done": one.done, "of": len(one.items)})
        for key, one in progress.nodes.items()
        if one.status == RUNNING and one.items and 0 < one.done < len(one.items)
    ]


def _failed(planner: _Planner) -> Plan:
    planner.asked, planner.after = [], {}
    first = planner.progress.fatal[0]
    error = {
        "category": "permanent",
        "code": first["code"],
        "message": f"node {first['node']} failed: {first['message']}",
        "detail": {k: v for k, v in first.items() if k in {"node", "item", "place"}},
    }
    said = Message("assistant", (Text(error["message"]),), extra=planner.log())
    return Plan(said, tuple(planner.progress.events), error=error)


def _done(planner: _Planner) -> Plan:
    progress = planner.progress
    try:
        value = progress.output_of("", progress.graph.output)
    except BadValue as error:
        place = "/graph/output"
        progress.fatal.append({"node": "", "code": "NODE_TEMPLATE", "message": f"{place}: {error}"})
        return _failed(planner)
    text = "" if value is None else value if isinstance(value, str) else as_text(value)
    said = Message("assistant", (Text(text),), extra=planner.log())
    return Plan(said, tuple(progress.events), output=text)


def results_message(outcomes: Sequence[CallOutcome]) -> Message:
    """Answer every call in the order asked; one untrusted result taints the message."""
    trust: Trust = "untrusted" if any(o.trust == "untrusted" for o in outcomes) else "trusted"
    results = (
        ToolResult(
            o.tool_use_id,
            o.content,
            o.status is not CallStatus.SUCCEEDED,
            None if o.status is CallStatus.SUCCEEDED else o.error_type or str(o.status).upper(),
        )
        for o in outcomes
    )
    return Message("tool", tuple(results), trust)


def take(progress: Progress, asked: Sequence[Asked], outcomes: Sequence[CallOutcome]) -> None:
    """Give a progress what the calls of a step gave, in the order asked: whoever was first."""
    for outcome in sorted(outcomes, key=lambda o: o.index):
        ok = outcome.status is CallStatus.SUCCEEDED
        error = None if ok else outcome.error_type or str(outcome.status).upper()
        one = asked[outcome.index]
        progress.result(one.node, one.item, outcome.content, error)


def put_off_until(messages: Sequence[Message]) -> dict[int, datetime]:
    """Return which calls of the coming step are to be made again, and not before when."""
    for message in reversed(messages):
        if message.role == "assistant" and LOG in (message.extra or {}):
            after = message.extra[LOG].get("after", {})
            return {int(i): datetime.fromisoformat(at) for i, at in after.items()}
    return {}


def _is_patient(node: Node) -> bool:
    return node.work is not None and node.work.is_patient


def _waits(node: Node) -> bool:
    return node.kind == "wait"


def _until(arguments: Json, now: datetime) -> str:
    """Return when a wait is over; raises `BadValue`."""
    seconds, until = arguments.get("seconds"), arguments.get("until")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if not 0 <= seconds <= MAX_WAIT_S:
            raise BadValue(f"{seconds} is no wait of 0 to {MAX_WAIT_S} seconds")
        return (now + timedelta(seconds=seconds)).isoformat()
    if not isinstance(until, str):
        raise BadValue("neither a number of seconds nor a time")
    try:
        at = datetime.fromisoformat(until)
    except ValueError:
        raise BadValue(f"{until[:100]!r} is no time such as 2030-01-31T12:00:00Z") from None
    if at.tzinfo is None or (at - now).total_seconds() > MAX_WAIT_S:
        raise BadValue(f"{until} needs an offset, and is at most {MAX_WAIT_S} seconds away")
    return at.isoformat()
