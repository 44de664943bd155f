"""Batches while workers are killed with -9: each callback is put once, after the last task of its batch."""

from __future__ import annotations

from pathlib import Path

from tests.rig import batches


def test_workers_that_are_killed_lose_no_callback_and_put_none_twice(tmp_path: Path) -> None:
    verdict = batches.trial(tmp_path, batches.Trial(batches=100, tasks=20, every=0.3, fails=0.01), seed=7)
    assert verdict.good, verdict.line()
    assert verdict.broken > 0, verdict.line()
    assert verdict.kills >= 4, verdict.line()
