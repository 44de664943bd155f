"""The page in tests: a gateway served in a thread, and a browser without scripts that follows links and forms."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urljoin

import httpx
import uvicorn
from starlette.types import ASGIApp

from tests.rig.gateways import NO_TLS
from tests.rig.waiting import wait_until
from timeoutq.gateway.page import make_app
from timeoutq.gateway.serving import listen
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import SCOPES


def settings(url: str, **more: Any) -> Settings:
    return replace(Settings(url=url, anonymous=SCOPES), **more)


class Served:
    """An application that is served on a free port of the loopback, in a thread, until the block ends."""

    def __init__(self, given: Settings | None = None, app: ASGIApp | None = None) -> None:
        self.app: Any = app or make_app(given)
        self._socket = listen("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.base = f"http://localhost:{self.port}"
        config = uvicorn.Config(self.app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]), daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self.app, "stop"):
            self.app.stop()
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


@dataclass
class Form:
    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    buttons: dict[str, str] = field(default_factory=dict[str, str])
    """The text of each button, and where it sends the form."""


class Page(HTMLParser):
    def __init__(self, response: httpx.Response) -> None:
        super().__init__(convert_charrefs=True)
        self.response, self.status = response, response.status_code
        self.forms: list[Form] = []
        self.links: list[tuple[str, str]] = []
        """Text and address."""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._form: Form | None = None
        self._select = ""
        """The name of the choice that is being read; its first option counts unless one is selected."""
        self._open: list[tuple[str, dict[str, str | None], list[str]]] = []
        # as browsers do before they read HTML
        self.feed(response.text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd"))
        self.close()

    @property
    def text(self) -> str:
        """All text of the page, its white space made one space."""
        return " ".join(" ".join(self.words).split())

    @property
    def said(self) -> str:
        return self._message

    _message = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "form":
            self._form = Form(given.get("method") or "get", given.get("action") or "")
            self.forms.append(self._form)
        elif tag == "input" and self._form is not None and given.get("name"):
            kind = given.get("type") or "text"
            if kind not in ("checkbox", "radio") or "checked" in given:
                self._form.fields.append((given["name"] or "", given.get("value") or ""))
        elif tag == "select":
            self._select = given.get("name") or ""
        elif tag == "option" and self._form is not None:
            there = [pair for pair in self._form.fields if pair[0] == self._select]
            if not there or "selected" in given:
                kept = [pair for pair in self._form.fields if pair not in there]
                self._form.fields = [*kept, (self._select, given.get("value") or "")]
        elif tag in ("a", "button", "textarea", "p"):
            self._open.append((tag, given, []))

    def handle_endtag(self, tag: str) -> None:
        """Note what a link, a button or a text field holds."""
        if tag == "form":
            self._form = None
        if not self._open or self._open[-1][0] != tag:
            return
        _, given, words = self._open.pop()
        said = "".join(words)
        if self._open and tag != "textarea":
            self._open[-1][2].append(said)
        if tag == "a":
            self.links.append((" ".join(said.split()), given.get("href") or ""))
        elif tag == "button" and self._form is not None:
            self._form.buttons[" ".join(said.split())] = given.get("formaction") or self._form.action
        elif tag == "textarea" and self._form is not None:
            self._form.fields.append((given.get("name") or "", said.removeprefix("\n")))
        elif tag == "p" and "said" in (given.get("class") or "").split():
            self._message = " ".join(said.split())

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open:
            self._open[-1][2].append(data)


class Reader:
    """A browser without scripts: it goes to addresses, follows links, and sends forms."""

    def __init__(self, base: str, **settings: Any) -> None:
        self._client = httpx.Client(
            base_url=base, follow_redirects=True, headers={"accept": "text/html"}, timeout=10, verify=NO_TLS, **settings
        )
        self._base = base

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def go(self, path: str) -> Page:
        return self._page(self._client.get(path))

    def follow(self, page: Page, text: str) -> Page:
        found = [where for said, where in page.links if said == text or said.startswith(text)]
        assert found, f"no link {text!r} among {[said for said, _ in page.links]}"
        return self.go(urljoin(str(page.response.url), found[0]))

    def press(self, page: Page, button: str, *more: tuple[str, str], about: str = "", **fields: str) -> Page:
        """Press a button, and send its form with these fields; `about` is a value of the form that is meant."""
        for form in page.forms:
            for label, action in form.buttons.items():
                if label == button or label.startswith(f"{button} "):
                    if about and about not in [value for _, value in form.fields]:
                        continue
                    given = [(name, value) for name, value in form.fields if name not in fields]
                    return self._send(page, form, action, [*given, *fields.items(), *more])
        raise AssertionError(f"no button {button!r} among {[label for form in page.forms for label in form.buttons]}")

    def _send(self, page: Page, form: Form, action: str, fields: list[tuple[str, str]]) -> Page:
        where = urljoin(str(page.response.url), action)
        if form.method == "get":
            return self._page(self._client.get(where, params=urlencode(fields)))
        # as browsers do before they send a form
        lines = [(name, value.replace("\r\n", "\n").replace("\n", "\r\n")) for name, value in fields]
        body = urlencode(lines)
        return self._page(
            self._client.post(
                where, content=body, headers={"content-type": "application/x-www-form-urlencoded", "origin": self._base}
            )
        )

    def _page(self, response: httpx.Response) -> Page:
        return Page(response)
