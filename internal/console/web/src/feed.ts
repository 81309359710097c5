// A live table: pages of a list as the server prints it, kept up to date by a watch.
import { signal, batch } from '@preact/signals'
import { Failure, table, withQuery, type Column, type Meta, type Status, type Table, type TableRow } from './api'
import { valueAt } from './added'
import { subscribe, type WatchEvent } from './watch'

export interface Row {
  key: string
  cells: unknown[]
  /** meta is the part of the object's metadata that lists need: of 50,000 objects the whole is much. */
  meta: Pick<Meta, 'name' | 'namespace' | 'creationTimestamp'>
  /** changed counts the events about it since the list was read. */
  changed: number
  /** at is when the last event about it came, in ms of the page's clock; 0: none did. */
  at: number
}

const order = (a: Row, b: Row): number => {
  const x = a.meta.namespace ?? '',
    y = b.meta.namespace ?? ''
  if (x !== y) return x < y ? -1 : 1
  return a.meta.name < b.meta.name ? -1 : a.meta.name > b.meta.name ? 1 : 0
}

/** place returns the index where a row is or belongs. */
const place = (rows: Row[], r: Row): number => {
  let low = 0,
    high = rows.length
  while (low < high) {
    const mid = (low + high) >>> 1
    if (order(rows[mid]!, r) < 0) low = mid + 1
    else high = mid
  }
  return low
}

export class Feed {
  columns = signal<Column[]>([])
  /** version counts changes of rows; rows is one array that changes in place, ordered by namespace and name. */
  version = signal(0)
  rows: Row[] = []
  loading = signal(true)
  /** remaining is how many objects are still to be read. */
  remaining = signal(0)
  failure = signal<Failure | undefined>(undefined)
  /** refused is why there are no live changes. */
  refused = signal<Status | undefined>(undefined)

  private keys = new Map<string, Row>()
  /** added and gone are rows to put in and to take out before the readers are told: of 50,000 rows that takes long for each event. */
  private added: Row[] = []
  private gone = new Set<Row>()
  private rv = ''
  private stop: (() => void) | undefined
  private abort = new AbortController()
  private closed = false
  private pending = false
  /** earliest is when the readers are told next, in ms of the page's clock. */
  private earliest = 0

  /** A feed of a collection's path; the query may select by labels and fields. */
  constructor(
    readonly path: string,
    private readonly most = Infinity,
    private readonly live = true,
    /** extra are columns by the object, which is then read whole. */
    private readonly extra: (Column & { jsonPath: string })[] = [],
  ) {
    void this.load()
  }

  close(): void {
    this.closed = true
    this.abort.abort()
    this.stop?.()
  }

  private async load(): Promise<void> {
    this.settle()
    const rows: Row[] = []
    const keys = new Map<string, Row>()
    let next = '',
      first = true
    try {
      do {
        const t: Table = await table(
          this.path,
          { continue: next, limit: first ? '200' : '2000', ...(this.extra.length && { includeObject: 'Object' }) },
          this.abort.signal,
        )
        if (this.closed) return
        for (const r of t.rows ?? []) {
          const row = this.row(r, 0)
          rows.push(row)
          keys.set(row.key, row)
        }
        next = t.metadata.continue ?? ''
        this.rv = t.metadata.resourceVersion ?? ''
        batch(() => {
          if (t.columnDefinitions) this.columns.value = [...t.columnDefinitions, ...this.extra]
          this.rows = rows
          this.keys = keys
          this.remaining.value = next ? (t.metadata.remainingItemCount ?? 1) : 0
          this.loading.value = false
          this.failure.value = undefined
          this.version.value++
        })
        first = false
      } while (next && rows.length < this.most)
    } catch (e) {
      if (this.closed) return
      const f = e instanceof Failure ? e : new Failure(0, { message: String(e) }, this.path, '')
      if (f.code === 410 && !first) return void this.load()
      batch(() => {
        this.failure.value = f
        this.loading.value = false
      })
      return
    }
    rows.sort(order)
    this.bump()
    if (this.live) this.watch()
  }

  private row(r: TableRow, at: number): Row {
    const { name, namespace, creationTimestamp } = r.object.metadata
    const meta = {
      name,
      ...(namespace !== undefined && { namespace: same(namespace) }),
      ...(creationTimestamp !== undefined && { creationTimestamp: same(creationTimestamp) }),
    }
    return { key: keyOf(r.object.metadata), cells: this.cells(r), meta, changed: 0, at }
  }

  private cells(r: TableRow): unknown[] {
    const cells = r.cells.map((c) => (typeof c === 'string' ? same(c) : c))
    for (const c of this.extra) cells.push(valueAt(r.object, c.jsonPath))
    return cells
  }

  private watch(): void {
    this.stop?.()
    this.stop = subscribe<Table>({
      path: withQuery(this.path, { includeObject: this.extra.length ? 'Object' : 'Metadata' }),
      table: true,
      version: () => this.rv,
      events: (e) => this.take(e),
      gone: () => void this.load(),
      refused: (s) => {
        this.refused.value = s
      },
    })
  }

  private take(events: WatchEvent<Table>[]): void {
    const now = performance.now()
    for (const e of events) {
      const t = e.object
      const rv = t.metadata?.resourceVersion ?? t.rows?.[0]?.object.metadata.resourceVersion
      if (e.type === 'BOOKMARK') {
        if (rv) this.rv = rv
        continue
      }
      for (const r of t.rows ?? []) {
        const meta = r.object.metadata
        this.rv = meta.resourceVersion ?? this.rv
        const key = keyOf(meta)
        const old = this.keys.get(key)
        if (e.type === 'DELETED') {
          if (old) {
            this.keys.delete(key)
            this.gone.add(old)
          }
        } else if (old) {
          old.cells = this.cells(r)
          old.changed++
          old.at = now
        } else {
          const row = this.row(r, now)
          this.keys.set(key, row)
          this.added.push(row)
        }
      }
    }
    this.bump()
  }

  /** settle puts the rows in and takes them out: a few singly, many at once. */
  private settle(): void {
    const { added, gone } = this
    if (added.length + gone.size === 0) return
    this.added = []
    this.gone = new Set()
    if (gone.size > 16) this.rows = this.rows.filter((r) => !gone.has(r))
    else for (const r of gone) remove(this.rows, r)
    const fresh = added.filter((r) => !gone.has(r))
    if (fresh.length > 16) {
      this.rows.push(...fresh)
      this.rows.sort(order)
    } else {
      for (const r of fresh) this.rows.splice(place(this.rows, r), 0, r)
    }
  }

  /** bump tells the readers, at the earliest at the next frame: a burst of events is one rendering. A rendering is followed by many times
   * its duration without one, so that a busy cluster does not make a busy page; a change after a quiet time is shown at once. */
  private bump(): void {
    if (this.pending) return
    this.pending = true
    const tell = (): void => {
      this.pending = false
      if (this.closed) return
      const begin = performance.now()
      this.settle()
      this.version.value++
      setTimeout(() => {
        const now = performance.now()
        this.earliest = now + Math.min(rest * (now - begin), longest)
      })
    }
    const wait = this.earliest - performance.now()
    if (document.visibilityState !== 'visible') setTimeout(tell, longest)
    else if (wait <= 0) requestAnimationFrame(tell)
    else setTimeout(() => requestAnimationFrame(tell), wait)
  }
}

// What follows a rendering: so many times its duration, at most so many ms.
const rest = 40
const longest = 1000

// Cells of a list have few values: states, nodes, images. One string of each is kept, of the newest.
const strings = new Map<string, string>()
const same = (s: string): string => {
  const known = strings.get(s)
  if (known !== undefined) return known
  if (strings.size >= 10000) strings.clear()
  strings.set(s, s)
  return s
}

const keyOf = (m: Meta): string => m.uid ?? (m.namespace ?? '') + '/' + m.name

const remove = (rows: Row[], r: Row): void => {
  let i = place(rows, r)
  while (i < rows.length && rows[i] !== r && order(rows[i]!, r) === 0) i++
  if (rows[i] === r) rows.splice(i, 1)
}
