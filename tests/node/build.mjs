// Builds the calls of the steps that come on stdin, one JSON object a line, and sends nothing: for each step a line with the
// words of its calls in base64, or what was wrong. tests/rig/generated.py makes the steps.
//
//   node build.mjs PROTOCOL QUEUE

import { createInterface } from "node:readline";

import { Client } from "../../demo/node/client.mjs";
import { Player, raw } from "./player.mjs";

const [protocol, name] = process.argv.slice(2);
const queue = new Client(name, { protocol, url: "redis://127.0.0.1:1" });
const base64 = (word) => (Buffer.isBuffer(word) ? word : Buffer.from(word)).toString("base64");

let built = [];
queue.call = async (verb, values, sections) => {
  built.push(queue.words(verb, values, sections).words.map(base64));
  return { letters: "" };
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, args, leases = [], nonce } = JSON.parse(line);
  built = [];
  queue.token = () => nonce;
  const player = new Player(queue);
  player.kept.x = leases.map(([id, token]) => {
    const task = raw(id);
    return { task, id: Buffer.from(task), token };
  });
  let said = null;
  try {
    await player[call](args);
  } catch (error) {
    if (!built.length) said = `${error.name}: ${error.message}`; // what it makes of the answer does not matter
  }
  console.log(JSON.stringify({ built, said }));
}
