"""A blocking claim that a signal interrupts gives its leases back, as one does that is cancelled."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.server import scripts


class Interrupted(Exception):
    """What the handler of a signal may raise."""


@pytest.fixture(params=[Interrupted, KeyboardInterrupt])
def interrupting(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """Have SIGUSR1 raise in the main thread; gives what is raised. Ctrl-C raises what is no `Exception`."""
    raised: type[BaseException] = request.param

    def handler(number: int, frame: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, handler)
    yield raised
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("waited", [0.0, 1.5])
def test_a_claim_that_a_signal_interrupts_gives_its_leases_back(
    url: str, queue: Queue, interrupting: type[BaseException], waited: float
) -> None:
    queue.put("first")
    queue.ack(queue.claim())
    queue.put([f"t{i}" for i in range(10)])
    with Proxy(url) as proxy, Queue(queue.name, proxy.url, timeout=60, deadline=20) as mine:
        mine.stats()
        proxy.arm(Fault.SWALLOW, scripts.function("claim").encode())
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            wait_until(lambda: queue.stats().in_progress == 5)
            time.sleep(waited)  # for so long the claim waits for the answer to what the server has carried out
            signal.pthread_kill(main, signal.SIGUSR1)

        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(interrupting):
            mine.claim(5)
        other.join()
        stats = queue.stats()
        assert (stats.todos, stats.in_progress) == (10, 0)
        assert stats.counters.get("expired", 0) == 0
        assert len(mine.claim(10)) == 10
