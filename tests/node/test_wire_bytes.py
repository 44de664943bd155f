"""The bytes on the wire: of the same calls, Python's table and the client in JavaScript make the very same words."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.node.judge import check_call
from tests.rig import levels
from tests.rig.generated import Builder, Generator
from tests.rig.node import node, play, write_protocol
from tests.rig.transcripts import FILES, Player, read
from timeoutq import Queue
from timeoutq.gateway.protocol import headers
from timeoutq.server import scripts
from timeoutq.verbs import sending

SEEDS = range(4)
CALLS = 300


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_protocol(tmp_path_factory.mktemp("protocol"))


def words_of_python(queue: Queue, step: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    monkeypatch.setattr(Queue, "token", lambda _: step["nonce"].encode())
    return Builder(queue).build(step)


def test_both_languages_make_the_same_bytes_of_1200_calls(
    url: str, document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step for seed in SEEDS for step in Generator(seed).steps(CALLS)]
    stdin = "".join(json.dumps(step) + "\n" for step in steps)
    theirs = [json.loads(line) for line in node().run(
        Path(__file__).parent / "build.mjs", document, "q", stdin=stdin
    ).splitlines()]  # fmt: skip
    called = Counter[str]()
    with Queue("q", url) as queue:
        for step, their in zip(steps, theirs, strict=True):
            ours = words_of_python(queue, step, monkeypatch)
            assert their["said"] is None, (step, their["said"])
            found = [[base64.b64decode(word) for word in words] for words in their["built"]]
            for there, here in zip(found, ours, strict=True):
                differ = [(at, word) for at, word in enumerate(zip(there, here, strict=False)) if word[0] != word[1]]
                assert there == here, (step, differ[:3])
            for words in ours:
                verb = verb_of(words)
                check_call(verb, words[3 + int(words[2]) :])
                called[verb] += 1
    assert sum(called.values()) >= 1000
    assert len(called) >= 20, called
    levels.count("languages", calls_alike=sum(called.values()))


def test_the_same_seed_makes_the_same_calls() -> None:
    assert Generator(7).steps(50) == Generator(7).steps(50) != Generator(8).steps(50)


def verb_of(words: list[bytes]) -> str:
    """Give the verb that a command calls."""
    known = {scripts.function(f"{name}{end}").encode(): name for name in headers() for end in ("", "_if_room")}
    assert words[1] in known, f"no function of today: {words[:6]}"
    return known[words[1]]


@contextmanager
def tapped(url: str) -> Iterator[tuple[str, list[list[bytes]]]]:
    """Stand between a client and the server, and write down the commands that pass; gives the URL, and the commands."""
    to = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))
    said: dict[int, bytearray] = {}
    sockets = [listener]

    def pump(source: socket.socket, sink: socket.socket, copy: bytearray | None) -> None:
        try:
            while data := source.recv(65536):
                if copy is not None:
                    copy += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection((to.hostname, to.port))
            except OSError:
                return
            sockets.extend((near, far))
            copy = said[len(said)] = bytearray()
            threads.append(threading.Thread(target=pump, args=(near, far, copy)))
            threads.append(threading.Thread(target=pump, args=(far, near, None)))
            threads[-1].start()
            threads[-2].start()

    threads = [threading.Thread(target=accept)]
    threads[0].start()
    commands: list[list[bytes]] = []
    try:
        yield f"redis://{to.username or ''}:{to.password or ''}@127.0.0.1:{listener.getsockname()[1]}/0", commands
    finally:
        for one in sockets:
            with suppress(OSError):  # one that has ended already
                one.shutdown(socket.SHUT_RDWR)  # without this, who waits for it would wait on
            one.close()
        for thread in threads:
            thread.join()
    for copy in said.values():
        commands += parsed(bytes(copy))


def parsed(data: bytes) -> list[list[bytes]]:
    """Read commands as they stand on the wire: arrays of bulk strings."""
    found, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        assert data[at : at + 1] == b"*"
        count, words, at = int(data[at + 1 : end]), [], end + 2
        for _ in range(count):
            end = data.index(b"\r\n", at)
            size = int(data[at + 1 : end])
            words.append(data[end + 2 : end + 2 + size])
            at = end + 4 + size
        found.append(words)
    return found


def shown(commands: list[list[bytes]]) -> list[tuple[str, list[bytes]]]:
    """Give the calls of verbs: without what is the client's own (a token, a nonce, a time, a digest of tokens)."""
    found = []
    for words in commands:
        if words[0] not in (b"FCALL", b"FCALL_RO") or words[1] == scripts.function("about").encode():
            continue  # who asks which library is there does so in its own way
        verb = verb_of(words)
        count = int(words[2])
        check_call(verb, words[3 + count :])
        rest = words[3 + count + 1 :]
        if verb == "claim":
            rest[3] = b"not after"
        if verb == "requeue_expired":
            rest[2] = b"expected"
        if verb not in ("probe", "why"):  # each client sees to the rights and to the host of an id in its own way
            found.append((verb, [*words[3 : 3 + count], *(b"#" if b"#" in word else word for word in rest)]))
    return found


@pytest.mark.parametrize("library", ["redis", "ioredis"])
def test_what_goes_through_a_socket_is_the_same_too(url: str, document: Path, name: str, library: str) -> None:
    node()
    files = [path for path in FILES if "until" not in path.read_text()][:10]
    assert len(files) == 10
    with Queue(name, url) as queue:
        # a call that the server does not know is made twice
        queue.run(sending.ask(queue.talk, [("FUNCTION", "LOAD", "REPLACE", scripts.library())]))
    with tapped(url) as (tap, ours):
        for number, path in enumerate(files):
            with Queue(f"{name}-{number}", tap) as queue:
                Player(queue).play(read(path))
                queue.purge()
    with tapped(url) as (tap, theirs):
        said = play(tap, document, library, f"{name}-", files)
    assert set(said.values()) == {None}
    wanted = [call for call in shown(ours) if call[0] != "purge"]
    assert [call for call in shown(theirs) if call] == wanted
    assert len(wanted) > 30
