"""Cancels, progress, and ids that block for a time, on queues of several shards."""

from __future__ import annotations

from typing import Any

import pytest

from timeoutq import LeaseLost, State, Task

TASKS = [f"https://h{i}.example/" for i in range(12)]
