"""The example of the help page, in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.faces.test_help import PAGES, ROOT, blocks
from tests.rig.spiders.crawlee import page
from tests.rig.spiders.site import Site
from timeoutq import Queue


def test_two_processes_of_the_example_share_a_site(url: str, tmp_path: Path) -> None:
    [code] = blocks("python", PAGES[ROOT / "timeoutq/help/crawlee.md"])
    (tmp_path / "docs.py").write_text(code)
    with Site(partial(page, pages=60)) as site:
        both = [
            subprocess.Popen(
                [sys.executable, "docs.py", f"{site.url}/0"], cwd=tmp_path, stderr=subprocess.PIPE,
                env={**os.environ, "TIMEOUTQ_URL": url, "CRAWLEE_STORAGE_DIR": f"storage/{number}"},
            )
            for number in range(2)
        ]  # fmt: skip
        for process in both:
            with process:
                _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said.decode()
        assert sorted(seen.path for seen in site.visits) == sorted(f"/{number}" for number in range(60))
    assert len([*tmp_path.glob("storage/*/datasets/default/0*.json")]) == 60
    with Queue("docs", url) as queue:
        assert (queue.stats().done, queue.drained()) == (60, True)
