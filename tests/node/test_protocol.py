"""The protocol: the headers of the scripts are its one source, and what Python sends and hears is what they say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import timeoutq
from tests.core.test_keys import live
from tests.pure.test_scripts import NAMES, calls
from tests.rig.command import Say, say, server
from timeoutq import Politeness, Queue
from timeoutq.gateway import protocol
from timeoutq.gateway.protocol import BadCall, BadHeader, BadReply, check_call, check_reply, headers, parse
from timeoutq.gateway.protocol.grammar import Many, Options, Reply, Runs, Value, each_value
from timeoutq.server import scripts
from timeoutq.server.calls import Call
from timeoutq.verbs.operations import Operations
from timeoutq.words.model import State

__all__ = ["say", "server"]
PAGE = Path(protocol.__file__).parent / "PROTOCOL.md"


def arguments_of(call: Call[Any]) -> list[bytes]:
    """Give the arguments of a call as they stand on the wire, the call id first."""
    words = call.command()[len(call.head) :]
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]


@pytest.mark.parametrize("name", NAMES)
def test_each_script_has_a_header_that_can_be_parsed(name: str) -> None:
    header = headers()[name]
    assert len(header.purpose) > 20
    body = re.sub(r"--.*", "", scripts.library())
    for reply in header.replies:
        for letter in reply.letters:
            assert re.search(rf"'[^'\n]*{letter}[^'\n]*'", body), f"no function says {letter}, which the header names"


@pytest.mark.parametrize("name", NAMES)
def test_each_call_that_python_builds_is_one_of_the_grammar(name: str) -> None:
    call = calls()[name]
    check_call(headers()[name], arguments_of(call))
    assert headers()[name].replayable == call.replayable, "the header says ONCE where the call must not be sent again"


@pytest.mark.parametrize("name", NAMES)
def test_a_call_with_a_word_too_many_or_too_few_is_none_of_the_grammar(name: str) -> None:
    header, words = headers()[name], arguments_of(calls()[name])
    last = header.arguments[-1]
    to_the_end = isinstance(last, Many) and not last.times
    if not to_the_end:
        with pytest.raises(BadCall, match=f"^{name}: "):
            check_call(header, [*words, b"x"])
    if not to_the_end or (isinstance(last, Many) and len(last.of) > 1):
        with pytest.raises(BadCall, match=f"^{name}: "):
            check_call(header, words[:-1])
    for at, value in enumerate(header.arguments[:3]):
        if isinstance(value, Value) and value.type not in ("word", "token"):
            with pytest.raises(BadCall, match=name):
                check_call(header, [*words[:at], b"", *words[at + 1 :]] if value.type != "nonce or ''" else words[:2])


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("release", [b"3", b"w#1"], [b"4", b"w#1"], "is not the digest"),
        ("crash", [b"w#1", b"2"], [b"w#1", b"3"], "one word too many"),
        ("put", [b"payloads", b"2", b"1"], [b"payloads", b"2", b"3"], "position b'3', of 2"),
        ("put", [b"payloads", b"2", b"1"], [b"payloads", b"2", b"0"], "position b'0'"),
        ("put", [b"payloads"], [b"payload"], "section 'payload' is unknown"),
        ("put", [b"again", b"0"], [b"again", b"0", b"again", b"0"], "given twice"),
        ("put", [b"n"], [b""], "call id must be nonce"),
        ("claim", [b"1000"], [b"1000.5"], "timeout must be ms"),
        ("claim", [b"max_runtime", b"1", b"2000"], [b"max_runtime", b"1", b"soon"], "for a whole number"),
        ("schedules", [b"page"], [b"pages"], "what must be due|names|page"),
        ("drained", [b"+inf"], [b"inf"], "before must be ms or"),
        ("fail", [b"-1"], [b"-2"], "retry must be ms or -1"),
        ("restore", [b"f"], [b"ff"], "2 letters for 1 ids"),
        ("beat", [b'{"pid": 1}'], [b"{pid}"], "about must be JSON"),
    ],
)
def test_a_broken_call_is_refused_by_the_name_of_the_argument(
    name: str, old: Sequence[bytes], new: Sequence[bytes], said: str
) -> None:
    words = arguments_of(calls()[name])
    at = next(i for i in range(len(words)) if words[i : i + len(old)] == list(old))
    with pytest.raises(BadCall, match=said):
        check_call(headers()[name], [*words[:at], *new, *words[at + len(old) :]])


def test_the_id_of_a_call_that_ends_leases_is_the_digest_of_these_leases() -> None:
    words = arguments_of(calls()["release"])
    with pytest.raises(BadCall, match="is not the digest of its leases"):
        check_call(headers()["release"], [b"r" + b"0" * 24, *words[1:]])


def test_a_call_has_500_ids_at_most() -> None:
    ids = [b"%d" % i for i in range(501)]
    with pytest.raises(BadCall, match="501 ids are more than 500"):
        check_call(headers()["put"], [b"n", b"0", b"501", *ids])
    with pytest.raises(BadCall, match="id must be id"):
        check_call(headers()["forget"], [b"", b"0", b"x" * 1025])


@pytest.mark.parametrize("rules", [None, Politeness(0.001, 2)], ids=["plain", "polite"])
def test_what_python_sends_to_a_server_and_hears_from_it_is_what_the_headers_say(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch, rules: Politeness | None
) -> None:
    sent, heard = Counter[str](), Counter[tuple[str, int]]()
    make, words_of = Operations.call, Call.command

    def made(self: Operations, name: str, args: Any, read: Callable[[Any], Any], **options: Any) -> Call[Any]:
        def checked(reply: Any) -> Any:
            heard[name, headers()[name].replies.index(check_reply(headers()[name], reply))] += 1
            return read(reply)

        return make(self, name, args, checked, **options)

    def command(self: Call[Any], *args: Any, **options: Any) -> Any:
        words = words_of(self, *args, **options)
        if self.name == "about":
            return words
        plain = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        check_call(headers()[self.name], plain[len(self.head) :])
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
    assert not {reply for reply in heard if reply[0] not in sent}
    assert len(sent) > 30, sent
    assert sum(sent.values()) > 100


def test_a_reply_that_no_header_knows_is_told_with_its_part() -> None:
    with pytest.raises(BadReply, match="now must be ms"):
        check_reply(headers()["plan"], [b"x", 1, 2])
    with pytest.raises(BadReply, match="letters has the letters z, which mean nothing"):
        check_reply(headers()["put"], b"Az")
    with pytest.raises(BadReply, match="is one too many"):
        check_reply(headers()["plan"], [1, 2, 3, 4, 5, 6])
    assert check_reply(headers()["host"], None).part is None


HEAD = """-- peek: look at one task, and do nothing else
-- ARGS  1 call id   2 age of the call, ms   3 how many, number   4.. count, (id, weight ms) * count; sections
-- SECTIONS  after=1 the last id   at=numbers (position, ms): when
-- Reply {now ms, letters, [rest? *]}, one per id: A b c it is there; u it is not
-- Reply nil: there is no queue
"""


def test_a_header_becomes_values() -> None:
    header = parse("peek", HEAD)
    assert header.purpose == "look at one task, and do nothing else"
    assert header.arguments[2] == Value("how many", "number")
    assert header.arguments[4] == Many((Value("id", "id"), Value("weight", "ms")), "count")
    assert header.arguments[5] == Options()
    assert [(one.name, one.kind, one.each, one.about) for one in header.sections] == [
        ("after", "1", (), "the last id"),
        ("at", "numbers", ("position", "ms"), "when"),
    ]
    assert header.replies[1] == Reply(None, about="there is no queue")
    assert header.replies[0].letters == {"A": "it is there", "b": "it is there", "c": "it is there", "u": "it is not"}
    assert header.replies[0].per == "id"
    assert header.replayable


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("-- peek: ", "-- poke: ", "the first line must be"),
        ("-- ARGS ", "-- NAMES ", "there is no line ARGS"),
        ("3 how many, number", "3 how many, numbers", "place 3 of ARGS must be"),
        ("3 how many, number", "3 how many, number, ms", "place 3 of ARGS must be"),
        ("2 age of the call, ms", "2 timeout, ms", "ARGS begins with"),
        ("count, (id", "how many, (id", "two arguments of the name how many"),
        ("* count", "* counts", "no argument 'counts'"),
        ("; sections", "", "`sections` where there is a line SECTIONS"),
        ("after=1", "after=2", "one of the kinds"),
        ("at=numbers", "after=1", "a section twice"),
        ("(id, weight ms) * count", "(id, weight ms)", r"there is no \*"),
        ("letters, [rest? *]}", "letters, [rest? *]", "a } is missing"),
        ("A b c it is there", "it is there", "letters and what they mean are missing"),
        ("u it is not", "A it is not", "letter A stands twice"),
    ],
)
def test_a_header_that_is_not_regular_is_refused_with_its_script_and_cure(old: str, new: str, said: str) -> None:
    assert old in HEAD
    with pytest.raises(BadHeader, match=said) as refused:
        parse("peek", HEAD.replace(old, new, 1))
    assert "the header of peek.lua: " in str(refused.value)


def test_the_document_has_all_that_a_client_needs() -> None:
    found = json.loads(json.dumps(protocol.document()))
    assert set(found["verbs"]) == set(NAMES)
    for name, verb in found["verbs"].items():
        assert verb["function"] == f"{found['library']['name']}_{name}"
    assert [name for name, verb in found["verbs"].items() if verb["if_room"]] == ["ack", "fail", "seal_batch"]
    assert found["library"]["text"] == scripts.library()
    assert [name for name, verb in found["verbs"].items() if not verb["replayable"]] == ["pull"]
    assert found["limits"]["ids_in_a_call"] == timeoutq.server.calls.BATCH
    assert set(found["states"].values()) == set(State)


def test_values_within_others_are_found() -> None:
    assert [value.name for value in each_value(headers()["fail"].arguments)] == [
        "call id", "age of the call", "count", "token", "length", "id", "retry", "error",
    ]  # fmt: skip
    assert isinstance(headers()["ack"].arguments[3], Runs)


def test_the_page_for_people_is_that_of_today() -> None:
    assert PAGE.read_text("utf-8") == protocol.markdown(), (
        "write it again: timeoutq protocol --markdown -o timeoutq/gateway/protocol/PROTOCOL.md"
    )


def test_the_command_writes_the_document_and_the_page(say: Say, tmp_path: Path) -> None:
    assert say("protocol", "-o", str(tmp_path / "protocol.json")).code == 0
    assert json.loads((tmp_path / "protocol.json").read_text()) == protocol.document()
    assert say("protocol", "--json").out == (tmp_path / "protocol.json").read_text()
    assert say("protocol", "--markdown").out == protocol.markdown()
    refused = say("protocol", "--json", "--markdown")
    assert (refused.code, "not both" in refused.err) == (2, True)


def test_the_keys_of_the_document_are_those_that_the_client_sends() -> None:
    keys, operations = protocol.document()["keys"], Operations("a.b")

    def named(template: str, key: str = "") -> str:
        return str(keys[template]).replace("QUEUE", "a.b").removesuffix("KEY" if key else "") + key

    assert named("template", "todos") == operations.key("todos")
    assert named("lock") == operations.key("lock") + "ID"
