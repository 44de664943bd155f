"""Batches: tasks whose ends are counted together, and one more task that becomes ready when all of them have ended.

    queue.batches.put("crawl-7", *urls)
    queue.batches.seal("crawl-7", Task("report-7", {"of": "crawl-7"}))

The scripts that end tasks count for the batches of these tasks, in the same step (`lua/parts/batch.lua`); so each end
counts once, whatever is sent twice, and the callback becomes ready once.

The modules, in reading order: each imports only from those above it.

    operations  The operations on batches: which script, which arguments, how to read the reply; and what users learn of
                a batch.
    flows       `queue.batches`: what it does, and its two faces, `Batches` and `AsyncBatches`. No I/O.
    lines       Batches as lines of an export: one line for each task of a batch, and a last line with what it was
                sealed with.
"""

from timeoutq.rooms.batches.flows import AsyncBatches, Batches
from timeoutq.rooms.batches.operations import BatchInfo, BatchPage, Member

__all__ = ["AsyncBatches", "BatchInfo", "BatchPage", "Batches", "Member"]
