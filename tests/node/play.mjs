// Plays transcripts with the client in demo/node: tests/rig/transcripts.py says what a line is. One JSON object a file is
// printed: {"file": …, "said": null, or what was wrong}.
//
//   TIMEOUTQ_URL=… node play.mjs PROTOCOL LIBRARY PREFIX FILE...

import { readFileSync } from "node:fs";
import { basename } from "node:path";

import { Client } from "../../demo/node/client.mjs";
import { Player } from "./player.mjs";

const [protocol, library, prefix, ...files] = process.argv.slice(2);

for (const [at, file] of files.entries()) {
  let said = null;
  try {
    const queue = await Client.open(`${prefix}${at}`, { protocol, library });
    try {
      await new Player(queue).play(readFileSync(file, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line)));
    } finally {
      await queue.close();
    }
  } catch (error) {
    said = `${error.name}: ${error.message}`;
  }
  console.log(JSON.stringify({ file: basename(file), said }));
}
