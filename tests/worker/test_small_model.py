"""A real small model on llama.cpp carries a run with a forced tool to its end, with a worker."""

from __future__ import annotations

import json

import pytest

from harness_common.core.run import Status
from harness_common.settings import ModelSettings
from tests.conformance import real_servers
from tests.worker.real_models import agent_is, run_to_its_end, worker_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("provider", ["openai", "openai-responses"])
async def test_a_small_model_completes_a_run_with_a_forced_tool(db, play, provider, tmp_path):
    own = tmp_path / "capabilities.json"
    entry = {"tool_choice": "schema", "context_window_tokens": 2048}
    own.write_text(json.dumps({"models": {f"{provider}/smol": entry}}))
    with real_servers.llama_cpp() as url:
        async with worker_of(db, url, model=ModelSettings(capabilities=own)) as runtime:
            await agent_is(
                db,
                model=f"{provider}/smol",
                system="Be brief.",
                tools=["add"],
                tool_choice={"first": "add", "each": "none"},
                temperature=0.0,
                max_output_tokens=64,
                first_token_timeout_s=200.0,
                model_timeout_s=300.0,
            )
            run_id = await play.start("What is 2 + 3?")
            run = await run_to_its_end(play, runtime, run_id)
            assert run.state.status is Status.SUCCEEDED, run.state.error
            assert run.state.output
            (call,) = await play.calls(run_id)
            assert call["name"] == "add"
            asked = call["arguments"]
            assert (call["status"], call["result"]) == ("succeeded", str(asked["a"] + asked["b"]))
            await play.check_whole(run_id)
