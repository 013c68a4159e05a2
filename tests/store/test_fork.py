"""Retry, fork and dry run: a new run from any checkpoint, with lineage, repeating no effect."""

from __future__ import annotations

import pytest

from harness_common.commands import ForkRun, fork_run, retry_run
from harness_common.core.errors import Conflict, Invalid
from harness_common.core.run import Status
from harness_common.store import json_codec
from tests.store.play import ran, say, sql


async def walk(play, last=None):
    """Run: model, tools, model, tools, final answer (or `last`)."""
    run_id = await play.start("the question")
    await play.step(run_id, say("first", tools=["look"]))
    await play.step(run_id, ran("one"))
    await play.step(run_id, say("second", tools=["look", "look"]))
    await play.step(run_id, ran("two", "three"))
    await play.step(run_id, last or say("the end"))
    return run_id


async def fork(play, run_id, **more):
    return (
        await fork_run(play.db, play.tenant_id, run_id, ForkRun(created_by="ann", **more))
    ).run_id


@pytest.mark.parametrize("step", range(6))
async def test_a_fork_stands_where_its_source_stood_after_that_step(play, step):
    source = await walk(play)
    made = await fork(play, source, step=step)
    run = await play.read(made)
    assert (run.state.step, run.state.turn) == (step, (step + 1) // 2)
    assert run.state.next_kind == ("tools" if step in {1, 3} else "model")
    theirs, ours = await play.messages(source), await play.messages(made)
    assert ours == theirs[: step + 1]
    assert run.state.messages == len(ours)
    (row,) = await sql(play.db, "SELECT forked_from, forked_step FROM runs WHERE id = :r", r=made)
    assert (row["forked_from"], row["forked_step"]) == (source, step)
    assert run.session_id != (await play.read(source)).session_id


@pytest.mark.parametrize(("step", "results"), [(1, ["one"]), (3, ["one", "two", "three"])])
async def test_the_coming_calls_of_a_fork_have_the_results_on_record(play, step, results):
    """INV3: no effect runs again."""
    made = await fork(play, await walk(play), step=step)
    calls = await play.calls(made)
    assert [(c["status"], c["result"]) for c in calls] == [("succeeded", r) for r in results]


async def test_a_fork_of_a_fork_goes_on_and_is_whole(play):
    made = await fork(play, await walk(play), step=2)
    await play.step(made, say("other", tools=["look"]))
    await play.step(made, ran("else"))
    again = await fork(play, made, step=3)
    assert (await play.read(again)).state.step == 3
    assert [c["result"] for c in await play.calls(again)] == ["one", "else"]
    await play.step(again, ran("else"))
    await play.step(again, say())
    assert (await play.read(again)).state.status is Status.SUCCEEDED


async def test_a_changed_input_replaces_the_first_or_is_said_next(play):
    source = await walk(play)
    at_start = await fork(play, source, step=0, input="another question")
    assert [m.text() for m in await play.messages(at_start)] == ["another question"]
    (row,) = await sql(play.db, "SELECT input FROM runs WHERE id = :r", r=at_start)
    assert row["input"] == "another question"
    before_model = await fork(play, source, step=2, input="more")
    assert [m.role for m in await play.messages(before_model)] == [
        "user", "assistant", "tool", "user",
    ]  # fmt: skip
    before_tools = await fork(play, source, step=1, input="more")
    assert [m.role for m in await play.messages(before_tools)] == ["user", "assistant"]
    await play.step(before_tools, ran("one"))
    assert [m.role for m in await play.messages(before_tools)][2:] == ["tool", "user"]
    (row,) = await sql(play.db, "SELECT input FROM runs WHERE id = :r", r=before_tools)
    assert row["input"] == "the question"


async def test_changes_of_the_agent_are_kept_by_forks_of_forks(play):
    source = await walk(play)
    made = await fork(play, source, step=2, model="scripted/other", tools=("calculate",))
    assert (await play.read(made)).overrides == {"model": "scripted/other", "tools": ["calculate"]}
    again = await fork(play, made, tools=())
    assert (await play.read(again)).overrides == {"model": "scripted/other", "tools": []}


async def test_a_message_that_was_not_said_yet_is_part_of_the_checkpoint(play):
    """A checkpoint folds to all that the run had then."""
    run_id = await play.start()
    held = await play.claim(run_id)
    await sql(
        play.db,
        "UPDATE runs SET memo = cast(:m AS jsonb), last_input_n = last_input_n + 1 WHERE id = :r",
        m=json_codec.dumps_text({"steer": ["hurry"]}),
        r=run_id,
    )
    await play.settle(held, say(tools=["look"]))
    made = await fork(play, run_id, step=1)
    assert (await play.read(made)).state.memo == {"steer": ["hurry"]}


async def test_a_retry_may_do_a_step_anew(play):
    source = await walk(play, say("no", tools=()))
    await sql(play.db, "UPDATE runs SET status = 'failed' WHERE id = :r", r=source)
    made = (await retry_run(play.db, play.tenant_id, source, from_step=3, created_by="ann")).run_id
    run = await play.read(made)
    assert (run.state.step, run.state.next_kind) == (2, "model")
    assert run.session_id == (await play.read(source)).session_id


@pytest.mark.parametrize("step", [-1, 6, 99])
async def test_a_step_that_is_no_checkpoint_is_refused_with_the_limit(play, step):
    source = await walk(play)
    with pytest.raises(Invalid, match="it has committed 5") as caught:
        await fork(play, source, step=step)
    assert caught.value.detail == {"field": "step", "value": step, "limit": 5}


async def test_a_dry_run_starts_from_nothing_and_only_from_a_whole_record(play):
    going = await play.start()
    with pytest.raises(Conflict, match="whole record"):
        await fork(play, going, step=0, dry_run=True)
    source = await walk(play)
    made = await fork(play, source, step=0, dry_run=True)
    run = await play.read(made)
    assert run.overrides == {"recorded": source.hex}
    assert await play.calls(made) == []


async def test_a_fork_counts_for_its_source_s_concurrency_key(play):
    source = await play.start("q", concurrency_key="customer 7", concurrency_max=3)
    made = await fork(play, source)
    (row,) = await sql(
        play.db,
        "SELECT concurrency_key, concurrency_max, held_for, status FROM runs WHERE id = :r",
        r=made,
    )
    assert list(row.values()) == ["customer 7", 3, "key", "queued"]
