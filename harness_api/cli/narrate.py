"""What happened in a run, told in lines: one event, at most one line. Used by `runs follow` and
`runs events`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from harness_api.cli.narrate_nodes import TELL_NODES
from harness_api.cli.output import SCRIPTED, ms, scripted, short, usd
from harness_common.core import events as ev
from harness_common.core.rules import SUSPECT_DEATHS

if TYPE_CHECKING:
    from harness_api.client.types import Event

Payload = Mapping[str, Any]
_LINE_WIDTH = 300


class Narrator:
    """Tells events in their order; remembers when steps began."""

    def __init__(self) -> None:
        self._began: dict[int, datetime] = {}

    def line(self, event: Event) -> str:
        """Return the line of an event; empty when it says nothing new."""
        if event.type == ev.STEP_STARTED and event.step is not None:
            self._began[event.step] = event.at
        tell = _TELL.get(event.type)
        if tell is not None:
            text = tell(event.payload, self._took(event))
        elif event.type in _SILENT:
            return ""
        else:  # of a newer server
            text = f"{event.type} {short(str(event.payload)) if event.payload else ''}".rstrip()
        where = f"step {event.step}  " if event.step is not None else ""
        return where + text

    def _took(self, event: Event) -> str:
        began = self._began.get(event.step or 0)
        return ms((event.at - began).total_seconds() * 1000) if began else ""


def _created(payload: Payload, _: str) -> str:
    agent = payload.get("agent")
    text = f"created for agent {agent}" if isinstance(agent, str) else "created"
    source, parent = payload.get("forked_from"), payload.get("parent")
    if isinstance(source, Mapping):
        text += f", goes on from {source.get('run')} step {source.get('step')}"
    if isinstance(parent, Mapping):
        text += f", child of {parent.get('run')} call {parent.get('call')}"
    changed = payload.get("overrides")
    if isinstance(changed, Mapping):
        shown = {k: v for k, v in changed.items() if k != "recorded"}
        text += f", changed {short(str(shown))}" if shown else ""
        text += ", a dry run" if "recorded" in changed else ""
    return text


def _answered(payload: Payload, took: str) -> str:
    label = scripted(payload.get("scripted") is True)
    model = str(payload.get("model"))
    parts = [
        f"model  {short(model)}{'' if label and SCRIPTED in model.split('/') else label}",
        took,
        f"{payload.get('input_tokens', 0)} in, {payload.get('output_tokens', 0)} out",
        usd(payload.get("cost_usd")),
    ]
    asks = payload.get("tools") or []
    text = "  ".join(p for p in parts if p)
    return f"{text}  asks for {short(', '.join(map(str, asks)))}" if asks else text


def _full(payload: Payload, _: str) -> str:
    who = "the provider refuses" if payload.get("why") == "provider" else "the limit is passed by"
    return f"full   {who} a prompt of {payload.get('tokens')} tokens"


def _compacted(payload: Payload, took: str) -> str:
    size = f"{payload.get('tokens_before')} → {payload.get('tokens_after')} tokens"
    text = f"compact  {payload.get('covers')} messages {short(str(payload.get('how')))}  {size}"
    return f"{text}  {took}".rstrip()


def _tool(payload: Payload, _: str) -> str:
    state = payload.get("status", "")
    if payload.get("error_type"):
        state = f"{state}: {payload['error_type']}"
    files = payload.get("artifacts") or []
    made = f"  made {', '.join(map(str, files))}" if files else ""
    return f"tool   {short(str(payload.get('tool')))}  {state}  {ms(payload.get('ms'))}{made}"


def _tool_retried(payload: Payload, _: str) -> str:
    why = short(f"{payload.get('error_type')}: {payload.get('why')}", 80)
    return (
        f"tool   {short(str(payload.get('tool')))}  attempt {payload.get('attempt')} failed "
        f"({why}), again in {payload.get('retry_in_s')} s"
    )


def _tool_degraded(payload: Payload, _: str) -> str:
    tool, instead = short(str(payload.get("tool"))), short(str(payload.get("fallback")))
    return (
        f"tool   {tool}  fails, {instead} is called instead ({short(str(payload.get('why')), 60)})"
    )


def _breaker_opened(payload: Payload, _: str) -> str:
    return (
        f"tool   {short(str(payload.get('tool')))}  failed {payload.get('failures')} times, not "
        f"called for {payload.get('open_s')} s ({short(str(payload.get('reason')), 60)})"
    )


def _breaker_closed(payload: Payload, _: str) -> str:
    return f"tool   {short(str(payload.get('tool')))}  works again"


def _model_degraded(payload: Payload, _: str) -> str:
    why = payload.get("why")
    last = why[-1] if isinstance(why, list) and why else {}
    return (
        f"model  {short(str(payload.get('model')))}  cannot serve, "
        f"{short(str(payload.get('served_by')))} answered instead ({short(str(last.get('code')))})"
    )


def _model_breaker_opened(payload: Payload, _: str) -> str:
    return (
        f"model  {short(str(payload.get('model')))}  failed {payload.get('failures')} times and is "
        f"passed over ({short(str(payload.get('reason')), 60)})"
    )


def _model_breaker_closed(payload: Payload, _: str) -> str:
    return f"model  {short(str(payload.get('model')))}  serves again"


def _tool_started(payload: Payload, _: str) -> str:
    return f"tool   {short(str(payload.get('tool')))}  started"


def _tool_progress(payload: Payload, _: str) -> str:
    return f"tool   {progress_text(payload)}"


def progress_text(payload: Payload) -> str:
    """Return what a tool says of its progress."""
    tool = short(str(payload.get("tool", "")))
    rest = {
        k: v for k, v in payload.items() if k not in {"tool", "call", "step", "durable", "type"}
    }
    text = (
        rest.pop("message", None)
        or rest.pop("note", None)
        or ", ".join(f"{k} {v}" for k, v in rest.items())
    )
    return f"{tool}: {short(str(text), 120)}"


def _step_failed(payload: Payload, _: str) -> str:
    if _code(payload) == "THROTTLED":
        return "put off before its call"
    count = payload.get("failures")
    again = f" (failure {count})" if count else ""
    return f"failed{again}: {error_text(payload.get('error'))}"


def _code(payload: Payload) -> object:
    error = payload.get("error")
    return error.get("code") if isinstance(error, Mapping) else None


def error_text(error: object) -> str:
    """Write the error of a step or run in one line."""
    if not isinstance(error, Mapping):
        return short(str(error), _LINE_WIDTH)
    return short(f"{error.get('code')}: {error.get('message')}", _LINE_WIDTH)


def _delayed(payload: Payload, _: str) -> str:
    why = {
        "retry": "to try again",
        "rate_limited": "for a rate limit",
        "timer": "as a tool asked",
        "wait": "as a tool asked",
    }
    reason = str(payload.get("why"))
    whose = f" of {short(str(payload['scope']))}" if payload.get("scope") else ""
    return f"waits {why.get(reason, f'({reason})')}{whose} until {payload.get('until')}"


def _waiting(payload: Payload, _: str) -> str:
    found = payload.get("calls") or []
    what = str(payload.get("for"))
    if what == "unknown_effect":
        calls = ", ".join(map(str, found))
        return f"waits for a person: nobody knows whether tool call {calls} took effect"
    waits = [c for c in found if isinstance(c, Mapping)]
    children = [f"{c.get('run')} ({c.get('agent')})" for c in waits if c.get("kind") == "child"]
    asked = [_question(c) for c in waits if c.get("kind") == "input"]
    wanted = [short(f"{c.get('tool')}") for c in waits if c.get("kind") == "approval"]
    if wanted:
        also = f", and {'; '.join(asked)}" if asked else ""
        return f"waits for a person to approve {', '.join(wanted)}{also}"
    if asked:
        return f"waits for a person: {'; '.join(asked)}"
    if children:
        return f"waits for its children {', '.join(children)}"
    return f"waits for {what}"


def _question(call: Mapping[str, Any]) -> str:
    choices = call.get("choices") or []
    among = f" [{' | '.join(short(str(c), 30) for c in choices)}]" if choices else ""
    return f"{call.get('call')} asks {short(str(call.get('question')), 160)}{among}"


def _approval_requested(payload: Payload, _: str) -> str:
    why = short("; ".join(map(str, payload.get("reasons") or [])), 120)
    return (
        f"approval {payload.get('approval')} is needed for {short(str(payload.get('tool')))} "
        f"({payload.get('call')}){why and f': {why}'}, until {payload.get('until')}"
    )


def _approval_decided(payload: Payload, _: str) -> str:
    changed = " with changed arguments" if payload.get("edited") else ""
    reason = payload.get("reason")
    return (
        f"{payload.get('by')} has {payload.get('verdict')} {short(str(payload.get('tool')))} "
        f"({payload.get('call')}){changed}" + (f": {short(str(reason))}" if reason else "")
    )


def _approval_expired(payload: Payload, _: str) -> str:
    tool = short(str(payload.get("tool")))
    return f"nobody decided about {tool} ({payload.get('call')}) in time; it is not run"


def _answer_repaired(payload: Payload, _: str) -> str:
    kinds = payload.get("kinds") or {}
    listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return f"repaired to be read ({payload.get('of')}): {listed}"


def _answer_refused(payload: Payload, _: str) -> str:
    causes = "; ".join(
        f"{p.get('at')}: {p.get('cause')}" if p.get("at") else str(p.get("cause"))
        for p in payload.get("problems") or ()
    )
    asked, most = int(payload.get("asked") or 0), int(payload.get("of_asks") or 0)
    then = f"asked again ({asked + 1} of {most})" if asked < most else "the run ends"
    return f"not the {payload.get('of')} that was asked for: {short(causes, 160)}; {then}"


def _recovered(payload: Payload, _: str) -> str:
    why = short(str(payload.get("why")))
    lost = f"its worker was lost ({why})"
    if int(payload.get("deaths") or 0) < SUSPECT_DEATHS:
        return f"{lost}; another one goes on from the last checkpoint"
    if payload.get("solo"):
        return f"{lost} while it held nothing else"
    return f"{lost}, not for the first time; it goes on in quarantine, alone in its process"


def _cancel_requested(payload: Payload, _: str) -> str:
    reason = payload.get("reason")
    return f"{payload.get('by')} asks to cancel" + (f": {short(str(reason))}" if reason else "")


def _pause_requested(payload: Payload, _: str) -> str:
    reason = payload.get("reason")
    return f"{payload.get('by')} asks to pause" + (f": {short(str(reason))}" if reason else "")


def _ended(payload: Payload, _: str) -> str:
    text = (
        f"{payload.get('status')} ({payload.get('stop_reason')})  {payload.get('steps')} steps  "
        f"{payload.get('input_tokens', 0)} in, {payload.get('output_tokens', 0)} out  "
        f"{usd(payload.get('cost_usd'))}"
    )
    return f"{text}  {error_text(payload['error'])}" if payload.get("error") else text


def _tool_rejected(payload: Payload, _: str) -> str:
    policy = payload.get("policy") or {}
    why = "; ".join(policy.get("reasons", ())) or payload.get("error_type")
    return f"{payload.get('tool')} ({payload.get('call')}) was not allowed: {why}"


def _guard_hinted(payload: Payload, _: str) -> str:
    guard = str(payload.get("guard"))
    if guard == "budget":
        name = str(payload.get("budget")).replace("_", " ")
        used = f"{payload.get('used')} of {payload.get('limit')}"
        return f"guard  {name} nearly used up ({used}): the model is told"
    if guard == "give_up":
        return "guard  the model gives up at the first error: it is asked to go on"
    rounds, tools = payload.get("rounds"), ", ".join(map(str, payload.get("tools") or []))
    return (
        f"guard  {guard.replace('_', ' ')} after {rounds} rounds of {short(tools, 60)}: "
        "the model is told to try another way"
    )


def _guard_stopped(payload: Payload, _: str) -> str:
    tools = short(", ".join(map(str, payload.get("tools") or [])), 60)
    guard = str(payload.get("guard")).replace("_", " ")
    return f"guard  {guard}: {payload.get('rounds')} rounds of {tools}, so the run is ended"


def _guard_blocked(payload: Payload, _: str) -> str:
    why = {
        "REPEATED_CALL": "it has failed twice in the same way",
        "RESULT_NOT_READY": "it stands on a result that is not there yet",
    }.get(str(payload.get("why")), str(payload.get("why")))
    return f"guard  {short(str(payload.get('tool')))} ({payload.get('call')}) is not run: {why}"


def _guardrail(payload: Payload, what: str) -> str:
    return f"rail   {short(str(payload.get('rail')))} {what}: {short(str(payload.get('why')))}"


def _resumed(payload: Payload, _: str) -> str:
    return f"goes on after step {payload.get('step')}"


_SILENT = frozenset({ev.STEP_STARTED, ev.STEP_COMPLETED})
_TELL: Mapping[str, Callable[[Payload, str], str]] = {
    **TELL_NODES,
    ev.RUN_CREATED: _created,
    ev.RUN_STARTED: lambda _payload, _took: "admitted",
    ev.RUN_RESUMED: _resumed,
    ev.RUN_DELAYED: _delayed,
    ev.RUN_WAITING: _waiting,
    ev.RUN_CANCEL_REQUESTED: _cancel_requested,
    ev.RUN_PAUSE_REQUESTED: _pause_requested,
    ev.RUN_PAUSED: lambda payload, _: f"paused after step {payload.get('step')}",
    ev.RUN_RESUME_REQUESTED: lambda payload, _: f"{payload.get('by')} lets it go on",
    ev.RUN_YIELDED: lambda payload, _: "has had its turn and goes back to the queue",
    ev.RUN_STEERED: lambda payload, _: (
        f"{payload.get('by')} gives it a message of "
        f"{payload.get('chars')} characters, for the next model step"
    ),
    ev.RUN_INPUT_GIVEN: lambda payload, _: f"{payload.get('by')} answers {payload.get('call')}",
    ev.APPROVAL_REQUESTED: _approval_requested,
    ev.APPROVAL_DECIDED: _approval_decided,
    ev.APPROVAL_EXPIRED: _approval_expired,
    ev.RUN_EFFECTS_RESOLVED: lambda payload, _: (
        f"{payload.get('by')} has decided about every unknown effect"
    ),
    ev.RUN_RECOVERED: _recovered,
    ev.RUN_COMPLETED: _ended,
    ev.RUN_FAILED: _ended,
    ev.RUN_CANCELLED: _ended,
    ev.STEP_FAILED: _step_failed,
    ev.MODEL_ANSWERED: _answered,
    ev.ANSWER_REPAIRED: _answer_repaired,
    ev.ANSWER_REFUSED: _answer_refused,
    ev.ANSWER_DOUBTED: lambda payload, _: (
        f"the model is not sure of {payload.get('call')} {payload.get('tool')}: "
        f"{short(str(payload.get('why')))}"
        + (", so a person is asked" if payload.get("confirm") else "")
    ),
    ev.CONTEXT_FULL: _full,
    ev.CONTEXT_COMPACTED: _compacted,
    ev.TOOL_STARTED: _tool_started,
    ev.TOOL_PROGRESS: _tool_progress,
    ev.TOOL_COMPLETED: _tool,
    ev.TOOL_FAILED: _tool,
    ev.TOOL_TIMEOUT: _tool,
    ev.TOOL_UNKNOWN: _tool,
    ev.TOOL_RETRIED: _tool_retried,
    ev.MODEL_DEGRADED: _model_degraded,
    ev.MODEL_BREAKER_OPENED: _model_breaker_opened,
    ev.MODEL_BREAKER_CLOSED: _model_breaker_closed,
    ev.TOOL_DEGRADED: _tool_degraded,
    ev.TOOL_BREAKER_OPENED: _breaker_opened,
    ev.TOOL_BREAKER_CLOSED: _breaker_closed,
    ev.TOOL_REJECTED: _tool_rejected,
    ev.GUARD_HINTED: _guard_hinted,
    ev.GUARD_BLOCKED: _guard_blocked,
    ev.GUARD_STOPPED: _guard_stopped,
    ev.GUARDRAIL_BLOCKED: lambda p, _: _guardrail(p, f"refuses the {p.get('where')}"),
    ev.GUARDRAIL_REWROTE: lambda p, _: _guardrail(p, f"rewrites the {p.get('where')}"),
    ev.GUARDRAIL_ASKED_AGAIN: lambda p, _: _guardrail(p, "asks for another answer"),
    ev.RUN_HANDED_OFF: lambda p, _: f"handed from {p.get('from')} to {p.get('to')}",
    ev.RUN_CONDITION_MET: lambda p, _: (
        f"the agent's condition is met: {p.get('condition')} {short(str(p.get('value')))}"
    ),
    ev.TOOL_DENIED_REPEATEDLY: lambda payload, _: (
        f"{payload.get('tool')} was denied {payload.get('times')} times in a row: "
        "the model is told to stop trying"
    ),
}
