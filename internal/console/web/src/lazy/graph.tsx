// A layered drawing of objects and references.
import type { JSX } from 'preact'
import * as dagre from '@dagrejs/dagre'
import type { Graph } from '../pages/related'

const wide = 210,
  high = 44

const cut = (s: string, n: number): string => (s.length > n ? s.slice(0, n - 1) + '…' : s)

export const Drawing = ({ g }: { g: Graph }): JSX.Element => {
  const d = new dagre.graphlib.Graph({ multigraph: true })
  d.setGraph({ rankdir: 'LR', nodesep: 14, ranksep: 70, marginx: 12, marginy: 12 })
  d.setDefaultEdgeLabel(() => ({}))
  for (const v of g.vertices.values()) d.setNode(v.id, { width: wide, height: high })
  g.edges.forEach((e, i) => d.setEdge(e.from, e.to, {}, String(i)))
  dagre.layout(d)
  const size = d.graph() as { width?: number; height?: number }
  const w = size.width ?? 400,
    h = size.height ?? 100
  const line = (points: { x: number; y: number }[]): string =>
    points.map((p, i) => (i ? 'L' : 'M') + p.x.toFixed(1) + ' ' + p.y.toFixed(1)).join(' ')
  return (
    <div class="drawing" tabIndex={0} role="region" aria-label="Drawing of the references; the table below has them in words">
      <svg width={w} height={h} viewBox={`0 0 ${w} ${h}`} role="group" aria-label="References">
        {g.edges.map((e, i) => (
          <path
            class={e.owns ? '' : 'dash'}
            d={line((d.edge({ v: e.from, w: e.to, name: String(i) }) as { points: { x: number; y: number }[] }).points)}
          />
        ))}
        {[...g.vertices.values()].map((v) => {
          const at = d.node(v.id) as { x: number; y: number }
          const box = (
            <g
              class={(v.self ? 'self ' : '') + (v.tone === 'bad' ? 'bad' : '')}
              transform={`translate(${at.x - wide / 2} ${at.y - high / 2})`}>
              <title>{`${v.kind} ${v.name}`}</title>
              <rect class="box" width={wide} height={high} rx={5} />
              <text class="sort" x={10} y={17}>
                {v.kind + (v.missing ? ', does not exist' : v.tone === 'bad' ? ', failing' : v.tone === 'warn' ? ', waits' : '')}
              </text>
              <text x={10} y={34}>
                {cut(v.name, 28)}
              </text>
            </g>
          )
          return v.to && !v.self ? (
            <a href={v.to}>
              {box}
            </a>
          ) : (
            box
          )
        })}
      </svg>
    </div>
  )
}
