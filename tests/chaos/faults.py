"""What goes wrong: one function a fault, and the registry of them all.

A fault returns True when it really happened (a lost reply needs a request to lose), and leaves
nothing broken behind.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import httpx
import psutil
import psycopg
import redis

from tests.chaos.doorbells import Doorbells
from tests.chaos.recovery import Recovery
from tests.chaos.stack import DATABASE_TIMEOUT_S, LEASE_S, ChaosStack


@dataclass(frozen=True, slots=True)
class World:
    """What a fault may touch."""

    stack: ChaosStack
    recovery: Recovery
    doorbells: Doorbells


FEWEST = 2
"""Worker processes that must be at work before one is taken away: somebody has to go on."""

Act = Callable[[World, random.Random], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. Faults with the same `target` never overlap; `weight` is how often."""

    name: str
    target: str
    weight: int
    act: Act
    missing: Callable[[ChaosStack], str | None] = lambda _: None
    """Say why it cannot be done on this machine, or None."""


def incarnation_of(process: psutil.Process) -> UUID:
    """Return the id under which a worker process claims runs."""
    return UUID(hex=process.environ()["HARNESS_INCARNATION"])


def at_work(stack: ChaosStack) -> list[tuple[psutil.Process, UUID]]:
    """Return the worker processes that have announced themselves a while ago and live.

    To kill a process that is still starting, over and over, would only take all capacity away. A
    quarantine process is left alone: by design its death is taken for its run's own doing.
    """
    rows = stack.ask(
        "SELECT incarnation FROM workers WHERE died_at IS NULL AND concurrency > 1 "
        "AND started_at < clock_timestamp() - interval '3 s' "
        "AND seen_at > clock_timestamp() - interval '5 s'"
    )
    known = {row["incarnation"] for row in rows}
    found = []
    for process in stack.worker_processes():
        with contextlib.suppress(psutil.Error, KeyError):  # it may just be dying
            found.append((process, incarnation_of(process)))
    return [(process, who) for process, who in found if who in known]


def kill_worker_process(world: World, chance: random.Random) -> bool:
    """Kill -9 one worker process; its supervisor starts another."""
    try:
        found = at_work(world.stack)
        if len(found) < FEWEST:
            return False
        process, who = chance.choice(found)
        process.send_signal(signal.SIGKILL)
    except (psutil.Error, psycopg.Error, KeyError):
        return False
    world.recovery.watch("killed", who, time.monotonic())
    return True


def kill_supervisor(world: World, chance: random.Random) -> bool:
    """Kill -9 a supervisor: its processes die with it, and nobody is left to say so."""
    name = chance.choice(["worker-0", "worker-1"])
    try:
        if len(at_work(world.stack)) <= FEWEST:
            return False
        children = psutil.Process(world.stack.processes[name].pid).children()
        who = [incarnation_of(child) for child in children]
    except (psutil.Error, psycopg.Error, KeyError):
        return False
    world.stack.kill(name)
    began = time.monotonic()
    for one in who:
        world.recovery.watch("killed", one, began)
    world.stack.start(name)
    return True


def freeze_worker(world: World, chance: random.Random) -> bool:
    """SIGSTOP a worker process beyond its lease, then let it go on."""
    try:
        found = at_work(world.stack)
    except (psutil.Error, psycopg.Error, KeyError):
        return False
    if len(found) < FEWEST:
        return False
    process, who = chance.choice(found)
    return _freeze(process, LEASE_S + chance.uniform(1.0, 3.0), world, who)


def _freeze(
    process: psutil.Process, seconds: float, world: World | None = None, who: UUID | None = None
) -> bool:
    try:
        process.suspend()
        if world is not None and who is not None:
            world.recovery.watch("frozen", who, time.monotonic())
        time.sleep(seconds)
        process.resume()
    except psutil.Error:
        return False
    return True


def _leader(stack: ChaosStack) -> str | None:
    """Name the scheduler that leads now; None while nobody does (one may still be starting)."""
    try:
        rows = stack.ask(
            "SELECT holder_name FROM leader WHERE name = 'scheduler' AND until > clock_timestamp()"
        )
        pid = int(str(rows[0]["holder_name"]).split("@")[0].split("-")[1])
    except (psycopg.Error, IndexError, ValueError):
        return None
    names = ("scheduler-0", "scheduler-1")
    return next((n for n in names if stack.processes[n].pid == pid), None)


def kill_leader(world: World, chance: random.Random) -> bool:
    """Kill -9 the scheduler that leads, and start it again."""
    del chance
    name = _leader(world.stack)
    if name is None:
        return False
    world.stack.kill(name)
    world.stack.start(name)
    return True


def freeze_leader(world: World, chance: random.Random) -> bool:
    """SIGSTOP the leader beyond its term: two think that they lead when it goes on."""
    name = _leader(world.stack)
    if name is None:
        return False
    process = psutil.Process(world.stack.processes[name].pid)
    return _freeze(process, chance.uniform(5.0, 7.0))


def kill_api(world: World, chance: random.Random) -> bool:
    """Kill -9 an API and start it again."""
    name = f"api-{chance.randrange(2)}"
    world.stack.kill(name)
    world.stack.start(name)
    return True


def freeze_api(world: World, chance: random.Random) -> bool:
    """SIGSTOP an API for a while."""
    pid = world.stack.processes[f"api-{chance.randrange(2)}"].pid
    return _freeze(psutil.Process(pid), chance.uniform(2.0, 5.0))


def kill_valkey(world: World, chance: random.Random) -> bool:
    """Kill -9 Valkey, leave it away for a while, start it empty on the same port."""
    world.stack.valkey.kill()
    time.sleep(chance.uniform(0.2, 1.5))
    world.stack.valkey.start()
    return True


def flush_valkey(world: World, chance: random.Random) -> bool:
    """Empty Valkey: every doorbell and lease is gone."""
    del chance
    try:
        with redis.Redis.from_url(world.stack.valkey.url, socket_timeout=3) as client:
            client.flushall()
    except redis.RedisError:
        return False
    return True


def restart_postgres(world: World, chance: random.Random) -> bool:
    """End Postgres without a checkpoint and start it again."""
    world.stack.postgres.kill_immediate()
    time.sleep(chance.uniform(0.0, 1.0))
    world.stack.postgres.start()
    return True


def kill_backends(world: World, chance: random.Random) -> bool:
    """Terminate half of the server processes behind the platform's connections."""
    try:
        world.stack.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE ANY(ARRAY['harness%%', 'scheduler%%']) "
            "AND hashint4(pid # %s) %% 2 = 0",
            chance.randrange(2**31),
        )
    except psycopg.Error:
        return False
    return True


def _worker_behind_proxy(stack: ChaosStack) -> UUID | None:
    try:
        children = psutil.Process(stack.processes["worker-1"].pid).children()
        return incarnation_of(children[0])
    except (psutil.Error, IndexError, KeyError):
        return None


def black_hole_postgres(world: World, chance: random.Random) -> bool:
    """Swallow all that goes between some processes and Postgres, for longer than they wait."""
    name = chance.choice(world.stack.proxies.names("postgres"))
    began = time.monotonic()
    world.stack.proxies.begin(name, "blackhole")
    who = _worker_behind_proxy(world.stack) if name == "postgres-worker" else None
    if who is not None:
        world.recovery.watch("frozen", who, began)
    time.sleep(DATABASE_TIMEOUT_S + chance.uniform(-2.0, 3.0))
    world.stack.proxies.heal(name)
    return True


def black_hole_valkey(world: World, chance: random.Random) -> bool:
    """Swallow all that goes between some processes and Valkey."""
    name = chance.choice(world.stack.proxies.names("valkey"))
    world.stack.proxies.begin(name, "blackhole")
    time.sleep(chance.uniform(2.0, 6.0))
    world.stack.proxies.heal(name)
    return True


# What a request looks like in the protocol whose reply, or whose successor's, gets lost. A step's
# commit is one statement; the API's COMMIT follows the row of the audit trail.
MARKERS = (
    ("postgres-worker", b"seen_fence", False),
    ("postgres-worker", b'"have"', False),
    ("postgres-worker", b'"effect"', False),
    ("postgres-api", b"run.create\x00", True),
    ("postgres-api", b"run.cancel\x00", True),
)


def lose_commit_reply(world: World, chance: random.Random) -> bool:
    """Let a commit reach Postgres and lose its reply: nobody knows what came of it."""
    name, marker, following = chance.choice(MARKERS)
    hit = threading.Event()
    world.stack.proxies.lose_reply_of(name, marker, hit, following=following)
    happened = hit.wait(4.0)
    time.sleep(chance.uniform(0.05, 0.5))
    world.stack.proxies.heal(name)
    return happened


def lose_valkey_replies(world: World, chance: random.Random) -> bool:
    """Let requests reach Valkey and lose the replies: messages taken are gone."""
    name = chance.choice(world.stack.proxies.names("valkey"))
    world.stack.proxies.begin(name, "drop_replies")
    time.sleep(chance.uniform(0.3, 2.0))
    world.stack.proxies.heal(name)
    return True


def reset_postgres(world: World, chance: random.Random) -> bool:
    """Reset the connections of some processes to Postgres."""
    world.stack.proxies.heal(chance.choice(world.stack.proxies.names("postgres")))
    return True


def reset_valkey(world: World, chance: random.Random) -> bool:
    """Reset the connections of some processes to Valkey."""
    world.stack.proxies.heal(chance.choice(world.stack.proxies.names("valkey")))
    return True


def duplicate_doorbells(world: World, chance: random.Random) -> bool:
    """Ring several times for the same version of many runs."""
    runs = world.doorbells.active(chance, 20)
    for run in runs * 3:
        world.doorbells.ring(run, run["version"])
    return bool(runs)


def delay_doorbells(world: World, chance: random.Random) -> bool:
    """Hold back what is in the queue, and ring late for versions that were current then."""
    runs = world.doorbells.active(chance, 20)
    held = world.doorbells.hold_back(chance.uniform(0.5, 2.5), chance)
    for run in runs:
        world.doorbells.ring(run, run["version"])
    return bool(runs) or held > 0


def reorder_doorbells(world: World, chance: random.Random) -> bool:
    """Ring for old, current and future versions in any order."""
    runs = world.doorbells.active(chance, 15)
    bells = [(run, run["version"] + by) for run in runs for by in (-2, -1, 0, 1, 2)]
    chance.shuffle(bells)
    for run, version in bells:
        world.doorbells.ring(run, version)
    return bool(runs)


def fill_disk(world: World, chance: random.Random) -> bool:
    """Fill the disk that events and checkpoints are on, then make room (INV16)."""
    disk = world.stack.disk
    assert disk is not None
    disk.fill()
    try:
        until = time.monotonic() + chance.uniform(1.5, 3.5)
        with world.stack.client(0) as client:
            while time.monotonic() < until:
                with contextlib.suppress(httpx.TransportError):
                    client.get("/readyz", timeout=2)
                time.sleep(0.2)
    finally:
        disk.make_room()
    return True


def skew_clock(world: World, chance: random.Random) -> bool:
    """Stop the worker with the wrong clock; the next is an hour or a day off."""
    world.stack.kill("worker-2")
    world.stack.skew(chance.choice(["-1h", "+1h", "+1d", "-1d"]))
    return True


def _no_disk(stack: ChaosStack) -> str | None:
    return None if stack.disk else "no small disk could be mounted (that takes root)"


def _no_faketime(stack: ChaosStack) -> str | None:
    return None if stack.faketime else "libfaketime is not installed (apt-get install libfaketime)"


FAULTS: tuple[Fault, ...] = (
    Fault("kill_worker_process", "worker", 40, kill_worker_process),
    Fault("kill_supervisor", "worker", 6, kill_supervisor),
    Fault("freeze_worker", "worker", 16, freeze_worker),
    Fault("kill_leader", "scheduler", 12, kill_leader),
    Fault("freeze_leader", "scheduler", 6, freeze_leader),
    Fault("kill_api", "api", 10, kill_api),
    Fault("freeze_api", "api", 6, freeze_api),
    Fault("kill_valkey", "valkey", 10, kill_valkey),
    Fault("flush_valkey", "valkey", 24, flush_valkey),
    Fault("restart_postgres", "postgres", 8, restart_postgres),
    Fault("kill_backends", "postgres", 24, kill_backends),
    Fault("black_hole_postgres", "postgres-net", 6, black_hole_postgres),
    Fault("lose_commit_reply", "postgres-net", 20, lose_commit_reply),
    Fault("reset_postgres", "postgres-net", 16, reset_postgres),
    Fault("black_hole_valkey", "valkey-net", 6, black_hole_valkey),
    Fault("lose_valkey_replies", "valkey-net", 12, lose_valkey_replies),
    Fault("reset_valkey", "valkey-net", 14, reset_valkey),
    Fault("duplicate_doorbells", "doorbells", 24, duplicate_doorbells),
    Fault("delay_doorbells", "doorbells", 20, delay_doorbells),
    Fault("reorder_doorbells", "doorbells", 20, reorder_doorbells),
    Fault("fill_disk", "postgres", 5, fill_disk, _no_disk),
    Fault("skew_clock", "worker", 4, skew_clock, _no_faketime),
)


def usable(stack: ChaosStack) -> tuple[list[Fault], dict[str, str]]:
    """Split the registry into what can be done here, and why the rest cannot."""
    skipped = {f.name: why for f in FAULTS if (why := f.missing(stack))}
    return [f for f in FAULTS if f.name not in skipped], skipped
