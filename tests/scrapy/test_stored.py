"""The item store: under kill -9, the items on disk are those of the pages that the queue says are done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import Spiders, order, run
from tests.rig.waiting import wait_until
from timeoutq import Queue

pytest.importorskip("scrapy")
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def many(seen: Seen) -> Answer:
    """Answer with a page that links to pages 0 to 59."""
    return html(*(f"/links/{number}" for number in range(60)) if seen.path == "/links/" else (), title=seen.path)


def done(queue: Queue, least: int) -> Callable[[], bool]:
    return lambda: queue.stats().done >= least


def test_items_of_processes_that_are_killed_are_on_disk_and_doubles_are_left_out(queue: Queue, tmp_path: Path) -> None:
    from timeoutq.scrapy.stored import joined

    queue.purge()
    settings = {"TIMEOUTQ_QUEUE": queue.name, "TIMEOUTQ_LEASE": 2, "CONCURRENT_REQUESTS": 4}
    with Site(many, delay=0.1) as site:
        orders = [order("mapping:Links", site.url, TIMEOUTQ_ITEMS=str(tmp_path / "items"), **settings)]
        for enough in (8, 25):
            with Spiders(queue.given[0], orders) as process:
                wait_until(done(queue, enough), 100)
                os.kill(process.pid, signal.SIGKILL)
                process.code()
        run(queue.given[0], orders)
    files = sorted((tmp_path / "items").iterdir())
    assert len(files) == 3
    with files[0].open("ab") as torn:
        torn.write(b'{"task": "http')  # as after a power cut
    found = Counter(item["path"] for item in joined(tmp_path / "items"))
    assert found == Counter(["/links/", *(f"/links/{number}" for number in range(60))])
    assert queue.stats().done == 62


def test_a_page_that_runs_again_by_itself_keeps_the_items_of_each_run(queue: Queue, tmp_path: Path) -> None:
    from timeoutq.scrapy.stored import joined

    queue.purge()
    with Site(lambda seen: html(title="busy" if seen.number == 1 else "ready")) as site:
        for name in ("Again", "RetriedInCallback"):
            run(queue.given[0], [order(f"mapping:{name}", site.url, TIMEOUTQ_QUEUE=queue.name,
                                       TIMEOUTQ_ITEMS=str(tmp_path / name))])  # fmt: skip
            queue.purge()
    assert sorted(str(item) for item in joined(tmp_path / "Again")) == [
        "{'known': 0}", "{'known': 1}", "{'known': None}", *(f"{{'turn': {turn}}}" for turn in range(4)),
    ]  # fmt: skip
    assert [item["times"] for item in joined(tmp_path / "RetriedInCallback") if "times" in item] == [0, 1]


def test_an_item_that_cannot_be_written_fails_its_page(queue: Queue, tmp_path: Path) -> None:
    queue.purge()
    with Site(lambda seen: html()) as site:
        (tmp_path / "items").mkdir()
        (tmp_path / "file").write_text("no folder")
        orders = [order("mapping:Odd", site.url, TIMEOUTQ_QUEUE=queue.name, TIMEOUTQ_ITEMS=str(tmp_path / "items"))]
        run(queue.given[0], orders)
        assert "TypeError" in (queue.inspect(f"{site.url}/odd/").error or "")
        orders = [order("mapping:Odd", site.url, TIMEOUTQ_ITEMS=str(tmp_path / "file"))]
        with Spiders(queue.given[0], orders) as process:
            (result,) = process.results()
            assert "timeoutq cannot begin: the setting TIMEOUTQ_ITEMS" in process.log()
        assert result["reason"] == "timeoutq_error"


def test_the_files_of_the_store_are_joined_without_doubles_and_a_folder_without_any_is_an_error(
    queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "web1-1.jsonl").write_text(
        '{"task": null, "item": {"name": "a"}}\n{"task": "page", "fence": 7, "run": "1", "item": "of the killed one"}\n'
    )
    (tmp_path / "web1-2.jsonl").write_text('{"task": "page", "fence": 8, "run": "1", "item": "of the next one"}\n')
    assert joins(tmp_path) == (0, '{"name": "a"}\n"of the next one"\n', "")
    code, out, err = joins(tmp_path / "items")
    assert (code, out) == (2, "")
    assert "items has no *.jsonl: is it the folder that TIMEOUTQ_ITEMS names?" in err


def joins(folder: Path) -> tuple[int, str, str]:
    words = [sys.executable, "-W", "error", "-m", "timeoutq.scrapy", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
