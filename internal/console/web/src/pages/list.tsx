// The list of any kind, as the server prints it: paged, drawn as far as it is in view, and live.
import type { JSX } from 'preact'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { columnsOf } from '../added'
import { Feed, type Row } from '../feed'
import { kindAt, listHref, objectHref, pathOf, plural, type Kind } from '../discovery'
import { withQuery, type Column } from '../api'
import { go, route, setQuery } from '../router'
import { chooseNamespace, inNamespace } from '../places'
import { compare, count, shown, tone } from '../text'
import { Age, Mark, Missing, Wait, Wrong, type Children } from '../ui/parts'
import { VirtualTable, type Col } from '../ui/virtual'
import type { PageProps } from './index'

const useFeed = (path: string, k: Kind): Feed => {
  const extra = columnsOf(k)
  const key = extra.map((c) => c.name + c.jsonPath).join()
  const feed = useMemo(() => new Feed(path, Infinity, true, extra), [path, key])
  useEffect(() => () => feed.close(), [feed])
  return feed
}

const statusColumn = /^(status|ready|phase|available|established|conditions?)$/i

/** cellOf draws a cell: ages count on, statuses have their mark. */
const cellOf = (c: Column, i: number, k: Kind): ((r: Row) => JSX.Element | string) => {
  if (c.name === 'Name' && c.format === 'name') {
    return (r) => (
      <a href={objectHref(k, r.meta.namespace, r.meta.name)} tabIndex={-1} title={r.meta.name}>
        {r.meta.name}
      </a>
    )
  }
  if (c.name === 'Age' || (c.name === 'Created At' && c.type === 'date')) return (r) => <Age at={r.meta.creationTimestamp} />
  if (c.type === 'date')
    return (r) =>
      typeof r.cells[i] === 'string' && !isNaN(Date.parse(r.cells[i])) ? <Age at={r.cells[i]} /> : <span>{shown(r.cells[i])}</span>
  if (statusColumn.test(c.name) && c.type === 'string') {
    return (r) => {
      const word = shown(r.cells[i])
      const m = /^(\d+)\/(\d+)$/.exec(word)
      const t = m ? (m[1] === m[2] ? 'idle' : 'warn') : tone(word)
      return t === 'idle' ? <span title={word}>{word}</span> : <Mark word={word} tone={t} />
    }
  }
  return (r) => {
    const text = shown(r.cells[i])
    return <span title={text.length > 12 ? text : undefined}>{text}</span>
  }
}

const widthOf = (rows: readonly Row[], i: number, title: string, age: boolean): number => {
  let w = title.length + 2
  if (age) return Math.max(w, 7)
  for (let n = 0; n < Math.min(rows.length, 300); n++) w = Math.max(w, shown(rows[n]!.cells[i]).length + 1)
  return Math.min(w + 1, 56)
}

const sortKey = (r: Row, i: number, c: Column | undefined): unknown =>
  i < 0 ? (r.meta.namespace ?? '') : c?.name === 'Age' ? (r.meta.creationTimestamp ?? '') : r.cells[i]

const sorter = (by: string, columns: Column[]): ((a: Row, b: Row) => number) | undefined => {
  if (!by) return undefined
  const down = by.startsWith('-')
  const name = down ? by.slice(1) : by
  const i = name === 'Namespace' ? -1 : columns.findIndex((c) => c.name === name)
  if (i < 0 && name !== 'Namespace') return undefined
  const age = columns[i]?.name === 'Age'
  const sign = (down ? -1 : 1) * (age ? -1 : 1)
  return (a, b) => {
    const x = sortKey(a, i, columns[i]),
      y = sortKey(b, i, columns[i])
    if (x === y) return 0
    if (typeof x === 'number' && typeof y === 'number') return sign * (x - y)
    const s = String(x ?? ''),
      t = String(y ?? '')
    return sign * (age ? (s < t ? -1 : 1) : compare(s, t))
  }
}

/** ordered sorts rows of which most were sorted before: that is much quicker than anew. */
const ordered = (rows: readonly Row[], by: (a: Row, b: Row) => number, before: readonly Row[]): Row[] => {
  const fresh = new Set(rows)
  const stayed = before.filter((r) => fresh.delete(r))
  return [...stayed, ...fresh].sort(by)
}

/** matches reports whether a row has all words, and none of those after a "!". Columns that are not shown do not count. */
const matches = (r: Row, words: string[], columns: number[]): boolean => {
  let hay = (r.meta.namespace ?? '') + '/' + r.meta.name
  for (const i of columns) hay += ' ' + shown(r.cells[i])
  hay = hay.toLowerCase()
  return words.every((w) => (w.startsWith('!') ? w.length < 2 || !hay.includes(w.slice(1)) : hay.includes(w)))
}

/** KindTable is a live table of a kind, without the page around it; other pages have it too. */
export const KindTable = (p: {
  kind: Kind
  path: string
  words?: string
  spaces: boolean
  wide?: boolean
  sort?: string
  pick?: (by: string) => void
  empty: JSX.Element | string
  told?: (shown: number, feed: Feed) => void
  fit?: boolean
}): JSX.Element => {
  const feed = useFeed(p.path, p.kind)
  const version = feed.version.value
  const columns = feed.columns.value
  const words = (p.words ?? '').toLowerCase()
  const before = useRef<Row[]>([])
  const rows = useMemo(() => {
    let r = feed.rows
    if (words) {
      const all = words.split(/\s+/)
      const seen = columns.flatMap((c, i) => (c.priority > 0 && !p.wide ? [] : i))
      r = r.filter((x) => matches(x, all, seen))
    }
    const s = sorter(p.sort ?? '', columns)
    before.current = s ? ordered(r, s, before.current) : []
    return s ? before.current : r
  }, [version, words, p.sort, p.wide, feed])
  useEffect(() => p.told?.(rows.length, feed))
  const cols = useMemo((): Col<Row>[] => {
    const pick = (name: string) => p.pick && ((): void => p.pick!(p.sort === name ? '-' + name : p.sort === '-' + name ? '' : name))
    const sorted = (name: string): 'ascending' | 'descending' | undefined =>
      p.sort === name ? 'ascending' : p.sort === '-' + name ? 'descending' : undefined
    const out: Col<Row>[] = []
    columns.forEach((c, i) => {
      if (c.priority > 0 && !p.wide) return
      const number = c.type === 'integer' || c.type === 'number'
      out.push({
        title: c.name,
        hint: c.description,
        width: widthOf(feed.rows, i, c.name, c.name === 'Age'),
        number,
        cell: cellOf(c, i, p.kind),
        sort: pick(c.name),
        sorted: sorted(c.name),
      })
    })
    if (p.spaces) {
      let w = 11
      for (let n = 0; n < Math.min(feed.rows.length, 300); n++) w = Math.max(w, (feed.rows[n]!.meta.namespace ?? '').length + 2)
      out.splice(1, 0, {
        title: 'Namespace',
        width: w,
        cell: (r) => <span title={r.meta.namespace}>{r.meta.namespace}</span>,
        sort: pick('Namespace'),
        sorted: sorted('Namespace'),
      })
    }
    return out
  }, [columns, p.wide, p.spaces, p.sort, feed.rows.length > 0, p.kind])
  if (feed.failure.value) return <Wrong f={feed.failure.value} what={plural(p.kind)} />
  if (feed.loading.value) return <Wait />
  return (
    <>
      {feed.refused.value && <p class="hint">These rows do not change by themselves: {feed.refused.value.message}</p>}
      <VirtualTable
        rows={rows}
        cols={cols}
        version={version}
        {...(p.fit && { fit: true })}
        label={plural(p.kind)}
        empty={p.empty}
        open={(r) => go(objectHref(p.kind, r.meta.namespace, r.meta.name))}
      />
    </>
  )
}

export const ListPage = ({ path }: PageProps): JSX.Element => {
  const [, group = '', version = '', resource = ''] = path
  const k = kindAt(group, version, resource)
  return k ? (
    <Listed k={k} />
  ) : (
    <Missing title={resource}>
      The server has no resource {resource}
      {group !== 'core' && '.' + group}.
    </Missing>
  )
}

/** Listed is the page of a kind's list. always has all columns shown, and the whole cluster; more are further tools. */
export const Listed = ({ k, title, always, more }: { k: Kind; title?: string; always?: boolean; more?: Children }): JSX.Element => {
  const q = route.value.query
  const ns = k.namespaced ? inNamespace() : ''
  const [told, tell] = useState({ shown: 0, all: 0, remaining: 0 })
  const labels = q.get('labels') ?? '',
    fields = q.get('fields') ?? ''
  const url = withQuery(pathOf(k, ns), { labelSelector: labels, fieldSelector: fields })
  const words = q.get('q') ?? ''
  const wide = always || q.get('wide') === '1'
  return (
    <div class="page list">
      <div class="title">
        <h1>
          {title ?? k.kind}
          {!title && (
            <small>
              {plural(k)} {k.version}
            </small>
          )}
        </h1>
        <span class="count" role="status" data-rows={told.all} data-remaining={told.remaining}>
          {told.shown === told.all ? count(told.all) : `${count(told.shown)} of ${count(told.all)}`}
          {told.remaining > 0 && ` · ${count(told.remaining)} more to read`}
        </span>
      </div>
      <div class="tools">
        <input
          type="search"
          data-filter
          aria-label="Filter"
          placeholder="Filter: words, !word"
          value={words}
          onInput={(e) => setQuery({ q: e.currentTarget.value })}
          onKeyDown={(e) => {
            if (e.key === 'Escape') e.currentTarget.blur()
            if (e.key === 'Enter' || e.key === 'ArrowDown') document.querySelector<HTMLElement>('.grid')?.focus()
          }}
        />
        <input
          aria-label="Label selector"
          placeholder="Labels: app=web"
          value={labels}
          onChange={(e) => setQuery({ labels: e.currentTarget.value.trim() })}
        />
        {!always && (
          <label class="check">
            <input type="checkbox" checked={wide} onChange={() => setQuery({ wide: wide ? '' : '1' })} />
            all columns
          </label>
        )}
        {!always && k.verbs.includes('create') && (
          <a class="button" href={'kinds?create=' + encodeURIComponent(plural(k))}>
            Create
          </a>
        )}
        {more}
      </div>
      <KindTable
        kind={k}
        path={url}
        words={words}
        spaces={k.namespaced && !ns}
        wide={wide}
        sort={q.get('sort') ?? ''}
        pick={(by) => setQuery({ sort: by })}
        told={(n, f) => {
          const next = { shown: n, all: f.rows.length, remaining: f.remaining.value }
          if (next.shown !== told.shown || next.all !== told.all || next.remaining !== told.remaining) tell(next)
        }}
        empty={
          <>
            No {k.resource}
            {ns && (
              <>
                {' '}
                in <code>{ns}</code>
              </>
            )}
            {words || labels || fields ? ' match' : ''}.{' '}
            {ns && (
              <a href={listHref(k)} onClick={() => chooseNamespace('')}>
                All namespaces
              </a>
            )}
          </>
        }
      />
    </div>
  )
}
