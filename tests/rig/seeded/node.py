"""Bugs seeded into the protocol, and into what both languages make of it."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

HEADERS = in_test("test_protocol", "each_call_that_python_builds")
BROKEN = in_test("test_protocol", "broken_call")
BYTES = in_test("test_wire_bytes", "1200 and valkey")
PLAYED = in_test("test_transcripts", "node_plays_each_transcript and valkey-redis")
AGAIN = in_test("test_transcripts", "sends_a_call_again and valkey and verbs0")
WORKED = in_test("test_node_worker", "what_a_handler_returns and valkey")

MUTANTS: list[Mutant] = [
    Mutant(
        "the header of a verb names its arguments in another order",
        "lua/verbs/claim.lua",
        "3 how many, number   4 timeout, ms",
        "3 timeout, ms   4 how many, number",
        [BYTES],
    ),
    Mutant(
        "the header of a verb lacks a section",
        "lua/verbs/put.lua",
        "   batch=1 the batch that the tasks join\n",
        "\n",
        [HEADERS],
    ),
    Mutant(
        "the header of a verb has another kind for a section",
        "lua/verbs/release.lua",
        "block=ms for which",
        "block=1 for which",
        [in_test("test_scripts", "sections_are_those")],
    ),
    Mutant(
        "the header of a reply lacks a letter",
        "lua/verbs/extend.lua",
        "X has reached its\n--       max_runtime; ",
        "",
        [PLAYED],
    ),
    Mutant(
        "a pull may be sent again",
        "lua/verbs/pull.lua",
        "-- ONCE  a second run would take other tasks; those of the lost reply are gone\n",
        "",
        [HEADERS],
    ),
    Mutant(
        "Python's builder writes a position that begins at 0",
        "server/calls.py",
        "        words += (at + 1, word)\n",
        "        words += (at, word)\n",
        [HEADERS],
    ),
    Mutant(
        "Python's digest of leases is another one",
        "server/calls.py",
        'told = b"\\0".join(',
        'told = b" ".join(',
        [HEADERS],
    ),
    Mutant(
        "the judge of calls takes any position",
        "../tests/node/judge.py",
        "or not 1 <= int(word) <= most",
        "",
        [BROKEN],
    ),
    Mutant(
        "the judge of calls takes a section twice",
        "../tests/node/judge.py",
        "if name not in known or name in found:",
        "if name not in known:",
        [BROKEN],
    ),
    Mutant(
        "the client in Node cuts runs of leases without looking at their tokens",
        "../demo/node/protocol.mjs",
        "if (at < ids.length && tokens[at].equals(tokens[from])) continue;",
        "if (at < ids.length) continue;",
        [BYTES],
    ),
    Mutant(
        "the client in Node says that a call is sent for the first time when it is sent again",
        "../demo/node/client.mjs",
        'if (mayHaveRun) words[places["age of the call"]]',
        'if (false) words[places["age of the call"]]',
        [AGAIN],
    ),
    Mutant(
        "the client in Node sends a pull again",
        "../demo/node/client.mjs",
        "if (mayHaveRun && !replayable) throw",
        "if (false) throw",
        [in_test("test_transcripts", "does_not_send_a_pull_again and valkey")],
    ),
    Mutant(
        "the client in Node does not load the library",
        "../demo/node/client.mjs",
        'await this.#link.send(["FUNCTION", "LOAD", text], attempt)',
        "await Promise.resolve()",
        [in_test("test_transcripts", "loads_the_library and valkey")],
    ),
    Mutant(
        "the worker in Node acks what its handler gave up",
        "../demo/node/worker.mjs",
        "if (given instanceof Error) return this.#end(id, entry,",
        "if (given instanceof TypeError) return this.#end(id, entry,",
        [WORKED],
    ),
    Mutant(
        "the worker in Node forgets what an ack puts",
        "../demo/node/worker.mjs",
        "given instanceof Ack ? given.options : {}",
        "{}",
        [WORKED],
    ),
]
