"""Runs as people read them: a list, one run with its timeline, and its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from harness_api.cli.narrate import error_text
from harness_api.cli.output import (
    SCRIPTED,
    clean,
    clock,
    ms,
    print_pairs,
    print_table,
    scripted,
    short,
    size,
    spent_s,
    tags,
    usd,
)
from harness_common.core.stop_reasons import StopReason, in_words

if TYPE_CHECKING:
    from harness_api.client.types import Artifact, FailedAttempt, Run, Step

OUTCOME_OK = "succeeded"
_ATTEMPTS = 20
_CAPS: Final = frozenset(
    {
        StopReason.MAX_ITERATIONS,
        StopReason.TOKEN_BUDGET,
        StopReason.COST_BUDGET,
        StopReason.DEADLINE,
    }
)
"""Ends that need no other agent: a retry has its own allowance."""


def print_runs(runs: Sequence[Run]) -> None:
    """Print one line a run."""
    print_table(
        ("id", "status", "agent", "step", "tokens", "cost", "created", "input"),
        [
            (
                run.id,
                run.status + scripted(run.scripted),
                f"{run.agent.name} v{run.agent.version}",
                run.step,
                run.usage.input_tokens + run.usage.output_tokens,
                usd(run.usage.cost_usd),
                run.created_at,
                short(run.input, 40),
            )
            for run in runs
        ],
        "No runs.",
    )


def print_run(
    run: Run,
    steps: Sequence[Step],
    attempts: Sequence[FailedAttempt],
    artifacts: Sequence[Artifact],
) -> None:
    """Print a run: what it is, its timeline, what was tried in vain, what came out."""
    print_pairs(_head(run))
    if steps:
        print()
        print_timeline(steps)
    if attempts:
        print("\nAttempts that failed or were put off:")
        print_attempts(attempts)
    if artifacts:
        print("\nArtifacts (`harness artifacts get ID`):")
        for found in artifacts:
            print(f"  {found.id}  {short(found.name)}  {size(found.size_bytes)}")
    print_outcome(run)


def _head(run: Run) -> dict[str, object]:
    took_s = spent_s(run)
    fork = run.forked_from
    reason = f" ({run.stop_reason})" if run.stop_reason else ""
    caps = {k: v for k, v in run.limits.items() if v is not None}
    waits = run.not_before is not None and not run.is_over
    return {
        "run": run.id,
        "status": _status(run) + reason + scripted(run.scripted),
        "stopped because": _why_over(run),
        "agent": _agent(run),
        "session": run.session_id,
        "input": short(run.input, 100),
        "tags": tags(run.tags),
        "created": f"{clock(run.created_at)} by {run.created_by}",
        "took": None if took_s is None else f"{took_s:.1f} s",
        "waits until": clock(run.not_before) if waits else None,
        "waits for": _waits_for(run),
        "worker": run.worker,
        "child of": f"{run.parent.run_id} call {run.parent.call}" if run.parent else None,
        "goes on from": f"{fork.run_id} step {fork.step}" if fork else None,
        "changed": run.overrides or None,
        "dry run": "yes: model and tools answer from the record" if run.dry_run else None,
        "suspect": f"{run.deaths} processes that held it died" if run.suspect else None,
        "used": f"{run.step} steps, {run.turn} model answers, {run.usage.input_tokens} tokens in, "
        f"{run.usage.output_tokens} out, {usd(run.usage.cost_usd)}",
        "limits": ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in caps.items()),
    }


def _why_over(run: Run) -> str | None:
    return in_words(run.stop_reason) if run.stop_reason and run.is_over else None


def _agent(run: Run) -> str:
    own = f"{run.agent.name} v{run.agent.version}"
    if run.acting is None or not run.handoffs:
        return own
    times = f" ({run.handoffs} hand-offs)" if run.handoffs > 1 else ""
    return f"{own}, handed to {run.acting.name} v{run.acting.version}{times}"


def _waits_for(run: Run) -> str | None:
    if run.is_over:
        return None
    if run.pause_requested and run.status != "paused":
        return "the end of the step under way, then it is paused"
    waiting = run.waiting or {}
    if "text" in waiting:  # told with the status
        return None
    if waiting.get("for") == "children":
        found = [f"{c.get('run')} ({c.get('agent')})" for c in waiting.get("calls", ())]
        return f"its children {', '.join(found)}"
    if run.approvals:
        return f"approval of {', '.join(f'{a.tool} ({a.call})' for a in run.approvals)}"
    return str(waiting["for"]).replace("_", " ") if waiting else None


def _status(run: Run) -> str:
    """Write the status, and for one that waits for admission why, and its place."""
    why = (run.waiting or {}).get("text")
    return f"{run.status}: {why}" if why and not run.is_over else run.status


def print_timeline(steps: Sequence[Step]) -> None:
    """Print the committed steps."""
    print_table(
        ("step", "kind", "worker", "try", "took", "in", "out", "cost", "what"),
        [
            (
                step.step,
                step.kind,
                step.worker,
                step.attempt,
                ms(step.ms),
                step.tokens.input,
                step.tokens.output,
                usd(step.cost_usd),
                _what(step),
            )
            for step in steps
        ],
        "No steps yet.",
    )


def print_attempts(attempts: Sequence[FailedAttempt]) -> None:
    """Print the newest failed attempts and their reasons."""
    shown = attempts[-_ATTEMPTS:]
    if len(shown) < len(attempts):
        print(f"  ({len(attempts) - len(shown)} earlier ones: `--json` shows all)")
    for one in shown:
        wait = "" if one.retry_after_s is None else f", again after {one.retry_after_s:.3g} s"
        reason = error_text({"code": one.code, "message": one.message})
        print(f"  step {one.step} try {one.attempt}  {clock(one.at)}  {reason}{wait}")


def _what(step: Step) -> str:
    if step.kind == "model":
        model = short(step.model or "")
        labelled = SCRIPTED in model.split("/")
        return f"{model}{'' if labelled else scripted(step.scripted)} → {step.finish or ''}"
    if (done := step.compaction) is not None:
        size = f"{done.tokens_before} → {done.tokens_after} tokens"
        return f"{done.covers} messages {done.how}, {size}"
    return "; ".join(f"{t.call} {t.tool} {t.error_type or t.status} {ms(t.ms)}" for t in step.tools)


def print_wait(run: Run) -> None:
    """Print what a run waits for, and the command that lets it go on."""
    print()
    if run.status == "paused":
        print(f"It is paused. `harness runs resume {run.id}` lets it go on.")
        return
    questions = run.questions
    for asked in questions:
        which = f" --call {asked.call}" if len(questions) > 1 else ""
        print(f"It asks ({asked.call}): {clean(asked.question)}")
        if asked.choices:
            print(f"  one of: {' | '.join(clean(c, lines=False) for c in asked.choices)}")
        if asked.until is not None:
            print(f"  until {clock(asked.until)}")
        print(f"  `harness runs answer {run.id} '…'{which}` answers.")
    for call in run.unknown_calls:
        print(
            f"Nobody knows whether call {call} took effect. `harness effects show {run.id} {call}`"
            f"\nshows it, `harness effects resolve {run.id} {call} OUTCOME --reason '…'` decides."
        )
    for wanted in run.approvals:
        why = "; ".join(clean(r, lines=False) for r in wanted.reasons)
        print(f"It needs approval ({wanted.call}): {short(wanted.tool)}{why and f', {why}'}")
        if wanted.until is not None:
            print(f"  until {clock(wanted.until)}")
        print(f"  `harness approvals show {wanted.approval}` shows it,")
        print(f"  `harness approvals approve|deny {wanted.approval}` answers.")
    if not questions and not run.unknown_calls and not run.approvals:
        print("It waits for a person.")


def print_outcome(run: Run) -> None:
    """Print the answer of a run, or why there is none."""
    if run.error is not None:
        print(f"\nError: {error_text(run.error)}")
    if run.output is not None:
        print(f"\nResult{scripted(run.scripted)}:\n\n{clean(_result(run))}")
    if run.needs_a_person:
        print_wait(run)
        print(f"`harness runs cancel {run.id}` stops it.")
    elif run.stop_reason == "poisoned":
        _print_poisoned(run)
    elif run.stop_reason in _CAPS:
        print(
            f"\n`harness runs retry {run.id}` goes on from its last checkpoint and may use as much "
            "once more."
        )
    elif (run.error or {}).get("category") == "permanent":
        # A retry keeps the pinned version of the agent, and so the reason why it failed.
        print(
            f"\nFix the agent (`harness agents apply FILE`), then `harness runs submit "
            f"{run.agent.name} …` again: a retry would keep version {run.agent.version}."
        )
    elif run.is_over and run.status != OUTCOME_OK:
        print(f"\n`harness runs retry {run.id}` goes on from its last checkpoint.")


def _result(run: Run) -> str:
    """Return the output as people read it."""
    if run.output_json is None:
        return run.output or ""
    return json.dumps(run.output_json, ensure_ascii=False, indent=2)


def _print_poisoned(run: Run) -> None:
    """Print which processes a poison run took with it, and how to try again."""
    for death in ((run.error or {}).get("detail") or {}).get("deaths") or []:
        alone = ", alone" if death.get("solo") else ""
        print(f"  {death.get('worker')}: {short(str(death.get('why')))}{alone}")
    print(
        f"\nOnce its cause is gone, `harness runs retry {run.id}` goes on from its last checkpoint."
    )
