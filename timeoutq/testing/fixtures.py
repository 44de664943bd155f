"""Fixtures for pytest: `pytest_plugins = ["timeoutq.testing.fixtures"]` in a conftest.py, or import them by name.

The names begin with `timeoutq_`, so that they hide none of your fixtures. The fixtures of one test share one clock and
one server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timeoutq.testing import fake


@pytest.fixture
def timeoutq_clock() -> fake.Clock:
    """The time of this test's queues, which stands still until `advance` is called or `run` works."""
    return fake.Clock()


@pytest.fixture
def timeoutq_queue(timeoutq_clock: fake.Clock) -> Iterator[fake.FakeQueue]:
    """An empty queue in memory."""
    with fake.fake_queue(clock=timeoutq_clock) as queue:
        yield queue


@pytest.fixture
def timeoutq_async_queue(timeoutq_clock: fake.Clock) -> fake.FakeAsyncQueue:
    """The same queue for asyncio."""
    return fake.fake_async_queue(clock=timeoutq_clock)


@pytest.fixture
def timeoutq_sharded_queue(timeoutq_clock: fake.Clock) -> Iterator[fake.FakeShardedQueue]:
    """An empty queue over four shards in memory."""
    with fake.fake_sharded_queue("sharded", clock=timeoutq_clock, shards=4) as queue:
        yield queue


@pytest.fixture
def timeoutq_async_sharded_queue(timeoutq_clock: fake.Clock) -> fake.FakeAsyncShardedQueue:
    """The same queue over four shards for asyncio."""
    return fake.fake_async_sharded_queue("sharded", clock=timeoutq_clock, shards=4)
