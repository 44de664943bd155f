"""The payload of a call: what it is in Redis, what is refused, and what a signature holds together."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.functions import CallTooLarge, Forged, NewerCall, NotACall, UnknownSecret
from timeoutq.functions.envelope import LIMIT, Letter, Options, Secrets, Step, seal, unseal
from timeoutq.functions.errors import MAY_FIT_LATER
from timeoutq.functions.signature import Arguments
from timeoutq.words.errors import InvalidInput

OLD, NEW = "old secret of 22 bytes", b"new secret \xff of 23 bytes"
NONE = Secrets()
SEND = Letter("send", Arguments(b"[]", b'{"to":"a@example.com"}'))
CHAIN = Letter(
    "fetch",
    Arguments(b"[1]", b"{}"),
    Options([1.5, 2.0], max_runtime=60.0, keep_result=0.0, unique=3600.0),
    (Step("parse", o=Options(keep_result=5.0)), Step("count", msgspec.Raw(b"[2]"), msgspec.Raw(b'{"x":null}'))),
)


def read(payload: object, secrets: Secrets = NONE, queue: str = "mail", id: bytes = b"send:1") -> Letter:
    return unseal(payload, queue, id, secrets)


def compact(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


def same(one: Letter, other: Letter) -> bool:
    def plain(letter: Letter) -> tuple[Any, ...]:
        steps = [(step.f, step.arguments, step.o) for step in letter.then]
        return letter.function, letter.arguments, letter.options, steps

    return plain(one) == plain(other)


def test_a_call_is_plain_json() -> None:
    assert seal(SEND, "mail", b"send:1", NONE) == b'{"v":1,"f":"send","a":[],"k":{"to":"a@example.com"}}'
    assert json.loads(seal(CHAIN, "mail", b"send:1", NONE)) == {
        "v": 1,
        "f": "fetch",
        "a": [1],
        "k": {},
        "o": {"retry": [1.5, 2.0], "max_runtime": 60.0, "keep_result": 0.0, "unique": 3600.0},
        "t": [{"f": "parse", "o": {"keep_result": 5.0}}, {"f": "count", "a": [2], "k": {"x": None}}],
    }


def test_what_is_sealed_can_be_read() -> None:
    for secrets in (NONE, Secrets(OLD), Secrets([NEW, OLD])):
        for letter in (SEND, CHAIN):
            assert same(read(seal(letter, "mail", b"send:1", secrets), secrets), letter)


def test_a_call_of_a_newer_version_waits_for_a_newer_worker() -> None:
    for payload in (b'{"v":2,"f":"send"}', b'{"v":2}', b'{"v":3,"f":{"name":"send"},"a":"b"}'):
        with pytest.raises(NewerCall, match="reads up to 1: upgrade the workers"):
            read(payload, Secrets(OLD))


def test_what_is_no_call_is_said_to_be_none() -> None:
    call = b'{"v":1,"f":"send"%b}'
    options = (b"[]", b'{"retry":"often"}', b'{"unique":0}', b'{"retry":[-1]}', b'{"max_runtime":0}')
    for payload in (
        None, b"", b"[]", b"plain bytes", b'{"f":"send"}', b'{"v":1}', b'{"v":"1","f":"send"}', b'{"v":0,"f":"send"}',
        b'{"v":1,"f":5}', call % b" x", b'{"v":1,"f":"\xff"}', b"\0" + call % b"", b"[" * 100_000, call % b',"s":5',
        call % b',"t":[{"f":"send","o":{"keep_result":-1}}]', call % b',"t":[{}]',
        *(call % b',"o":%b' % one for one in options),
    ):  # fmt: skip
        with pytest.raises(NotACall, match="task 'send:1'"):
            read(payload)


@given(
    st.binary(max_size=40)
    | st.text(max_size=40).map(str.encode)
    | st.text('{}[]":,vfakots12 ', max_size=60).map(str.encode)
)
def test_any_bytes_are_a_call_or_an_error_of_these(payload: bytes) -> None:
    with suppress(NotACall, NewerCall):
        assert isinstance(read(payload), Letter)


def test_a_call_that_is_too_large_is_told_its_size() -> None:
    large = Letter("send", Arguments(b"[1]", b'{"to":"a","body":"' + b"x" * LIMIT + b'"}'))
    with pytest.raises(CallTooLarge) as caught:
        seal(large, "mail", b"send:1", NONE)
    assert (caught.value.size, caught.value.limit) == (LIMIT + 51, LIMIT)
    assert str(caught.value) == (
        "a call of send() has 262,195 bytes; the limit is 262,144: store the data elsewhere and pass its address"
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.size, again.limit) == (str(caught.value), LIMIT + 51, LIMIT)


# ---- signatures


def test_a_signature_can_be_made_in_any_language() -> None:
    payload = seal(SEND, "mail", b"send:1", Secrets(OLD))
    parts = [b"mail", b"send:1", b"send", b"[]", b'{"to":"a@example.com"}', b"{}", b"[]"]
    framed = b"timeoutq call 1\n" + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    name = hmac.new(OLD.encode(), b"timeoutq secret 1\n", hashlib.sha256).hexdigest()[:8]
    wanted = f"{name}.{hmac.new(OLD.encode(), framed, hashlib.sha256).hexdigest()}"
    assert json.loads(payload)["s"] == wanted


def test_the_first_secret_signs_and_each_is_accepted() -> None:
    by_old, by_new = (seal(SEND, "mail", b"send:1", Secrets(secret)) for secret in (OLD, NEW))
    assert seal(SEND, "mail", b"send:1", Secrets([NEW, OLD])) == by_new != by_old
    for payload in (by_old, by_new):
        assert same(read(payload, Secrets([NEW, OLD])), SEND)
        assert same(read(payload, Secrets([OLD, NEW])), SEND)


def test_a_call_without_a_signature_is_refused_where_calls_are_signed() -> None:
    with pytest.raises(Forged, match="is not signed") as caught:
        read(seal(SEND, "mail", b"send:1", NONE), Secrets(OLD))
    assert not isinstance(caught.value, MAY_FIT_LATER)


def test_a_call_that_is_moved_to_another_queue_or_id_is_refused() -> None:
    payload, secrets = seal(SEND, "mail", b"send:1", Secrets(OLD)), Secrets([NEW, OLD])
    assert same(read(payload, secrets), SEND)
    for queue, id in [
        ("mail.high", b"send:1"),
        ("mail", b"send:2"),
        ("mail", b""),
        ("mailsend", b":1"),
        ("mai", b"lsend:1"),
    ]:
        with pytest.raises(Forged, match="does not fit"):
            read(payload, secrets, queue, id)


def test_no_part_of_a_call_can_be_changed() -> None:
    secrets = Secrets(OLD)
    good = json.loads(seal(CHAIN, "mail", b"send:1", secrets))
    changes: list[dict[str, Any]] = [
        {"f": "delete"}, {"a": [2]}, {"a": []}, {"k": {"x": 1}}, {"o": {"retry": [1.5, 2.0]}}, {"o": {}}, {"t": []},
        {"t": good["t"][:1]}, {"t": good["t"][::-1]}, {"f": "fetch1", "a": []}, {"s": good["s"][:-1]},
        {"s": good["s"][:8] + "." + "0" * 64}, {"s": good["s"].upper()}, {"s": good["s"][:9]}, {"s": good["s"] + "é"},
    ]  # fmt: skip
    assert same(read(compact(good), secrets), CHAIN)
    for change in changes:
        with pytest.raises((Forged, UnknownSecret)):
            read(compact(good | change), secrets)
    for s in ("", ".", "no dot"):
        with pytest.raises(UnknownSecret):
            read(compact(good | {"s": s}), secrets)


def test_a_secret_that_is_none_is_refused() -> None:
    wrong: list[Any] = ["", "short", [], [OLD, "short"], 5, [OLD] * 11]
    for secret in wrong:
        with pytest.raises(InvalidInput) as caught:
            Secrets(secret)
        assert "short" not in str(caught.value)


def test_secrets_are_never_shown() -> None:
    assert OLD not in repr(Secrets([OLD, NEW]))
    assert "new secret" not in repr(Secrets([OLD, NEW]))
    assert bool(Secrets(OLD)) and not Secrets()


def test_no_error_of_a_worker_shows_an_argument() -> None:
    secrets = Secrets(OLD)
    payloads = [
        seal(SEND, "mail", b"send:2", secrets),
        seal(SEND, "mail", b"send:1", NONE),
        b'{"v":1,"f":5,"k":{"to":"a@example.com"}}',
        b'{"v":2,"f":5,"k":{"to":"a@example.com"}}',
        b'{"v":1,"f":"send","o":[],"k":{"to":"a@example.com"}}',
    ]
    for payload in payloads:
        with pytest.raises((Forged, NotACall, NewerCall)) as caught:
            read(payload, secrets)
        assert "example.com" not in str(caught.value)
