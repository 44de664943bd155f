"""The protocol: the headers of the verbs are its one source, and what Python sends and hears is what they say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_keys import live
from tests.node.judge import BadCall, BadReply, check_call, check_reply
from tests.pure.test_scripts import NAMES, calls
from tests.rig.command import Say, say, server
from timeoutq import Politeness, Queue
from timeoutq.gateway import protocol
from timeoutq.gateway.protocol import headers, parse, values
from timeoutq.server import scripts
from timeoutq.server.calls import BATCH, Call
from timeoutq.verbs.operations import Operations
from timeoutq.words.model import State

__all__ = ["say", "server"]


def arguments_of(call: Call[Any]) -> list[bytes]:
    """Give the arguments of a call as they stand on the wire, the call id first."""
    words = call.command()[len(call.head) :]
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]


def test_each_header_is_whole() -> None:
    body = re.sub(r"--.*", "", scripts.library())
    for verb, header in headers().items():
        assert len(header["purpose"]) > 20
        first, age, *rest = header["arguments"]
        assert ("name" in first, age["name"]) == (True, "age of the call"), verb
        assert ({"sections": True} in rest) == bool(header["sections"]), verb
        names = [value["name"] for value in values(header["arguments"])]
        assert len(names) == len(set(names)), verb
        assert {part["times"] for part in rest if part.get("times")} <= set(names), verb
        for letter in (letter for reply in header["replies"] for letter in reply["letters"]):
            assert re.search(rf"'[^'\n]*{letter}[^'\n]*'", body), f"no function says {letter}, which {verb} names"


def test_the_schema_is_that_which_the_library_accepts() -> None:
    assert f"schema ~= '{protocol.document()['schema']}'" in scripts.source("open")


def test_each_call_that_python_builds_is_one_of_the_grammar() -> None:
    for name in NAMES:
        call = calls()[name]
        check_call(name, arguments_of(call))
        assert bool(headers()[name]["once"]) != call.replayable, "ONCE stands where the call must not be sent again"


def test_a_broken_call_is_refused_by_the_name_of_the_argument() -> None:
    for name, old, new, said in (
        ("release", b"3", b"4", "is not the digest"), ("claim", b"1000", b"1000.5", "timeout must be ms"),
        ("schedules", b"page", b"pages", "what must be due|names|page"),
    ):  # fmt: skip
        words = arguments_of(calls()[name])
        at = words.index(old)
        with pytest.raises(BadCall, match=said):
            check_call(name, [*words[:at], new, *words[at + 1 :]])


@pytest.mark.parametrize("rules", [None, Politeness(0.001, 2)], ids=["plain", "polite"])
def test_what_python_sends_to_a_server_and_hears_from_it_is_what_the_headers_say(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch, rules: Politeness | None
) -> None:
    sent, heard = Counter[str](), set[str]()
    make, words_of = Operations.call, Call.command

    def made(self: Operations, name: str, args: Any, read: Callable[[Any], Any], **options: Any) -> Call[Any]:
        def checked(reply: Any) -> Any:
            check_reply(name, reply)
            heard.add(name)
            return read(reply)

        return make(self, name, args, checked, **options)

    def command(self: Call[Any], *args: Any, **options: Any) -> Any:
        words = words_of(self, *args, **options)
        if self.name != "about":
            plain = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            check_call(self.name, plain[len(self.head) :])
            sent[self.name] += 1
        return words

    monkeypatch.setattr(Operations, "call", made)
    monkeypatch.setattr(Call, "command", command)
    with Queue(name, url, timeout=60, politeness=rules) as queue:
        live(queue)
        (entry, *_) = queue.list("failed").entries
        for task in (entry.task, "nobody"):
            queue.why(task)
            queue.inspect(task)
        queue.drained()
        queue.prune()
        queue.stats()
        if rules is not None:
            queue.hosts.list()
            queue.hosts.inspect("a.example")
        queue.purge()
    assert heard <= sent.keys()
    assert len(sent) > 30, sent
    assert sum(sent.values()) > 100


def test_a_reply_that_no_header_knows_is_told_with_its_part() -> None:
    with pytest.raises(BadReply, match="now must be ms"):
        check_reply("plan", [b"x", 1, 2])
    with pytest.raises(BadReply, match="letters has the letters z, which mean nothing"):
        check_reply("put", b"Az")
    with pytest.raises(BadReply, match="is one too many"):
        check_reply("plan", [1, 2, 3, 4, 5, 6])
    assert headers()["host"]["replies"][check_reply("host", None)]["form"] is None


HEAD = """-- peek: look at one task, and do nothing else
-- ARGS  1 call id   2 age of the call, ms   3 how many, number   4.. count, (id, weight ms) * count; sections
-- SECTIONS  after=1 the last id   at=numbers (position, ms): when
-- Reply {now ms, letters, [rest? *]}, one per id: A b c it is there; u it is not
-- Reply nil: there is no queue
"""


def test_a_header_becomes_values() -> None:
    header = parse("peek", HEAD)
    assert header["purpose"] == "look at one task, and do nothing else"
    assert header["arguments"][2] == {"name": "how many", "type": "number"}
    pair = [{"name": "id", "type": "id"}, {"name": "weight", "type": "ms"}]
    assert header["arguments"][4:] == [{"many": pair, "times": "count"}, {"sections": True}]
    assert header["sections"] == {
        "after": {"kind": "1", "each": [], "about": "the last id"},
        "at": {"kind": "numbers", "each": ["position", "ms"], "about": "when"},
    }
    assert header["replies"][1] == {"form": None, "letters": {}, "per": "", "about": "there is no queue"}
    assert header["replies"][0]["letters"] == {**dict.fromkeys("Abc", "it is there"), "u": "it is not"}
    assert (header["replies"][0]["per"], header["once"]) == ("id", "")


def test_the_document_has_all_that_a_client_needs() -> None:
    found = json.loads(json.dumps(protocol.document()))
    assert set(found["verbs"]) == set(NAMES)
    for name, verb in found["verbs"].items():
        assert verb["function"] == f"{found['library']['name']}_{name}"
    assert [name for name, verb in found["verbs"].items() if verb["if_room"]] == ["ack", "fail", "seal_batch"]
    assert found["library"]["text"] == scripts.library()
    assert [name for name, verb in found["verbs"].items() if not verb["replayable"]] == ["pull"]
    assert found["limits"]["ids_in_a_call"] == BATCH
    assert set(found["states"].values()) == set(State)
    keys = found["keys"]
    assert keys["template"].replace("QUEUE", "a.b").replace("KEY", "todos") == Operations("a.b").key("todos")
    assert keys["lock"].replace("QUEUE", "a.b") == Operations("a.b").key("lock") + "ID"


def test_the_command_writes_the_document_and_the_page(say: Say, tmp_path: Path) -> None:
    assert say("protocol", "-o", str(tmp_path / "protocol.json")).code == 0
    assert json.loads((tmp_path / "protocol.json").read_text()) == protocol.document()
    assert say("protocol", "--json").out == (tmp_path / "protocol.json").read_text()
    page = say("protocol", "--markdown").out
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == [*NAMES]
    assert "\nONCE  a second run would take other tasks; those of the lost reply are gone\n" in page
    refused = say("protocol", "--json", "--markdown")
    assert (refused.code, "not both" in refused.err) == (2, True)
