#!/usr/bin/env bash
# django-tasks-db 0.13.0, Django 6.1.3 (Python 3.12 or newer).
#
# A worker is killed in the middle of a task (kill -9, out of memory, the machine is gone). One would guess that another
# worker runs the task again, or that it ends as failed, as soon as somebody can see that its worker is dead. But the
# record has no lease and no heartbeat, only the name of the worker: the task says RUNNING for ever, the next worker says
# that there are no more tasks to run, and prune_db_task_results, which deletes what is finished, never deletes it.
set -euo pipefail
for python in python3 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[23]*/bin/python3; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check django-tasks-db==0.13.0 django==6.1.3
cd "$work"
cat >settings.py <<'PY'
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
INSTALLED_APPS = ["django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
USE_TZ = True
PY
cat >work.py <<'PY'
import time
from pathlib import Path

from django.tasks import task


@task
def charge(order):
    with open("begun", "a") as begun:
        print(order, file=begun)
    if order == 1 and Path("begun").read_text().count("1") == 1:
        time.sleep(60)
    return order
PY
cat >try.py <<'PY'
import os, subprocess, sys, time
from pathlib import Path

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django

django.setup()
from django.core.management import call_command
from django_tasks_db.models import DBTaskResult
from work import charge

WORKER = [sys.executable, "-m", "django", "db_worker", "--no-startup-delay", "--interval", "0.1", "-v", "0"]
call_command("migrate", verbosity=0)
tasks = [charge.enqueue(1), charge.enqueue(2)]
worker = subprocess.Popen(WORKER)
try:
    end = time.monotonic() + 20
    while not Path("begun").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
finally:
    worker.kill()
    worker.wait()
subprocess.run([*WORKER, "--batch"], check=True, timeout=20)  # it ends when there is nothing left to run


def states():
    for one in tasks:
        one.refresh()
    return [one.status.value for one in tasks]


print("after a second worker has run everything:", *states(), "- begun:", Path("begun").read_text().split())
assert states() == ["RUNNING", "SUCCESSFUL"] and Path("begun").read_text().split() == ["1", "2"]
worker = subprocess.Popen(WORKER)
time.sleep(8)
worker.kill()
worker.wait()
call_command("prune_db_task_results", min_age_days=0, verbosity=0)
left = [(one.args_kwargs["args"], one.status) for one in DBTaskResult.objects.all()]
print("after 8 s more with a third worker, and prune_db_task_results:", *left, "- begun:", Path("begun").read_text().split())
assert left == [([1], "RUNNING")] and Path("begun").read_text().split() == ["1", "2"]
PY
venv/bin/python try.py
# seen:
#   after a second worker has run everything: RUNNING SUCCESSFUL - begun: ['1', '2']
#   after 8 s more with a third worker, and prune_db_task_results: ([1], 'RUNNING') - begun: ['1', '2']
