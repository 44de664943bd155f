"""Which tests belong to the slower tier, and which must not be skipped where."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

NEEDS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("explorer", "faults", "storms", "spacing", "hostile_text", "soak", "simulation"), ()),
    **dict.fromkeys(("server_faults", "failovers", "cluster_faults"), ("redis-server",)),
    **dict.fromkeys(("schedules", "core_model", "mutants", "power_cuts", "clocks"), ("gcc", "redis-server")),
    **dict.fromkeys(("transcripts", "wire_bytes", "languages"), ("node", "npm")),
}
"""The files of tests (`test_NAME.py`) that must not be skipped on a machine that has these programs, nor in CI."""

ALL_COPIES = ("core/test_core.py", "hosts/test_polite_servers.py")
"""Files whose tests run on both servers and through both faces every day. Others do so in the slower tier."""


SLOWER = (
    "core/test_bad_input.py", "core/test_compact_walk.py", "core/test_keeper.py",
    "core/test_keys.py", "core/test_records.py", "core/test_repair.py",
    "core/test_sections.py", "crawlee/test_example.py", "demo/test_demo.py",
    "demo/test_demo_hostile.py", "demo/test_demo_hosts.py", "demo/test_demo_seeds.py", "demo/test_demo_warc.py",
    "events/test_log_walk.py",
    "faces/test_cli_hosts.py", "faces/test_cli_patience.py", "faces/test_cli_words.py", "faces/test_core_model.py",
    "faces/test_core_on_fakeredis.py", "faces/test_dashboard.py", "faces/test_dashboard_hosts.py",
    "faces/test_dashboard_keys.py", "faces/test_faults.py", "faces/test_hostile_arguments.py",
    "faces/test_hostile_text.py", "faces/test_odd_values.py", "faces/test_put_urls.py", "faces/test_report.py",
    "faces/test_schedules.py", "faces/test_serving.py", "faces/test_traces.py",
    "faces/test_transfer.py", "functions/test_app_workers.py", "functions/test_calls_under_load.py",
    "functions/test_expires_kills.py", "functions/test_from_defaults.py", "functions/test_from_functions.py",
    "functions/test_from_others.py", "functions/test_from_rq_jobs.py", "functions/test_models.py",
    "functions/test_on_failed.py", "functions/test_processes.py", "functions/test_reload.py",
    "functions/test_signature_walk.py", "functions/test_stuck.py", "functions/test_web_apps_page.py",
    "gateway/test_access.py", "gateway/test_bash_worker.py", "gateway/test_canary_tokens.py",
    "gateway/test_http_bad_input.py", "gateway/test_http_page.py",
    "gateway/test_http_waits.py", "gateway/test_kills.py", "gateway/test_probes.py",
    "gateway/test_route_matrix.py", "hosts/test_depth.py", "hosts/test_polite_names.py",
    "node/test_node_worker.py", "node/test_transcripts.py", "node/test_wire_bytes.py", "page/test_axe.py",
    "page/test_browser.py", "page/test_hostile_page.py", "page/test_million.py", "page/test_rows.py",
    "push/test_push.py",
    "push/test_pushes.py", "schedules/test_schedules_on_servers.py",
    "scrapy/test_beginnings.py", "scrapy/test_mapping.py", "scrapy/test_polite_spiders.py", "scrapy/test_stored.py",
    "scrapy/test_told.py", "scrapy/test_trial.py", "servers/test_cluster.py",
    "servers/test_core_servers.py", "servers/test_embedded.py", "servers/test_embedded_cluster.py",
    "servers/test_replicas.py", "servers/test_rights_sweep.py", "servers/test_slots.py", "servers/test_roads.py",
    "shards/test_sharded_durable.py", "shards/test_sharded_worker.py", "shards/test_sharded_worker_processes.py",
    "shards/test_shards_on_cluster.py", "worker/test_batches_processes.py", "worker/test_ends_of_leases.py",
    "worker/test_handed_back.py", "worker/test_handler_shapes.py", "worker/test_health_port.py",
    "worker/test_long_acks.py", "worker/test_loopwatch.py", "worker/test_outages.py",
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


def must_run(path: str) -> bool:
    """Say whether the tests of this file must run here: all they need is there, or this is CI, where it has to be."""
    needs = NEEDS.get(Path(path).stem.removeprefix("test_"))
    return needs is not None and (bool(os.environ.get("CI")) or all(map(shutil.which, needs)))
