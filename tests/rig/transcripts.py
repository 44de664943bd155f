"""Transcripts: calls with what they are to answer, a JSON object a line, in `tests/transcripts/`; and their player."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tests.rig.waiting import wait_until
from timeoutq import Lease, Queue, Task
from timeoutq.server.calls import Call, Kept
from timeoutq.verbs import sending
from timeoutq.words.arguments import How, delay_ms
from timeoutq.words.arguments import tasks as task_list
from timeoutq.words.model import Outcome, TaskId
from timeoutq.words.tracebacks import digest

FOLDER = Path(__file__).parent.parent / "transcripts"
FILES = sorted(FOLDER.glob("*.jsonl"))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def fits(expected: Any, found: Any) -> bool:
    """Say whether an answer is the expected one."""
    if expected == "*":
        return True
    if isinstance(expected, dict):
        wanted = cast("dict[str, Any]", expected)
        return isinstance(found, dict) and all(name in found and fits(one, found[name]) for name, one in wanted.items())
    if isinstance(expected, list):
        row = cast("Any", expected)
        return isinstance(found, list) and len(row) == len(found) and all(map(fits, row, found))
    return bool(expected == found)


def raw(value: Any) -> Any:
    """Give what JSON says of bytes as these bytes, also within a task."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return base64.b64decode(fields["b64"]) if "b64" in fields else {name: raw(one) for name, one in fields.items()}
    return value


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, str):
        return shown(value.encode("utf-8", "surrogateescape")) if not value.isprintable() else value
    return value


class Player:
    """Plays transcripts on a queue, with Python's table of operations."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.ops = queue.operations
        self.kept: dict[str, list[Lease]] = {}
        self.age = 0

    def play(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Make each call; raises `AssertionError` at the first one that is not answered as expected."""
        for number, step in enumerate(steps, 1):
            self.age = step.get("age", 0)
            args, expected = step.get("args", {}), step.get("expect", "*")
            act = cast("Callable[..., Any]", getattr(self, step["call"]))
            seen: list[Any] = []

            def once(act: Callable[..., Any] = act, args: Any = args, wanted: Any = expected, seen: Any = seen) -> bool:
                seen[:] = [act(**args)]
                return fits(wanted, seen[0])

            if step.get("until"):
                wait_until(once)
            else:
                assert once(), f"line {number}, {step['call']}: expected {expected}, got {seen[0]}"

    def _once(self, call: Call[Any]) -> Any:
        return self.queue.run(sending.answer(self.queue.talk, replace(call, sent_ms=self.age)))

    def _letters(self, calls: Sequence[Call[Outcome]]) -> str:
        return "".join(self._once(call).codes.decode() for call in calls)

    def _leases(self, of: str, tasks: Sequence[Any] | None = None) -> list[Lease]:
        held = self.kept[of]
        if tasks is None:
            return held
        return [next(lease for lease in held if shown(lease.task) == task) for task in tasks]

    def _tasks(self, given: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(Task(**raw(one)) if isinstance(one, dict) and "b64" not in one else raw(one) for one in given)

    # ---- tasks in

    def put(self, tasks: Sequence[Any], nonce: str | None = None, **how: Any) -> str:
        make = self.queue.token if nonce is None else lambda: nonce.encode()
        return self._letters(self.ops.put(self._tasks(tasks), make, How(**how)))

    def schedule(self, tasks: Sequence[Any], at: Any = None, after: Any = None, **how: Any) -> str:
        return self._letters(
            self.ops.schedule(self._tasks(tasks), self.queue.token, at=at, after=after, how=How(**how))
        )

    # ---- leases

    def claim(self, n: int, timeout: float = 30, max_runtime: float = 0, **kept: str) -> list[Any]:
        token = self.queue.token() if not self.age else self.kept[kept["as"]][0].token.encode()
        call = self.ops.claim(token, n, round(timeout * 1000), round(max_runtime * 1000))
        found = sorted(self._once(call).leases, key=lambda lease: lease.task.encode("utf-8", "surrogateescape"))
        if "as" in kept:
            self.kept[kept["as"]] = found
        return [
            {"task": shown(one.task), "attempt": one.attempt, "crashes": one.crashes, "payload": shown(one.payload)}
            for one in found
        ]

    def extend(self, leases: Mapping[str, Any], timeout: float) -> str:
        (call,) = self.ops.extend(self._leases(**leases), round(timeout * 1000))
        return str(self._once(call)[1].codes, "ascii")

    def ack(
        self,
        leases: Mapping[str, Any],
        again_in: float | None = None,
        payload: Any = None,
        put: Sequence[Any] = (),
        result: Any = None,
        keep_result: float = 3600,
        bare: bool = False,
    ) -> str:
        held = self._leases(**leases)
        again_ms = -1 if again_in is None else delay_ms(again_in, "delay")
        kept = None if result is None else Kept(raw(result), delay_ms(keep_result, "delay"))
        if put or payload is not None or kept:
            body = None if payload is None else json.dumps(payload, separators=(",", ":")).encode()
            call = self.ops.ack_put(held[0], task_list(self._tasks(put)), again_ms, body, kept, bare=bare)
            return self._letters([call])
        return self._letters(self.ops.ack(held, again_ms, bare=range(len(held)) if bare else ()))

    def release(self, leases: Mapping[str, Any], delay: float = 0, most: int = 0) -> str:
        return self._letters(self.ops.release(self._leases(**leases), delay_ms(delay, "delay"), 0, most))

    def fail(self, leases: Mapping[str, Any], ends: Sequence[Mapping[str, Any]]) -> str:
        held = self._leases(**leases)
        retries = [-1 if end.get("retry_in") is None else delay_ms(end["retry_in"], "delay") for end in ends]
        traces = [end.get("trace", "").encode() for end in ends]
        assert all(digest(trace) for trace in traces)
        return self._letters(self.ops.fail(held, retries, [end["error"].encode() for end in ends], traces))

    def crash(self, leases: Mapping[str, Any], reason: str) -> str:
        return self._letters(self.ops.crash(self._leases(**leases), reason))

    def note(self, leases: Mapping[str, Any], done: str, of: str, text: str) -> str:
        return str(self._once(self.ops.note(self._leases(**leases)[0], done, of, text.encode())).codes, "ascii")

    # ---- by id, and looking

    def _ids(self, ids: Sequence[Any]) -> tuple[TaskId, ...]:
        return tuple(map(raw, ids))

    def forget(self, ids: Sequence[Any]) -> str:
        return self._letters(self.ops.forget(self._ids(ids), self.queue.token))

    def retry_failed(self, ids: Sequence[Any]) -> str:
        return self._letters(self.ops.retry_failed(self._ids(ids), self.queue.token))

    def retry_any(self) -> int:
        return cast("int", self._once(self.ops.retry_any(self.queue.token)))

    def cancel(self, ids: Sequence[Any], by: str) -> str:
        return self._letters(self.ops.cancel(self._ids(ids), by.encode(), self.queue.token))

    def states(self, ids: Sequence[Any]) -> str:
        return self._letters(self.ops.states(self._ids(ids)))

    def pull(self, n: int) -> list[Any]:
        found = self._once(self.ops.pull(n, self.queue.token))
        rows = [{"task": shown(task.task), "payload": shown(task.payload)} for task in found]
        return sorted(rows, key=lambda row: str(row["task"]))

    def inspect(self, id: Any) -> dict[str, Any]:
        info = self._once(self.ops.inspect(raw(id)))
        return {
            "task": shown(info.task), "state": info.state and str(info.state), "failures": info.failures,
            "crashes": info.crashes, "error": info.error, "payload": shown(info.payload), "priority": info.priority,
            "host": info.host, "cancelled_by": info.cancelled_by, "is_due": info.due is not None,
        }  # fmt: skip

    def stats(self) -> dict[str, Any]:
        found = self._once(self.ops.stats())
        names = ("todos", "scheduled", "in_progress", "done", "failed", "workers", "waiting", "hosts")
        return {name: getattr(found, name) for name in names} | {"counters": dict(found.counters)}

    def drained(self) -> bool:
        return cast("bool", self._once(self.ops.drained())[0])

    def why(self, id: Any) -> dict[str, Any]:
        found = self._once(self.ops.why(raw(id)))
        return {"paused": found.paused, "todos": found.todos, "workers": found.workers, "stranded": found.stranded}

    def failures(self) -> list[dict[str, Any]]:
        return [{"text": one.text, "count": one.count} for one in self.queue.failures.list()]

    def retry_kind(self, text: str) -> int:
        return self.queue.failures.retry(text).moved

    def forget_kind(self, text: str) -> int:
        return self.queue.failures.forget(text).moved

    # ---- settings and the cleaner's

    def configure(self, settings: Mapping[str, str]) -> int:
        return cast("int", self._once(self.ops.configure({name: value.encode() for name, value in settings.items()})))

    def convert(self) -> str:
        return str(self._once(self.ops.convert()), "ascii")

    def host(self, host: str, rules: Sequence[Sequence[Any]] = ()) -> Any:
        from timeoutq.rooms import hosts as of_hosts

        found = self._once(of_hosts.call_host(self.ops, host, [(name, value) for name, value in rules]))
        if found is None:
            return None
        return {"host": found.host, "waiting": found.waiting, "per_host": found.per_host, "banned": found.banned}

    def requeue_expired(self) -> dict[str, Any]:
        found = self._once(self.ops.requeue_expired())
        return {"taken back": found.moved - found.failed, "gone to failed": found.failed, "more": found.more}

    def promote_due(self) -> dict[str, Any]:
        found = self._once(self.ops.promote_due())
        return {"promoted": found.moved, "more": found.more}

    def prune(self) -> dict[str, Any]:
        found = self._once(self.ops.prune())
        return {"pruned": found.pruned, "more": found.more}

    def plan(self, longest: float) -> dict[str, Any]:
        found = self._once(self.ops.plan(delay_ms(longest, "delay")))
        return {"is_later": found.at_ms > found.now_ms}

    def beat(self, worker: str, about: Mapping[str, Any] | None) -> int:
        return cast("int", self._once(self.ops.beat(worker, about)))
