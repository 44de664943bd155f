"""`python -m demo.parser`: reads pages of HTML in a process that can be killed, within limits of time and memory.

A page can keep a parser busy for minutes (a tag with a million attributes, a million open elements) or make it take
gigabytes. So pages are read here and not in the worker: the process asks the system to end it when a page takes too
long, and to refuse memory beyond a limit. `bounded.py` starts it, sends pages to its standard input and reads answers
from its output; it ends when its input does, so it does not outlive its worker.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from selectolax.lexbor import SelectolaxError

from demo.links import Page, TooManyLinks, read, same_site


def main() -> None:
    """Answer one page after the other until the input ends."""
    # a stop is for the worker, which may still wait for a page
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    limit_memory(memory)
    with suppress(BrokenPipeError):
        say(sys.stdout.buffer, {"ready": True})
        serve(sys.stdin.buffer, sys.stdout.buffer, seconds, memory)


def held() -> int:
    """Give the memory of this process as its limit counts it, bytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def limit_memory(memory: int) -> None:
    """Let this process take this many bytes more than it has now, where the system has such a limit."""
    if now := held():
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, hard))


def serve(requests: BinaryIO, answers: BinaryIO, seconds: float, memory: int) -> None:
    """Read pages and answer each; each may take `seconds` of the processor's time."""
    start = held()
    while head := requests.readline():
        asked = json.loads(head)
        html = requests.read(asked["length"])
        if len(html) < asked["length"]:
            return
        # without a handler the signal ends the process, in C code too
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = judged(html, asked["url"], asked["site"], asked["type"])
        except (MemoryError, SelectolaxError):  # the latter has no other cause: all HTML can be parsed
            answer = {"refused": f"parsing needs more than {memory >> 20} MB"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        del html
        # not all memory goes back to the system: where much is kept, the next page would have too little
        last = held() - start > memory // 4
        say(answers, {**answer, "last": last})
        if last:
            return


def judged(html: bytes, url: str, site: str, content_type: str) -> dict[str, object]:
    """Give what a page holds, or why it is refused."""
    try:
        page: Page = read(html, url, lambda link: same_site(link, url, site), content_type=content_type)
    except TooManyLinks as refused:
        return {"refused": str(refused)}
    return {"title": page.title, "links": page.links}


def say(answers: BinaryIO, answer: dict[str, object]) -> None:
    """Write a line of JSON."""
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
