"""The page web-apps: each of its two projects, in files as the page names them, with a worker and without a server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rig.house import ROOT
from tests.rig.processes import run_example
from timeoutq.cli.about import pages

FIRST, FASTAPI, FLASK, _ = re.split(r"^## ", pages()["web-apps"], flags=re.MULTILINE)

WORK = "subprocess.run([sys.executable, '-m', 'timeoutq', 'worker', '--app', 'shop.worker:app', '--burst'], check=True)"

FASTAPI_ASKS = f"""
import subprocess, sys
from fastapi.testclient import TestClient
from shop.api import api, app
app.queue().purge()
with TestClient(api) as client:
    sent = client.post("/mails", params={{"to": "ann"}})
    here = f"/mails/{{sent.json()['id']}}"
    assert (sent.status_code, client.get(here).json()) == (202, {{"state": "todos", "error": None}})
    {WORK}
    assert client.get(here).json() == {{"state": "done", "result": "Welcome, ann"}}
    assert client.get("/mails/nobody").status_code == 404
"""

FLASK_ASKS = f"""
import subprocess, sys
from shop.web import app, create_app, ship
app.queue().purge()
client = create_app().test_client()
sent = client.post("/orders", data={{"item": "tea"}})
here = f"/calls/{{sent.json['id']}}"
assert (sent.status_code, client.get(here).json) == (202, {{"state": "todos", "error": None}})
{WORK}
assert client.get(here).json == {{"state": "done", "error": None}}
assert app.result(sent.json["id"], ship).wait(5) == "tea is on its way"
assert client.get("/calls/nobody").status_code == 404
"""

FASTAPI_MOUNTS = """
import os
from contextlib import asynccontextmanager
from fastapi import FastAPI
from fastapi.testclient import TestClient
from shop.jobs import app
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.page import make_app
from timeoutq.gateway.settings import Settings

def login(scope):
    return Caller("staff") if (b"x-staff", b"yes") in scope["headers"] else None

queues = make_app(Settings(url=os.environ["TIMEOUTQ_URL"], login=login, hosts=("app.example",)))

@asynccontextmanager
async def lifespan(_):
    yield
    await queues.close()

api = FastAPI(lifespan=lifespan)
api.mount("/admin/queues", queues)
app.queue().put("x")
with TestClient(api, base_url="http://app.example") as client:
    assert client.get("/admin/queues/q/shop").status_code in (401, 404)
    found = client.get("/admin/queues/q/shop", headers={"x-staff": "yes", "accept": "text/html"})
    assert 'action="/admin/queues/q/shop/pause"' in found.text, found.text
app.queue().purge()
"""


@pytest.mark.parametrize(
    ("section", "code"),
    [
        pytest.param(FASTAPI, FASTAPI_ASKS, id="fastapi"),
        pytest.param(FASTAPI, "import test_api; test_api.test_a_mail_is_sent()", id="fastapi-test"),
        pytest.param(FASTAPI, FASTAPI_MOUNTS, id="fastapi-page"),
        pytest.param(FLASK, FLASK_ASKS, id="flask"),
        pytest.param(
            FLASK,
            "import test_orders; from pathlib import Path; test_orders.test_an_order_is_shipped(Path())",
            id="flask-test",
        ),
    ],
)
def test_the_project_runs(url: str, tmp_path: Path, section: str, code: str) -> None:
    for name, text in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", FIRST + section, re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    # Starlette's test client says so: a new one wants httpx2, which needs a newer httpcore than ours
    said = ["-W", "ignore:Using `httpx` with `starlette.testclient` is deprecated", "-W", "ignore::DeprecationWarning"]
    run_example([*said, "-c", code], url, tmp_path, [tmp_path, ROOT])


def test_every_example_of_the_page_is_a_file_of_a_project() -> None:
    page = pages()["web-apps"]
    assert page.count("```python\n") == len(re.findall(r"```python\n# \S+\.py\n", page)) == 10
