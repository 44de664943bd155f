"""Node and the npm packages that the client in `demo/node` needs: found, or installed once for all runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from timeoutq.gateway import protocol

PACKAGES = ("redis", "ioredis")
CLIENT = Path(__file__).parent.parent.parent / "demo" / "node"


@dataclass(frozen=True, slots=True)
class Node:
    """A Node that can run the client, and the environment in which it finds its packages."""

    binary: str
    modules: str

    def environment(self, url: str) -> dict[str, str]:
        """Give the environment of a process of Node; the URL is in it, for the arguments can be seen by all (ps)."""
        return {**os.environ, "NODE_PATH": self.modules, "NO_COLOR": "1", "TIMEOUTQ_URL": url}

    def run(self, *words: str | Path, url: str = "", stdin: str = "", seconds: float = 60) -> str:
        """Run a file to its end, and give what it printed; raises `AssertionError` with its stderr if it failed."""
        done = subprocess.run(
            [self.binary, *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env=self.environment(url),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *words: str | Path, url: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a file, in a session of its own; stderr goes to `log`."""
        with (log or Path(os.devnull)).open("ab") as said:
            return subprocess.Popen(
                [self.binary, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.environment(url),
                start_new_session=True,
            )


@cache
def node() -> Node:
    """Give the Node of this machine with the packages; the test is skipped where there is none."""
    binary = shutil.which("node")
    if binary is None:
        pytest.skip("no node on this machine: apt-get install nodejs npm")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < 18:
        pytest.skip(f"node {version} is too old: the client needs 18 or later")
    for folder in filter(None, [*os.environ.get("NODE_PATH", "").split(os.pathsep), str(CLIENT / "node_modules")]):
        if all((Path(folder) / name).is_dir() for name in PACKAGES):
            return Node(binary, folder)
    return Node(binary, _installed(int(version.lstrip("v").split(".")[0])))


def _installed(version: int) -> str:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"no npm to install {' and '.join(PACKAGES)}: apt-get install npm, or set NODE_PATH")
    # later ones need Node 20
    wanted = [f"{name}@{'5' if version < 20 else 'latest'}" for name in PACKAGES]
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timeoutq-tests"
    cache_folder.mkdir(parents=True, exist_ok=True)
    folder = cache_folder / f"node-{version}"
    if not folder.is_dir():
        # several processes may come here at once: the first one whose packages are all there gives them the name
        own = Path(tempfile.mkdtemp(dir=cache_folder))
        words = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(own), *wanted]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            shutil.rmtree(own)
            pytest.skip(f"npm cannot install {' '.join(wanted)}: {done.stderr[-300:]}")
        try:
            own.rename(folder)
        except OSError:
            shutil.rmtree(own)
    return str(folder / "node_modules")


def write_protocol(folder: Path) -> Path:
    path = folder / "protocol.json"
    path.write_text(json.dumps(protocol.document()), "utf-8")
    return path


def play(url: str, document: Path, library: str, prefix: str, files: Sequence[Path]) -> dict[str, str | None]:
    """Play transcripts with the client in JavaScript: gives by the name of each file what was wrong, or None."""
    player = Path(__file__).parent.parent / "node" / "play.mjs"
    printed = node().run(player, document, library, prefix, *files, url=url)
    return {line["file"]: line["said"] for line in map(json.loads, printed.splitlines())}
