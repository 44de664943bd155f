"""What `timeoutq.django` needs: on Python 3.11, and without Django, it says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

OLD = "timeoutq.django needs Django 6.0 or newer, and so Python 3.12 or newer: this is Python 3.11"
MISSING = "timeoutq.django needs Django 6.0 or newer: pip install 'timeoutq[django]'"


@pytest.mark.parametrize("module", ["timeoutq.django", "timeoutq.django.worker", "timeoutq.django.apps"])
def test_importing_it_says_what_it_needs(module: str) -> None:
    code = f"""
import sys
sys.modules["django"] = None  # as if there was none
try:
    import {module}
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"MissingExtra {OLD if sys.version_info < (3, 12) else MISSING}")
