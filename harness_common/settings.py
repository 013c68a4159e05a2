"""Every setting of every process, read from the environment with the prefix `HARNESS_`.

Nested groups use a double underscore: `HARNESS_WORKER__CONCURRENCY=500`. The three that everybody
sets are at the top: `HARNESS_DATABASE_URL`, `HARNESS_REDIS_URL` and `HARNESS_STEPS_PER_TASK`. A
setting that does not exist is refused.
"""

from __future__ import annotations

import difflib
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from harness_common.core.lease import is_quarantine


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiSettings(_Group):
    """The HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8700
    max_body_bytes: int = 2 * 1024 * 1024
    max_wait_s: float = 60.0
    max_requests: int = 256
    """Requests under way at once in one process; more are refused with 503 and Retry-After."""
    max_streams: int = 2_000
    """Event streams and long polls open at once in one process."""
    idempotency_ttl_s: int = 24 * 3600
    sse_ping_s: float = 15.0
    key_pepper: SecretStr | None = None
    """Mixed into API key hashes. None: the file `pepper` of the data folder."""


class WorkerSettings(_Group):
    """One worker process."""

    concurrency: int = 200
    """Steps held at once by one process."""
    processes: int = 2
    queues: tuple[str, ...] = ("steps.default",)
    lease_s: float = 15.0
    renew_s: float = 5.0
    grace_s: float = 10.0
    """How long SIGTERM waits for running steps before it hands them over."""
    turn_ms: int = 5_000
    """How long one task may go on inline when `steps_per_task` > 1."""
    turn_s: float = 10.0
    """How long a run keeps its slot while others wait."""
    step_timeout_s: float = 900.0
    tools: tuple[str, ...] = ()
    """Modules that hold user tools."""
    task_events: bool = True
    quarantine_look_s: Annotated[float, Field(ge=0.1, le=60)] = 2.0
    """How often a supervisor asks whether suspects wait for a quarantine process."""
    quarantine_linger_s: Annotated[float, Field(ge=0)] = 60.0
    """How long a quarantine process stays after the last suspect."""

    @model_validator(mode="after")
    def _quarantine_is_alone(self) -> WorkerSettings:
        named = [q for q in self.queues if is_quarantine(q)]
        if named and self.concurrency != 1:
            raise ValueError(
                f"{named[0]} is a queue of suspects, which run alone: a worker that serves it "
                f"needs concurrency 1, not {self.concurrency}"
            )
        return self


class DatabaseSettings(_Group):
    """How processes talk to Postgres."""

    pool_min: int = 1
    pool_max: int = 8
    timeout_s: float = 10.0
    """The longest any statement may take, enforced on our side."""
    connect_timeout_s: float = 5.0
    prepare_threshold: int | None = 1
    """Executions before a statement is prepared; None for poolers that cannot keep prepared
    statements.
    """
    snapshot_every: int = 20


class RedisSettings(_Group):
    """How processes talk to Redis or Valkey."""

    timeout_s: float = 2.0
    prefix: str = "harness"


class SchedulerSettings(_Group):
    """The scheduler's loops."""

    leader_ttl_s: float = 4.0
    tick_s: float = 0.25
    idle_tick_s: float = 1.0
    batch: int = 200
    ring_after_s: float = 5.0
    ring_after_max_s: float = 60.0
    max_running: int = 2_000
    """Running runs over all tenants, unless the platform's limits say otherwise."""
    worker_factor: Annotated[float, Field(gt=0)] = 1.0
    """Runs let in for each place that live workers have; more only makes doorbells queue."""
    tenant_max_running: int = 1_000
    """Default for a new tenant."""
    partitions_ahead_weeks: int = 8
    firings_days: int = 90
    """How long it is remembered what became of each firing of a schedule."""


class ModelSettings(_Group):
    """Credentials and defaults of model providers."""

    default_model: str = "scripted/demo"
    prices: Path | None = None
    """A JSON file that adds to or replaces the built-in price table."""


class ToolSettings(_Group):
    """What built-in tools may touch."""

    http_allow: tuple[str, ...] = ()
    """Hosts or networks that `http_get` may reach although they are private."""
    file_root: Path | None = None
    """The folder below which `file_read` and `file_list` see; None refuses them."""
    sql_sources: Path | None = None
    """The folder whose csv, json and parquet files `sql_query` shows as tables."""
    programs: Path | None = None
    """A JSON file that declares the programs `run_program` may start."""
    inline_result_bytes: int = 16 * 1024
    """A larger result is kept as an artifact and summarised for the model."""


class McpSettings(_Group):
    """Connections of workers to the MCP servers of tenants."""

    commands: tuple[str, ...] = ()
    """Programs that a tenant's server may be: names or paths, `*` for any. Empty refuses servers
    that are commands; `harness dev` allows any.
    """
    connect_s: Annotated[float, Field(gt=0, le=300)] = 30.0
    """The longest that starting or reaching a server and listing its tools may take."""
    idle_s: Annotated[float, Field(gt=0)] = 300.0
    """A connection that nobody uses is closed after so long."""
    relist_s: Annotated[float, Field(ge=0)] = 300.0
    """A tool list older than this is read again before the next call."""
    max_connections: Annotated[int, Field(ge=1, le=1_000)] = 32
    """Servers that one worker process is connected to at once."""
    max_result_bytes: Annotated[int, Field(ge=1_024)] = 8 * 1024 * 1024
    """The largest message that is taken from a server."""


class LogSettings(_Group):
    """Diagnostics."""

    format: Literal["pretty", "json"] = "pretty"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(BaseSettings):
    """The whole configuration of a process."""

    model_config = SettingsConfigDict(
        env_prefix="HARNESS_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    database_url: str | None = None
    redis_url: str | None = None
    broker_url: str | None = None
    """Where doorbells go; None uses `redis_url`."""
    data_dir: Path = Path(".harness")
    steps_per_task: Annotated[int, Field(ge=1, le=1_000)] = 1
    openai_base_url: str | None = None
    openai_api_key: SecretStr | None = None
    api: ApiSettings = ApiSettings()
    worker: WorkerSettings = WorkerSettings()
    database: DatabaseSettings = DatabaseSettings()
    redis: RedisSettings = RedisSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    model: ModelSettings = ModelSettings()
    tool: ToolSettings = ToolSettings()
    mcp: McpSettings = McpSettings()
    log: LogSettings = LogSettings()

    def require_database_url(self) -> str:
        """Return the database URL or say how to set it."""
        if self.database_url is None:
            raise SystemExit(
                "HARNESS_DATABASE_URL is not set. Set it to postgresql://user:password@host/db, "
                "or use `harness dev`, which starts its own Postgres."
            )
        return self.database_url

    def require_redis_url(self) -> str:
        """Return the Redis URL or say how to set it."""
        if self.redis_url is None:
            raise SystemExit(
                "HARNESS_REDIS_URL is not set. Set it to redis://host:6379/0, "
                "or use `harness dev`, which starts its own Valkey."
            )
        return self.redis_url


_NOT_SETTINGS = {
    "HARNESS_INCARNATION",
    "HARNESS_WORKER_NAME",
    "HARNESS_API_URL",
    "HARNESS_API_KEY",
    "HARNESS_DEMO_MODEL",
}
"""Variables of the same prefix that are read elsewhere: worker process, client, demo."""


@cache
def settings() -> Settings:
    """Read the settings of this process once; a misspelt `HARNESS_` variable is refused.

    Only what looks like a known name is: Kubernetes puts `HARNESS_SERVICE_HOST` and the like there.
    """
    known = {f"HARNESS_{name.upper()}" for name in Settings.model_fields}
    for name in os.environ:
        if not name.startswith("HARNESS_") or name.split("__")[0] in known | _NOT_SETTINGS:
            continue
        close = difflib.get_close_matches(name.split("__")[0], known, 1, cutoff=0.85)
        if close:
            raise SystemExit(f"{name} is not a setting of Harness; did you mean {close[0]}?")
    return Settings()
