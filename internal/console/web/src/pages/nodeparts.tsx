// What a node has: capacity and what pods ask for, pressure, images, devices, its pods.
import type { JSX } from 'preact'
import { list, withQuery, type Any, type Obj } from '../api'
import { find, pathOf } from '../discovery'
import { useLoad, useObjects } from '../live'
import { bytes, cores, quantity, shown } from '../text'
import { Bar, Facts, Grid, Mark, Section, Show } from '../ui/parts'
import { KindTable } from './list'
import { Conditions } from './summary'

/** requests are what the pods of a node ask for, as the scheduler counts: the larger of containers and init containers. */
export const requests = (pods: Obj[]): Map<string, number> => {
  const total = new Map<string, number>()
  for (const p of pods) {
    if (p.status?.phase === 'Succeeded' || p.status?.phase === 'Failed') continue
    const of = new Map<string, number>()
    const add = (r: Record<string, unknown> | undefined, most: boolean): void => {
      for (const [k, v] of Object.entries(r ?? {})) {
        const n = quantity(v)
        of.set(k, most ? Math.max(of.get(k) ?? 0, n) : (of.get(k) ?? 0) + n)
      }
    }
    for (const c of p.spec.containers ?? []) add(c.resources?.requests, false)
    for (const c of p.spec.initContainers ?? []) add(c.resources?.requests, c.restartPolicy !== 'Always')
    add(p.spec.overhead, false)
    for (const [k, v] of of) total.set(k, (total.get(k) ?? 0) + v)
    total.set('pods', (total.get('pods') ?? 0) + 1)
  }
  return total
}

export const amount = (resource: string, n: number): string =>
  resource === 'cpu' ? cores(n) : /memory|storage|hugepages/.test(resource) ? bytes(n) : String(n)

const Devices = ({ o }: { o: Obj }): JSX.Element | null => {
  const k = find('resource.k8s.io', 'resourceslices')
  const slices = useObjects(k ? withQuery(pathOf(k), { fieldSelector: 'spec.nodeName=' + o.metadata.name }) : '')
  const rows = (slices.data ?? []).flatMap((s) =>
    (s.spec.devices ?? []).map((d: Any) => ({
      key: s.metadata.name + d.name,
      cells: [
        d.name,
        s.spec.driver,
        s.spec.pool?.name,
        Object.entries(d.attributes ?? d.basic?.attributes ?? {})
          .map(([a, v]) => `${a}=${shown(Object.values(v as object)[0])}`)
          .join(' ') || '–',
      ],
    })),
  )
  return rows.length === 0 ? null : (
    <Section title="Devices">
      <Grid label="Devices" head={['Device', 'Driver', 'Pool', 'Attributes']} rows={rows} />
    </Section>
  )
}

export const NodeParts = ({ o }: { o: Obj }): JSX.Element => {
  const pods = find('', 'pods')
  const path = pods ? withQuery(pathOf(pods), { fieldSelector: 'spec.nodeName=' + o.metadata.name }) : ''
  const on = useLoad(() => list(path, 2000), path + o.metadata.resourceVersion)
  const s = o.status ?? {},
    info = s.nodeInfo ?? {}
  const asked = requests(on.data ?? [])
  return (
    <>
      <div class="columns">
        <Section title="Node">
          <Facts
            of={[
              [
                'Ready',
                <Mark word={(s.conditions ?? []).find((c: Any) => c.type === 'Ready')?.status === 'True' ? 'Ready' : 'NotReady'} />,
              ],
              o.spec.unschedulable && ['Scheduling', <Mark word="cordoned: no new pods" tone="warn" />],
              [
                'Pressure',
                (s.conditions ?? [])
                  .filter((c: Any) => /Pressure|Unavailable/.test(c.type) && c.status === 'True')
                  .map((c: Any) => <Mark word={c.type} tone="bad" />),
              ],
              [
                'Taints',
                (o.spec.taints ?? []).map((t: Any) => (
                  <div>
                    <code>
                      {t.key}
                      {t.value && '=' + t.value}:{t.effect}
                    </code>
                  </div>
                )),
              ],
              [
                'Addresses',
                (s.addresses ?? []).map((a: Any) => (
                  <div>
                    {a.type} <code>{a.address}</code>
                  </div>
                )),
              ],
              ['System', `${info.osImage ?? '–'}, ${info.kernelVersion ?? ''} ${info.architecture ?? ''}`],
              ['Runtime', info.containerRuntimeVersion ?? '–'],
              ['Kubelet', info.kubeletVersion ?? '–'],
              ['Pod addresses', (o.spec.podCIDRs ?? []).join(', ') || '–'],
            ]}
          />
        </Section>
        <Section title="Requested of allocatable">
          <Show of={on} what="the pods of the node">
            {() => (
              <Grid
                label="Resources"
                head={['Resource', 'Requested', 'Allocatable', 'Capacity']}
                rows={Object.entries(s.allocatable ?? {}).map(([k, v]) => ({
                  key: k,
                  cells: [
                    k,
                    <Bar of={asked.get(k) ?? 0} whole={quantity(v)} label={amount(k, asked.get(k) ?? 0)} />,
                    amount(k, quantity(v)),
                    amount(k, quantity(s.capacity?.[k] ?? v)),
                  ],
                }))}
              />
            )}
          </Show>
        </Section>
      </div>
      <Conditions of={s.conditions} />
      {pods && (
        <Section title="Pods">
          <KindTable kind={pods} path={path} spaces fit empty="No pods." />
        </Section>
      )}
      <Devices o={o} />
      {(s.images ?? []).length > 0 && (
        <Section title="Images" aside={bytes((s.images as Any[]).reduce((n, i) => n + (i.sizeBytes ?? 0), 0))}>
          <Grid
            label="Images"
            head={['Image', 'Size']}
            numbers={[1]}
            rows={(s.images as Any[])
              .slice(0, 100)
              .map((i, n) => ({
                key: String(n),
                cells: [<code>{(i.names ?? []).find((x: string) => !x.includes('@')) ?? i.names?.[0]}</code>, bytes(i.sizeBytes ?? 0)],
              }))}
          />
        </Section>
      )}
      {(s.volumesAttached ?? []).length > 0 && (
        <Section title="Attached volumes">
          <Grid
            label="Attached volumes"
            head={['Volume', 'Device']}
            rows={s.volumesAttached.map((v: Any) => ({ key: v.name, cells: [v.name, v.devicePath || '–'] }))}
          />
        </Section>
      )}
    </>
  )
}
