"""Chains of functions while the server is full, and while it stands still: the short form of `tests/rig/chains.py`."""

from __future__ import annotations

import asyncio

from tests.rig import chains


def test_no_chain_is_lost_and_no_function_runs_twice_while_the_server_is_full_or_stands_still() -> None:
    verdict = asyncio.run(chains.trial(40, 0.5, 1, 0.7, deadline=0.3, settled=0.0))
    assert verdict.good, verdict.line()
