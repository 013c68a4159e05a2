"""`harness secrets` and `harness tenant encryption`: where values come from; that none is shown."""

from __future__ import annotations

import io

import pytest

from harness_common.settings import SecretSettings, Settings
from tests.fakes.harness_server import AT, Answer, page
from tests.unit.test_cli import harness, server

__all__ = ["harness", "server"]

VALUE = "hunter-22-and-more"
SECRET = {
    "name": "TOKEN", "version": 2, "created_at": AT, "set_at": AT, "set_by": "key_1",
    "last_used_at": None,
}  # fmt: skip


def keys(left, rewrapped=0, **more):
    found = {"current": "k2", "known": ["k2", "k1"], "data_keys": {"k1": left, "k2": 5 - left}}
    return Answer(body=found | {"left": left, "out_of_reach": 0, "rewrapped": rewrapped} | more)


def sent(server):
    return [seen.body for seen in server.seen if seen.method == "PUT"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(VALUE, VALUE), (VALUE + "\n", VALUE), (VALUE + "\r\n", VALUE), ("a\nb\n\n", "a\nb\n")],
)
def test_a_value_from_standard_input(server, harness, monkeypatch, given, expected):
    server.on("PUT /v1/secrets/TOKEN", Answer(body=SECRET))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    done = harness("secrets", "set", "TOKEN")
    assert (done.code, done.out) == (0, "TOKEN is set (version 2)\n")
    assert sent(server) == [{"value": expected}]
    assert VALUE not in done.out + done.err


def test_a_value_from_a_file_is_taken_as_it_is(server, harness, tmp_path):
    server.on("PUT /v1/secrets/TOKEN", Answer(body=SECRET))
    (tmp_path / "pem").write_text("a\nb\n")
    done = harness("secrets", "set", "TOKEN", "--from-file", str(tmp_path / "pem"), "--json")
    assert done.json["version"] == 2
    assert sent(server) == [{"value": "a\nb\n"}]
    assert harness("secrets", "set", "TOKEN", "--from-file", str(tmp_path / "no")).code == 2
    (tmp_path / "pem").write_bytes(b"\xff\xfe")
    bad = harness("secrets", "set", "TOKEN", "--from-file", str(tmp_path / "pem"))
    assert bad.code == 2
    assert "base64" in bad.err


def test_a_value_is_never_an_argument(server, harness):
    assert harness("secrets", "set", "TOKEN", VALUE).code == 2
    assert server.seen == []


def test_list_and_delete(server, harness):
    server.on("GET /v1/secrets", page(SECRET))
    server.on("DELETE /v1/secrets/TOKEN", Answer(204))
    assert "TOKEN" in harness("secrets", "list").out
    assert harness("secrets", "list", "--json").json["data"][0]["name"] == "TOKEN"
    assert harness("secrets", "delete", "TOKEN").out == "TOKEN is deleted\n"


def test_a_rewrap_goes_on_until_nothing_is_left(server, harness):
    server.on("POST /v1/platform/keys/rewrap", keys(3, 2), keys(1, 2), keys(0, 1))
    done = harness("secrets", "rewrap", "--batch", "2")
    assert done.code == 0
    assert [line.split(",")[1] for line in done.err.splitlines()] == [
        " 3 left",
        " 1 left",
        " 0 left",
    ]
    assert "k2" in done.out


def test_a_rewrap_that_leaves_something_is_no_success(server, harness):
    server.on("POST /v1/platform/keys/rewrap", keys(0, 0, out_of_reach=2))
    assert harness("secrets", "rewrap", "--json").code == 1


def test_encryption(server, harness):
    found = {
        "on": True, "since": AT,
        "data_key": {"version": 1, "kek": "k1", "created_at": AT, "rewrapped_at": None},
    }  # fmt: skip
    server.on("PUT /v1/tenant/encryption", Answer(body=found))
    server.on("GET /v1/tenant/encryption", Answer(body=found))
    assert "version 1, wrapped by k1" in harness("tenant", "encryption", "on", "--new-key").out
    assert harness("tenant", "encryption", "off").code == 0
    assert harness("tenant", "encryption", "show", "--json").json["on"] is True
    assert sent(server) == [{"on": True, "new_key": True}, {"on": False, "new_key": False}]


def test_settings_do_not_show_a_key():
    assert "AAAA" not in repr(Settings(secrets=SecretSettings(kek="k1:AAAA")))
