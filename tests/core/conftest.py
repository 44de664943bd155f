"""What the tests of the core share."""

from __future__ import annotations

import pytest

from timeoutq import Queue


@pytest.fixture
def face(queue: Queue) -> Queue:
    """A queue through the face that blocks: both faces carry out the same flows, and `tests/faces` compares them."""
    return queue
