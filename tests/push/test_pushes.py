"""The storm of pushes, in short: each task is delivered, whatever the receiver does and however workers end."""

from __future__ import annotations

from pathlib import Path

from tests.rig import pushes


def test_whatever_the_receiver_does_and_whoever_is_killed_each_task_is_delivered(tmp_path: Path) -> None:
    verdict = pushes.trial(tmp_path, tasks=150, workers=2, concurrency=4, every=0.6, seed=3, patience=60, most_kills=2)
    assert verdict.good, verdict.line()
    assert verdict.kills > 0
    assert len(verdict.faults) >= 8, verdict.line()
    assert verdict.messages > 150, "a storm in which nothing was sent twice has not struck"
