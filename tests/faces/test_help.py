"""README and the help pages: what they show is run here as it stands there; and `timeoutq help`, which shows them."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.main import get_command

from tests.rig.command import Say, say, server
from tests.rig.processes import run_example
from tests.rig.terminal import on_a_terminal
from timeoutq import Queue
from timeoutq.cli import app
from timeoutq.cli.about import pages
from timeoutq.functions import App
from timeoutq.functions.options import CallOptions, TaskOptions
from timeoutq.testing import fake_queue, run

__all__ = ["say", "server"]

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {ROOT / "README.md": README} | {ROOT / "timeoutq/help" / f"{name}.md": text for name, text in pages().items()}


def blocks(language: str, *texts: str) -> list[str]:
    """Give what stands between the fences of a language."""
    return re.findall(rf"```{language}\n(.*?)```", "\n".join(texts or PAGES.values()), re.DOTALL)


EXAMPLES = [
    pytest.param(code, id=f"{path.stem}-{number}")
    for path, text in PAGES.items()
    # `tests/django/test_django_page.py` and `tests/functions/test_web_apps_page.py` make projects of their examples
    if path.stem not in ("django", "web-apps")
    for number, code in enumerate(blocks("python", text), 1)
]


# ---- what the pages show


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_run(code: str, url: str, tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(code, "utf-8")
    run_example([str(path)], url, tmp_path, [place for place in sys.path if place])


EXTRAS = {
    "timeoutq.urls": "crawl", "timeoutq.scrapy": "scrapy", "timeoutq.crawlee": "crawlee", "timeoutq.django": "django",
    "timeoutq.testing": "testing",
    "timeoutq.functions": "functions", "timeoutq.gateway": "web", "timeoutq.gateway.page": "web",
    "standardwebhooks": "web", "timeoutq server": "server",
}  # fmt: skip


@pytest.mark.parametrize(("path", "text"), [pytest.param(*one, id=one[0].stem) for one in PAGES.items()])
def test_a_page_whose_examples_need_an_extra_says_which(path: Path, text: str) -> None:
    shown = "\n".join(blocks("(?:python|sh)", text))
    for word, extra in EXTRAS.items():
        assert word not in shown or re.search(rf"pip install '[^']*\[[\w,]*\b{extra}\b", text), f"{path.name}: {extra}"


def test_the_commands_and_options_they_show_exist() -> None:
    root: Any = get_command(app)
    shown = 0
    for line in "\n".join(blocks("sh")).splitlines():
        for part in re.split(r"[|;&<>]", line.partition(" #")[0]):
            *_, words = part.strip().partition("timeoutq ")
            command = root
            for word in words.split():
                if hasattr(command, "commands") and not word.startswith("-"):
                    assert word in command.commands, line
                    command, shown = command.commands[word], shown + 1
                elif word.startswith("-") and word != "-":
                    assert any(word in (*option.opts, *option.secondary_opts) for option in command.params), line
    assert shown > 80


def test_the_modules_and_files_of_the_tests_that_they_name_are_there() -> None:
    text = "\n".join(PAGES.values())
    modules = {name.replace(".", "/") for name in re.findall(r"python -m ((?:tests|demo)[\w.]*\w)", text)}
    assert len(modules) > 20
    assert [name for name in modules if not [*ROOT.glob(f"{name}.py"), *ROOT.glob(f"{name}/__main__.py")]] == []
    assert [name for name in re.findall(r"tests/[\w/]+\.py", text) if not (ROOT / name).exists()] == []


def test_readme_begins_with_the_demo_and_the_tests() -> None:
    first, second = blocks("sh", README)[:2]
    assert first.strip() == "pip install '.[demo]' && python -m demo"
    assert second.strip() == "pip install '.[test]' && pytest"


SITE = {"/": ["a", "/b", "/gone", "https://elsewhere.example/"], "/a": ["./b#top", "c"], "/b": ["/"], "/c": []}


class Site(BaseHTTPRequestHandler):
    """A site of four pages; one link leads to a page that is gone, one out of the site."""

    def do_GET(self) -> None:
        links = SITE.get(self.path)
        self.send_response(404 if links is None else 200)
        self.end_headers()
        self.wfile.write("".join(f'<a href="{link}">' for link in links or ()).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("code", [code for code in blocks("python") if "async def fetch" in code and "SITE" in code])
def test_the_first_crawl_finds_every_page_with_one_client(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[httpx.AsyncClient] = []

    class Client(httpx.AsyncClient):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            clients.append(self)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        names: dict[str, Any] = {}
        exec(code.replace("https://example.com/", f"{base}/"), names)
        with fake_queue() as queue:
            queue.put(f"{base}/")
            ran = run(names["fetch"], queue, lifespan=names.get("client"))
        server.shutdown()
    assert ran.states == {**{base + path: "done" for path in SITE}, f"{base}/gone": "failed"}
    assert [client.is_closed for client in clients] == [True]
    assert "timeoutq worker crawl mycrawl:fetch --lifespan mycrawl:client" in README


def test_the_first_function_runs_at_once_and_every_monday() -> None:
    names: dict[str, Any] = {}
    [code] = [code for code in blocks("python", README) if "App(" in code]
    exec(code, names)
    with names["app"].test(start=1_800_000_000) as test:  # a Friday
        sent = names["send"].delay("ann@example.com")
        test.run()
        assert sent.wait() == "Hi, ann@example.com"
        test.advance(7 * 24 * 3600)
        runs = test.run().runs
    assert "report" in str(runs)


# ---- the pages themselves


def test_readme_can_be_read_in_five_minutes_and_a_page_in_three() -> None:
    assert len(README.encode()) <= 12_288
    long = {path.stem: size for path, text in PAGES.items() if (size := len(text.encode())) > 9_216}
    assert set(long) <= {"README"}


def headings(text: str) -> list[str]:
    """Give the anchors of the headings of a page, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", prose, re.M)]


def test_every_link_leads_to_a_file_or_a_heading() -> None:
    links = 0
    for path, text in PAGES.items():
        assert len(set(headings(text))) == len(headings(text)), path
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), f"{path.name}: {target}"
            assert not anchor or anchor in headings(PAGES[found]), f"{path.name}: {target}#{anchor}"
            links += 1
    assert links > 100


def options(topic: str, head: str) -> list[str]:
    """Give the options that the table with this head names in its first column."""
    [table] = re.findall(rf"^\| {head} \|.*\n\|---.*\n((?:\|.*\n)+)", pages()[topic], re.MULTILINE)
    return re.findall(r"`([-\w]+)", "\n".join(row.split(" | ")[0] for row in table.splitlines()))


def parameters(function: Callable[..., object]) -> list[str]:
    """Give the names of the parameters behind the first one."""
    return [*inspect.signature(function).parameters][1:]


def test_the_tables_name_every_option() -> None:
    command: Any = get_command(app)
    worker = {name for option in command.commands["worker"].params for name in (*option.opts, *option.secondary_opts)}
    assert {*options("workers", "option"), "queues"} == worker
    assert sorted(options("queue", "option of `Queue`")) == sorted(parameters(Queue))
    assert sorted(options("functions", "option of `@app.task`")) == sorted(TaskOptions.__annotations__)
    assert sorted(options("calls", r"option of `f.options\(…\)`")) == sorted(CallOptions.__annotations__)
    assert {*options("functions", "option of `App`"), "sender"} == {*parameters(App)}


def test_readme_leads_to_every_page() -> None:
    assert set(re.findall(r"\(timeoutq/help/([\w-]+)\.md", README)) == set(pages())


@pytest.mark.parametrize("topic", pages())
def test_a_page_begins_with_its_title_a_sentence_at_most_and_what_works(topic: str) -> None:
    assert re.match(r"# [A-Z][^\n]{3,70}\n\n(?:(?!```|\|)[^\n]+\n){0,2}\n?(?:```|\|)", pages()[topic])


def test_every_page_is_in_the_wheel() -> None:
    found = [one.files or () for one in metadata.distributions(name="timeoutq")]
    packed = {str(file) for file in chain(*found)}
    if "timeoutq/cli/about.py" not in packed:
        pytest.skip("no wheel of timeoutq is installed: pip install .")
    assert {f"timeoutq/help/{topic}.md" for topic in pages()} <= packed


def test_what_the_package_says_of_help_leads_to_a_page() -> None:
    sources = [
        *ROOT.glob("timeoutq/**/*.py"),
        *ROOT.glob("demo/**/*.py"),
        *ROOT.glob("timeoutq/gateway/page/templates/*"),
    ]
    named = {topic for path in sources for topic in re.findall(r"timeoutq help ([a-z][\w-]*)", path.read_text("utf-8"))}
    assert named
    assert named <= set(pages())


# ---- timeoutq help


def test_help_lists_the_topics_without_a_server(say: Say) -> None:
    done = say("help", TIMEOUTQ_URL="redis://127.0.0.1:1/0")
    assert (done.code, done.err) == (0, "")
    assert [line[0] for line in done.lines] == sorted(pages())
    assert ["hosts", pages()["hosts"].splitlines()[0][2:]] in done.lines


def test_in_a_pipe_a_page_is_its_markdown(say: Say) -> None:
    assert say("help", "hosts").out == pages()["hosts"]


def test_a_word_is_found_in_all_pages_or_in_one(say: Say) -> None:
    found = say("help", "--search", "VISIBILITY_timeout")
    assert (found.code, [line[0] for line in found.lines]) == (0, ["from-functions"])
    assert {line[0] for line in say("help", "hosts", "--search", "delay").lines} == {"hosts"}
    nothing = say("help", "--search", "zebra")
    assert (nothing.code, nothing.out, nothing.err) == (1, "", "timeoutq: no page has 'zebra'\n")


def test_a_mistyped_topic_is_guessed(say: Say) -> None:
    done = say("help", "Host")
    assert (done.code, done.out) == (2, "")
    assert "no topic 'Host'; did you mean hosts" in done.err
    assert say("help", "zebra").err == "timeoutq: no topic 'zebra'; `timeoutq help` lists all\n"


def test_on_a_narrow_terminal_a_page_fits_and_its_links_are_commands(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "cat")
    code, raw = on_a_terminal(url, "help", "workers", columns=60)
    shown = raw.decode()
    text = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert code == 0
    assert "\x1b[" in shown
    assert max(map(len, text.splitlines())) <= 60
    assert "may be polite (timeoutq help hosts) or not" in " ".join(text.split())
    assert ".md" not in text
    assert text.count("…") == pages()["workers"].count("…"), "rich has cut off words"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(rb"\x1b\[[\d;]*3\d", on_a_terminal(url, "help", "workers", columns=60)[1])


def test_every_command_has_a_name_of_its_own_and_every_option_says_what_it_is_for() -> None:
    root: Any = get_command(app)
    groups = [(app, root), *((one.typer_instance, root.commands[one.name]) for one in app.registered_groups)]
    for made, group in groups:
        assert made is not None
        names = [one.name or getattr(one.callback, "__name__", "") for one in made.registered_commands]
        assert [name for name in names if names.count(name) > 1] == [], "of two, only the last one can be run"
        silent = [(name, one.name) for name in names for one in group.commands[name].params if not one.help]
        assert silent == []
