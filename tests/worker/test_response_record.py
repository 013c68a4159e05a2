"""What a response is made of is on a run's record: its texts, and all tokens that it took."""

from __future__ import annotations

from dataclasses import replace

from harness_api.responses.emit import Emitter
from harness_api.responses.ids import Ref
from harness_api.responses.walk import Answered, Walk
from harness_common.core.budget import Spent
from harness_common.core.inputs import StepFailed
from harness_common.core.message import user
from harness_common.core.step import Compacted, ContextFull, Failure
from tests.store.play import WHEN, say


async def test_usage_has_what_compactions_judges_and_lost_attempts_took(play, db):
    run_id = await play.start("hi")
    lost = {"spent": {"input_tokens": 1_000, "output_tokens": 500, "cost_usd": 0.5}}
    failure = Failure("limited", "LATER", "later", 0.0, detail=lost)
    await play.step(run_id, ContextFull("limit", 9, 8, 1, Spent(100, 50)))
    summary = Compacted("summarised", user("so far"), model="m", input_tokens=10, output_tokens=5)
    await play.step(run_id, summary)
    await play.settle(await play.claim(run_id), StepFailed(failure, WHEN))
    emitter = Emitter(Ref(run_id), frozenset())
    for fact in await Walk(db, play.tenant_id, Ref(run_id)).news():
        list(emitter.take(fact))
    assert (emitter.input_tokens, emitter.output_tokens) == (1_110, 555)
    state = (await play.read(run_id)).state
    assert (state.input_tokens, state.output_tokens) == (1_110, 555)


async def test_a_model_that_others_had_begun_to_answer_for_is_told_with_its_answer(play, db):
    run_id = await play.start("hi")
    await play.step(run_id, replace(say("done"), restarts=2))
    (fact, _) = await Walk(db, play.tenant_id, Ref(run_id)).news()
    assert isinstance(fact, Answered)
    assert fact.restarts == 2
