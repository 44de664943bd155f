"""A server whose library has a change in it, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from timeoutq.server import scripts


@contextmanager
def planted(url: str, old: str, new: str) -> Iterator[None]:
    """Have a server carry out the verbs with `new` in the place of `old`, which stands in the library once."""
    text = scripts.library()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the library"
    with redis.Redis.from_url(url) as raw:
        client: Any = raw
        client.function_load(text.replace(old, new), replace=True)
        try:
            yield
        finally:
            client.function_load(text, replace=True)
