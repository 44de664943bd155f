"""The ids of calls: random ones, those that keys make of arguments, and those of calls that follow."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.functions import BadFunction, ids
from timeoutq.functions.context import Context
from timeoutq.functions.ids import Template
from timeoutq.functions.signature import Signature
from timeoutq.words.arguments import MAX_ID, task_id


def thumb(ctx: Context[Any], path: str, size: int = 64, *rest: int, user: dict[str, Any] | None = None) -> None: ...


THUMB = Signature.of(thumb, "thumb")


def filled(template: str, *args: object, **kwargs: object) -> str:
    return Template.of(template, THUMB).fill("thumb", THUMB.encode(args, kwargs).values)


def bad(template: object) -> str:
    with pytest.raises(BadFunction) as caught:
        Template.of(template, THUMB)
    assert str(caught.value).startswith(f"thumb(): key={template!r}")
    return str(caught.value)


def test_a_random_id_is_the_name_and_80_bits_that_can_be_read_aloud() -> None:
    found = [ids.random_id("mail.send") for _ in range(2_000)]
    assert len(set(found)) == 2_000
    assert all(one.startswith("mail.send:") and len(one) == len("mail.send:") + 16 for one in found)
    signs = Counter("".join(one.partition(":")[2] for one in found))
    assert set(signs) == set("0123456789abcdefghjkmnpqrstvwxyz")
    assert max(signs.values()) < 1.4 * min(signs.values()), "each sign is as likely as any other"


def test_forked_processes_make_different_ids() -> None:
    ids.random_id("mail.send")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, ids.random_id("mail.send").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() != ids.random_id("mail.send")
    os.close(read)
    os.close(write)


def test_a_key_names_parameters() -> None:
    assert filled("thumb:{path}", "a/b.png") == "thumb:a/b.png"
    assert filled("thumb:{path}:{size}", "a.png", 5) == "thumb:a.png:5"
    assert filled("{path}", "https://example.com/?q=100%25") == "https://example.com/?q=100%25"


def test_a_default_counts_like_an_argument() -> None:
    assert filled("thumb:{path}:{size}", "a.png") == filled("thumb:{path}:{size}", path="a.png", size=64)


def test_a_default_is_what_it_would_be_if_it_was_passed() -> None:
    def takes(x: float = 1, y: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013  # as many write it

    signature = Signature.of(takes, "takes")
    template = Template.of("t:{x}:{y}", signature)
    calls: list[tuple[float, ...]] = [(), (1,), (1.0,)]
    assert {template.fill("takes", signature.encode(args, {}).values) for args in calls} == {"t:1:null"}


def test_a_value_that_is_no_text_stands_as_json_has_it() -> None:
    assert filled("t:{user}", "a") == "t:null"
    assert filled("t:{user}", "a", user={"b": [1, True], "a": "x"}) == 't:{"a":"x","b":[1,true]}'
    assert filled("t:{rest}", "a", 1, 2, 3) == "t:[2,3]"

    def at(when: datetime) -> None: ...

    signature = Signature.of(at, "at")
    values = signature.encode((datetime(2026, 1, 2, tzinfo=UTC),), {}).values
    assert Template.of("at:{when}", signature).fill("at", values) == "at:2026-01-02T00:00:00Z"


def test_braces_are_written_twice_and_a_key_may_name_nothing() -> None:
    assert filled("{{t}}:{path}", "a") == "{t}:a"
    assert filled("nightly", "a") == "nightly"


def test_texts_cannot_be_moved_over_the_sign_between_them() -> None:
    template = "{path}:{size}:{user}"
    assert filled(template, "a:1%", 1) == "a%3A1%25:1:null"
    assert filled("{path}→{size}", "a→") == "a%E2%86%92→64"


@given(st.lists(st.tuples(st.text("a:%3A-é", max_size=4), st.text("a:%3A-é", max_size=4)), min_size=2, max_size=2))
def test_other_arguments_make_another_id(pairs: list[tuple[str, str]]) -> None:
    def two(x: str, y: str) -> None: ...

    signature = Signature.of(two, "two")
    template = Template.of("two:{x}:-{y}:", signature)
    one, other = (template.fill("two", signature.encode(pair, {}).values) for pair in pairs)
    assert (one == other) == (pairs[0] == pairs[1])


def test_a_key_that_names_no_parameter_is_refused_when_the_function_is_decorated() -> None:
    assert bad("t:{pth}").endswith("there is no parameter 'pth'; there is path, size, rest, user")
    assert bad("t:{ctx}").endswith("'ctx' is the context, which callers do not have")
    assert bad("t:{}").endswith("name the parameters in the braces")
    assert bad("t:{0}").endswith("name the parameters in the braces")


def test_a_key_looks_into_nothing_and_formats_nothing() -> None:
    assert "looks into 'user'" in bad("t:{user.name}")
    assert "looks into 'user'" in bad("t:{user[name]}")
    assert bad("t:{path!r}").endswith("write {path} alone, without ! or :")
    assert bad("t:{size:03d}").endswith("write {size} alone, without ! or :")
    assert bad("t:{path:{size}}").endswith("write {path} alone, without ! or :")


def test_a_key_that_would_mix_two_values_is_refused() -> None:
    for template in ("{path}{size}", "{path}x{size}", "{path}5{size}", "{path}%{size}"):
        assert bad(template).endswith("put a sign such as : between {path} and {size}")


@pytest.mark.parametrize("template", ["", 5, b"t:{path}", ["t"], "{", "}", "{path", "\ud800{path}", "{path!}"])
def test_what_is_no_template_is_refused(template: object) -> None:
    bad(template)


def test_a_default_that_is_no_json_is_refused_where_a_key_names_it() -> None:
    def takes(x: int = object(), y: int = 1) -> None: ...  # type: ignore[assignment]  # this is what is refused

    signature = Signature.of(takes, "takes")
    Template.of("t:{y}", signature)
    with pytest.raises(BadFunction, match=r"takes\(\): the default of 'x' is no JSON"):
        Template.of("t:{x}", signature)
    with pytest.raises(BadFunction, match=r"takes\(\): the default of 'x' is no JSON"):
        ids.check_whole(signature)


def test_key_true_stands_for_all_arguments_however_they_were_passed() -> None:
    def whole(*args: object, **kwargs: object) -> str:
        return ids.whole_call("thumb", THUMB.encode(args, kwargs).values)

    assert whole("a", user={"y": 1, "x": 2}) == 'thumb:{"path":"a","rest":[],"size":64,"user":{"x":2,"y":1}}'
    assert whole("a", user={"y": 1, "x": 2}) == whole(user={"x": 2, "y": 1}, size=64, path="a")
    assert whole("a") != whole("a", 65)
    assert whole("a", 64, 1) != whole("a", 64, 2)


def test_equal_sets_and_dicts_make_one_key_in_whatever_order_they_were_made() -> None:
    def takes(x: set[int], y: dict[int, int]) -> None: ...

    signature = Signature.of(takes, "takes")
    one, other = ({8, 0, 16}, {1: 2, 10: 3}), ({16, 8, 0}, {10: 3, 1: 2})
    found = {ids.whole_call("takes", signature.encode(args, {}).values) for args in (one, other)}
    assert found == {'takes:{"x":[0,8,16],"y":{"1":2,"10":3}}'}


def test_an_id_of_more_than_120_bytes_keeps_its_beginning_and_a_digest_of_all_of_it() -> None:
    longest, longer = "é" * 60, "é" * 60 + "!"
    assert ids.shortened(longest) == longest
    digest = hashlib.sha256(longer.encode()).hexdigest()[:32]
    assert ids.shortened(longer) == f"{'é' * 50}~{digest}"
    assert ids.shortened("a" + longer) == f"a{'é' * 49}~{hashlib.sha256(('a' + longer).encode()).hexdigest()[:32]}"


def test_no_short_id_looks_like_a_shortened_one() -> None:
    for length in range(121, 300):
        for sign in ("a", "é", "\U0001f600"):
            assert len(ids.shortened("a" + sign * length).encode()) > ids.LONGEST


def test_the_call_that_follows_has_the_same_id_each_time() -> None:
    assert ids.following(b"fetch:1", "parse") == b"fetch:1>parse"
    assert ids.following(b"\xff\0", "parse") == b"\xff\0>parse"
    long = [ids.following(b"x" * 1_020 + bytes([one]), "parse") for one in range(4)]
    assert len(set(long)) == 4
    assert all(len(task_id(one)) <= MAX_ID for one in long)
    assert ids.following(long[0], "parse") != ids.following(long[1], "parse") != long[1]


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "<lambda>", None, 5, b"send", "a:b", "a\n"])
def test_a_name_that_no_id_should_begin_with_is_refused(name: object) -> None:
    with pytest.raises(BadFunction, match="pass name="):
        ids.function_name(name)
