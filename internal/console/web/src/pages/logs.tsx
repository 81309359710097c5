// Logs of a pod or of all pods of a workload: the newest lines, and what comes.
import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { Failure, list, raw, withQuery, type Any, type Obj } from '../api'
import { find, pathOf, type Kind } from '../discovery'
import { route, setQuery } from '../router'
import { count } from '../text'
import { Wrong } from '../ui/parts'
import { selectorOf } from './summary'

interface Line {
  from: string
  odd: boolean
  text: string
  at: string
}

const most = 20000 // lines that are kept
const shown = 4000 // lines that are drawn

/** streams reads the logs of containers into one list, and tells at the next frame. */
class Streams {
  lines: Line[] = []
  dropped = 0
  failures = new Map<string, Failure>()
  private abort = new AbortController()
  private frame = 0
  private open = 0

  constructor(private readonly tell: () => void) {}

  close(): void {
    this.abort.abort()
    cancelAnimationFrame(this.frame)
  }

  get busy(): boolean {
    return this.open > 0
  }

  async read(pod: Obj, container: string, q: Record<string, string | undefined>, odd: boolean, named: boolean): Promise<void> {
    const k = find('', 'pods')
    if (!k) return
    const path = pathOf(k, pod.metadata.namespace, pod.metadata.name) + '/log'
    const from = named ? pod.metadata.name + (container ? '/' + container : '') : container
    this.open++
    try {
      const r = await raw(withQuery(path, { ...q, container }), { accept: '*/*', signal: this.abort.signal })
      const reader = r.body!.pipeThrough(new TextDecoderStream()).getReader()
      let rest = ''
      for (;;) {
        const { done, value } = await reader.read()
        if (done) break
        const parts = (rest + value).split('\n')
        rest = parts.pop()!.slice(-65536)
        for (const p of parts) this.add(p, from, odd)
        this.changed()
      }
      if (rest) this.add(rest, from, odd)
    } catch (e) {
      if (this.abort.signal.aborted) return
      this.failures.set(from, e instanceof Failure ? e : new Failure(0, { message: 'The stream of the log broke off.' }, path, ''))
    }
    this.open--
    this.changed()
  }

  private add(line: string, from: string, odd: boolean): void {
    const m = /^(\d{4}-\d\d-\d\dT\S+) (.*)$/s.exec(line)
    this.lines.push({ from, odd, at: m ? m[1]! : '', text: m ? m[2]! : line })
    if (this.lines.length > most) {
      this.dropped += this.lines.length - most
      this.lines.splice(0, this.lines.length - most)
    }
  }

  private changed(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0
      this.tell()
    })
  }
}

const podsOf = async (k: Kind, o: Obj): Promise<Obj[]> => {
  if (k.resource === 'pods') return [o]
  const pods = find('', 'pods')
  const s = selectorOf(o.spec.selector)
  return pods && s ? list(withQuery(pathOf(pods, o.metadata.namespace), { labelSelector: s }), 500) : []
}

const containersOf = (o: Obj): string[] =>
  [...(o.spec.initContainers ?? []), ...(o.spec.containers ?? []), ...(o.spec.ephemeralContainers ?? [])].map((c: Any) => c.name)

const maxPods = 20

export const Logs = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  const q = route.value.query
  const [pods, setPods] = useState<Obj[]>([])
  const [failure, fail] = useState<Failure>()
  const [, draw] = useState(0)
  const [grep, search] = useState('')
  const [follow, setFollow] = useState(true)
  const streams = useRef<Streams | undefined>(undefined)
  const box = useRef<HTMLDivElement>(null)
  const stick = useRef(true)
  const previous = q.get('previous') === '1',
    wrap = q.get('wrap') !== '0',
    times = q.get('times') === '1'
  const single = k.resource === 'pods'
  const names = single ? containersOf(o) : [...new Set(pods.flatMap(containersOf))]
  const chosen = q.get('container') ?? (single ? (o.spec.containers?.[0]?.name ?? '') : '')
  useEffect(() => {
    podsOf(k, o).then(setPods, (e: Failure) => fail(e))
  }, [o.metadata.uid])
  const key = pods.map((p) => p.metadata.uid).join() + chosen + previous + follow
  useEffect(() => {
    const s = new Streams(() => draw((n) => n + 1))
    streams.current = s
    let n = 0
    for (const p of pods.slice(0, maxPods)) {
      for (const c of chosen ? [chosen] : containersOf(p)) {
        if (!containersOf(p).includes(c)) continue
        void s.read(
          p,
          c,
          {
            follow: follow && !previous ? 'true' : undefined,
            previous: previous ? 'true' : undefined,
            timestamps: 'true',
            tailLines: String(single ? 2000 : 200),
          },
          n++ % 2 === 1,
          !single,
        )
      }
    }
    return () => s.close()
  }, [key])
  useEffect(() => {
    const el = box.current
    if (el && stick.current) el.scrollTop = el.scrollHeight
  })
  const s = streams.current
  const g = grep.toLowerCase()
  let lines = s?.lines ?? []
  if (!single) lines = [...lines].sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0))
  if (g) lines = lines.filter((l) => l.text.toLowerCase().includes(g))
  const total = lines.length
  lines = lines.slice(-shown)
  const save = (): void => {
    const a = document.createElement('a')
    a.href = URL.createObjectURL(
      new Blob([(s?.lines ?? []).map((l) => `${l.at} ${l.from} ${l.text}\n`).join('')], { type: 'text/plain' }),
    )
    a.download = o.metadata.name + '.log'
    a.click()
    URL.revokeObjectURL(a.href)
  }
  return (
    <div class="page full">
      <div class="tools">
        <select aria-label="Container" value={chosen} onChange={(e) => setQuery({ container: e.currentTarget.value })}>
          {<option value="">all containers</option>}
          {names.map((n) => (
            <option value={n}>{n}</option>
          ))}
        </select>
        <input
          type="search"
          data-filter
          aria-label="Search in the log"
          placeholder="Search in the log"
          value={grep}
          onInput={(e) => search(e.currentTarget.value)}
        />
        <label class="check">
          <input type="checkbox" checked={follow} onChange={() => setFollow(!follow)} disabled={previous} />
          follow
        </label>
        <label class="check">
          <input type="checkbox" checked={previous} onChange={() => setQuery({ previous: previous ? '' : '1' })} />
          previous run
        </label>
        <label class="check">
          <input type="checkbox" checked={times} onChange={() => setQuery({ times: times ? '' : '1' })} />
          times
        </label>
        <label class="check">
          <input type="checkbox" checked={wrap} onChange={() => setQuery({ wrap: wrap ? '0' : '' })} />
          wrap
        </label>
        <button type="button" onClick={save} disabled={!s?.lines.length}>
          Save
        </button>
        <span class="hint" role="status">
          {count(total)} lines{total > shown && `, the last ${count(shown)} are shown`}
          {s?.dropped ? `, ${count(s.dropped)} older ones dropped` : ''}
          {!single && ` of ${Math.min(pods.length, maxPods)}${pods.length > maxPods ? ' of ' + pods.length : ''} pods`}
          {s?.busy && follow && !previous ? ', following' : ''}
        </span>
      </div>
      <div>
        {failure && <Wrong f={failure} what="the pods" />}
        {[...(s?.failures ?? [])].slice(0, 3).map(([from, f]) => (
          <Wrong f={f} what={'the log of ' + from} />
        ))}
      </div>
      <div
        ref={box}
        class={'logs' + (wrap ? '' : ' cut')}
        tabIndex={0}
        role="log"
        aria-label={'Log of ' + o.metadata.name}
        aria-live="off"
        onScroll={(e) => {
          stick.current = e.currentTarget.scrollHeight - e.currentTarget.scrollTop - e.currentTarget.clientHeight < 30
        }}>
        {lines.map((l, i) => (
          <div key={total - lines.length + i}>
            {times && <span class="dim">{l.at} </span>}
            {(!single || !chosen) && <span class={l.odd ? 'odd' : 'from'}>{l.from} </span>}
            {l.text}
          </div>
        ))}
        {total === 0 && <span class="dim">{s?.busy && !follow ? 'Reading…' : g ? 'No line has this text.' : 'No lines yet.'}</span>}
      </div>
    </div>
  )
}
