"""What `harness doctor` says about the logins, on a real Postgres."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from harness_api.cli import logins
from harness_api.cli.finding import State
from harness_common.logins import derive
from harness_common.settings import Settings
from harness_common.store.migrate import set_login


def findings(**urls: str) -> dict[str, tuple[State, str]]:
    config = Settings().model_copy(update=urls)
    return {f.name: (f.state, f.text) for f in logins.check(config)}


def with_user(url: str, user: str, password: str) -> str:
    return url.replace(urlsplit(url).netloc.rpartition("@")[0], f"{user}:{password}")


@pytest.fixture
def second_login(database_url):
    """Make a second login of the API, as for a rotation, and drop it at the end."""
    url = with_user(database_url, "harness_api_2", "fresh")
    with psycopg.connect(database_url, autocommit=True) as conn:
        set_login(conn, url)
        yield url, conn
        conn.execute("DROP ROLE harness_api_2")


def test_one_url_gives_two_logins_that_are_as_they_should_be(database_url):
    found = findings(database_url=database_url)
    assert {name: state for name, (state, _) in found.items()} == {
        "api login": State.OK,
        "system login": State.OK,
    }
    assert "harness_api: bound by row-level security" in found["api login"][1]


def test_a_second_login_is_a_member_of_its_role(second_login, database_url):
    url, _ = second_login
    system = derive(database_url, "system")
    found = findings(database_url=url, system_database_url=system)
    assert found["api login"][0] is State.OK
    assert "harness_api_2" in found["api login"][1]


@pytest.mark.parametrize("damage", ["SUPERUSER", "BYPASSRLS", None])
def test_a_login_that_sees_everything_is_red(second_login, database_url, damage):
    url, conn = second_login
    change = (
        f"ALTER ROLE harness_api_2 {damage}" if damage else "GRANT harness_system TO harness_api_2"
    )
    conn.execute(change)
    system = derive(database_url, "system")
    # An API process that was started all the same.
    with psycopg.connect(url, application_name="harness-api"):
        found = findings(database_url=url, system_database_url=system)
    assert found["api login"][0] is State.FAIL
    assert "may see every tenant" in found["api login"][1]
    assert found["api sessions"] == (
        State.FAIL,
        "a running API is logged in as harness_api_2",
    )


def test_workers_that_are_the_owner_are_noted(database_url):
    api = derive(database_url, "api")
    found = findings(database_url=api, system_database_url=database_url)
    assert found["system login"][0] is State.WARN


def test_a_wrong_password_and_a_missing_url_say_what_to_do(database_url):
    found = findings(database_url=with_user(database_url, "harness_api", "wrong"))
    assert found["api login"][0] is State.FAIL
    assert "password authentication failed" in found["api login"][1]
    assert found["system login"] == (State.WARN, "not known here")


def test_the_password_reaches_the_server_as_a_verifier_only(second_login):
    _, conn = second_login
    query = "SELECT rolpassword FROM pg_authid WHERE rolname = 'harness_api_2'"
    ((stored,),) = conn.execute(query).fetchall()
    assert stored.startswith("SCRAM-SHA-256$")
