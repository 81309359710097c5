// A table of any number of rows: those in view are drawn. It is a grid to assistive technology: arrow keys move, Enter opens.
import { Component, type JSX } from 'preact'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { Children } from './parts'

export interface Col<R> {
  title: string
  hint?: string | undefined
  /** width in characters. */
  width: number
  number?: boolean
  cell: (r: R) => Children
  sort?: (() => void) | undefined
  sorted?: 'ascending' | 'descending' | undefined
}

const height = 28
const over = 8

interface Line<R> {
  row: R
  i: number
  changed: number
  fresh: boolean
  chosen: boolean
  cols: Col<R>[]
  columns: string
  choose: (i: number) => void
}

/** One row. It is drawn anew only if something about it has changed. */
class OneLine<R> extends Component<Line<R>> {
  override shouldComponentUpdate(next: Line<R>): boolean {
    const p = this.props
    return (
      next.row !== p.row ||
      next.i !== p.i ||
      next.changed !== p.changed ||
      next.fresh !== p.fresh ||
      next.chosen !== p.chosen ||
      next.cols !== p.cols ||
      next.columns !== p.columns
    )
  }

  override render(): JSX.Element {
    const p = this.props
    return (
      <div
        id={'row-' + p.i}
        role="row"
        aria-rowindex={p.i + 2}
        aria-selected={p.chosen}
        class={(p.fresh ? (p.changed % 2 ? 'fresh again ' : 'fresh ') : '') + (p.i % 2 ? 'odd' : '')}
        style={{ transform: `translateY(${p.i * height}px)`, gridTemplateColumns: p.columns }}
        onMouseDown={() => p.choose(p.i)}>
        {p.cols.map((c) => (
          <div role="gridcell" class={c.number ? 'num' : ''}>
            {c.cell(p.row)}
          </div>
        ))}
      </div>
    )
  }
}

export const VirtualTable = <R extends { key: string; at?: number; changed?: number }>(p: {
  rows: readonly R[]
  cols: Col<R>[]
  label: string
  open: (r: R) => void
  empty: Children
  version: number
  /** fit has the table no higher than its rows need. */
  fit?: boolean
}): JSX.Element => {
  const box = useRef<HTMLDivElement>(null)
  const [top, setTop] = useState(0)
  const [view, setView] = useState(600)
  const [active, setActive] = useState(0)
  const frame = useRef(0)
  useLayoutEffect(() => {
    const el = box.current
    if (!el) return
    const o = new ResizeObserver(() => setView(el.clientHeight))
    o.observe(el)
    return () => o.disconnect()
  }, [])
  useEffect(() => () => cancelAnimationFrame(frame.current), [])
  const total = p.rows.length
  const first = Math.max(0, Math.floor(top / height) - over)
  const last = Math.min(total, Math.ceil((top + view) / height) + over)
  const current = Math.min(active, Math.max(0, total - 1))
  const move = (i: number): void => {
    const n = Math.max(0, Math.min(total - 1, i))
    setActive(n)
    const el = box.current
    if (!el) return
    const y = n * height,
      room = el.clientHeight - height
    if (y < el.scrollTop) el.scrollTop = y
    else if (y + height > el.scrollTop + room) el.scrollTop = y + height - room
  }
  const key = (e: KeyboardEvent): void => {
    if (e.target !== box.current) return
    const page = Math.max(1, Math.floor(view / height) - 2)
    const to: Record<string, number> = {
      ArrowDown: current + 1,
      ArrowUp: current - 1,
      PageDown: current + page,
      PageUp: current - page,
      Home: 0,
      End: total - 1,
      j: current + 1,
      k: current - 1,
    }
    if (e.key in to && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault()
      move(to[e.key]!)
    } else if (e.key === 'Enter' && p.rows[current]) {
      p.open(p.rows[current])
    }
  }
  const columns = p.cols.map((c) => `minmax(${Math.max(4, Math.min(c.width, 60))}ch, ${Math.max(4, Math.min(c.width, 90))}fr)`).join(' ')
  const rows: JSX.Element[] = []
  const now = performance.now()
  for (let i = first; i < last; i++) {
    const r = p.rows[i]
    if (!r) continue
    rows.push(
      <OneLine
        key={r.key}
        row={r}
        i={i}
        changed={r.changed ?? 0}
        fresh={r.at !== undefined && r.at > 0 && now - r.at < 1500}
        chosen={i === current}
        cols={p.cols}
        columns={columns}
        choose={setActive}
      />,
    )
  }
  return (
    <div
      ref={box}
      class="grid"
      style={p.fit ? { height: Math.min(11, Math.max(total, 2)) * height + 34 + 'px' } : undefined}
      role="grid"
      aria-label={p.label}
      aria-rowcount={total + 1}
      aria-colcount={p.cols.length}
      tabIndex={0}
      aria-activedescendant={total && current >= first && current < last ? 'row-' + current : undefined}
      onKeyDown={key}
      onScroll={(e) => {
        const el = e.currentTarget
        if (!frame.current)
          frame.current = requestAnimationFrame(() => {
            frame.current = 0
            setTop(el.scrollTop)
          })
      }}>
      <div role="rowgroup" class="head">
        <div role="row" aria-rowindex={1} style={{ gridTemplateColumns: columns }}>
          {p.cols.map((c) => (
            <div role="columnheader" title={c.hint} class={c.number ? 'num' : ''} aria-sort={c.sorted ?? 'none'}>
              {c.sort ? (
                <button type="button" class="link" onClick={c.sort}>
                  {c.title}
                  <span aria-hidden="true">{c.sorted === 'ascending' ? ' ↑' : c.sorted ? ' ↓' : ''}</span>
                </button>
              ) : (
                c.title
              )}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" class="body" style={{ height: total * height + 'px' }}>
        {total === 0 ? (
          <div role="row" class="none">
            <div role="gridcell">{p.empty}</div>
          </div>
        ) : (
          rows
        )}
      </div>
    </div>
  )
}
