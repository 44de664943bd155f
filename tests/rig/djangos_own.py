"""Runs Django's own tests of its tasks against the backend: `python -m tests.rig.djangos_own FOLDER`.

FOLDER holds Django's sources, as PyPI has them (`pip download --no-deps --no-binary :all: django`).

The tests name Django's backends for development in their settings; here `Ours` and `AtOnce` stand in their place. Those
in `OTHER` do not apply, and must fail; all others must pass.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from timeoutq.django import Backend
from timeoutq.server.embedded import EmbeddedServer

STANDS_FOR = {
    "django.tasks.backends.dummy.DummyBackend": "tests.rig.djangos_own.Ours",
    "django.tasks.backends.immediate.ImmediateBackend": "tests.rig.djangos_own.AtOnce",
}
OTHER = {
    "DummyBackendTestCase.test_using_correct_backend": "asks for Django's own class",
    "ImmediateBackendTestCase.test_using_correct_backend": "asks for Django's own class",
    "TaskTestCase.test_using_correct_backend": "asks for Django's own class",
    "TaskTestCase.test_get_backend": "asks for Django's own class",
    "DummyBackendTestCase.test_refresh_result": "changes the result in the list that the dummy keeps",
    "DummyBackendTestCase.test_refresh_result_async": "changes the result in the list that the dummy keeps",
    "ImmediateBackendTestCase.test_cannot_get_result": "says that the backend keeps no results",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "says that the backend keeps no results",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "says that the backend has no run_after",
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": "Ctrl-C goes to the caller; a worker's thread has none",
}
"""Tests that say what Django's backends for development are, or cannot do."""


class Ours(Backend):
    """Takes the place of the backend that only puts tasks; it has priorities, and queues where the tests allow any."""

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        options = {"limit": 1000, **params.get("OPTIONS", {})}
        queues = params.get("QUEUES") or ["default", "queue-1", "queue-2", "unknown_queue"]
        super().__init__(alias, {**params, "QUEUES": queues, "OPTIONS": options})

    def clear(self) -> None:
        """Forget all tasks."""
        for name in self.app.queues.names:
            self.app.queue(name).purge()

    @property
    def results(self) -> list[Any]:
        """What was put, as the queues have it."""
        ready = (self.app.queue(name).each(state) for name in self.app.queues.names for state in ("todos", "waiting"))
        return [self.get_result(one.task) for each in ready for one in each]


class AtOnce(Ours):
    """Takes the place of the backend that runs a task when it is put: a worker runs until nothing is left."""

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put a call, and have it run, by a worker that does not know of the test's event loop."""
        result = super().enqueue(task, args, kwargs)
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: asyncio.run(self.app.worker(burst=True).run())).result()
        result.refresh()
        return result


def main(source: Path) -> int:
    """Copy the tests, let them name these backends, and run them; give the exit code."""
    import django
    from django.conf import settings
    from django.test.runner import DiscoverRunner

    class Runner(DiscoverRunner):
        """Says what passed."""

        def suite_result(self, suite: Any, result: Any, **more: Any) -> int:
            wrong = {getattr(test, "test_case", test) for test, _ in (*result.failures, *result.errors)}
            names = {test.id().partition(".")[2].partition(".")[2] for test in wrong}
            passed = result.testsRun - len(names)
            print(f"{result.testsRun} tests: {passed} pass, {len(OTHER)} do not apply, wrong: {names ^ OTHER.keys()}")
            return len(names ^ OTHER.keys())

    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        os.environ["TIMEOUTQ_URL"] = server.url
        copies = Path(folder, "tasks")
        copies.mkdir()
        [archive] = source.glob("django-*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        for path in Path(folder).glob("django-*/tests/tasks/*.py"):
            text = path.read_text("utf-8")
            for theirs, ours in STANDS_FOR.items():
                text = text.replace(theirs, ours)
            (copies / path.name).write_text(text, "utf-8")
        sys.path.insert(0, folder)
        databases = {one: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for one in ("default", "other")}
        settings.configure(DATABASES=databases, USE_TZ=True, SECRET_KEY="not a secret", INSTALLED_APPS=[])
        django.setup()
        wrong: int = Runner(verbosity=0, interactive=False).run_tests(["tasks"])
        return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
