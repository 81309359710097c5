// A cluster for the tests: `mortise up` with simulated nodes, its kubectl, and its console's links.
import { spawn, execFile } from 'node:child_process'
import { createServer } from 'node:net'
import { mkdtemp, rm } from 'node:fs/promises'
import { existsSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { once } from 'node:events'

const program = process.env.CONSOLE_MORTISE

export const freePort = async () => {
  const s = createServer().listen(0, '127.0.0.1')
  await once(s, 'listening')
  const { port } = s.address()
  s.close()
  await once(s, 'close')
  return port
}

const run = (args, input) =>
  new Promise((resolve, reject) => {
    const c = execFile(program, args, { maxBuffer: 1 << 26 }, (err, out, wrong) => (err ? reject(new Error(`${args.join(' ')}: ${wrong}`)) : resolve(out)))
    if (input !== undefined) c.stdin.end(input)
  })

export class Cluster {
  /** A cluster with simulated nodes, and further arguments of `mortise up`. */
  constructor({ nodes = 2, args } = {}) {
    this.nodes = nodes
    this.args = args ?? ['--node', 'simulated', '--nodes', String(nodes)]
  }

  async start() {
    this.dir ??= await mkdtemp(join(process.env.CONSOLE_DIR ?? tmpdir(), 'cluster-'))
    this.port ??= await freePort()
    this.kubeconfig = join(this.dir, 'kubeconfig')
    const args = ['up', '--data-dir', join(this.dir, 'data'), '--listen', `127.0.0.1:${this.port}`, '--kubeconfig', this.kubeconfig, ...this.args,
      ...(process.env.CONSOLE_UP_ARGS?.split(' ') ?? [])]
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    this.process = child
    let said = ''
    await new Promise((resolve, reject) => {
      const read = (b) => {
        said += b
        if (said.includes('ready in')) resolve()
      }
      child.stdout.on('data', read)
      child.stderr.on('data', read)
      child.on('exit', (code) => reject(new Error(`mortise up ended with ${code}: ${said}`)))
    })
    this.base = `https://127.0.0.1:${this.port}/console/`
  }

  /** stop ends the server; remove: for good. */
  async stop(remove = false) {
    if (this.process && this.process.exitCode === null) {
      this.process.removeAllListeners('exit')
      this.process.kill('SIGTERM')
      await once(this.process, 'exit')
    }
    if (remove && existsSync(this.dir)) await rm(this.dir, { recursive: true, force: true })
  }

  kubectl(...args) {
    return run(['kubectl', '--kubeconfig', this.kubeconfig, ...args])
  }

  apply(...objects) {
    const list = { apiVersion: 'v1', kind: 'List', items: objects }
    return run(['kubectl', '--kubeconfig', this.kubeconfig, 'apply', '--server-side', '--force-conflicts', '-f', '-'], JSON.stringify(list))
  }

  /** link is an address that signs in, once. */
  async link() {
    return (await run(['console', '--kubeconfig', this.kubeconfig])).trim()
  }

  async token(namespace, account) {
    return (await this.kubectl('create', 'token', account, '-n', namespace)).trim()
  }
}
