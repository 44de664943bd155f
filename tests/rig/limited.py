"""An app whose function has a limit, and workers for it that a test kills: how many calls ever run at once."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from pathlib import Path

from tests.rig.handlers import append
from timeoutq.functions import App, Limit

MOST = 3
TENANTS = ("acme", "globex")

app = App("limited", url=os.environ.get("TIMEOUTQ_URL"))


@app.task(limit=Limit(concurrency=MOST, per="tenant:{tenant}"), key="{tenant}/{n}", retry=[0.1] * 50)
async def visit(tenant: str, n: int) -> None:
    append("start", f"{tenant}/{n}")
    try:
        await asyncio.sleep(0.02)
    finally:
        append("end", f"{tenant}/{n}")


def work() -> None:
    asyncio.run(app.worker(timeout=3.0, concurrency=20).run())


def at_once(history: Path, killed: dict[int, float]) -> dict[str, int]:
    """Give the most calls of each tenant that ever ran at once; what a killed process ran ended with it."""
    moments: list[tuple[float, int, str]] = []
    running: dict[tuple[str, int], str] = {}
    for line in history.read_text("utf-8").splitlines():
        event, task, _, pid, at = line.split()
        tenant = task.partition("/")[0]
        if event == "start":
            running[task, int(pid)] = tenant
            moments.append((float(at), 1, tenant))
        elif running.pop((task, int(pid)), None):
            moments.append((float(at), -1, tenant))
    moments += [(killed[pid], -1, tenant) for (_, pid), tenant in running.items()]
    now, most = defaultdict[str, int](int), defaultdict[str, int](int)
    for _, step, tenant in sorted(moments):
        now[tenant] += step
        most[tenant] = max(most[tenant], now[tenant])
    return dict(most)
