"""The ids of calls: random ones, those that keys make of arguments, and those of calls that follow."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from timeoutq.functions import BadFunction, ids
from timeoutq.functions.context import Context
from timeoutq.functions.ids import Template
from timeoutq.functions.signature import Signature
from timeoutq.words.arguments import MAX_ID, task_id


def thumb(ctx: Context[Any], path: str, size: int = 64, *rest: int, user: dict[str, Any] | None = None) -> None: ...


THUMB = Signature.of(thumb, "thumb")


def filled(template: str, *args: object, **kwargs: object) -> str:
    return Template.of(template, THUMB).fill(THUMB.values(THUMB.encode(args, kwargs)[1]))


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


def test_equal_calls_of_a_batch_with_a_name_are_told_apart_by_their_places() -> None:
    same: Any = (b"[1]", b"{}")
    made = [ids.in_batch("price", name, place, same) for name, place in [("a", 0), ("a", 1), ("b", 0), ("a", 0)]]
    assert len(set(made)) == 3
    assert made[0] == made[3], "whoever puts the batch again puts the same calls"


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


def test_a_default_is_what_it_would_be_if_it_was_passed() -> None:
    def takes(x: float = 1, y: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013  # as many write it

    signature = Signature.of(takes, "takes")
    template = Template.of("t:{x}:{y}", signature)
    calls: list[tuple[float, ...]] = [(), (1,), (1.0,)]
    assert {template.fill(signature.values(signature.encode(args, {})[1])) for args in calls} == {"t:1:null"}


def test_a_value_that_is_no_text_stands_as_json_has_it() -> None:
    assert filled("t:{user}", "a") == "t:null"
    assert filled("t:{user}", "a", user={"b": [1, True], "a": "x"}) == 't:{"a":"x","b":[1,true]}'
    assert filled("t:{rest}", "a", 1, 2, 3) == "t:[2,3]"

    def at(when: datetime) -> None: ...

    signature = Signature.of(at, "at")
    values = signature.values(signature.encode((datetime(2026, 1, 2, tzinfo=UTC),), {})[1])
    assert Template.of("at:{when}", signature).fill(values) == "at:2026-01-02T00:00:00Z"


def test_texts_cannot_be_moved_over_the_sign_between_them() -> None:
    template = "{path}:{size}:{user}"
    assert filled(template, "a:1%", 1) == "a%3A1%25:1:null"
    assert filled("{path}→{size}", "a→") == "a%E2%86%92→64"


def test_a_key_names_parameters_looks_into_nothing_and_formats_nothing() -> None:
    for template in ("t:{pth}", "t:{ctx}", "t:{}", "t:{user.name}", "t:{user[name]}"):
        assert "there is no parameter" in bad(template)
        assert bad(template).endswith("there is path, size, rest, user")
    for template in ("t:{path!r}", "t:{path:03d}", "t:{path:{size}}"):
        assert bad(template).endswith("write {path} alone, without ! or :")


def test_a_key_that_would_mix_two_values_is_refused() -> None:
    for template in ("{path}{size}", "{path}x{size}", "{path}5{size}", "{path}%{size}"):
        assert bad(template).endswith("put a sign such as : between {path} and {size}")


def test_what_is_no_template_is_refused() -> None:
    for template in ("", 5, b"t:{path}", "{", "}", "\ud800{path}", "{path!}"):
        bad(template)


def test_key_true_stands_for_all_arguments_however_they_were_passed() -> None:
    def whole(*args: object, **kwargs: object) -> str:
        return ids.whole_call("thumb", THUMB.values(THUMB.encode(args, kwargs)[1]))

    assert whole("a", user={"y": 1, "x": 2}) == 'thumb:{"path":"a","rest":[],"size":64,"user":{"x":2,"y":1}}'
    assert whole("a", user={"y": 1, "x": 2}) == whole(user={"x": 2, "y": 1}, size=64, path="a")
    assert whole("a") != whole("a", 65)
    assert whole("a", 64, 1) != whole("a", 64, 2)


def test_an_id_of_more_than_120_bytes_keeps_its_beginning_and_a_digest_of_all_of_it() -> None:
    longest, longer = "é" * 60, "é" * 60 + "!"
    assert ids.shortened(longest) == longest
    digest = hashlib.sha256(longer.encode()).hexdigest()[:32]
    assert ids.shortened(longer) == f"{'é' * 50}~{digest}"
    assert ids.shortened("a" + longer) == f"a{'é' * 49}~{hashlib.sha256(('a' + longer).encode()).hexdigest()[:32]}"


def test_the_call_that_follows_has_the_same_id_each_time() -> None:
    assert ids.following(b"fetch:1", "parse") == b"fetch:1>parse"
    assert ids.following(b"\xff\0", "parse") == b"\xff\0>parse"
    long = [ids.following(b"x" * 1_020 + bytes([one]), "parse") for one in range(4)]
    assert len(set(long)) == 4
    assert all(len(task_id(one)) <= MAX_ID for one in long)
    assert ids.following(long[0], "parse") != ids.following(long[1], "parse") != long[1]


def test_a_name_that_no_id_should_begin_with_is_refused() -> None:
    for name in ("", "a b", "é", "x" * 65, "<lambda>", None, "a:b", "a\n"):
        with pytest.raises(BadFunction, match="pass name="):
            ids.function_name(name)
