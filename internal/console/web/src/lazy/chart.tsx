// A chart of values over time.
import type { JSX } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import { dark } from '../theme'

export interface Series {
  label: string
  values: (number | null)[]
}

// Colours that are told apart by most eyes, in both themes; the legend has words.
const light = ['#0a5ca0', '#b0531a', '#17692c', '#7a3e9d', '#b0201a', '#00706b', '#815300', '#5b5f66']
const night = ['#79b8f5', '#f0a66a', '#62c983', '#cfa0ee', '#ff8d84', '#5fd0c8', '#e2b252', '#9ba5ae']

export const Chart = ({
  times,
  series,
  unit,
  title,
}: {
  times: number[]
  series: Series[]
  unit: (n: number) => string
  title: string
}): JSX.Element => {
  const host = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const key = series.map((s) => s.label).join('\n') + dark.value
  useEffect(() => {
    const el = host.current
    if (!el) return
    const style = getComputedStyle(document.documentElement)
    const dim = style.getPropertyValue('--dim').trim(),
      line = style.getPropertyValue('--line').trim()
    const colours = dark.value ? night : light
    const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: '11px system-ui, sans-serif' }
    const u = new uPlot(
      {
        width: Math.max(260, el.clientWidth),
        height: 200,
        cursor: { drag: { x: false, y: false } },
        scales: {
          // By the times themselves: uPlot takes a single one for the middle of years.
          x: {
            range: (u) => {
              const all = u.data[0],
                last = all[all.length - 1] ?? Date.now() / 1000
              return [Math.min(all[0] ?? last, last - 60), last]
            },
          },
          y: { range: (_, min, max) => [Math.min(0, min), max > 0 ? max * 1.1 : 1] },
        },
        axes: [axis, { ...axis, size: 66, values: (_, v) => v.map(unit) }],
        series: [
          {},
          ...series.map((s, i) => ({
            label: s.label,
            stroke: colours[i % colours.length]!,
            width: 1.5,
            points: { show: false },
            value: (_: uPlot, v: number | null) => (v === null ? '–' : unit(v)),
          })),
        ],
      },
      [times, ...series.map((s) => s.values)],
      el,
    )
    plot.current = u
    const o = new ResizeObserver(() => u.setSize({ width: Math.max(260, el.clientWidth), height: 200 }))
    o.observe(el)
    return () => {
      o.disconnect()
      u.destroy()
    }
  }, [key])
  useEffect(() => {
    plot.current?.setData([times, ...series.map((s) => s.values)])
  }, [times])
  return (
    <figure
      class="chart"
      role="img"
      aria-label={title + ': ' + series.map((s) => `${s.label} ${unit(s.values[s.values.length - 1] ?? 0)}`).join(', ')}>
      <div ref={host} />
    </figure>
  )
}
