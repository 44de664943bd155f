"""Sets Django up, where there is one, with the project of `tests/rig/market` and a database in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("django") is not None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.rig.market.settings"
    import django

    django.setup()


@pytest.fixture(scope="session")
def project() -> Iterator[None]:
    """Make the tables of the project."""
    from django.conf import settings
    from django.test.utils import get_runner, setup_test_environment, teardown_test_environment

    runner: Any = get_runner(settings)(verbosity=0, interactive=False)
    setup_test_environment()
    before = runner.setup_databases()
    yield
    runner.teardown_databases(before)
    teardown_test_environment()
