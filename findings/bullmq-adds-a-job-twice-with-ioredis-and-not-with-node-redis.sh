#!/usr/bin/env bash
# BullMQ 6.7.0, ioredis 5.11.1, redis 6.3.1 (node-redis), Redis 7.0.15 (Debian's redis-server), Node 20.
#
# queue.add() is called once, the server carries it out, and the connection breaks before its answer arrives. BullMQ
# takes ioredis or node-redis, and one would guess that a change of the client changes no job. But ioredis, when it has
# connected again, sends what was not answered once more (autoResendUnfulfilledCommands, on by default), and the script
# that adds a job takes a new id each time: add() gives job 2 without an error, job 1 is there as well, and both are
# run. node-redis does not repeat: add() is rejected, although the job is there, and runs; whoever then adds it again
# has two as well. With a jobId of one's own, ioredis adds one job.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"type": "module"}' >package.json
npm install --silent --no-audit --no-fund --save-exact bullmq@6.7.0 ioredis@5.11.1 redis@6.3.1
cat >try.js <<'JS'
import assert from 'node:assert';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { Queue, Worker } from 'bullmq';
import { createClient } from 'redis';

const SOCKET = `${process.cwd()}/socket`;
const server = spawn('redis-server', ['--port', '0', '--unixsocket', SOCKET, '--save', '', '--logfile', 'log']);
process.on('exit', () => server.kill('SIGKILL'));
setTimeout(() => process.exit(1), 40_000).unref();

let cut = false; // the next answer of the server is thrown away, and its connection broken
const proxy = net.createServer((client) => {
  const upstream = net.connect(SOCKET);
  client.on('data', (data) => upstream.write(data));
  upstream.on('data', (data) => {
    if (!cut) return client.write(data);
    cut = false;
    client.destroy();
  });
  client.on('close', () => upstream.destroy()).on('error', () => {});
  upstream.on('close', () => client.destroy()).on('error', () => {});
});
await once(proxy.listen(0, '127.0.0.1'), 'listening');
const address = { host: '127.0.0.1', port: proxy.address().port };

async function attempt(name, connection, options) {
  const queue = new Queue('mail', { connection, prefix: name.replaceAll(' ', '-') });
  queue.on('error', () => {});
  await queue.waitUntilReady();
  await queue.getJobCounts(); // all is well so far
  cut = true;
  const adding = queue.add('welcome', { to: 'ada' }, options);
  const answer = await adding.then((job) => `job ${job.id}`, (error) => error.message);
  assert(!cut);
  const run = [];
  const worker = new Worker('mail', async (job) => run.push(job.id), { connection: address, prefix: queue.opts.prefix });
  while (!run.length || (await queue.getJobCountByTypes('waiting', 'active'))) await sleep(50);
  console.log(`${name}: add() gives: ${answer}; run: ${run.map((id) => `job ${id}`).join(', ')}`);
  await worker.close();
  return [answer, ...run];
}

while (!(await new Promise((resolve) => {
  const socket = net.connect(SOCKET, () => resolve(socket.end())).on('error', () => resolve(false));
}))) await sleep(50);
const client = createClient({ socket: address });
client.on('error', () => {});
await client.connect();
assert.deepEqual(await attempt('ioredis', address), ['job 2', '1', '2']);
assert.deepEqual(await attempt('ioredis with a jobId', address, { jobId: 'ada' }), ['job ada', 'ada']);
assert.deepEqual(await attempt('node-redis', client), ['Socket closed unexpectedly', '1']);
server.kill('SIGKILL');
await once(server, 'exit');
process.exit(0);
JS
node try.js
# seen:
#   ioredis: add() gives: job 2; run: job 1, job 2
#   ioredis with a jobId: add() gives: job ada; run: job ada
#   node-redis: add() gives: Socket closed unexpectedly; run: job 1
