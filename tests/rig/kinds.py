"""How failed tasks are grouped, once more in Python: what `lua/kinds.lua` says must be this, whatever the error."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

WIDTH = 1 << 42
KINDS = 1000
CODES = {b"http", b"status", b"code", b"errno"}


def kind_of(task: bytes, line: bytes | None) -> bytes:
    """Give the kind of an error: the time of the error, a blank, and the error, as the queue keeps it."""
    found = re.match(rb"[0-9]+ ([^\r\n]*)", line or b"")
    text = (found[1] if found else b"")[:300]
    if text.startswith(b"cancelled by "):
        return b"cancelled"
    if text.startswith(b"expired: "):
        return b"expired"
    leased = text.find(b"; it was leased to ")
    if leased >= 0:
        text = text[:leased] + b")"
    if text.startswith(b"gave up: "):
        text = re.sub(rb"^gave up: host [^ \t\n\v\f\r]+ is banned", b"gave up: <host> is banned", text)
        text = re.sub(rb" of batch [^ \t\n\v\f\r]+ are not ", b" of a batch are not ", text)
    text = re.sub(rb"(?<![A-Za-z0-9])[A-Za-z0-9]+://[^ \t\n\v\f\r'\"<>()]+", b"<url>", text)
    if len(task) >= 8:
        text = text.replace(task, b"<id>", 1)
    text = re.sub(rb"(?<![A-Za-z0-9])[0-9A-Fa-f][0-9A-Fa-f-]{6,}[0-9A-Fa-f](?![A-Za-z0-9])", _hex, text)
    text = re.sub(rb"([A-Za-z]*)([ =:/]?)([0-9]+)", _number, text)
    if len(text) > 200:
        last = 200
        while last > 190 and 0x80 <= text[last] <= 0xBF:
            last -= 1
        text = text[:last]
    return text or b"no error text"


def _hex(found: re.Match[bytes]) -> bytes:
    word = found[0]
    return b"#" if re.search(rb"[0-9]", word) else word


def _number(found: re.Match[bytes]) -> bytes:
    word, between, digits = found.groups()
    return found[0] if len(digits) <= 3 and word.lower() in CODES else word + between + b"#"


def check(client: Any, key: str, failed: set[bytes]) -> None:
    """Check that the kinds count each failed task once, by its error, and nothing else."""
    scores: dict[bytes, float] = dict(client.zrange(key + "kind_of", 0, -1, withscores=True))
    assert scores.keys() == failed, f"failed, and counted by kinds, differ: {failed ^ scores.keys()}"
    fields: dict[bytes, bytes] = client.hgetall(key + "kinds")
    known = {int(field[1:]): text for field, text in fields.items() if field[:1] == b"#"}
    back = {text: int(number) for field, number in fields.items() for text in [field[1:]] if field[:1] == b"="}
    assert back == {text: number for number, text in known.items()}, f"numbers and texts of kinds differ: {fields}"
    assert len(known) <= KINDS
    counts = {int(field[1:]): int(count) for field, count in fields.items() if field[:1] == b"+"}
    assert fields.keys() - {b"next"} == {
        *(b"#%d" % at for at in known), *(b"=" + text for text in back), *(b"+%d" % at for at in counts),
    }  # fmt: skip
    sizes = Counter(int(score // WIDTH) for score in scores.values())
    assert counts == sizes, f"kinds that count wrongly: {counts}, {sizes}"
    numbers = {int(score // WIDTH) for score in scores.values()}
    assert numbers - {0} == known.keys(), f"kinds without tasks, or tasks without a kind: {numbers}, {known}"
    errors: dict[bytes, bytes] = client.hgetall(key + "errors")
    for task, score in scores.items():
        if number := int(score // WIDTH):
            wanted = kind_of(task, errors.get(task))
            assert known[number] == wanted, f"{task!r} is of kind {known[number]!r}, its error: {errors.get(task)!r}"
