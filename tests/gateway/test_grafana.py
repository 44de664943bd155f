"""The dashboard for Grafana and the alerts of its help page: each name in them exists, each alert rings in time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from timeoutq.cli.about import pages
from timeoutq.gateway.metrics import EVENTS, Facts, Look, families
from timeoutq.words.counts import Stats
from timeoutq.words.model import State

ROOT = Path(__file__).resolve().parent.parent.parent
DASHBOARD: dict[str, Any] = json.loads((ROOT / "demo" / "grafana" / "timeoutq.json").read_text("utf-8"))
PAGE = pages()["metrics"]
RULES = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "alert:" in text)
SCRAPE = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "scrape_configs" in text)
EMPTY = Stats(1000.0, 0, 0, 0, 0, 0, paused=False, counters={})
TOLD = {sample.name for family in families(Look(True, [Facts("q", EMPTY)])) for sample in family.samples}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if isinstance(variable["query"], dict):
            yield variable["query"]["query"]
    for rule in yaml.safe_load(RULES)["groups"][0]["rules"]:
        yield rule["expr"]


def test_every_name_in_an_expression_exists() -> None:
    for expression in expressions():
        assert set(re.findall(r"timeoutq_\w+", expression)) <= TOLD
        for label, _, values in re.findall(r'(\w+)(=~?)"([^"]*)"', expression):
            known = {"event": set(EVENTS), "state": {state.value for state in State}, "queue": {"$queue"}}[label]
            assert set(values.split("|")) <= known


def test_the_table_of_the_page_names_every_metric() -> None:
    table = PAGE.partition("| metric | |")[2].partition("\n\n")[0]
    shown = set(re.findall(r"timeoutq_\w+", table))
    assert shown == {re.sub("_(bucket|count|sum)$", "", name) for name in TOLD} - {"timeoutq_scrape_seconds"}


def test_prometheus_reads_what_the_readme_shows(promtool: str, tmp_path: Path) -> None:
    for name, text, what in (("rules.yml", RULES, "rules"), ("prometheus.yml", SCRAPE, "config")):
        (tmp_path / name).write_text(text)
        more = ["--syntax-only"] if what == "config" else []
        found = subprocess.run([promtool, "check", what, *more, str(tmp_path / name)], capture_output=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr


def queue_of(todos: str, claimed: str = "0x120", **other: str) -> dict[str, str]:
    """Give the series of a queue; what is not named stays 0."""
    event = 'timeoutq_task_events_total{queue="q",event="%s"}'
    return {
        'timeoutq_tasks{queue="q",state="todos"}': todos,
        'timeoutq_tasks{queue="q",state="waiting"}': other.get("waiting", "0x120"),
        'timeoutq_tasks{queue="q",state="in_progress"}': other.get("in_progress", "0x120"),
        event % "claimed": claimed,
        event % "acked": other.get("acked", "0x120"),
        event % "gave_up": other.get("gave_up", "0x120"),
        'timeoutq_paused{queue="q"}': other.get("paused", "0x120"),
        'timeoutq_workers{queue="q"}': other.get("workers", "2x120"),
        "timeoutq_up": other.get("up", "1x120"),
    }


CASES = {
    "all is well": (queue_of("5x120", "0+10x120", acked="0+10x120"), set()),
    "it hangs": (queue_of("5x120", "100x120"), {"QueueHangs"}),
    "it is paused": (queue_of("5x120", "100x120", paused="1x120"), set()),
    "it grows": (queue_of("0+50x120", "0+10x120", acked="0+10x120"), {"QueueGrows"}),
    "many fail": (queue_of("5x120", "0+10x120", acked="0+9x120", gave_up="0+1x120"), {"TasksFail"}),
    "few fail": (queue_of("5x120", "0+100x120", acked="0+99x120", gave_up="0+1x120"), set()),
    "nobody works": (queue_of("5x120", "100x120", workers="0x120"), {"QueueHangs", "NoWorkers"}),
    "clients of the http api work": (queue_of("5x120", "0+10x120", workers="0x120", acked="0+10x120"), set()),
    "clients of the http api take an hour for a task": (
        queue_of("5x120", "100x120", in_progress="2x120", workers="0x120"),
        set(),
    ),
    "redis is away": ({"timeoutq_up": "0x120"}, {"ServerAway"}),
    "the gateway is away": ({"other": "1x120"}, {"ServerAway"}),
}


@pytest.mark.breaking
def test_each_alert_rings_when_it_should_and_only_then(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    names = [rule["alert"] for rule in yaml.safe_load(RULES)["groups"][0]["rules"]]
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            # how often an alert rings; its labels differ
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertstate="firing",alertname="{alert}"}}) or vector(0)',
                    "eval_time": "110m",
                    "exp_samples": [{"value": int(alert in ringing)}],
                }
                for alert in names
            ],
        }
        for name, (series, ringing) in CASES.items()
    ]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    found = subprocess.run([promtool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, check=False)
    assert found.returncode == 0, (found.stdout + found.stderr).decode()
