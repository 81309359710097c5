// Nodes: the list as the server prints it, with what is under pressure.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { find, pathOf } from '../discovery'
import { route, setQuery } from '../router'
import { count } from '../text'
import { Missing } from '../ui/parts'
import { KindTable } from './list'

export const Nodes = (): JSX.Element => {
  const k = find('', 'nodes')
  const q = route.value.query
  const [n, tell] = useState(0)
  if (!k) return <Missing title="Nodes">The server has no nodes.</Missing>
  return (
    <div class="page list">
      <div class="title">
        <h1>Nodes</h1>
        <span class="count" role="status">
          {count(n)}
        </span>
      </div>
      <div class="tools">
        <input
          type="search"
          data-filter
          aria-label="Filter"
          placeholder="Filter: words, !word"
          value={q.get('q') ?? ''}
          onInput={(e) => setQuery({ q: e.currentTarget.value })}
        />
        <a class="button" href="usage">
          Usage
        </a>
      </div>
      <KindTable
        kind={k}
        path={pathOf(k)}
        words={q.get('q') ?? ''}
        spaces={false}
        wide
        sort={q.get('sort') ?? ''}
        pick={(by) => setQuery({ sort: by })}
        told={(_, f) => {
          if (f.rows.length !== n) tell(f.rows.length)
        }}
        empty="No nodes."
      />
    </div>
  )
}
