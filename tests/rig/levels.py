"""Which tests belong to the slower tier; what each level of the rig has done; and which must not be skipped where."""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the rig: the files of its tests, and what a machine must have to run it."""

    files: Sequence[str]
    needs: Sequence[str] = ()


LEVELS: Mapping[str, Level] = {
    "explorer": Level(["test_explorer.py"]),
    "schedules": Level(["test_schedules.py"], ["gcc", "redis-server"]),
    "properties": Level(["test_core_model.py"], ["gcc", "redis-server"]),
    "mutants": Level(["test_mutants.py"], ["gcc", "redis-server"]),
    "faults": Level(["test_faults.py"]),
    "storms": Level(["test_storms.py"]),
    "server faults": Level(["test_server_faults.py"], ["redis-server"]),
    "power cuts": Level(["test_power_cuts.py"], ["gcc", "redis-server"]),
    "failovers": Level(["test_failovers.py"], ["redis-server"]),
    "clusters": Level(["test_cluster_faults.py"], ["redis-server"]),
    "spacing": Level(["test_spacing.py"]),
    "clocks": Level(["test_clocks.py"], ["gcc", "redis-server"]),
    "hostile text": Level(["test_hostile_text.py"]),
    "soak": Level(["test_soak.py"]),
    "simulation": Level(["test_simulation.py"]),
    "languages": Level(["test_transcripts.py", "test_wire_bytes.py", "test_languages.py"], ["node", "npm"]),
}

ALL_COPIES = ("core/test_core.py", "hosts/test_polite_servers.py")
"""Files whose tests run on both servers and through both faces every day. Others do so in the slower tier."""


SLOWER = (
    "core/test_bad_input.py", "core/test_compact_walk.py", "core/test_keeper.py",
    "core/test_keys.py", "core/test_records.py", "core/test_repair.py",
    "core/test_sections.py", "demo/test_demo.py", "demo/test_demo_chromium.py",
    "demo/test_demo_hostile.py", "demo/test_demo_hosts.py", "demo/test_demo_seeds.py", "demo/test_demo_warc.py",
    "events/test_log_walk.py",
    "faces/test_cli_hosts.py", "faces/test_cli_patience.py", "faces/test_cli_words.py", "faces/test_core_model.py",
    "faces/test_core_on_fakeredis.py", "faces/test_dashboard.py", "faces/test_dashboard_hosts.py",
    "faces/test_dashboard_keys.py", "faces/test_faults.py", "faces/test_hostile_arguments.py",
    "faces/test_hostile_text.py", "faces/test_odd_values.py", "faces/test_put_urls.py", "faces/test_report.py",
    "faces/test_schedules.py", "faces/test_serving.py", "faces/test_testing_run.py", "faces/test_traces.py",
    "faces/test_transfer.py", "functions/test_app_workers.py", "functions/test_calls_under_load.py",
    "functions/test_from_defaults.py", "functions/test_from_others.py",
    "functions/test_signature_walk.py", "functions/test_stuck.py",
    "gateway/test_access.py", "gateway/test_bash_worker.py", "gateway/test_canary_tokens.py",
    "gateway/test_http_bad_input.py", "gateway/test_http_page.py",
    "gateway/test_http_waits.py", "gateway/test_kills.py", "gateway/test_probes.py",
    "gateway/test_route_matrix.py", "hosts/test_depth.py", "hosts/test_polite_names.py",
    "node/test_node_worker.py", "node/test_transcripts.py", "node/test_wire_bytes.py", "page/test_axe.py",
    "page/test_browser.py", "page/test_hostile_page.py", "page/test_million.py", "push/test_push.py",
    "push/test_pushes.py", "schedules/test_schedules_on_servers.py",
    "scrapy/test_beginnings.py", "scrapy/test_mapping.py", "scrapy/test_polite_spiders.py", "scrapy/test_stored.py",
    "scrapy/test_told.py", "scrapy/test_trial.py", "servers/test_cluster.py",
    "servers/test_core_servers.py", "servers/test_embedded.py", "servers/test_embedded_cluster.py",
    "servers/test_replicas.py", "servers/test_rights_sweep.py", "servers/test_slots.py", "servers/test_roads.py",
    "shards/test_sharded_durable.py", "shards/test_sharded_worker.py", "shards/test_sharded_worker_processes.py",
    "shards/test_shards_on_cluster.py", "worker/test_batches_processes.py", "worker/test_ends_of_leases.py",
    "worker/test_handed_back.py", "worker/test_handler_shapes.py", "worker/test_health_port.py",
    "worker/test_heavy.py", "worker/test_long_acks.py", "worker/test_loopwatch.py", "worker/test_outages.py",
    "worker/test_several_queues_processes.py", "worker/test_supervisor.py", "worker/test_systemd.py",
    "worker/test_worker_breaks.py", "worker/test_worker_cancels.py", "worker/test_worker_exchanges.py",
    "worker/test_worker_forks.py", "worker/test_worker_losses.py", "worker/test_worker_processes.py",
    "worker/test_worker_stuck.py",
)  # fmt: skip
"""Files whose tests wait for long, and try what few changes can break: all of them belong to the slower tier."""


@cache
def is_alone(path: str) -> bool:
    """Say whether a test of this file needs the machine for itself: its folder says so."""
    return Path(path).match("tests/breaking/alone/*.py")


@cache
def is_breaking(path: str, *, is_copy: bool = False) -> bool:
    """Say whether a test of this file belongs to the slower tier; a copy is one on Redis or through the async face."""
    file = Path(path).as_posix()
    slower = is_alone(path) or Path(path).match("tests/breaking/*.py") or file.endswith(SLOWER)
    return slower or (is_copy and not file.endswith(ALL_COPIES))


_figures: dict[str, Counter[str]] = defaultdict(Counter)
_details: dict[str, list[str]] = defaultdict(list)


def count(level: str, **figures: int) -> None:
    """Add figures of a level, like `kills=412`."""
    assert level in LEVELS, level
    _figures[level].update(figures)


def tell(level: str, *details: str) -> None:
    """Add lines that stand under a level."""
    assert level in LEVELS, level
    _details[level].extend(details)


def told() -> dict[str, Any]:
    """Give all that was counted and told here, to be added up elsewhere."""
    return {"figures": {name: dict(each) for name, each in _figures.items()}, "details": dict(_details)}


def add(elsewhere: Mapping[str, Any]) -> None:
    """Add what another process of the same run has counted and told."""
    for name, figures in elsewhere["figures"].items():
        _figures[name].update(figures)
    for name, details in elsewhere["details"].items():
        _details[name].extend(details)


def level_of(path: str) -> str | None:
    """Say to which level a test file belongs."""
    return next((name for name, level in LEVELS.items() if any(path.endswith(file) for file in level.files)), None)


def must_run(name: str) -> bool:
    """Say whether a level must run here: everything it needs is there, or this is CI, where it has to be."""
    return bool(os.environ.get("CI")) or all(shutil.which(need) for need in LEVELS[name].needs)


def lines(passed: Mapping[str, int], skipped: Mapping[str, int], seconds: Mapping[str, float]) -> list[str]:
    """Give the table of the summary: a line a level that had tests in this run, and how long all took."""
    found: list[str] = []
    for name in LEVELS:
        if passed[name] or skipped[name] or _figures[name]:
            figures = ", ".join(f"{value:,} {what.replace('_', ' ')}" for what, value in _figures[name].items())
            tests = f"{passed[name]} tests" + (f", {skipped[name]} skipped" if skipped[name] else "")
            found.append(f"{name:14} {tests}, {seconds[name]:.0f} s{': ' if figures else ''}{figures}")
            found += [f"  {detail}" for detail in _details[name]]
    if found:
        found.append(f"all levels     {sum(seconds.values()):.0f} s")
    return found
