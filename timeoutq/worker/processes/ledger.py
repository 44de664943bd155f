"""The leases of a worker process, its running handlers, and its end: memory that outlives the process."""

from __future__ import annotations

import logging
import mmap
import struct
from collections.abc import Callable, Iterable
from copy import copy
from typing import NamedTuple, Self

from timeoutq.verbs.division import Division
from timeoutq.words import telling, tracebacks
from timeoutq.words.model import Lease, raw, text
from timeoutq.worker import lifespan
from timeoutq.worker.decisions import MOST_AHEAD
from timeoutq.worker.health import Sheet
from timeoutq.worker.processes.roster import Told

log = logging.getLogger(__name__)

FREE, HELD, STARTED, ENDED, ASKED = 0, 1, 2, 3, 4
TOKEN_BYTES, TASK_BYTES, WORDS_BYTES = 96, 1024, 4096
_HEAD = struct.Struct(f"=BBHHH{TOKEN_BYTES}s")
_SLOT_BYTES = _HEAD.size + TASK_BYTES
_USED = struct.Struct("=I")
_TOLD_AT = _USED.size
_WORDS_AT = _TOLD_AT + 1
_TRACE_AT = _WORDS_AT + WORDS_BYTES
_WORKER_AT = _TRACE_AT + tracebacks.MOST
_SHEET_AT = _WORKER_AT + TOKEN_BYTES
_SLOTS_AT = _SHEET_AT + Sheet.SIZE


def slots_for(concurrency: int, prefetch: int | None) -> int:
    """Give how many leases a worker may hold: at work, ended and not sent yet, and in two exchanges."""
    return 4 * (concurrency + (MOST_AHEAD if prefetch is None else prefetch))


class Asked(NamedTuple):
    """A claim whose reply the process had not read."""

    shard: int
    token: bytes
    timeout_ms: int
    max_runtime_ms: int


class Left(NamedTuple):
    """The leases that a process had when it ended, and claims that may have brought it more."""

    started: list[Lease]  # their handlers were running
    ended: list[Lease]  # their handlers had ended, and the queue's answer was not there
    held: list[Lease]  # their handlers had not begun
    asked: list[Asked]


class SharedLedger:
    """The leases of one worker process; `pages` has a ledger for each queue of the worker, and all share the slots."""

    def __init__(self, slots: int, *keys_of: Callable[[Lease], int]) -> None:
        """Make room for as many leases; `keys_of` give their keys, as the division of each queue does."""
        self._slots = slots
        self._memory = mmap.mmap(-1, _SLOTS_AT + slots * _SLOT_BYTES)
        self.sheet = Sheet(self._memory, _SHEET_AT)  # where the worker writes its signs of health
        self._used = [0]
        self._free: list[int] = []
        self._was_full = False
        self._open(0, *keys_of[:1])
        # the memory, and which slots are free, are the same
        self.pages = [self, *(copy(self)._open(number, key_of) for number, key_of in enumerate(keys_of[1:], 1))]

    def _open(self, number: int, key_of: Callable[[Lease], int] = Division.key_of) -> Self:
        self._number, self._key_of = number, key_of
        self._places: dict[int | bytes, int] = {}  # where leases stand, by their keys, and claims, by their tokens
        return self

    def ask(self, token: bytes, shard: int, lengths_ms: tuple[int, int]) -> None:
        """Enter a claim that is sent now: `timeout` and `max_runtime` of its leases are these."""
        if (at := self._free.pop() if self._free else self._new()) is not None:
            self._places[token] = at
            words = "{} {}".format(*lengths_ms).encode()
            _HEAD.pack_into(self._memory, at, FREE, self._number, len(token), len(words), shard, token)
            self._memory[at + _HEAD.size : at + _HEAD.size + len(words)] = words
            self._memory[at] = ASKED

    def answered(self, token: bytes) -> None:
        """Strike out a claim: the ledger has its leases, or they were given back, or there are none."""
        self._strike(token)

    def hold(self, leases: Iterable[Lease]) -> None:
        """Enter leases that were claimed."""
        memory, last, token = self._memory, "", b""
        for lease in leases:
            at = self._free.pop() if self._free else self._new()
            if at is None:
                return
            self._places[self._key_of(lease)] = at
            task = raw(lease.task)[:TASK_BYTES]
            if lease.token != last:  # most leases come with others of the same claim
                last, token = lease.token, lease.token.encode()[:TOKEN_BYTES]
            # the state byte is written last: if the process dies during the write, the parent finds the slot free
            crashes = min(lease.crashes, 0xFFFF)
            _HEAD.pack_into(memory, at, FREE, self._number, len(token), len(task), crashes, token)
            memory[at + _HEAD.size : at + _HEAD.size + len(task)] = task
            memory[at] = HELD

    def _new(self) -> int | None:
        if self._used[0] < self._slots:
            self._used[0] += 1
            _USED.pack_into(self._memory, 0, self._used[0])
            return _SLOTS_AT + (self._used[0] - 1) * _SLOT_BYTES
        if not self._was_full:
            self._was_full = True
            telling.say(
                log, logging.ERROR, "more than %d leases are held: if this process dies now, its supervisor cannot "
                "give all of them back, and the others run out by themselves", self._slots,
            )  # fmt: skip
        return None

    def start(self, lease: Lease) -> None:
        """Note that the handler of a lease runs now."""
        if (at := self._places.get(self._key_of(lease))) is not None:
            self._memory[at] = STARTED

    def wait(self, lease: Lease) -> None:
        """Note that a handler that was started waits for its turn: if the process dies now, it is not to blame."""
        if (at := self._places.get(self._key_of(lease))) is not None:
            self._memory[at] = HELD

    def finish(self, lease: Lease) -> None:
        """Note that the handler of a lease has ended; the ack may still be on the way."""
        if (at := self._places.get(self._key_of(lease))) is not None:
            self._memory[at] = ENDED

    def end(self, leases: Iterable[Lease]) -> None:
        """Strike out leases that are ended or lost."""
        for lease in leases:
            self._strike(self._key_of(lease))

    def _strike(self, key: int | bytes) -> None:
        if (at := self._places.pop(key, None)) is not None:
            self._memory[at] = FREE
            self._free.append(at)

    def sign(self, worker: str) -> None:
        """Note the name under which the worker of this process gives signs of life."""
        self._write(worker.encode()[:TOKEN_BYTES], _WORKER_AT)

    @property
    def worker(self) -> str:
        """The name of the process's worker; empty if the process ended before it had one."""
        return self._memory[_WORKER_AT:_SHEET_AT].rstrip(b"\0").decode()

    def tell(self, told: Told, words: str = "") -> None:
        """Note that the process ends on purpose, and its last words."""
        self._write(words.encode("utf-8", "replace")[:WORDS_BYTES], _WORDS_AT)
        self._memory[_TOLD_AT] = told

    def confess(self, error: BaseException) -> None:
        """Note the error that ends the process, with its traceback."""
        self._write(lifespan.told(error).encode("utf-8", "replace")[:WORDS_BYTES], _WORDS_AT)
        self._write(tracebacks.trace(error)[-tracebacks.MOST :], _TRACE_AT)

    @property
    def trace(self) -> bytes:
        """The traceback of the error that ended the process, as `tracebacks.trace` gives it, or empty."""
        return self._memory[_TRACE_AT:_WORKER_AT].rstrip(b"\0")

    def _write(self, text: bytes, at: int) -> None:
        self._memory[at : at + len(text)] = text

    def told(self) -> tuple[Told, str]:
        """Read whether the process ended on purpose, and its last words."""
        words = self._memory[_WORDS_AT:_TRACE_AT].rstrip(b"\0")
        return Told(self._memory[_TOLD_AT]), words.decode("utf-8", "replace")

    def read(self, number: int = 0) -> Left:
        """Give the leases of a queue that the process has."""
        left = Left([], [], [], [])
        row = {STARTED: left.started, ENDED: left.ended, HELD: left.held}
        (used,) = _USED.unpack_from(self._memory, 0)
        for at in range(_SLOTS_AT, _SLOTS_AT + used * _SLOT_BYTES, _SLOT_BYTES):
            if self._memory[at] == FREE:
                continue
            state, its, token_length, task_length, crashes, token = _HEAD.unpack_from(self._memory, at)
            if its != number:
                continue
            task = self._memory[at + _HEAD.size : at + _HEAD.size + task_length]
            if state == ASKED:
                left.asked.append(Asked(crashes, token[:token_length], *map(int, task.split())))
                continue
            words = text(task), token[:token_length].decode()
            row[state].append(Lease(*words, deadline=0.0, crashes=crashes))
        return left

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
