"""`timeoutq worker --reload`: new code runs when a file is saved, and no error in it ends the worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rig.processes import ROOT, Processes
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.functions import App
from timeoutq.words import exit_codes
from timeoutq.worker.processes import reloading
from timeoutq.worker.processes.reloading import Watch

PROGRAM = """
from pathlib import Path
from time import sleep
from timeoutq.functions import App
from reloaded_words import WORD
app = App({name!r})

@app.task
def say() -> str:
    return WORD

@app.task
def wait(path: str) -> str:
    Path(path + ".begun").touch()
    while not Path(path).exists():
        sleep(0.01)
    return WORD
"""


def test_saved_code_runs_and_an_error_in_it_leaves_the_worker_as_it_is(
    queue: Queue, run: Processes, url: str, tmp_path: Path
) -> None:
    app, words, more = App(queue.name, url=url), tmp_path / "reloaded_words.py", tmp_path / "reloaded_more.py"
    (tmp_path / "reloaded.py").write_text(PROGRAM.format(name=queue.name))
    words.write_text("WORD = 'one'")
    path = f"{tmp_path}:{ROOT}"
    worker = run.start("worker", "--app", "reloaded:app", "--reload", "-p", "2", "-c", "1", PYTHONPATH=path)

    def save(file: Path, text: str, expected: str) -> None:
        before = run.log(worker).count(expected)
        file.write_text(text)
        wait_until(lambda: run.log(worker).count(expected) > before)

    def say() -> Any:
        return app.send("say").wait(30)

    assert say() == "one"
    slow = app.send("wait", str(tmp_path / "go"))
    wait_until((tmp_path / "go.begun").exists)
    save(words, "WORD = 'two'", "new processes take over")
    wait_until(lambda: say() == "two")
    (tmp_path / "go").touch()
    assert slow.wait(30) == "one", "a call that runs ends as it began"
    save(words, "WORD = 'thr", "cannot be imported, so its processes go on as they are")
    assert (say(), "SyntaxError" in run.log(worker)) == ("two", True)
    for pid in re.findall(r"worker vm:(\d+)\S* starts on", run.log(worker))[2:]:
        os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: "died: exit code 2: app 'reloaded:app': importing" in run.log(worker))
    save(words, "WORD = 'two'", "new processes take over")
    wait_until(lambda: say() == "two")
    more.write_text("WORD = 1 / 0")
    save(words, "from reloaded_more import WORD", "ZeroDivisionError")
    assert say() == "two"
    save(more, "WORD = 'six'", "reloaded_more.py has changed: new processes take over")
    wait_until(lambda: [say() for _ in range(10)] == ["six"] * 10)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == exit_codes.DONE
    app.close()


def test_the_files_of_each_program_that_is_named_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    files = [tmp_path / "watched_app.py", tmp_path / "watched_life.py"]
    for file in files:
        file.write_text("name = 1")
        os.utime(file, (1, 1))
    watch = Watch(["watched_app:name", "watched_life:name"])
    assert not watch.changed()
    for file in files:
        os.utime(file, (2, 2))
        assert watch.changed()
        assert not watch.changed()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("tests.rig.handlers:work", "--reload", "--no-supervise"), "--reload replaces processes: leave out"),
        (("nowhere:work", "--reload"), "importing nowhere raised ModuleNotFoundError"),
        (("tests.rig.handlers:nothing", "--reload"), "has no nothing"),
    ],
)
def test_a_worker_that_cannot_begin_says_why(
    queue: Queue, run: Processes, words: tuple[str, ...], complaint: str
) -> None:
    worker = run.start("worker", queue.name, *words)
    assert worker.wait(60) == exit_codes.USAGE
    assert complaint in run.log(worker)


def test_a_program_whose_import_does_not_end_is_imported_once_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, asked = tmp_path / "shop.py", list[Any]()

    def hangs(command: Any, **_: Any) -> Any:
        asked.append(command)
        raise subprocess.TimeoutExpired(command, reloading.WITHIN)

    program.write_text("app = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    watch = Watch(["shop:app"])
    monkeypatch.setattr("timeoutq.worker.processes.reloading.subprocess.run", hangs)
    for changes in (1, 2):
        os.utime(program, (changes, changes))
        assert [watch.changed() for _ in range(3)] == [False] * 3
        assert len(asked) == changes
