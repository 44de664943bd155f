"""For tests of workers: why a call failed."""

from __future__ import annotations

from typing import Any

import pytest

from timeoutq.functions import CallFailed, Result


def failure(call: Result[Any], timeout: float = 10.0) -> CallFailed:
    with pytest.raises(CallFailed) as found:
        call.wait(timeout)
    return found.value
