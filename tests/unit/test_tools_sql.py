"""`sql_query`, `sql_schema`: results, and that a query cannot write, reach out or run on."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from harness_common.core.errors import Denied, HarnessError, Invalid, NotFound, Permanent
from harness_common.settings import Settings, ToolSettings
from harness_worker.tools import sql_query
from tests.fakes.tool_context import acall, call


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "Sales 2024.csv").write_text(
        "day,region,amount\n2024-01-01,north,1.50\n2024-01-02,south,2.25\n2024-01-03,north,3\n"
    )
    (folder / "people.json").write_text('[{"name": "Ann", "age": 3}, {"name": "Bö", "age": null}]')
    (folder / "people.csv").write_text("name,age\nAnn,3\nBö,4\n")
    (folder / "it's[1].csv").write_text("x\n1\n")
    (folder / "bad.parquet").write_bytes(b"no parquet")
    (folder / "notes.txt").write_text("ignored")
    (tmp_path / "secret.csv").write_text("canary\n1\n")
    (folder / "link.csv").symlink_to(tmp_path / "secret.csv")
    return folder


@pytest.fixture
def both(folder):
    return sql_query.build(Settings(tool=ToolSettings(sql_sources=folder)))


@pytest.fixture
def run(both):
    return lambda sql, **arguments: call(both[0], sql=sql, **arguments)


def test_query(run):
    assert run("SELECT region, sum(amount) AS total FROM sales_2024 GROUP BY 1 ORDER BY 1") == {
        "columns": ["region", "total"],
        "rows": [["north", 4.5], ["south", 2.25]],
        "row_count": 2,
        "truncated": False,
    }


@pytest.mark.parametrize(
    "sql",
    [
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "DESCRIBE people",
        "SHOW TABLES",
        "SUMMARIZE people",
        "FROM people",
        "SELECT 1;",
        "SELECT 1 -- ; DROP TABLE people",
    ],
)
def test_reading_statements_are_allowed(run, sql):
    assert run(sql)["row_count"] >= 1


def test_values_become_json(run):
    sql = """SELECT DATE '2024-02-29', TIMESTAMP '2024-02-29 12:30:00', TIME '12:30',
        1.50::DECIMAL(9,2),
        12345678901234567890123.45::DECIMAL(30,2), 7::DECIMAL(9,2), 'nan'::FLOAT, INTERVAL 3 DAY,
        'ab'::BLOB, {'a': [1, NULL]}, MAP {'k': DATE '2024-01-01'}, NULL, true,
        170141183460469231731687303715::HUGEINT,
        '00000000-0000-0000-0000-000000000001'::UUID"""
    (row,) = run(sql)["rows"]
    assert row == [
        *("2024-02-29", "2024-02-29T12:30:00", "12:30:00", 1.5, "12345678901234567890123.45", 7),
        *(None, "3 days, 0:00:00", "6162", {"a": [1, None]}, {"k": "2024-01-01"}, None, True),
        *(170141183460469231731687303715, "00000000-0000-0000-0000-000000000001"),
    ]
    json.dumps(row, allow_nan=False)


def test_rows_are_limited(run):
    out = run("SELECT * FROM range(1000)")
    assert (out["row_count"], out["truncated"]) == (200, True)
    out = run("SELECT * FROM range(5)", max_rows=5)
    assert (out["row_count"], out["truncated"]) == (5, False)
    out = run("SELECT repeat('x', 300000) FROM range(100)")
    assert (out["row_count"], out["truncated"]) == (3, True)
    with pytest.raises(Permanent) as caught:
        run("SELECT repeat('x', 2000000)")
    assert caught.value.error_code == "RESULT_TOO_LARGE"
    with pytest.raises(Invalid):
        run("SELECT 1", max_rows=10_001)


HOSTILE = [
    " ",
    ";",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE people",
    "DROP TABLE people",
    "DELETE FROM people",
    "INSERT INTO people VALUES ('x', 1)",
    "UPDATE people SET age = 1",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "WITH a AS (INSERT INTO people VALUES ('x', 1) RETURNING *) SELECT * FROM a",
    "WITH a AS (DELETE FROM people RETURNING *) SELECT * FROM a",
    "COPY people TO '/tmp/harness-leak.csv'",
    "COPY (SELECT 1) TO '/tmp/harness-leak.csv'",
    "EXPORT DATABASE '/tmp/harness-leak'",
    "ATTACH '/tmp/harness-leak.db' AS leak",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET lock_configuration = false",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "EXPLAIN ANALYZE DELETE FROM people",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "COMMIT",
    "VACUUM",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM 'http://127.0.0.1:1/x.csv'",
    "SELECT * FROM read_json('https://127.0.0.1:1/x')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT getenv('HOME')",
    "SELECT * FROM query('DROP TABLE people')",
    "SELECT * FROM sql",
    "SELECT * FROM link",
    "SELEC 1",
    "SELECT 1 FROM nowhere",
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_hostile_statements_are_refused_and_change_nothing(run, sql):
    with pytest.raises((Invalid, Denied)) as caught:
        run(sql)
    assert caught.value.error_code in {"SQL_ERROR", "E403"}
    assert "'sql_query'" in caught.value.message
    assert run("SELECT count(*) FROM people")["rows"] == [[2]]


def test_the_source_files_are_out_of_reach_once_loaded(run, folder):
    with pytest.raises(Denied):
        run(f"SELECT * FROM read_csv('{folder}/people.csv')")


def test_a_query_that_runs_on_is_interrupted(run):
    started = time.monotonic()
    with pytest.raises(Permanent) as caught:
        run("SELECT count(*) FROM range(1000000000000)", time_limit_s=0.2)
    assert caught.value.error_code == "TIMEOUT"
    assert "0.2 s" in caught.value.message
    assert time.monotonic() - started < 10


def test_too_much_memory_is_an_error_not_an_end(run):
    with pytest.raises(HarnessError) as caught:
        run("SELECT list(a) FROM range(200000000) t(a)", time_limit_s=20)
    assert caught.value.error_code in {"OUT_OF_MEMORY", "TIMEOUT"}


def test_cancelling_interrupts_the_query(both):
    async def scenario():
        call_ = asyncio.ensure_future(
            acall(both[0], sql="SELECT count(*) FROM range(1000000000000)")
        )
        await asyncio.wait([call_], timeout=0.3)
        assert not call_.done()
        call_.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call_

    started = time.monotonic()
    # asyncio.run waits for the threads of its executor, so the query has really ended.
    asyncio.run(scenario())
    assert time.monotonic() - started < 10


def test_queries_at_the_same_time_do_not_disturb_each_other(both):
    async def scenario():
        slow = acall(both[0], sql="SELECT count(*) FROM range(1000000000000)", time_limit_s=0.3)
        quick = [acall(both[0], sql=f"SELECT {i} FROM people LIMIT 1") for i in range(8)]
        return await asyncio.gather(slow, *quick, return_exceptions=True)

    slow, *quick = asyncio.run(scenario())
    assert isinstance(slow, Permanent)
    assert [out["rows"] for out in quick] == [[[i]] for i in range(8)]


def test_schema(both):
    out = call(both[1])
    tables = {t["name"]: t for t in out["tables"]}
    assert set(tables) == {"sales_2024", "people", "people_json", "it_s_1"}
    assert tables["sales_2024"]["row_count"] == 3
    assert tables["sales_2024"]["columns"] == [
        {"name": "day", "type": "DATE"},
        {"name": "region", "type": "VARCHAR"},
        {"name": "amount", "type": "DOUBLE"},
    ]
    assert [s["file"] for s in out["skipped"]] == ["bad.parquet"]
    assert [t["name"] for t in call(both[1], table="people")["tables"]] == ["people"]
    with pytest.raises(NotFound, match="sales_2024"):
        call(both[1], table="sale")


def test_a_changed_file_is_loaded_again(run, folder):
    assert run("SELECT count(*) FROM it_s_1")["rows"] == [[1]]
    (folder / "it's[1].csv").write_text("x\n1\n2\n3\n")
    assert run("SELECT count(*) FROM it_s_1")["rows"] == [[3]]


def test_no_folder_refuses(tmp_path):
    for folder, branch in [(None, Denied), (tmp_path / "none", Permanent)]:
        for tool in sql_query.build(Settings(tool=ToolSettings(sql_sources=folder))):
            with pytest.raises(branch, match="HARNESS_TOOL__SQL_SOURCES"):
                call(tool, **({"sql": "SELECT 1"} if tool.spec.name == "sql_query" else {}))
