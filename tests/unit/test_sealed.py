"""Encrypted values in rows: found by their columns, opened, and never mistaken."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.crypto.aead import CannotDecrypt, Cipher, new_key
from harness_common.store import sealed
from harness_common.store.sealed import PREFIX, TenantKey, has_sealed, open_row, versions

TENANT = uuid4()
KEY = TenantKey(TENANT, 1, Cipher(new_key()))
KEYS = {1: KEY}
TEXTS = st.one_of(
    # No jsonb holds a NUL.
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.sampled_from(
        [
            PREFIX, f"{PREFIX}t.1.AAAA", f'"{PREFIX}j.1.AAAA"', f"{PREFIX}p.x", f'"{PREFIX}p.',
            f"{PREFIX}t.", f"{PREFIX}x.9.", f"{PREFIX}t.one.AA",
        ]
    ),
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def opened(row):
    assert versions(row) <= {1}
    open_row(KEYS, row)
    return row


@given(TEXTS, st.sampled_from([None, KEY]))
def test_a_text_comes_back_whatever_it_looks_like(text, key):
    kept = sealed.seal_text(key, text)
    assert opened({"result": kept})["result"] == text
    assert opened({"calls": [{"result": kept, "idx": 0}]})["calls"][0]["result"] == text
    if key is not None and kept is not None and len(text) > 8:
        assert text not in kept.split(".", 3)[3]


@given(VALUES, st.sampled_from([None, KEY]))
def test_a_json_value_comes_back_whatever_it_looks_like(value, key):
    kept = json.loads(json.dumps(sealed.seal_json(key, value)))
    assert opened({"payload": kept})["payload"] == value


@given(VALUES, st.sampled_from([None, KEY]))
def test_a_json_document_comes_back_as_value(value, key):
    kept = sealed.seal_json_text(key, json.dumps(value))
    assert opened({"arguments": json.loads(kept)})["arguments"] == value


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.sampled_from([None, KEY]))
def test_a_message_comes_back_as_text_and_as_value(message, key):
    kept = sealed.seal_json_text(key, json.dumps(message))
    assert json.loads(opened({"body": kept})["body"]) == message  # body::text
    assert opened({"body": json.loads(kept)})["body"] == message
    assert json.loads(opened({"new_messages": ["{}", kept]})["new_messages"][1]) == message


def test_the_parts_of_columns_that_sql_reads():
    error = {"code": "X", "message": "it says so"}
    memo = {"permit": {"scope": "a"}, "steer": ["do this"]}
    evidence = {"late_result": "the result", "status": "failed"}
    row = {
        "error": sealed.seal_parts(KEY, "error", error),
        "memo": sealed.seal_parts(KEY, "memo", memo),
        "evidence": sealed.seal_parts(KEY, "evidence", evidence),
    }
    assert row["error"]["code"] == "X"
    assert row["memo"]["permit"] == memo["permit"]
    text = json.dumps(row)
    assert not any(said in text for said in ("it says so", "do this", "the result"))
    assert opened(row) == {"error": error, "memo": memo, "evidence": evidence}


def test_what_a_resolution_keeps_of_a_call():
    kept = {"result_before": sealed.seal_text(KEY, "was"), "reason": "plain"}
    kept["evidence"] = sealed.seal_parts(KEY, "evidence", {"late_result": "late"})
    row = opened({"resolution": kept | {"before": dict(kept)}})
    for level in (row["resolution"], row["resolution"]["before"]):
        assert level["result_before"] == "was"
        assert level["evidence"] == {"late_result": "late"}


def test_bytes():
    kept = KEY.seal_bytes(b"snapshot", "snapshot")
    assert has_sealed([{"snapshot": kept}])
    assert versions({"snapshot": kept}) == {1}
    assert opened({"snapshot": kept})["snapshot"] == b"snapshot"
    with pytest.raises(CannotDecrypt):
        sealed.open_bytes(KEYS, kept, "artifact")


def test_plain_rows_are_seen_to_be_plain():
    rows: list[dict[str, Any]] = [
        {"body": {"a": "b"}, "result": "x", "memo": {}, "calls": None, "payload": {"x": 1}},
        {"snapshot": b"(\xb5/\xfd", "new_messages": ["{}"], "before": 3, "error": None},
        {"evidence": {"why": "x"}, "call": {"result": None, "arguments": "text"}, "waiting": None},
    ]
    assert not has_sealed(rows)


@pytest.mark.parametrize("change", ["tenant", "version", "kind", "bytes", "form"])
def test_a_token_in_another_place_or_changed_opens_nothing(change):
    token = str(sealed.seal_text(KEY, "what was said"))
    keys = dict(KEYS)
    if change == "tenant":
        keys = {1: TenantKey(uuid4(), 1, KEY.cipher)}
    elif change == "version":
        token = token.replace(".t.1.", ".t.2.")
        keys[2] = TenantKey(TENANT, 2, KEY.cipher)
    elif change == "kind":
        token = token.replace(".t.", ".j.")
    elif change == "bytes":
        head, data = token.rsplit(".", 1)
        raw = bytearray(base64.urlsafe_b64decode(data))
        raw[-1] ^= 1
        token = f"{head}.{base64.urlsafe_b64encode(bytes(raw)).decode()}"
    else:
        token = token[:-3] + "!!!"
    with pytest.raises(CannotDecrypt):
        open_row(keys, {"result": token})


def test_a_version_that_the_tenant_does_not_have():
    with pytest.raises(CannotDecrypt, match="no data key 1"):
        open_row({}, {"result": sealed.seal_text(KEY, "x")})


def commit_body():
    return {
        "tenant_id": TENANT, "input": "said-input", "output": "said-output",
        "error": {"code": "E", "message": "said-error"}, "memo": {"steer": ["said-steer"]},
        "waiting": {"for": "input", "calls": [{"question": "said-question"}]},
        "messages": [{"n": 1, "body": '{"t":"said-message"}'}],
        "proposed": [{"idx": 0, "arguments": '{"a":"said-arguments"}'}],
        "outcomes": [{"idx": 0, "result": "said-result"}],
        "events": [
            {"type": "run.waiting", "payload": {"q": "said-event"}},
            {"type": "tool.started", "payload": {"call": "1.0"}},
        ],
        "checkpoint": {"kind": "model", "delta": {"output": "said-delta"}},
        "snapshot": base64.b64encode(b"said-snapshot").decode(),
    }  # fmt: skip


def test_nothing_that_a_commit_says_is_left_plain():
    body = commit_body()
    kept = sealed.seal_commit(KEY, body)
    assert "said-" not in json.dumps(kept, default=str)
    assert b"said-" not in base64.b64decode(kept["snapshot"])
    assert kept["events"][1] == body["events"][1]  # SQL looks into it
    assert kept["error"]["code"] == "E"
    assert body == commit_body()  # the caller's stays: it is retried with it


def test_nothing_of_a_plain_commit_is_changed():
    assert sealed.seal_commit(None, commit_body()) == commit_body()
