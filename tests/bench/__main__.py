"""The command `python -m tests.bench`: compares timeoutq with the raw limits of a server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import report
from timeoutq.cli.command import Server
from timeoutq.cli.saying import say
from timeoutq.words import exit_codes
from timeoutq.words.errors import TimeoutqError


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    try:
        found = report.measure(
            Server(given.url, given.url_file).address(),
            given.only,
            rounds=given.rounds,
            quick=given.quick,
            far=given.latency,
            ids=given.ids,
        )
    except TimeoutqError as error:
        say(str(error))
        return exit_codes.of(error)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    if given.json:
        sys.stdout.write(f"{json.dumps(report.to_json(found))}\n")
    else:
        report.show(found)
    return exit_codes.NOTHING if given.check and found.missed else exit_codes.DONE


def _positive(text: str) -> int:
    found = int(text)
    if found < 1:
        raise ValueError
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure timeoutq beside the raw limits of a server: an embedded one, or the one at --url, which "
        "will be busy. The work is in queues named bench-…, which are removed in the end. `--only pauses` measures the "
        "longest script of each verb on a queue of a million tasks, `--only seen` how much memory and time done tasks "
        "take with --keep-done compact and without, `--only memory` what a task takes in each state, and what a host "
        "takes.",
    )
    parser.add_argument("--url", help="the server; without it, an embedded one")
    parser.add_argument("--url-file", type=Path, help="file with the server's URL: keeps a password out of `ps`")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only these figures, with their limits: worker,claim",
    )
    parser.add_argument("--latency", action="store_true", help="a worker that is 0 to 200 ms away from its server")
    parser.add_argument("--ids", type=_positive, help="with --only seen: how many done tasks; 10 million by default")
    parser.add_argument("--rounds", type=_positive, help="3 by default, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="do less of everything, and leave out what is heavy")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
