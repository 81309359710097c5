// One WebSocket carries all watches of the page. A subscription goes on after a lost connection, and after the server's
// restart, from the last version that it saw; where the server no longer has that version, its owner reads anew.
import { signal } from '@preact/signals'
import { at, socket } from './base'
import { withQuery, type Status } from './api'
import { ask, state } from './session'

export interface WatchEvent<T = unknown> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
  object: T
}

export interface Subscriber<T = unknown> {
  /** path of the collection, without watch and resourceVersion. */
  path: string
  table?: boolean
  /** version is the resourceVersion to go on from. */
  version(): string
  events(events: WatchEvent<T>[]): void
  /** gone: the version is too old; read the collection again and subscribe anew. */
  gone(): void
  /** refused: the watch cannot be had, for instance because the user may not watch. */
  refused?(s: Status): void
}

interface Message {
  id: number
  events?: WatchEvent[]
  end?: Status | null
}

export type Line = 'idle' | 'connecting' | 'live' | 'broken'
/** line is the state of the connection, for the header. */
export const line = signal<Line>('idle')

const subscribers = new Map<number, Subscriber>()
let ws: WebSocket | undefined
let next = 0
let failures = 0
let timer: number | undefined

const begin = (id: number, s: Subscriber): void => {
  const path = withQuery(s.path, { watch: 'true', allowWatchBookmarks: 'true', resourceVersion: s.version() })
  ws?.send(JSON.stringify({ id, path, table: s.table ?? false }))
}

const open = (): void => {
  clearTimeout(timer)
  timer = undefined
  line.value = failures ? 'broken' : 'connecting'
  const mine = new WebSocket(socket(at('api/watch')))
  ws = mine
  mine.onopen = () => {
    failures = 0
    line.value = 'live'
    for (const [id, s] of subscribers) begin(id, s)
  }
  mine.onmessage = (m) => receive(JSON.parse(m.data as string) as Message)
  mine.onclose = () => {
    if (ws !== mine) return
    ws = undefined
    if (subscribers.size === 0) {
      line.value = 'idle'
      return
    }
    line.value = 'broken'
    void retry()
  }
}

const retry = async (): Promise<void> => {
  failures++
  const wait = Math.min(5000, 200 * 2 ** Math.min(failures - 1, 5)) * (0.75 + Math.random() / 2)
  if (failures > 1) await ask() // the session may be what ended
  if (state.value.is === 'out') return
  clearTimeout(timer)
  timer = window.setTimeout(open, wait)
}

const receive = (m: Message): void => {
  const s = subscribers.get(m.id)
  if (!s) return
  if (m.events?.length) {
    const last = m.events[m.events.length - 1]
    if (last?.type === 'ERROR') {
      const good = m.events.slice(0, -1)
      if (good.length) s.events(good)
      ended(m.id, s, last.object as Status)
      return
    }
    s.events(m.events)
  }
  if ('end' in m) ended(m.id, s, m.end ?? {})
}

const ended = (id: number, s: Subscriber, status: Status): void => {
  const code = status.code ?? 0
  if (code === 410 || status.reason === 'Expired' || status.reason === 'Gone') {
    subscribers.delete(id)
    s.gone()
  } else if (code >= 400 && code < 500 && code !== 429 && code !== 408) {
    subscribers.delete(id)
    s.refused?.(status)
  } else {
    // The server ended it, as servers do after some time: go on from where it was.
    window.setTimeout(
      () => {
        if (subscribers.get(id) === s && ws?.readyState === WebSocket.OPEN) begin(id, s)
      },
      code >= 400 ? 1000 : 50,
    )
  }
}

/** subscribe starts a watch; the returned function stops it. */
export const subscribe = <T>(s: Subscriber<T>): (() => void) => {
  const id = ++next
  subscribers.set(id, s as Subscriber)
  if (!ws) {
    if (timer === undefined) open()
  } else if (ws.readyState === WebSocket.OPEN) {
    begin(id, s as Subscriber)
  }
  return () => {
    if (!subscribers.delete(id)) return
    if (ws?.readyState === WebSocket.OPEN) ws.send(JSON.stringify({ id, stop: true }))
  }
}

// A network that comes back, or a page that is looked at again, is a reason to try at once.
const wake = (): void => {
  if (!ws && subscribers.size && document.visibilityState === 'visible') open()
}
addEventListener('online', wake)
document.addEventListener('visibilitychange', wake)
state.subscribe((s) => {
  if (s.is === 'in') wake()
  if (s.is === 'out') ws?.close()
})
