"""Packages with plugins, built as wheels and really installed, offline, into a folder."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

GOOD = '''
from harness_common.contracts.plugin import Plugin
from harness_common.contracts.skill import SkillSpec
from harness_worker.models.scripted import Scripted
from harness_worker.sdk import tool


@tool(effect="read")
def acme_lookup(key: str) -> str:
    """Look a key up in Acme's register."""
    return f"acme:{key}"


class Store:
    def __init__(self, where, settings):
        self.where, self.kept = where, {}

    async def put(self, data):
        import hashlib
        digest = hashlib.sha256(data).hexdigest()
        self.kept[digest] = data
        return digest

    async def get(self, digest):
        if digest not in self.kept:
            raise FileNotFoundError(digest)
        return self.kept[digest]

    async def delete(self, digest, unused_s):
        self.kept.pop(digest, None)
        return True


class Embedder:
    name, floor = "acme/letters", 0.1

    async def embed(self, texts):
        return [[float(text.count(c)) for c in "abcdefgh"] for text in texts]

    async def aclose(self):
        pass


def plugin():
    return Plugin(
        tools=(acme_lookup,),
        providers={"acme": lambda name, parts: Scripted(name)},
        embeddings={"acme": lambda settings, client: Embedder()},
        blobs={"acme": Store},
        skills={"acme-audit": SkillSpec(description="Audits.", prompt="Look up every key.")},
    )
'''


def install(folder: Path, name: str, source: str, entries: dict[str, str]) -> None:
    """Build a wheel of one module with these entry points and install it into `folder`."""
    wheel = folder.parent / f"{name}-1.2-py3-none-any.whl"
    info = f"{name}-1.2.dist-info"
    points = "".join(f"{k} = {v}\n" for k, v in entries.items())
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[harness.plugins]\n{points}",
    }
    record = "".join(
        f"{path},sha256={_hash(text)},{len(text.encode())}\n" for path, text in files.items()
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(path, text)
    argv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps",
            "--target", str(folder), "--python", sys.executable, str(wheel)]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
