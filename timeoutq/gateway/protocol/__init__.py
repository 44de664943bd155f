"""The protocol: what travels between any client and the library, in one source, for clients in every language.

The headers of the verbs are the source. `timeoutq protocol` writes them as `protocol.json`; PROTOCOL.md is the same
for people.

The modules, in reading order: each imports only from those above it.

    grammar   The grammar of the headers of verbs: what a header says, parsed into frozen values. Pure.
    judge     Says whether a call, or a reply, is what the grammar of its verb allows. Pure.
    document  Writes the protocol: as JSON, which clients in other languages read at run time, and as Markdown, for
              people.
"""

from timeoutq.gateway.protocol.document import document as document
from timeoutq.gateway.protocol.document import headers as headers
from timeoutq.gateway.protocol.document import markdown as markdown
from timeoutq.gateway.protocol.grammar import BadHeader as BadHeader
from timeoutq.gateway.protocol.grammar import Header as Header
from timeoutq.gateway.protocol.grammar import parse as parse
from timeoutq.gateway.protocol.judge import BadCall as BadCall
from timeoutq.gateway.protocol.judge import BadReply as BadReply
from timeoutq.gateway.protocol.judge import check_call as check_call
from timeoutq.gateway.protocol.judge import check_reply as check_reply
