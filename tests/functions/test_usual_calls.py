"""Most calls have arguments by name and nothing else: a worker reads these in a quicker way, and reads the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.functions import App
from timeoutq.functions.envelope import Letter, Secrets, seal
from timeoutq.functions.errors import BadArguments

app = App("mail", keep_result=0)
ID = b"0123456789abcdef.send"


@app.task()
def send(to: str | int | None, *, c: Any = None) -> None: ...


@app.task()
def strict(to: str) -> None: ...


@app.task()
def by_place(*to: str) -> None: ...


def sealed(letter: Letter, secrets: Secrets = app.secrets) -> bytes:
    return seal(letter, "mail", ID, secrets)


@given(
    st.text() | st.integers(0, 9) | st.none(), st.sampled_from([None, 5, ',"c":5', {"b": [1], "c": 7}]),
    st.none() | st.integers(1, 10**13 - 1),
)  # fmt: skip
def test_a_usual_call_is_read_as_open_reads_it(to: str | int | None, c: Any, put_ms: int | None) -> None:
    payload = sealed(Letter("send", send.call(to, c=c).arguments, put_ms=put_ms))
    found = app.open_usual(payload)
    assert found == app.open(payload, "mail", ID) == app.open(payload, "mail", ID, Secrets())
    assert found is not None and (dict(found.kwargs) or found.args, found.put_ms) == ({"to": to, "c": c}, put_ms)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"o":{"max_runtime":60}}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"t":[{"f":"send"}]}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"w":1700000000000}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"x":true}',
        b'{"v":1,"f":"send","a":["ann"],"k":{}}',
        b'{"v":1, "f":"send","a":[],"k":{"to":"ann"}}',
        b'{"f":"send","v":1,"a":[],"k":{"to":"ann"}}',
        b'{"v":1,"f":"by_place","a":["ann"],"k":{}}',
    ],
)
def test_any_other_call_is_left_to_open(payload: bytes) -> None:
    assert app.open_usual(payload) is None
    app.open(payload, "mail", ID)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        b"",
        b"a page",
        b'{"v":2,"f":"send","a":[],"k":{"to":"ann"}}',
        b'{"v":1,"f":"gone","a":[],"k":{"to":"ann"}}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"c":}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"}]',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"c":1700000000000',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"c":017}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"c":-5}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"ann"},"c":253402300799001}',
        b'{"v":1,"f":"by_place","a":[],"k":{"to":["ann"]}}',
        b'{"v":1,"f":"send","a":[],"k":{"to":"' + b"x" * 256 * 1024 + b'"}}',
    ],
)
def test_what_open_refuses_is_not_read(payload: bytes | None) -> None:
    assert app.open_usual(payload) is None


def test_open_says_which_argument_of_a_usual_call_is_wrong() -> None:
    payload = b'{"v":1,"f":"strict","a":[],"k":{"to":5}}'
    assert app.open_usual(payload) is None
    with pytest.raises(BadArguments, match="cannot take 'to'"):
        app.open(payload, "mail", ID)


def test_an_app_with_a_secret_looks_at_each_signature() -> None:
    signing = App("mail", secret="0123456789abcdef", keep_result=0)
    signing.task(name="send")(lambda to: None)
    assert signing.open_usual(sealed(Letter("send", send.call("ann").arguments))) is None
