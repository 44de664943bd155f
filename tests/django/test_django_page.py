"""The help page: what it shows is a project, which runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.house import ROOT

pytest.importorskip("django", reason="Django 6.0 needs Python 3.12: `.ci/long django` runs these tests")

BASE = """
import os
SECRET_KEY, USE_TZ = "not a secret", True
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "mails"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""


def test_what_the_page_shows_is_a_project(url: str, tmp_path: Path) -> None:
    page = (ROOT / "timeoutq" / "help" / "django.md").read_text("utf-8")
    settings, tasks, use, tests = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    settings = settings.replace('"redis://localhost:6379/0"', "os.environ['TIMEOUTQ_URL']")
    settings = BASE + settings.replace("# … your apps", '"shop",')
    use = use.replace("timedelta(hours=1)", "timedelta(0)")  # or the worker would wait for an hour
    use += "\nimport sys; print(welcome.get_result(sys.argv[1]).return_value if sys.argv[1:] else result.id)"
    setup = "import django; django.setup()\n"
    files = {"settings.py": settings, "shop/tasks.py": tasks, "shop/tests.py": tests, "use.py": setup + use}
    for name, text in {**files, "shop/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")

    here = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{ROOT}:{tmp_path}"}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "TIMEOUTQ_URL": url, **here},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert python("-m", "django", "check").startswith("System check identified no issues")
    *_, id = python("use.py").split()
    python("-m", "django", "timeoutq_worker", "--burst")
    assert python("use.py", id).split()[-1] == "1"
    assert len(list((tmp_path / "mails").iterdir())) == 2
    assert "Ran 1 test" in python("-m", "django", "test")
