"""The declared form of a run's output: checked when it is declared, told to the model, written in
one canonical form.
"""

from __future__ import annotations

import json
from typing import Final

from harness_common.contracts.tool_schema import check_tenant_schema
from harness_common.core.errors import Invalid
from harness_common.core.message import Json

MAX_SCHEMA_BYTES: Final = 64 * 1024


def check_output_schema(schema: Json) -> None:
    """Refuse what is no schema of an object, or could hold up a worker.

    Raises `Invalid` (`OUTPUT_SCHEMA_INVALID`) with the JSON pointer of what is wrong.
    """
    if schema is None:
        return
    try:
        check_tenant_schema("output", schema)
    except Invalid as error:
        at = str(error.detail.get("pointer", ""))
        said = error.message.removeprefix("Tool 'output' ").replace("input schema", "schema")
        raise Invalid(
            f"output_schema {said}",
            code="OUTPUT_SCHEMA_INVALID",
            field="output_schema",
            pointer=f"/output_schema{at}",
        ) from error
    if (size := len(json.dumps(schema).encode())) > MAX_SCHEMA_BYTES:
        raise Invalid(
            f"output_schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed",
            code="OUTPUT_SCHEMA_INVALID",
            field="output_schema",
            limit=MAX_SCHEMA_BYTES,
        )


def canonical(value: Json) -> str:
    """Write a value in the one form that outputs have: compact, keys in order, text as it is."""
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def output_prompt(schema: Json) -> str:
    """Tell a model what its final answer has to be."""
    return (
        "Your final answer is one JSON object and nothing else: no words before or after it, no "
        f"code fence, no other fields. It has to fit this JSON Schema:\n{compact(schema)}"
    )


def compact(value: Json) -> str:
    """Write a value for a model, as it stands and without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
