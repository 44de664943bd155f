"""The storm of pushes, longer than the everyday tests have time for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig import pushes


@pytest.mark.timeout(200)
def test_a_longer_storm_of_pushes_loses_nothing(tmp_path: Path) -> None:
    verdict = pushes.trial(tmp_path, tasks=3000, workers=3, concurrency=8, every=1.5, seed=11, patience=150)
    assert verdict.good, verdict.line()
    assert verdict.held >= 5, verdict.line()
    assert set(verdict.faults) == set(pushes.FAULTS), verdict.line()
