"""The official `openai` client against a `harness dev`: a durable run, streamed and continued.

Start `harness dev`, put the agent (`harness agents apply examples/hello.json`), then

    HARNESS_API_KEY=$(cat .harness/admin.key) python examples/openai_client.py
"""

from __future__ import annotations

import os
import uuid

from openai import OpenAI


def main() -> None:
    """Start a run, read it to its end, and go on from it."""
    client = OpenAI(
        base_url=os.environ.get("HARNESS_API_URL", "http://127.0.0.1:8700") + "/v1",
        api_key=os.environ["HARNESS_API_KEY"],
    )
    once = {"Idempotency-Key": uuid.uuid4().hex}  # the client may repeat a create by itself
    stream = client.responses.create(
        model="agent:hello", input="Say hello.", stream=True, extra_headers=once
    )
    done = None
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        if event.type == "response.completed":
            done = event.response
    assert done is not None
    print(f"\n{done.id} is {done.status}")
    again = client.responses.create(
        model="agent:hello", input="And again.", previous_response_id=done.id
    )
    print(again.output_text)


if __name__ == "__main__":
    main()
