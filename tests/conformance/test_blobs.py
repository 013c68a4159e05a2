"""Every blob store keeps bytes under their SHA-256 and gives them back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness_common.blobs.registry import blobs_of
from harness_common.blobs.s3 import S3Blobs
from harness_common.contracts.blob import Blobs
from harness_common.core.errors import Invalid, Permanent, Transient
from harness_common.settings import Settings
from tests.conformance.real_servers import rclone_s3

BIG = b"\x00\xff" * 1_500_000
KEY, SECRET = "access-key", "secret-key"


def s3_in_memory() -> Blobs:
    """Build the S3 store over the library's own memory: all but the wire."""
    from obstore.store import MemoryStore

    store: Any = MemoryStore()
    return S3Blobs(store)


@pytest.fixture(
    params=["file", "memory", "s3", pytest.param("s3-server", marks=pytest.mark.nightly)]
)
def blobs(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Blobs]:
    if request.param == "s3":
        yield s3_in_memory()
    elif request.param == "s3-server":
        (tmp_path / "bucket").mkdir()
        with rclone_s3(tmp_path, KEY, SECRET) as url:
            _point_to(monkeypatch, url)
            yield blobs_of(Settings(blobs="s3://bucket/some/prefix"))
    else:
        where = {"file": f"file://{tmp_path}/b", "memory": "memory:"}[request.param]
        yield blobs_of(Settings(blobs=where))


def _point_to(monkeypatch: pytest.MonkeyPatch, url: str, key: str = KEY) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.mark.parametrize("data", [b"", b"hello", BIG], ids=["empty", "small", "big"])
async def test_bytes_come_back_by_their_digest(blobs, data):
    digest = await blobs.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert await blobs.put(data) == digest
    assert await blobs.get(digest) == data


async def test_what_is_not_there_is_a_missing_file(blobs):
    await blobs.put(b"something else")
    with pytest.raises(FileNotFoundError):
        await blobs.get(hashlib.sha256(b"never kept").hexdigest())


async def test_bytes_are_deleted_unless_they_were_just_put(blobs):
    kept, gone = await blobs.put(b"kept"), await blobs.put(b"gone")
    assert not await blobs.delete(kept, 60)
    assert await blobs.delete(gone, 0)
    assert await blobs.delete(gone, 0), "again"
    assert await blobs.get(kept) == b"kept"
    with pytest.raises(FileNotFoundError):
        await blobs.get(gone)
    assert await blobs.put(b"gone") == gone
    assert await blobs.get(gone) == b"gone"


async def test_a_store_that_does_not_answer_is_transient(monkeypatch):
    _point_to(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(Transient, match="blob store"):
        await blobs_of(Settings(blobs="s3://bucket")).put(b"x")


@pytest.mark.nightly
async def test_a_wrong_key_is_refused_for_good(tmp_path, monkeypatch):
    (tmp_path / "bucket").mkdir()
    with rclone_s3(tmp_path, KEY, SECRET) as url:
        _point_to(monkeypatch, url, "another-key")
        with pytest.raises(Permanent, match="blob store"):
            await blobs_of(Settings(blobs="s3://bucket")).put(b"x")


@pytest.mark.parametrize("where", ["s3:", "s3://", "s3:bucket"])
def test_a_setting_without_a_bucket_is_refused(where):
    with pytest.raises(Invalid, match="bucket"):
        blobs_of(Settings(blobs=where))
