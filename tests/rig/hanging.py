"""Calls that hang, by the hundred, beside thousands that do not: `python -m tests.rig.hanging --help`.

Each call that hangs, or loops in C, must be ended within a second of its time, and each of the others must run once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.rig.processes import processes
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.functions import App
from timeoutq.server.embedded import EmbeddedServer

MAX_RUNTIME = 2.0
app = App("hanging", url=os.environ.get("TIMEOUTQ_URL"), retry=[], keep_result=0)


def write(what: str) -> None:
    """Add a line in one step."""
    with Path(os.environ["HISTORY"]).open("ab", buffering=0) as history:
        history.write(f"{what} {time.time()}\n".encode())


@app.task(executor="process", max_runtime=MAX_RUNTIME)
def hang(number: int) -> None:
    write(f"hang {number} {os.getpid()}")
    if number % 3 == 0:
        time.sleep(3600)
    elif number % 3 == 1:
        sum(range(10**12))  # holds the lock of the interpreter
    else:
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # does not hold it


@app.task(executor="process")
def process(number: int) -> None:
    write(f"process {number}")


@app.task
def thread(number: int) -> None:
    write(f"thread {number}")


@app.task
async def coroutine(number: int) -> None:
    write(f"coroutine {number}")


OTHERS = (process, thread, coroutine)


def trial(hanging: int, others: int, folder: Path, *words: str) -> str:
    """Run all with a worker of its own; give what went wrong, or else nothing."""
    with EmbeddedServer() as server, processes(server.url, folder) as run:
        os.environ["TIMEOUTQ_URL"] = server.url
        calls = [hang.call(number) for number in range(hanging)]
        rest = [OTHERS[number % 3].call(number) for number in range(others)]
        every = max(1, others // max(1, hanging))
        mixed = [one for at, call in enumerate(calls) for one in (*rest[at * every : (at + 1) * every], call)]
        mixed += rest[hanging * every :]
        for at in range(0, len(mixed), 1000):
            app.put(mixed[at : at + 1000])
        worker = run.start("worker", "--app", "tests.rig.hanging:app", "--burst", *words)
        run.history.touch()
        began, late = dict[str, float](), list[float]()  # when the calls began that still hang, by process
        with run.history.open() as history:

            def look() -> bool:
                for _, _, pid, at in (line.split() for line in history if line.startswith("hang")):
                    began[pid] = float(at)
                for pid in [pid for pid in began if not Path(f"/proc/{pid}").exists()]:
                    late.append(time.time() - began.pop(pid) - MAX_RUNTIME)
                return worker.poll() is not None

            wait_until(look, 900)
        lines = Counter(line.rpartition(" ")[0] for line in run.history.read_text().splitlines())
        ran = Counter(line.split()[0] for line in lines)
        queue = Queue("hanging", server.url)
        failed, twice = queue.stats().failed, [line for line, times in lines.items() if times > 1]
        queue.close()
        app.close()
        late.sort()
        print(
            f"{len(late)} calls that hang were ended {late[len(late) // 2]:.2f} s (p50) to {late[-1]:.2f} s after "
            f"their time; the others: {dict(ran)}, twice {len(twice)}; failed {failed}"
        )
        good = len(late) == failed == hanging and late[-1] < 1.0 and not twice and sum(ran.values()) == hanging + others
        return "" if good else run.log(worker)[-3000:]


def main() -> int:
    """Run the trial; 0 is good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hanging", type=int, default=200)
    parser.add_argument("--others", type=int, default=20_000)
    parser.add_argument("words", nargs="*", help="options of the worker, behind --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = trial(given.hanging, given.others, Path(folder), *given.words)
    if wrong:
        print(wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
