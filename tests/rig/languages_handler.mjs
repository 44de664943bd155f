// The handler of workers in Node in tests/rig/languages.py: it does what `handle` does there, and writes the same lines.

import { appendFileSync } from "node:fs";

import { Ack } from "../../demo/node/worker.mjs";

const file = `${process.env.LANGUAGES_LOG}/${process.pid}.jsonl`;

function note(what, { task, fence }) {
  // one write at the end of a file: a line that was written survives the process
  appendFileSync(file, JSON.stringify({ what, task, fence: String(fence), at: String(process.hrtime.bigint()), by: "node" }) + "\n");
}

export default async function handle(lease, { signal }) {
  note("start", lease);
  const [name, ms] = lease.task.split(":");
  await new Promise((done, fail) => {
    const timer = setTimeout(done, Number(ms));
    signal.addEventListener("abort", () => (clearTimeout(timer), note("stopped", lease), fail(signal.reason)), { once: true });
  });
  note("end", lease);
  const number = Number(name.slice(1));
  if (number % 17 === 0 && lease.attempt === 1 && !name.includes("c")) throw new TypeError("the first attempt fails");
  if (number % 11 === 0) return new Ack({ put: [{ task: `t${number}c:5`, payload: { parent: lease.task } }] });
}
