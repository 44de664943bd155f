"""All keys of a queue as they are at one moment, read in three round trips; the invariants take it for a client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import redis


class Moment:
    """All keys of a queue at one moment; it has those methods of a client that the invariants call."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client, self.prefix = client, prefix
        found = cast("list[bytes]", list(client.scan_iter(re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*", count=1000)))
        pipe: Any = client.pipeline(transaction=False)
        for key in found:
            pipe.type(key)
        kinds = dict(zip(found, pipe.execute(), strict=True))
        for key, kind in kinds.items():
            if kind == b"set":
                pipe.smembers(key)
            elif kind == b"zset":
                pipe.zrange(key, 0, -1, withscores=True)
            elif kind == b"hash":
                pipe.hgetall(key)
            elif kind == b"string":
                pipe.get(key)
            elif kind == b"stream":
                pipe.xrevrange(key, count=1)
            else:  # lists are in no invariant; or it ran out
                pipe.exists(key)
            pipe.pttl(key)
        replies = pipe.execute()
        self._values = dict(zip(found, replies[::2], strict=True))
        self._left = dict(zip(found, replies[1::2], strict=True))

    @property
    def names(self) -> set[str]:
        return {key.decode().removeprefix(self.prefix) for key in self._values}

    def has(self, key: str) -> bool:
        return key.encode() in self._values

    def last(self, key: str, field: bytes) -> int | None:
        """Give the number that the last entry of a stream has in a field."""
        return next((int(said[field]) for _, said in self._of(key, ())), None)

    def _of(self, key: str | bytes, none: Any) -> Any:
        return self._values.get(key.encode() if isinstance(key, str) else key, none)

    def smembers(self, key: str | bytes) -> set[bytes]:
        return set(self._of(key, ()))

    def zrange(self, key: str | bytes, _from: int, _to: int, *, withscores: bool = False) -> Any:
        found = self._of(key, [])
        return found if withscores else [task for task, _ in found]

    def zrangebyscore(self, key: str | bytes, least: str, most: str) -> list[bytes]:
        assert (least, most[:1]) == ("-inf", "("), "this is all that the invariants ask"
        return [task for task, score in self._of(key, []) if score < float(most[1:])]

    def hgetall(self, key: str | bytes) -> dict[bytes, bytes]:
        return dict(self._of(key, {}))

    def hkeys(self, key: str | bytes) -> list[bytes]:
        return list(self._of(key, {}))

    def hget(self, key: str | bytes, name: str) -> bytes | None:
        return self.hgetall(key).get(name.encode())

    def get(self, key: str | bytes) -> bytes | None:
        return cast("bytes | None", self._of(key, None))

    def pttl(self, key: bytes) -> int:
        return cast(int, self._left[key])

    def scan_iter(self, match: str, count: int) -> Iterator[bytes]:
        start = match.removesuffix("*").encode()
        return (key for key in self._values if key.startswith(start))

    def time(self) -> tuple[int, int]:
        return self._client.time()
