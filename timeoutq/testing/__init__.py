"""For users' own tests: queues in memory with a clock that the test advances, handlers run until they are drained.

`timeoutq help testing` shows how.

The modules, in reading order: each imports only from those above it.

    fake      Queues on fakeredis, in memory, with a clock that the test advances and nothing else does.
    running   Runs a handler on a fake queue until it is drained, advancing the clock whenever nothing else can happen.
    fixtures  Fixtures for pytest: `pytest_plugins = ["timeoutq.testing.fixtures"]` in a conftest.py, or import them by
              name.
"""

from timeoutq.testing.fake import START as START
from timeoutq.testing.fake import Clock as Clock
from timeoutq.testing.fake import FakeAsyncQueue as FakeAsyncQueue
from timeoutq.testing.fake import FakeAsyncShardedQueue as FakeAsyncShardedQueue
from timeoutq.testing.fake import FakeQueue as FakeQueue
from timeoutq.testing.fake import FakeShardedQueue as FakeShardedQueue
from timeoutq.testing.fake import fake_async_queue as fake_async_queue
from timeoutq.testing.fake import fake_async_sharded_queue as fake_async_sharded_queue
from timeoutq.testing.fake import fake_queue as fake_queue
from timeoutq.testing.fake import fake_sharded_queue as fake_sharded_queue
from timeoutq.testing.running import NotDrained as NotDrained
from timeoutq.testing.running import Ran as Ran
from timeoutq.testing.running import lease as lease
from timeoutq.testing.running import run as run
