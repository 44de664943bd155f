"""A whole project: its own tests, `manage.py timeoutq_worker` under kills, and its database connections."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.processes import ROOT, Processes
from tests.rig.waiting import wait_until
from timeoutq import Queue

pytest.importorskip("django", reason="Django 6.0 needs Python 3.12: `.ci/long django` runs these tests")

from django.tasks import TaskResultStatus, default_task_backend
from django.test import override_settings

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.rig.market.settings"}


@pytest.fixture
def run(url: str, tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(url, tmp_path)
    yield processes
    processes.end()


@pytest.fixture
def tasks(project: None, url: str, name: str) -> Iterator[Any]:
    from tests.rig.market import tasks

    options = {"url": url, "prefix": f"{name}-"}
    with override_settings(TASKS={"default": {"BACKEND": "timeoutq.django.Backend", "OPTIONS": options}}):
        yield tasks


def manage(run: Processes, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    return run._start(("-m", "django", *words), {**SETTINGS, **environment})


def test_a_project_tests_its_tasks_in_its_own_transactions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "tests.rig.market"],
        cwd=ROOT, env={**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT), "TIMEOUTQ_URL": "redis://127.0.0.1:1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, re.findall(r"Ran \d+ tests", done.stderr)) == (0, ["Ran 5 tests"]), done.stderr


def test_the_command_runs_tasks_of_all_queues_in_several_processes(run: Processes, tasks: Any, name: str) -> None:
    with override_settings(TASKS=_two_queues(run.url, name)):
        many = [tasks.add.using(queue_name=queue).enqueue(n) for queue in ("default", "mails") for n in range(20)]
        worker = manage(run, "timeoutq_worker", "--burst", "-p", "2", MARKET_PREFIX=f"{name}-")
        assert worker.wait(60) == 0, run.log(worker)
        assert run.log(worker).count("started") == 2
        for n, result in enumerate(many):
            result.refresh()
            assert result.return_value == n % 20 + 1


def _two_queues(url: str, name: str) -> Any:
    options = {"url": url, "prefix": f"{name}-"}
    return {"default": {"BACKEND": "timeoutq.django.Backend", "QUEUES": ["default", "mails"], "OPTIONS": options}}


def _runs(folder: Path) -> list[tuple[int, float]]:
    found = [path.read_text().split() for path in sorted(folder.iterdir())]
    return [(int(one[0]), float(one[1])) for one in found if len(one) == 2]


@pytest.mark.parametrize(("words", "lease", "within"), [((), 30.0, 2.0), (("--no-supervise",), 2.0, 2.5)])
def test_the_task_of_a_killed_process_runs_again(
    run: Processes, tasks: Any, name: str, tmp_path: Path, words: Any, lease: float, within: float
) -> None:
    """Within 2 s, because a supervisor watches; without one, by another worker when the lease has run out."""
    folder = tmp_path / "runs"
    folder.mkdir()
    environment = {"MARKET_PREFIX": f"{name}-", "MARKET_TIMEOUT": str(lease)}
    workers = [manage(run, "timeoutq_worker", *(words or ("-p", "2")), **environment)]
    result = tasks.hold.enqueue(str(folder))
    [(pid, _)] = wait_until(lambda: _runs(folder))
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.RUNNING, 1)
    assert f":{pid}:" in result.worker_ids[0]
    wait_until(lambda: result.refresh() or result.started_at)
    if words:
        assert pid == workers[0].pid  # the command has become the worker
        workers.append(manage(run, "timeoutq_worker", *words, **environment))
        wait_until(lambda: "starts on queue" in run.log(workers[1]))
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    (other, again) = wait_until(lambda: _runs(folder)[1:])[0]
    assert other != pid
    assert again - killed < within
    wait_until(lambda: result.refresh() or result.is_finished)
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert [error.traceback for error in result.errors] == ["its worker was lost while it ran\n"]


@pytest.mark.parametrize(
    ("words", "environment", "code", "told"),
    [
        (("timeoutq_worker",), {"DJANGO_SETTINGS_MODULE": "nowhere.settings"}, 1, "No module named 'nowhere'"),
        (("timeoutq_worker", "--backend", "other"), {}, 1, "The connection 'other' doesn't exist"),
        (("timeoutq_worker", "--procesess", "2"), {}, 2, "--procesess"),
        (("timeoutq_worker", "nowhere"), {}, 2, "queue nowhere is no queue of the app"),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    run: Processes, project: None, words: Any, environment: Any, code: int, told: str
) -> None:
    worker = manage(run, *words, **environment)
    assert worker.wait(60) == code
    assert told in run.log(worker)


def test_settings_that_cannot_be_imported_lose_nothing(run: Processes, tasks: Any, name: str) -> None:
    result = tasks.add.enqueue(1)
    words = ("worker", "--app", "timeoutq.django.worker:app", "--burst")
    broken = run.start(*words, DJANGO_SETTINGS_MODULE="nowhere.settings")
    assert broken.wait(60) == 2
    assert "importing timeoutq.django.worker raised ModuleNotFoundError: No module named 'nowhere'" in run.log(broken)
    result.refresh()
    assert result.status == TaskResultStatus.READY
    assert run.start(*words, **SETTINGS, MARKET_PREFIX=f"{name}-").wait(60) == 0
    result.refresh()
    assert result.return_value == 2


# ---- database connections

POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A PostgreSQL of its own, on loopback, as the user postgres."""
    if POSTGRES is None or os.getuid() != 0:
        pytest.skip("needs Debian's postgresql, and root to run it as the user postgres")
    folder = Path("/tmp", f"timeoutq-postgres-{os.getpid()}")
    folder.mkdir(mode=0o700)
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)

    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(POSTGRES / words[0]), *words[1:]], user="postgres", group="postgres", cwd=folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    assert start("initdb", "-D", f"{folder}/data", "-A", "trust", "-N").wait(60) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off")
    server = start("postgres", "-D", f"{folder}/data", "-p", str(port), *settings)
    wait_until(lambda: Path(folder, f".s.PGSQL.{port}").exists())
    yield {
        "MARKET_ENGINE": "django.db.backends.postgresql", "MARKET_DATABASE": "postgres", "MARKET_USER": "postgres",
        "MARKET_HOST": str(folder), "PGPORT": str(port),
    }  # fmt: skip
    server.send_signal(signal.SIGINT)
    server.wait(30)
    shutil.rmtree(folder)


@pytest.mark.parametrize("age", ["0", "600"])
@pytest.mark.parametrize("kind", ["backend_pid", "abackend_pid"])
def test_there_are_no_more_connections_than_threads(
    run: Processes, tasks: Any, name: str, postgres: dict[str, str], age: str, kind: str
) -> None:
    """2,000 calls in two processes of five threads. With CONN_MAX_AGE, the threads keep theirs; else none is left."""
    import psycopg

    calls = [getattr(tasks, kind).enqueue() for _ in range(2000)]
    environment = {**postgres, "MARKET_PREFIX": f"{name}-", "MARKET_CONN_MAX_AGE": age}
    worker = manage(run, "timeoutq_worker", "-p", "2", "-c", "5", "--log-level", "warning", **environment)
    most, where = 0, {"host": postgres["MARKET_HOST"], "port": postgres["PGPORT"], "user": "postgres"}
    asked = "SELECT count(*) FROM pg_stat_activity WHERE backend_type='client backend' AND pid <> pg_backend_pid()"
    watching = psycopg.connect(dbname="postgres", autocommit=True, **where)
    with watching, Queue(f"{name}-default", run.url) as queue:

        def count() -> int:
            return int(watching.execute(asked).fetchone()[0])

        def few() -> int:  # one more than there are; 0 for too many, as the server counts those that are just ending
            return found + 1 if (found := count()) <= 10 else 0

        while not queue.stats().drained:
            most = max(most, wait_until(few, 2) - 1)
            assert worker.poll() is None, run.log(worker)
        left = count() if age == "600" and kind == "backend_pid" else wait_until(lambda: count() == 0) - 1
    assert 0 < most <= 10
    assert left <= 10
    for call in (calls[0], calls[-1]):
        call.refresh()
        assert call.return_value > 0
    if age == "600" and kind == "backend_pid":
        pids = {default_task_backend.get_result(call.id).return_value for call in calls}
        assert len(pids) <= 10
