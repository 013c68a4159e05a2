"""The baseline that many write: a loop around the official client, tools called as functions.

`python -m benchmarks.agents.plain_loop --base-url URL --tasks r01,d01 --out FILE` does the tasks
side by side and writes a line of JSON for each that ended. Killed, it starts a task anew.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from openai import OpenAI

from benchmarks.agents import tools
from benchmarks.agents.tasks import BY_ID, Task

Json = Any
MAX_TURNS: Final = 30
SYSTEM: Final = "You are a careful assistant. Use the tools; answer when you are done."
TOOLS: Final[list[Json]] = [
    {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": tools.schema(name)},
    }
    for name, text in tools.descriptions().items()
]


def called(call: Json) -> Json:
    """Run one tool call and return its message; what goes wrong is told to the model."""
    try:
        said = tools.run(call.function.name, json.loads(call.function.arguments))
    except Exception as error:  # noqa: BLE001 - as such loops do
        said = f"{type(error).__name__}: {error}"
    return {"role": "tool", "tool_call_id": call.id, "content": said}


def work(client: OpenAI, task: Task) -> Json:
    """Do one task from its beginning."""
    messages: list[Json] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.prompt},
    ]
    tokens, turns, said = 0, 0, None
    while turns < MAX_TURNS:
        turns += 1
        reply = client.chat.completions.create(model="brain", messages=messages, tools=TOOLS)
        tokens += reply.usage.total_tokens if reply.usage else 0
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            said = message.content
            break
        messages += [called(call) for call in message.tool_calls]
    return {"task": task.id, "answer": said, "turns": turns, "tokens": tokens}


def main() -> None:
    """Do the tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    client = OpenAI(base_url=args.base_url, api_key="none")

    def one(name: str) -> None:
        try:
            done = work(client, BY_ID[name])
        except Exception as error:  # noqa: BLE001 - the task has failed
            done = {"task": name, "answer": None, "error": f"{type(error).__name__}: {error}"[:300]}
        with args.out.open("a") as file:
            file.write(json.dumps(done) + "\n")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, args.tasks.split(",")))


if __name__ == "__main__":
    main()
