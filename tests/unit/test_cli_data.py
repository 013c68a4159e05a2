"""The command line for what is kept: exports become files only when whole; ages and erasures are
sent as they are meant.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.fakes.harness_server import AT, RUN, Answer, problem
from tests.unit.test_cli import Done, harness, server

__all__ = ["Done", "harness", "server"]

ERASURE = "ers_" + "1" * 32
TENANT = "ten_" + "2" * 32
ONE: dict[str, object] = {
    "id": ERASURE, "subject": "user", "tenant_id": TENANT, "user_id": "ann", "phase": "stopping",
    "counts": {}, "asked_by": "key_1", "created_at": AT, "finished_at": None,
}  # fmt: skip
PREVIEW = {
    "sessions": 1, "runs": 2, "live_runs": 1, "events": 30, "messages": 4, "artifacts": 0,
    "memories": 0,
}  # fmt: skip
AGES = {"events_days": 30, "checkpoints_days": None, "artifacts_days": None, "runs_days": None}


def export(*records, end=True) -> bytes:
    head = {"kind": "manifest", "format": "harness-export/1", "subject": {"run": RUN}}
    data = b"".join(json.dumps(r).encode() + b"\n" for r in (head, *records))
    counts: dict[str, int] = {}
    for record in records:
        counts[record["kind"]] = counts.get(record["kind"], 0) + 1
    last = {"kind": "end", "records": counts, "sha256": hashlib.sha256(data).hexdigest()}
    return data + (json.dumps(last).encode() + b"\n" if end else b"")


def test_an_export_is_written_and_checked(harness, server, tmp_path):
    data = export({"kind": "run", "id": RUN}, {"kind": "event", "seq": 1})
    server.on(f"GET /v1/runs/{RUN}/export", Answer(raw=data))
    path = tmp_path / "run.ndjson"
    done = harness("runs", "export", RUN, "-o", str(path))
    assert (done.code, path.read_bytes()) == (0, data)
    assert harness("export", "--check", str(path)).code == 0
    path.write_bytes(data.replace(b'"seq": 1', b'"seq": 2'))
    spoilt = harness("export", "--check", str(path))
    assert (spoilt.code, "digest" in spoilt.err) == (2, True)
    assert harness("runs", "export", RUN, "-o", str(path)).code == 2, "it exists"


def test_half_an_export_is_no_file(harness, server, tmp_path):
    data = export({"kind": "run", "id": RUN}, end=False)
    server.on(f"GET /v1/runs/{RUN}/export", Answer(raw=data))
    done = harness("runs", "export", RUN, "-o", str(tmp_path / "run.ndjson"))
    assert (done.code, "breaks off" in done.err) == (2, True)
    assert list(tmp_path.glob("*.ndjson*")) == []


def test_ages_are_sent_as_they_are_named(harness, server):
    view = {"own": AGES, "holds": AGES, "changed_at": None, "changed_by": None}
    server.on("PATCH /v1/tenant/retention", Answer(body=view))
    argv = ["tenant", "retention", "set", "--events-days", "30", "--runs-days", "default"]
    done = harness(*argv)
    assert done.code == 0
    body = server.requests("PATCH /v1/tenant/retention")[-1].body
    assert body == {"events_days": 30, "runs_days": None}
    assert "30 days" in done.out
    wrong = harness("tenant", "retention", "set", "--events-days", "soon")
    assert (wrong.code, "--events-days" in wrong.err) == (2, True)


def test_each_age_says_whose_it_is(harness, server):
    own = {**dict.fromkeys(AGES), "checkpoints_days": 30, "runs_days": 365}
    holds = {"events_days": 90, "checkpoints_days": 30, "artifacts_days": 365, "runs_days": 365}
    view = {"own": own, "holds": holds, "changed_at": None, "changed_by": None}
    server.on("GET /v1/tenant/retention", Answer(body=view))
    assert harness("tenant", "retention", "show").out.splitlines() == [
        "events       90 days (the platform's)",
        "checkpoints  30 days (set by the tenant)",
        "artifacts    365 days (with the run)",
        "runs         365 days (set by the tenant)",
    ]


def test_an_erasure_is_previewed_before_it_is_asked_for(harness, server):
    server.on("POST /v1/erasures/preview", Answer(body=PREVIEW))
    server.on("POST /v1/erasures", Answer(202, ONE))
    dry = harness("erase", "user", "ann", "--dry-run")
    assert (dry.code, server.requests("POST /v1/erasures")) == (0, [])
    assert "live runs" in dry.out
    done = harness("erase", "user", "ann", "--yes", "--json")
    assert (done.code, json.loads(done.out)["id"]) == (0, ERASURE)
    assert server.requests("POST /v1/erasures")[-1].body == {"user_id": "ann"}


def test_a_tenant_that_cannot_be_erased_says_why(harness, server):
    server.on(
        "POST /v1/platform/erasures/preview",
        problem(409, "OPERATOR_TENANT", "it runs the platform"),
    )
    done = harness("erase", "tenant", TENANT, "--yes")
    assert (done.code, "OPERATOR_TENANT" in done.err) == (1, True)


@pytest.mark.parametrize("argv", [["storage"], ["erase", "list"], ["export"], ["erase", "user"]])
def test_each_command_has_help(harness, argv):
    assert harness(*argv, "--help").code == 0
