"""Batches: tasks whose ends are counted together, and one more task that becomes ready when all of them have ended.

    queue.batches.put("crawl-7", *urls)
    queue.batches.seal("crawl-7", Task("report-7", {"of": "crawl-7"}))

The scripts that end tasks count for the batches of these tasks, in the same step (`lua/parts/batch.lua`); so each end
counts once, whatever is sent twice, and the callback becomes ready once. The files of this room:

    operations   the calls: one script each
    flows        one for each method: checks the arguments, sends the calls
    lines        batches as lines of an export
    face         what users call
"""

from timeoutq.batches.face import AsyncBatches, Batches
from timeoutq.batches.operations import BatchInfo, BatchPage, Member

__all__ = ["AsyncBatches", "BatchInfo", "BatchPage", "Batches", "Member"]
