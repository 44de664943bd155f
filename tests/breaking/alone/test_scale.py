"""Three primaries that each have a part of a core do clearly more than one; a fourth joins under load and leaves again.

How much more, and the long forms: `python -m tests.rig.cluster --scale 1,2,3 --slice 20` and `--grow --for 60s`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rig import growth, quota
from tests.rig.growth import PUT, Phase, grow
from tests.rig.quota import NoQuota, Quota
from tests.rig.scale import Case, Reading, Scale, scale
from tests.rig.servers import binary_of, valkey


@pytest.fixture
def quotas() -> None:
    """Skip the test on a machine that has no quotas."""
    try:
        Quota(20).close()
    except NoQuota as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("quotas")
def test_three_primaries_do_clearly_more_than_one_and_each_its_part() -> None:
    found = scale([1, 3], 20, valkey(), rounds=3)
    number, three = found.primaries[1]
    assert number * found.linear(number, three) > 1.7, found.table()
    assert all(0.1 < cores < 0.25 for cores in three.cores), found.table()


def test_what_more_primaries_have_to_do_is_judged_by_the_ratios_of_all_rounds() -> None:
    def case(name: str, *rates: float, cores: float = 0.2) -> Case:
        found = Case(name, "redis://localhost/0", 12, [], 2.0)
        found.readings += (Reading(rate, [cores]) for rate in rates)
        return found

    one, plain = case("1 primaries", 100, 200, 100), case("a plain queue", 1_000, 1_000, 1_000)
    well = case("3 primaries", 300, 500, 240), case("12 shards", 700, 800, 100)
    assert Scale(0.2, [(1, one), (3, well[0])], well[1], plain).broken == []
    slow = case("3 primaries", 230, 470, 900), case("12 shards", 690, 690, 2_000)
    assert Scale(0.2, [(1, one), (3, slow[0])], slow[1], plain).broken == [
        "3 primaries: 0.78 of 3 times one, asked 0.8", "12 shards on one server: 0.69 of a plain queue, asked 0.7"
    ]  # fmt: skip
    busy = Scale(0.2, [(1, case("1 primaries", 100, 100, 100, cores=0.1))], well[1], plain).broken
    assert busy and "had 10.0 % of a core and not 20 %" in busy[0], busy


@pytest.mark.usefixtures("quotas")
@pytest.mark.parametrize("server", ["valkey", "redis"])
def test_a_cluster_grows_and_shrinks_under_load_and_does_each_task_once(server: str) -> None:
    found = grow(9, 20, binary_of(server), whole=server == "valkey")
    assert not found.broken, found.table()
    assert found.accepted > PUT
    assert len(found.phases) == 5
    assert all(phase.acked for phase in found.phases)


def test_what_is_lost_and_what_is_handed_out_twice_is_counted() -> None:
    phases = [Phase("3 primaries", 0.0, 10.0), Phase("a fourth joins", 10.0, 12.0)]
    put = {"put": [0], "errors": {"Unavailable": 1}, "longest": 0.5}
    numbers = list(range(PUT))
    taken = {
        "granted": numbers,
        "acked": numbers,
        "moments": [[3.0, PUT - 300], [11.0, 300]],
        "errors": {},
        "longest": 0.1,
    }
    well = growth._judged(phases, put, taken, drained=True, done=PUT)
    assert (well.accepted, well.lost, well.twice, well.broken) == (PUT, 0, 0, False)
    assert [phase.rate for phase in well.phases] == [90.0, 150.0]
    assert growth._judged([], put, taken, drained=False, done=PUT).broken
    for other, done, lost, twice in (
        ({"acked": numbers[1:]}, PUT, 1, 0), ({}, PUT - 2, 2, 0), ({"granted": [*numbers, 7, 7]}, PUT, 0, 2),
    ):  # fmt: skip
        found = growth._judged([], put, taken | other, drained=True, done=done)
        assert (found.lost, found.twice, found.broken) == (lost, twice, True)


def test_a_machine_without_quotas_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(quota, "_mounts", dict)
    with pytest.raises(NoQuota, match="neither the controller cpu of version 1 nor version 2 is mounted"):
        Quota(20)
    monkeypatch.setattr(quota, "_mounts", lambda: {"cgroup2": tmp_path})
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    with pytest.raises(NoQuota, match="has no controller cpu"):
        Quota(20)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").mkdir()
    with pytest.raises(NoQuota, match="cannot be switched on"):
        Quota(20)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoQuota, match="only root"):
        Quota(20)
