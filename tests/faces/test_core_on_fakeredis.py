"""The transcripts that need no server of their own, on fakeredis: the same scripts, in memory.

They are those of `test_core.py`, `test_records.py` and `test_batches.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest

from tests.core import test_batches, test_core, test_records
from timeoutq import Queue

# These look at raw keys or at a second client: fakeredis keeps the time to live of a key in whole seconds, so that the
# lock of a short lease is gone at once there.
NEED_A_SERVER = {"url", "name", "raw"}


@pytest.fixture
def face() -> Iterator[Any]:
    """An empty queue in memory."""
    server = fakeredis.FakeServer()
    with Queue("fake", client=fakeredis.FakeRedis(server=server), timeout=5) as opened:
        yield opened
        opened.purge()
        with fakeredis.FakeRedis(server=server) as raw:
            assert raw.keys("*") == []


for _name, _test in [*vars(test_core).items(), *vars(test_records).items(), *vars(test_batches).items()]:
    if _name.startswith("test_"):
        _asked = set(inspect.signature(_test).parameters)
        if "face" in _asked and not NEED_A_SERVER & _asked:
            globals()[_name] = _test
