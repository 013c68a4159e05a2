"""Odd and hostile requests about control, effects, limits and schedules: refused by name, never by
500, and never about what another tenant has.
"""

from __future__ import annotations

import httpx
import pytest

from harness_api.cli.bulk import Selection, run_bulk
from harness_common.core.errors import Invalid

NAUGHT = "0" * 32
RUN = f"run_{NAUGHT}"
SESSION = f"sess_{NAUGHT}"


@pytest.fixture
async def strict(app, tenant):
    """Speak to the API; what fails inside is an answer of 500, as over the wire."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://api", headers=tenant.headers("admin"), timeout=30,
    ) as client:  # fmt: skip
        yield client


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/v1/effects?cursor={NAUGHT}.999999999.999999999", None),
        ("GET", f"/v1/effects?run_id={RUN}", None),
        ("GET", f"/v1/runs/{RUN}/calls/999999999.999999999", None),
        ("POST", f"/v1/runs/{RUN}/calls/1.0/resolve", '{"outcome":"succeeded","reason":"x"}'),
        ("GET", "/v1/schedules/nope/firings?cursor=99999999999999999", None),
        ("GET", "/v1/schedules/nope/firings?cursor=00000000000000000", None),
        ("PATCH", "/v1/tenant/limits", '{"weight":1e400}'),
        ("PATCH", "/v1/tenant/limits", '{"tokens_per_day":1e30}'),
        ("PATCH", "/v1/tenant/limits", '{"starts_per_s":1e-300}'),
        ("PATCH", "/v1/tenant/limits", '{"steps_per_s":null,"max_running":1000000}'),
        ("PATCH", "/v1/tenant/limits", "[]"),
        ("POST", f"/v1/runs/{RUN}/cancel", '{"reason":"\\ud800"}'),
        ("POST", f"/v1/runs/{RUN}/fork", '{"step":2147483647,"tools":[]}'),
        ("POST", f"/v1/runs/{RUN}/retry", '{"from_step":2147483648}'),
        ("POST", f"/v1/sessions/{SESSION}/cancel", None),
        ("GET", "/v1/runs?created_after=0001-01-01T00:00:00%2B23:59", None),
        ("GET", "/v1/runs?created_before=9999-12-31T23:59:59-23:59", None),
        ("GET", "/v1/runs?tag=a:%ED%A0%80", None),
        ("GET", "/v1/runs?error_code=%FF", None),
        ("GET", "/v1/sessions?user_id=%ED%A0%80", None),
        ("GET", f"/v1/runs/{RUN}?wait=nan", None),
        ("GET", f"/v1/runs/{RUN}?wait=1e400", None),
        ("POST", "/v1/runs", '{"agent":"a","input":"x","timeout_s":1e-300}'),
        ("POST", "/v1/runs", '{"agent":"a","input":"x","tags":{"\\ud800":"x"}}'),
        ("POST", "/v1/runs", '{"agent":"a","input":"\\udfff"}'),
        ("POST", "/v1/runs", '{"agent":"a","input":"x","max_cost_usd":1e-320}'),
        (
            "POST", "/v1/schedules",
            '{"name":"x","when":{"cron":"0 0 * * *","time_zone":""},'
            '"run":{"agent":"a","input":"x"}}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"x","when":{"cron":"0 0 * * *","time_zone":"America"},'
            '"run":{"agent":"a","input":"x"}}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"x","when":{"every_s":1.0000000001,"anchor":"2199-12-31T00:00:00Z"},'
            '"jitter_s":86400,"run":{"agent":"a","input":"x"},"starts_at":"2200-01-01T00:00:00Z"}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"y","when":{"cron":"* * 30 2 *"},"run":{"agent":"a","input":"x"}}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"z","when":{"cron":"0 0 29 2 1#5"},"run":{"agent":"a","input":"x"}}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"w","when":{"cron":"*/0 0 * * *"},"run":{"agent":"a","input":"x"}}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"v","when":{"cron":"0 0 * * 9999999999999999999"},'
            '"run":{"agent":"a","input":"x"}}',
        ),
        (
            "POST", "/v1/schedules",
            '{"name":"u","when":{"cron":"\\u0661 0 * * *"},"run":{"agent":"a","input":"x"}}',
        ),
    ],
)  # fmt: skip
async def test_odd_requests_are_answered_by_name(strict, method, path, body):
    headers = {"Content-Type": "application/json"} if body is not None else {}
    answer = await strict.request(method, path, content=body, headers=headers)
    assert answer.status_code < 500, answer.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/cancel", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/retry", None),
        ("POST", "/fork", None),
        ("POST", "/input", {"text": "x"}),
        ("POST", "/messages", {"text": "x"}),
        ("GET", "/calls/1.0", None),
        ("POST", "/calls/1.0/resolve", {"outcome": "failed", "reason": "x"}),
        ("GET", "", None),
        ("GET", "?wait=1", None),
    ],
)
async def test_nobody_reaches_a_run_of_another_tenant(api, other_tenant, method, path, body):
    made = await api.post("/v1/runs", json={"agent": "a", "input": "x"})
    run = made.json()
    answer = await api.request(
        method, f"/v1/runs/{run['id']}{path}", json=body, headers=other_tenant.headers("admin")
    )
    assert answer.status_code == 404
    assert (await api.get(f"/v1/runs/{run['id']}")).json() == run


@pytest.mark.parametrize(
    "where", ["agent=a,agent=b", "tag.x=1,tag.x=2", "error.code=A,error.code=B"]
)
def test_a_bulk_command_does_not_drop_half_of_what_must_hold(where):
    """No run can be both: the last one said must not decide alone."""
    chosen = Selection([where], None, None, 10, yes=True)
    with pytest.raises(Invalid, match="once"):
        run_bulk(None, "cancel", chosen, lambda run: run, as_json=True)  # type: ignore[arg-type]
