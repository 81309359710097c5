// A terminal in a container: exec over a WebSocket.
import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { raw, type Any, type Failure, type Obj, type Status } from '../api'
import { cluster, socket } from '../base'
import { find, pathOf } from '../discovery'
import type { Term } from '../lazy/term'

const shells = ['bash', 'sh']
// Tries bash, and has sh where there is none.
const either = ['sh', '-c', 'command -v bash >/dev/null 2>&1 && exec bash || exec sh']

export const Shell = ({ o }: { o: Obj }): JSX.Element => {
  const names: string[] = (o.spec.containers ?? []).map((c: Any) => c.name)
  const [container, pick] = useState(names[0] ?? '')
  const [command, type] = useState('')
  const [said, say] = useState('')
  const [turn, again] = useState(0)
  const [open, setOpen] = useState(false)
  const host = useRef<HTMLDivElement>(null)
  useEffect(() => {
    if (!turn) return
    let closed = false,
      term: Term | undefined
    const argv = command.trim() ? command.trim().split(/\s+/) : either
    const q = new URLSearchParams({ container, stdin: 'true', stdout: 'true', tty: 'true' })
    for (const a of argv) q.append('command', a)
    const path = pathOf(find('', 'pods')!, o.metadata.namespace, o.metadata.name)
    const ws = new WebSocket(socket(cluster(path + '/exec?' + q)), 'v5.channel.k8s.io')
    ws.binaryType = 'arraybuffer'
    const send = (channel: number, data: Uint8Array): void => {
      if (ws.readyState !== WebSocket.OPEN) return
      const m = new Uint8Array(data.length + 1)
      m[0] = channel
      m.set(data, 1)
      ws.send(m)
    }
    const bytes = (s: string): Uint8Array => new TextEncoder().encode(s)
    say('Connecting…')
    setOpen(true)
    const early: Uint8Array[] = []
    void import('../lazy/term').then((m) => {
      if (closed || !host.current) return
      term = m.open(host.current, { data: (s) => send(0, bytes(s)), size: (s) => send(4, bytes(JSON.stringify(s))) })
      for (const e of early) term.write(e)
      send(4, bytes(JSON.stringify(term.size())))
      term.focus()
    })
    let ended = ''
    ws.onopen = () => {
      say('Connected')
      if (term) send(4, bytes(JSON.stringify(term.size())))
    }
    ws.onmessage = (e) => {
      const m = new Uint8Array(e.data as ArrayBuffer)
      const data = m.subarray(1)
      if (m[0] === 1 || m[0] === 2) {
        if (term) term.write(data)
        else early.push(data.slice())
      } else if (m[0] === 3) {
        const s = JSON.parse(new TextDecoder().decode(data)) as Status & { status?: string }
        ended = s.status === 'Success' ? 'The command ended.' : (s.message ?? 'The command failed.')
      }
    }
    ws.onclose = (e) => {
      if (closed) return
      setOpen(false)
      if (ended || e.code !== 1006) return say(ended || e.reason || 'The connection ended.')
      // A browser does not tell why a WebSocket was refused: the same request without one does.
      say('Refused.')
      raw(path + '/exec?' + q).catch((f: Failure) => {
        if (!closed) say(f.code === 400 ? 'Refused: the pod has no such container, or it does not run.' : f.message)
      })
    }
    return () => {
      closed = true
      ws.close()
      term?.close()
    }
  }, [turn])
  return (
    <div class="page full">
      <form
        class="tools"
        onSubmit={(e) => {
          e.preventDefault()
          again(turn + 1)
        }}>
        <select aria-label="Container" value={container} onChange={(e) => pick(e.currentTarget.value)}>
          {names.map((n) => (
            <option>{n}</option>
          ))}
        </select>
        <input
          aria-label="Command"
          placeholder={'Command; else ' + shells.join(' or ')}
          value={command}
          onInput={(e) => type(e.currentTarget.value)}
          autocomplete="off"
        />
        <button class="primary">{open ? 'Start anew' : 'Open'}</button>
        <span class="hint" role="status">
          {said}
        </span>
      </form>
      <div />
      {turn > 0 ? (
        <div class="terminal" ref={host} />
      ) : (
        <p class="empty">
          Opens a shell in the container, as <code>kubectl exec -it</code> does. The server asks whether you may.
        </p>
      )}
    </div>
  )
}
