"""The bytes on the wire: of the same calls, Python's table and the client in JavaScript make the very same words."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.node.judge import check_call
from tests.rig.generated import Builder, Generator
from tests.rig.node import node, write_protocol
from timeoutq import Queue
from timeoutq.gateway.protocol import headers
from timeoutq.server import scripts

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


def verb_of(words: list[bytes]) -> str:
    """Give the verb that a command calls."""
    known = {scripts.function(f"{name}{end}").encode(): name for name in headers() for end in ("", "_if_room")}
    assert words[1] in known, f"no function of today: {words[:6]}"
    return known[words[1]]
