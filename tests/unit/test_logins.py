"""Which URL each process logs in with."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from harness_api.cli.dev import DevOptions, default_plan
from harness_common.logins import derive, login_of, user_and_password, without_password
from harness_common.settings import Settings

OWNER = "postgresql://harness:p%40ss@host:5432/db?sslmode=require"
API = "postgresql://harness_api:one@host/db"
SYSTEM = "postgresql://harness_system:two@host/db"


def test_a_derived_login_has_its_own_user_and_a_password_that_tells_nothing():
    api, system = derive(OWNER, "api"), derive(OWNER, "system")
    assert derive(OWNER, "owner") == OWNER
    assert user_and_password(OWNER) == ("harness", "p@ss")
    secrets = set()
    for url, user in ((api, "harness_api"), (system, "harness_system")):
        name, secret = user_and_password(url)
        assert name == user
        assert secret is not None
        assert len(secret) == 43
        secrets.add(secret)
        rest = urlsplit(url)
        assert (rest.hostname, rest.port, rest.path, rest.query) == (
            *("host", 5432, "/db"),
            "sslmode=require",
        )
    assert len(secrets) == 2
    assert derive(OWNER, "api") == api  # the same in every process
    assert derive("postgresql://harness:p%40st@host/db", "api").split("@")[0] != api.split("@")[0]


def test_without_a_password_there_is_none_to_derive():
    assert derive("postgresql://harness@/db", "api") == "postgresql://harness_api@/db"


@pytest.mark.parametrize(
    ("user", "login"),
    [
        ("harness_api", "api"),
        ("harness_api_2", "api"),
        ("harness_system", "system"),
        ("harness_system_b", "system"),
        ("harness", "owner"),
        ("harness_apiary", "owner"),
        ("postgres", "owner"),
    ],
)
def test_whose_login_a_url_is(user, login):
    assert login_of(f"postgresql://{user}:x@host/db") == login


def test_one_url_serves_all():
    config = Settings(database_url=OWNER)
    assert config.database_login("owner") == OWNER
    assert config.database_login("api") == derive(OWNER, "api")
    assert config.database_login("system") == derive(OWNER, "system")
    assert config.database_logins_to_set() == [derive(OWNER, "api"), derive(OWNER, "system")]


def test_named_urls_come_first():
    config = Settings(database_url=API, system_database_url=SYSTEM, owner_database_url=OWNER)
    assert [config.database_login(x) for x in ("owner", "api", "system")] == [OWNER, API, SYSTEM]
    assert config.database_logins_to_set() == [API, SYSTEM]


def test_a_process_never_takes_the_login_of_another():
    config = Settings(database_url=API)
    assert config.database_login("api") == API
    assert config.database_logins_to_set() == [API]
    with pytest.raises(SystemExit, match="HARNESS_SYSTEM_DATABASE_URL"):
        config.database_login("system")
    with pytest.raises(SystemExit, match="HARNESS_OWNER_DATABASE_URL"):
        config.database_login("owner")
    with pytest.raises(SystemExit, match="logs in as harness_system"):
        Settings(database_url=SYSTEM).database_login("api")


def test_the_owners_url_alone_changes_no_password():
    config = Settings(owner_database_url=OWNER)
    assert config.database_logins_to_set() == []
    with pytest.raises(SystemExit, match="HARNESS_DATABASE_URL is not set"):
        config.database_login("api")


def test_harness_dev_gives_each_process_its_own_login_and_only_migrations_the_owners(tmp_path):
    plan = default_plan(DevOptions(), tmp_path, {"HARNESS_DATABASE_URL": OWNER})
    found = {
        spec.name: login_of((spec.env or {})["HARNESS_DATABASE_URL"])
        for spec in (*plan.setup, *plan.processes)
    }
    assert found == {
        "migrate": "owner",
        "bootstrap": "system",
        "api": "api",
        "scheduler": "system",
        "worker": "system",
        "flower": "system",
    }


def test_a_url_is_shown_without_its_password():
    assert without_password(OWNER) == "postgresql://harness@host:5432/db?sslmode=require"
