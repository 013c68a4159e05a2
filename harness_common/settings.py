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

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from harness_common.core.lease import is_quarantine
from harness_common.logins import ROLES, Login, derive, login_of
from harness_common.redis_url import is_sentinel, parse_sentinel


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiSettings(_Group):
    """The HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8700
    max_body_bytes: int = 2 * 1024 * 1024
    max_wait_s: float = 60.0
    response_wait_s: Annotated[float, Field(gt=0, le=3_600)] = 590.0
    """How long a create of /v1/responses waits for its run: a little less than its clients do."""
    max_requests: int = 256
    """Requests under way at once in one process; more are refused with 503 and Retry-After."""
    max_streams: int = 2_000
    """Event streams and long polls open at once in one process."""
    max_streams_per_key: Annotated[int, Field(ge=1)] = 1_000
    """Of those, by one API key; more are refused with 429 and Retry-After."""
    idempotency_ttl_s: int = 24 * 3600
    sse_ping_s: float = 15.0
    key_pepper: SecretStr | None = None
    """Mixed into API key hashes. None: the file `pepper` of the data folder."""
    console_session_s: Annotated[int, Field(ge=60, le=30 * 86_400)] = 12 * 3600
    """How long a login to the console lasts."""


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
    nice: Annotated[int, Field(ge=0, le=19)] = 5
    """How far a worker process stands back when the processor is busy (`nice`): its steps are many,
    and all of them wait for the scheduler and the database.
    """
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


def _none_if_off(value: object) -> object:
    """Let a variable say that there is none: `off`, or nothing."""
    return None if isinstance(value, str) and value.strip().lower() in {"off", ""} else value


class DatabaseSettings(_Group):
    """How processes talk to Postgres."""

    pool_min: int = 1
    pool_max: int = 8
    timeout_s: float = 10.0
    """The longest any statement may take, enforced on our side."""
    connect_timeout_s: float = 5.0
    prepare_threshold: Annotated[int | None, BeforeValidator(_none_if_off)] = 1
    """Executions before a statement is prepared; None (`off`) for poolers that cannot keep prepared
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
    """How long a term lasts that nobody renews."""
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

    @property
    def leader_renew_s(self) -> float:
        """How often a leader renews its term; no single duty of a tick goes on for longer."""
        return self.leader_ttl_s / 4


class ModelSettings(_Group):
    """Credentials and defaults of model providers."""

    default_model: str = "scripted/demo"
    prices: Path | None = None
    """A JSON file that adds to or replaces the built-in price table."""
    capabilities: Path | None = None
    """A JSON file that says what your models accept and how long their windows are."""


class ToolSettings(_Group):
    """What built-in tools may touch."""

    http_allow: tuple[str, ...] = ()
    """Hosts or networks that outgoing HTTP may reach although they are private."""
    file_root: Path | None = None
    """The folder below which `file_read` and `file_list` see; None refuses them."""
    sql_sources: Path | None = None
    """The folder whose csv, json and parquet files `sql_query` shows as tables."""
    programs: Path | None = None
    """A JSON file that declares the programs `run_program` may start."""
    max_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """The longest timeout a tool may have; a tenant's policy may set a shorter one. None: none."""
    inline_result_bytes: int = 16 * 1024
    """A larger result is kept as an artifact and summarised for the model."""
    max_result_bytes: Annotated[int, Field(ge=1)] = 16 * 1024 * 1024
    """A result beyond this is the error BAD_RESULT, with this much kept as an artifact."""
    parallel_reads: Annotated[int, Field(ge=1, le=1_000)] = 16
    """How many calls of one step go side by side at most."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """So many faults of a tool within the window open its breaker, if half of its calls fail."""
    breaker_window_s: Annotated[float, Field(gt=0)] = 30.0
    breaker_open_s: Annotated[float, Field(gt=0)] = 10.0
    """How long a breaker stays open before one call tries the tool; doubled each time it fails."""
    breaker_open_max_s: Annotated[float, Field(gt=0)] = 300.0
    breaker_wait_s: Annotated[float, Field(ge=0)] = 30.0
    """How long a call that changes nothing waits for an open breaker, holding nothing meanwhile;
    one that is open for longer is told to the model at once.
    """
    approval_expires_s: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400.0
    """How long a person has to approve a call when policy says nothing else."""


class SandboxSettings(_Group):
    """Cages for tools; there is no setting that lets a tool run with less than it declares."""

    slots: Annotated[int, Field(ge=1, le=24)] = 8
    """Caged calls at once in one worker process."""
    warm: Annotated[int, Field(ge=0, le=8)] = 2
    """Cages kept ready for the next call, of each kind that was used in the last minute."""
    bwrap: Path | None = None
    """The bubblewrap program; None takes the newest of the system's and the Python package's."""
    cgroup: Path | None = None
    """A cgroup folder that was delegated to this user, for memory limits; None looks by itself."""
    uid_base: Annotated[int | None, Field(ge=1_000)] = None
    """As root: the first of 2,048 unused user ids for cages; None chooses."""


class SecretSettings(_Group):
    """Where the keys are that encrypt what is stored."""

    kek: SecretStr | None = None
    """Key-encryption keys, `id:base64` of 32 bytes each, separated by commas; the first is current.
    None: `kek_file`, else the file `kek` of the data folder if there is one.
    """
    kek_file: Path | None = None
    """A file with the same, one a line."""
    cache_s: Annotated[float, Field(ge=0, le=3600)] = 15.0
    """How long a worker may use a secret's value before it reads it again."""


class EgressSettings(_Group):
    """Outgoing HTTP of tools, webhooks and MCP servers."""

    loopback: bool = False
    """Let tenants reach this machine's own ports: for development, where all tenants are you."""
    interceptor: str | None = None
    """`module:function` that may add headers to each request, for a service mesh or a gateway."""


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


class EmbeddingSettings(_Group):
    """What turns facts into vectors, so that memories are found by meaning."""

    provider: str = "auto"
    """`local` (in this process), `openai` (a server that speaks OpenAI's API), `none` (words only),
    the name of a plugin's, or `auto`: `local` where it is installed, else `none`.
    """
    model: str | None = None
    """None: text-embedding-3-small."""
    base_url: str | None = None
    """None: `openai_base_url`, else OpenAI's own."""
    api_key: SecretStr | None = None
    """None: `openai_api_key`, for the same server only."""
    dimensions: Annotated[int, Field(ge=8, le=16_000)] | None = None
    """How long vectors are asked to be; None: as the model has them."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 10.0


class MemorySettings(_Group):
    """What agents remember between runs."""

    max_facts: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Facts of one user in one namespace."""
    expires_days: Annotated[int, Field(ge=1, le=36_500)] | None = 365
    """How long a fact lives when neither agent nor call says; None: for ever."""


class RetentionSettings(_Group):
    """How long what runs leave is kept, in days after their end; a tenant may say otherwise for its
    own. None: for ever.
    """

    events_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    checkpoints_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """Without its checkpoints a run can be read, and no longer retried or forked."""
    artifacts_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    runs_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """The run itself, with all that it has left."""
    batch_rows: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    """About how many rows one transaction deletes."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """At most so much of the time goes into deleting."""

    def days(self) -> dict[str, int | None]:
        """Return the ages by their names."""
        return {name: getattr(self, name) for name in AGES}


AGES = ("events_days", "checkpoints_days", "artifacts_days", "runs_days")


class FrameworkSettings(_Group):
    """Objects of other frameworks that agents may name: name to `module:attribute`."""

    graphs: dict[str, str] = Field(default_factory=dict)
    """LangGraph graphs, for agents of kind langgraph."""
    agents: dict[str, str] = Field(default_factory=dict)
    """OpenAI-Agents agents, for agents of kind openai_agents."""


class FlowerSettings(_Group):
    """Flower, which shows what Celery does; see docs/flower.md."""

    host: str = "127.0.0.1"
    """Where it listens. The API passes its pages on at /flower; nobody else has to reach it."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 5555
    password: SecretStr | None = None
    """What the API shows to Flower. Needed when Flower listens elsewhere than on loopback."""
    max_tasks: Annotated[int, Field(ge=100, le=100_000)] = 10_000
    """Doorbells that it remembers; 20,000 took 207 MB."""
    blind_after_s: Annotated[float, Field(ge=1, le=3_600)] = 60.0
    """It ends, to be started again, when workers answer whose events it has not heard for this."""


class LogSettings(_Group):
    """Diagnostics."""

    format: Literal["pretty", "json"] = "pretty"
    level: Literal["debug", "info", "warning", "error"] = "info"


class TelemetrySettings(_Group):
    """Traces and metrics; both are off until an address is given."""

    otlp_endpoint: Annotated[str | None, Field(pattern=r"^https?://\S+$")] = None
    """The OTLP/HTTP collector of spans, such as `http://127.0.0.1:4318`. None: no traces."""
    otlp_headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Sent with every batch of spans: a collector's key, for example."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The part of all traces that is kept; every process keeps the same ones."""
    content: bool = False
    """Put prompts, answers, arguments and results into spans. They hold what tenants said."""
    max_queued_spans: Annotated[int, Field(ge=512, le=1_000_000)] = 8_192
    """Spans that wait for the collector in one process; more are dropped and counted."""
    export_every_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    metrics_host: str = "127.0.0.1"
    """Where workers and schedulers let their metrics be read, if they have a port."""
    worker_metrics_port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    """A port of each worker supervisor for the metrics of all its processes. None: none."""
    scheduler_metrics_port: Annotated[int | None, Field(ge=1, le=65_535)] = None

    def traces_url(self) -> str:
        """Return where spans are sent: the path of OTLP unless the address has one."""
        address = (self.otlp_endpoint or "").rstrip("/")
        has_path = "/" in address.partition("://")[2]
        return address if has_path else f"{address}/v1/traces"


class Settings(BaseSettings):
    """The whole configuration of a process."""

    model_config = SettingsConfigDict(
        env_prefix="HARNESS_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    database_url: str | None = None
    """The API's login; alone, it is the owner's and the two other logins are derived from it."""
    system_database_url: str | None = None
    """The login of workers and the scheduler, `harness_system`."""
    owner_database_url: str | None = None
    """The login of migrations."""
    redis_url: str | None = None
    """`redis://`, `rediss://`, or `sentinel://` (see `redis_url`)."""
    broker_url: str | None = None
    """Where doorbells go, also `amqp://`; None uses `redis_url`."""
    data_dir: Path = Path(".harness")
    blobs: str | None = None
    """Where large bodies lie: `file:///folder`, or `name:…` of a plugin. None: the data folder."""
    plugins: tuple[str, ...] = ("*",)
    """Which installed plugins are loaded, by name or glob; an empty list loads none."""
    steps_per_task: Annotated[int, Field(ge=1, le=1_000)] = 1
    openai_base_url: str | None = None
    openai_api_key: SecretStr | None = None
    anthropic_base_url: str | None = None
    anthropic_api_key: SecretStr | None = None
    anthropic_version: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] = "2026-10-21"
    """The version of the Messages API; before 2026-10-21 the key goes as `x-api-key`."""
    api: ApiSettings = ApiSettings()
    worker: WorkerSettings = WorkerSettings()
    database: DatabaseSettings = DatabaseSettings()
    redis: RedisSettings = RedisSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    model: ModelSettings = ModelSettings()
    tool: ToolSettings = ToolSettings()
    sandbox: SandboxSettings = SandboxSettings()
    secrets: SecretSettings = SecretSettings()
    egress: EgressSettings = EgressSettings()
    mcp: McpSettings = McpSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    memory: MemorySettings = MemorySettings()
    retention: RetentionSettings = RetentionSettings()
    frameworks: FrameworkSettings = FrameworkSettings()
    flower_url: str | None = None
    """Where the API finds Flower: `http://127.0.0.1:5555`. None: it has no page /flower."""
    flower: FlowerSettings = FlowerSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("redis_url", "broker_url")
    @classmethod
    def _sentinels_are_readable(cls, url: str | None) -> str | None:
        if url is not None and is_sentinel(url):
            parse_sentinel(url)
        return url

    @model_validator(mode="after")
    def _leases_outlast_looks(self) -> Settings:
        lease_s, tick_s = self.worker.lease_s, self.scheduler.idle_tick_s
        if lease_s <= 2 * tick_s:
            raise ValueError(
                f"worker.lease_s is {lease_s:g} and must be more than twice scheduler.idle_tick_s "
                f"({tick_s:g}): a dead process is seen by looks that come between its heartbeats"
            )
        if lease_s <= self.worker.renew_s:
            raise ValueError(
                f"worker.renew_s is {self.worker.renew_s:g} and must be less than worker.lease_s "
                f"({lease_s:g}): a lease has to be renewed before it is over"
            )
        return self

    def database_login(self, login: Login) -> str:
        """Return the URL that the API, the system or the owner logs in with, or say how to set it.

        Its own variable comes first; `HARNESS_DATABASE_URL` serves whoever its user is for, and
        everybody when it is the owner's.
        """
        own = {"owner": self.owner_database_url, "system": self.system_database_url}.get(login)
        if own is not None:
            return own
        if self.database_url is None:
            raise SystemExit(
                "HARNESS_DATABASE_URL is not set. Set it to postgresql://user:password@host/db, "
                "or use `harness dev`, which starts its own Postgres."
            )
        holder = login_of(self.database_url)
        if holder == login:
            return self.database_url
        if holder != "owner":
            raise SystemExit(
                f"HARNESS_DATABASE_URL logs in as {ROLES[holder]}, which is not what this process "
                f"needs. Set {_LOGIN_VARIABLES[login]}; see docs/security.md."
            )
        return derive(self.database_url, login)

    def database_logins_to_set(self) -> list[str]:
        """Return the URLs of the API and the system whose users and passwords `migrate` is to make:
        those that are named, and the derived ones when there is one URL for everything.
        """
        if self.database_url is None:
            return [self.system_database_url] if self.system_database_url else []
        logins: list[Login] = ["api", "system"]
        if login_of(self.database_url) != "owner" and self.system_database_url is None:
            return [self.database_url]
        return [self.database_login(login) for login in logins]

    def require_redis_url(self) -> str:
        """Return the Redis URL or say how to set it."""
        if self.redis_url is None:
            raise SystemExit(
                "HARNESS_REDIS_URL is not set. Set it to redis://host:6379/0, "
                "or use `harness dev`, which starts its own Valkey."
            )
        return self.redis_url


_LOGIN_VARIABLES: dict[Login, str] = {
    "owner": "HARNESS_OWNER_DATABASE_URL",
    "api": "HARNESS_DATABASE_URL",
    "system": "HARNESS_SYSTEM_DATABASE_URL",
}
_NOT_SETTINGS = {
    "HARNESS_ALIVE_DIR",
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
