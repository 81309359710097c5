// Capacity and usage: what nodes have, what pods ask for, what they use, and what the server does, over the time that the page is open.
import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { Failure, get, list, raw, type Any, type List, type Obj } from '../api'
import { find, objectHref, pathOf } from '../discovery'
import { useObjects } from '../live'
import { inNamespace } from '../places'
import { bytes, cores, count, quantity } from '../text'
import { Bar, Empty, Grid, Section, Wait, Wrong } from '../ui/parts'
import { amount, requests } from './nodeparts'

const every = 5000
const most = 360

interface Sample {
  at: number
  nodes: Map<string, { cpu: number; memory: number }>
  requests?: number
  failures?: number
}

const usageOf = (l: List<Any>): Sample['nodes'] =>
  new Map(l.items.map((i: Any) => [i.metadata.name, { cpu: quantity(i.usage?.cpu), memory: quantity(i.usage?.memory) }]))

/** counters reads two sums of the server's metrics. */
const counters = async (): Promise<{ requests: number; failures: number }> => {
  const t = await (await raw('/metrics', { accept: 'text/plain' })).text()
  let requests = 0,
    failures = 0
  for (const m of t.matchAll(/^apiserver_request_total\{([^}]*)\} ([0-9.e+]+)/gm)) {
    requests += Number(m[2])
    if (/code="5/.test(m[1]!)) failures += Number(m[2])
  }
  return { requests, failures }
}

const useSamples = (): { samples: Sample[]; failure: Failure | undefined } => {
  const [samples, set] = useState<Sample[]>([])
  const [failure, fail] = useState<Failure>()
  useEffect(() => {
    let closed = false
    const read = async (): Promise<void> => {
      if (document.visibilityState !== 'visible') return
      const [m, c] = await Promise.allSettled([get<List<Any>>('/apis/metrics.k8s.io/v1beta1/nodes'), counters()])
      if (closed) return
      if (m.status === 'rejected') fail(m.reason instanceof Failure ? m.reason : new Failure(0, { message: String(m.reason) }, '', ''))
      else fail(undefined)
      set((old) => [
        ...old.slice(-most),
        {
          at: Date.now() / 1000,
          nodes: m.status === 'fulfilled' ? usageOf(m.value) : new Map(),
          ...(c.status === 'fulfilled' && c.value),
        },
      ])
    }
    void read()
    const t = setInterval(() => void read(), every)
    return () => {
      closed = true
      clearInterval(t)
    }
  }, [])
  return { samples, failure }
}

type C = (typeof import('../lazy/chart'))['Chart']

export const Usage = (): JSX.Element => {
  const { samples, failure } = useSamples()
  const [c, load] = useState<{ C: C }>()
  useEffect(() => {
    void import('../lazy/chart').then((m) => load({ C: m.Chart }))
  }, [])
  const nodeKind = find('', 'nodes')
  const nodes = useObjects(nodeKind ? pathOf(nodeKind) : '')
  const last = samples[samples.length - 1]
  const busiest = [...(last?.nodes ?? [])]
    .sort((a, b) => b[1].cpu - a[1].cpu)
    .slice(0, 8)
    .map(([n]) => n)
  const times = samples.map((s) => s.at)
  const sum = (f: (n: { cpu: number; memory: number }) => number) =>
    samples.map((s) => (s.nodes.size ? [...s.nodes.values()].reduce((t, n) => t + f(n), 0) : null))
  const rate = (f: (s: Sample) => number | undefined) =>
    samples.map((s, i) => {
      const p = samples[i - 1],
        a = f(s),
        b = p && f(p)
      return p && a !== undefined && b !== undefined && a >= b ? (a - b) / (s.at - p.at) : null
    })
  const few = (last?.nodes.size ?? 0) <= 1
  const C = c?.C
  return (
    <div class="page">
      <div class="title">
        <h1>Usage</h1>
        <span class="count">a value each {every / 1000} s while the page is open</span>
      </div>
      {failure && <Wrong f={failure} what="metrics.k8s.io" />}
      {!C ? (
        <Wait />
      ) : (
        <div class="columns">
          <Section title="CPU of nodes, cores">
            <C
              title="CPU of nodes"
              times={times}
              unit={cores}
              series={[
                { label: 'all', values: sum((n) => n.cpu) },
                ...(few ? [] : busiest.map((n) => ({ label: n, values: samples.map((s) => s.nodes.get(n)?.cpu ?? null) }))),
              ].slice(0, 8)}
            />
          </Section>
          <Section title="Memory of nodes">
            <C
              title="Memory of nodes"
              times={times}
              unit={bytes}
              series={[
                { label: 'all', values: sum((n) => n.memory) },
                ...(few ? [] : busiest.map((n) => ({ label: n, values: samples.map((s) => s.nodes.get(n)?.memory ?? null) }))),
              ].slice(0, 8)}
            />
          </Section>
          <Section title="Requests to the API server, per second">
            {last && last.requests === undefined ? (
              <Empty>You may not read the server’s metrics.</Empty>
            ) : (
              <C
                title="Requests per second"
                times={times}
                unit={(n) => n.toFixed(n < 10 ? 1 : 0)}
                series={[
                  { label: 'requests', values: rate((s) => s.requests) },
                  { label: 'failures', values: rate((s) => s.failures) },
                ]}
              />
            )}
          </Section>
        </div>
      )}
      <Capacity nodes={nodes.data ?? []} used={last?.nodes ?? new Map()} {...(nodes.failure && { failure: nodes.failure })} />
      <Pods />
    </div>
  )
}

const Capacity = ({ nodes, used, failure }: { nodes: Obj[]; used: Sample['nodes']; failure?: Failure }): JSX.Element => {
  const [asked, set] = useState<Map<string, Map<string, number>>>(new Map())
  useEffect(() => {
    const k = find('', 'pods')
    if (!k || nodes.length === 0 || nodes.length > 200) return
    list(pathOf(k), 10000).then(
      (pods) => {
        const by = new Map<string, Obj[]>()
        for (const p of pods) if (p.spec.nodeName) by.set(p.spec.nodeName, [...(by.get(p.spec.nodeName) ?? []), p])
        set(new Map([...by].map(([n, p]) => [n, requests(p)])))
      },
      () => undefined,
    )
  }, [nodes.length])
  const k = find('', 'nodes')
  if (failure) return <Wrong f={failure} what="nodes" />
  const all = (f: (o: Obj) => number): number => nodes.reduce((n, o) => n + f(o), 0)
  const of = (o: Obj, r: string): number => quantity(o.status?.allocatable?.[r] ?? 0)
  const bar = (n: number, whole: number, r: string): JSX.Element => <Bar of={n} whole={whole} label={amount(r, n)} />
  const names = nodes.map((o) => o.metadata.name)
  const askedOf = (n: string, r: string): number => asked.get(n)?.get(r) ?? 0
  const total = (f: (n: string) => number): number => names.reduce((t, n) => t + f(n), 0)
  return (
    <Section title="Capacity" aside={`${count(nodes.length)} nodes`}>
      <Grid
        label="Capacity"
        numbers={[3, 6]}
        empty="No nodes."
        head={['Node', 'CPU used', 'CPU requested', 'CPU', 'Memory used', 'Memory requested', 'Memory', 'Pods']}
        rows={[
          ...(nodes.length > 1
            ? [
                {
                  key: '',
                  cells: [
                    <strong>All</strong>,
                    bar(
                      total((n) => used.get(n)?.cpu ?? 0),
                      all((o) => of(o, 'cpu')),
                      'cpu',
                    ),
                    bar(
                      total((n) => askedOf(n, 'cpu')),
                      all((o) => of(o, 'cpu')),
                      'cpu',
                    ),
                    cores(all((o) => of(o, 'cpu'))),
                    bar(
                      total((n) => used.get(n)?.memory ?? 0),
                      all((o) => of(o, 'memory')),
                      'memory',
                    ),
                    bar(
                      total((n) => askedOf(n, 'memory')),
                      all((o) => of(o, 'memory')),
                      'memory',
                    ),
                    bytes(all((o) => of(o, 'memory'))),
                    bar(
                      total((n) => askedOf(n, 'pods')),
                      all((o) => of(o, 'pods')),
                      'pods',
                    ),
                  ],
                },
              ]
            : []),
          ...nodes.slice(0, 200).map((o) => {
            const n = o.metadata.name,
              u = used.get(n)
            return {
              key: n,
              cells: [
                <a href={objectHref(k!, undefined, n)}>{n}</a>,
                bar(u?.cpu ?? 0, of(o, 'cpu'), 'cpu'),
                bar(askedOf(n, 'cpu'), of(o, 'cpu'), 'cpu'),
                cores(of(o, 'cpu')),
                bar(u?.memory ?? 0, of(o, 'memory'), 'memory'),
                bar(askedOf(n, 'memory'), of(o, 'memory'), 'memory'),
                bytes(of(o, 'memory')),
                bar(askedOf(n, 'pods'), of(o, 'pods'), 'pods'),
              ],
            }
          }),
        ]}
      />
    </Section>
  )
}

const Pods = (): JSX.Element => {
  const ns = inNamespace()
  const [rows, set] = useState<{ ns: string; name: string; cpu: number; memory: number }[]>()
  const [failure, fail] = useState<Failure>()
  useEffect(() => {
    get<List<Any>>(`/apis/metrics.k8s.io/v1beta1/${ns ? `namespaces/${encodeURIComponent(ns)}/` : ''}pods`).then(
      (l) =>
        set(
          l.items.map((i: Any) => ({
            ns: i.metadata.namespace,
            name: i.metadata.name,
            cpu: (i.containers ?? []).reduce((n: number, c: Any) => n + quantity(c.usage?.cpu), 0),
            memory: (i.containers ?? []).reduce((n: number, c: Any) => n + quantity(c.usage?.memory), 0),
          })),
        ),
      fail,
    )
  }, [ns])
  const k = find('', 'pods')
  return (
    <Section title="The pods that use most">
      {failure ? (
        <p class="hint">{failure.message}</p>
      ) : !rows ? (
        <Wait />
      ) : (
        <Grid
          label="Pods by usage"
          numbers={[1, 2]}
          empty="No usage is measured yet."
          head={['Pod', 'CPU', 'Memory']}
          rows={[...rows]
            .sort((a, b) => b.cpu - a.cpu)
            .slice(0, 25)
            .map((r) => ({
              key: r.ns + r.name,
              cells: [
                k ? (
                  <a href={objectHref(k, r.ns, r.name)}>
                    {r.ns}/{r.name}
                  </a>
                ) : (
                  r.name
                ),
                cores(r.cpu),
                bytes(r.memory),
              ],
            }))}
        />
      )}
    </Section>
  )
}
