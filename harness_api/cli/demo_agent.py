"""The agent `demo`, which a fresh `harness dev` has, so that the first run needs no file.

It uses the default model. When that is a scripted one, its answers come from the script here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from harness_common.core.errors import HarnessError

NAME: Final = "demo"
QUESTION: Final = "What is 17 * 23?"
_SCRIPT: Final = [
    {
        "stream": ["I will ", "calculate ", "that."],
        "tools": [{"name": "calculate", "input": {"expression": "17 * 23"}}],
    },
    {"stream": ["The tool ", "says: ", "{{last_result}}"]},
]


def spec(model: str) -> dict[str, Any]:
    """Return the definition of the agent over `model`."""
    found: dict[str, Any] = {
        "description": "Made by `harness dev`. Change it with `harness agents apply`.",
        "model": model,
        "system": "Answer in one sentence. Calculate with the tool.",
        "tools": ["calculate"],
    }
    if model.startswith("scripted/"):
        found["model_options"] = {"script": _SCRIPT}
    return found


def ensure(api_url: str, key_file: Path, model: str) -> str | None:
    """Make the agent unless there is one of that name; return why it could not be made."""
    from harness_api.client import ApiError, Client

    try:
        key = key_file.read_text(encoding="utf-8")
        with Client(api_url, key, timeout_s=5, retries=0) as client:
            try:
                client.agents.get(NAME)
            except ApiError as error:
                if error.code != "AGENT_NOT_FOUND":
                    raise
                client.agents.apply(NAME, spec(model))
    except (HarnessError, OSError) as error:
        return str(error)
    return None
