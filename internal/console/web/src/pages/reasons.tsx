// All that waits in the cluster, with the reason: pods without a node, autoscalers that do not scale, volumes that are not mounted, objects
// that are not deleted.
import type { JSX } from 'preact'
import { asMetadata, get, raw, withQuery, type Any, type List, type Obj } from '../api'
import { find, kinds, listable, objectHref, pathOf, refHref, type Kind } from '../discovery'
import { useLoad } from '../live'
import { inNamespace } from '../places'
import { many, type Tone } from '../text'
import { Age, Grid, Long, Mark, Section, Show } from '../ui/parts'
import { remover } from './deletion'

interface Reason {
  key: string
  what: string
  to?: string | undefined
  word: string
  tone: Tone
  why: string
  since?: string | undefined
}

const nameOf = (kind: string, m: { namespace?: string; name: string }): string =>
  `${kind} ${m.namespace ? m.namespace + '/' : ''}${m.name}`

const first = async (group: string, resource: string, ns: string, q: Record<string, string> = {}): Promise<[Kind, Obj[]] | undefined> => {
  const k = find(group, resource)
  return k && [k, (await get<List>(withQuery(pathOf(k, ns), { limit: '500', ...q }))).items]
}

/** waitingPod says why a pod that is Pending does not run. */
const waitingPod = (o: Obj): Pick<Reason, 'word' | 'tone' | 'why' | 'since'> => {
  const scheduled = (o.status?.conditions ?? []).find((c: Any) => c.type === 'PodScheduled')
  if (o.spec.schedulingGates?.length)
    return {
      word: 'gated',
      tone: 'warn',
      why: 'waits for the gates ' + o.spec.schedulingGates.map((g: Any) => g.name).join(', '),
      since: o.metadata.creationTimestamp,
    }
  if (scheduled?.status === 'False')
    return { word: scheduled.reason ?? 'no node', tone: 'bad', why: scheduled.message ?? '', since: scheduled.lastTransitionTime }
  if (!o.spec.nodeName)
    return { word: 'no node', tone: 'warn', why: 'The scheduler has not tried it yet.', since: o.metadata.creationTimestamp }
  const waits = [...(o.status?.initContainerStatuses ?? []), ...(o.status?.containerStatuses ?? [])].find((s: Any) => s.state?.waiting)
  const w = waits?.state.waiting
  return {
    word: w?.reason ?? 'not started',
    tone: w && /Err|BackOff/.test(w.reason ?? '') ? 'bad' : 'warn',
    why: w?.message ?? 'The node prepares it.',
    since: scheduled?.lastTransitionTime,
  }
}

const pending = async (ns: string): Promise<Reason[]> => {
  const [k, all] = (await first('', 'pods', ns, { fieldSelector: 'status.phase=Pending' })) ?? []
  return (all ?? []).map((o) => ({
    key: o.metadata.uid!,
    what: nameOf('Pod', o.metadata),
    to: k && objectHref(k, o.metadata.namespace, o.metadata.name, { tab: 'why' }),
    ...waitingPod(o),
  }))
}

const unscaled = async (ns: string): Promise<Reason[]> => {
  const [k, all] = (await first('autoscaling', 'horizontalpodautoscalers', ns)) ?? []
  return (all ?? []).flatMap((o) =>
    (o.status?.conditions ?? []).flatMap((c: Any): Reason[] => {
      const limited = c.type === 'ScalingLimited' && c.status === 'True'
      if (!limited && !(c.status === 'False' && c.type !== 'ScalingLimited')) return []
      return [
        {
          key: o.metadata.uid! + c.type,
          what: nameOf('Autoscaler', o.metadata),
          to: k && objectHref(k, o.metadata.namespace, o.metadata.name, { tab: 'why' }),
          word: c.reason ?? c.type,
          tone: limited ? 'warn' : 'bad',
          why: c.message ?? '',
          since: c.lastTransitionTime,
        },
      ]
    }),
  )
}

/** mounts are the reasons of events about volumes. */
const mounts = ['FailedMount', 'FailedAttachVolume', 'FailedBinding', 'ProvisioningFailed', 'FailedMapVolume']

const unmounted = async (ns: string): Promise<Reason[]> => {
  const [k, claims] = (await first('', 'persistentvolumeclaims', ns)) ?? []
  const [, events] = (await first('', 'events', ns, { fieldSelector: 'type=Warning' })) ?? []
  const about = new Map<string, Reason>()
  for (const e of events ?? []) {
    const o = e.involvedObject ?? {}
    if (!mounts.includes(e.reason)) continue
    const since: string = e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp ?? ''
    const what = nameOf(o.kind, o)
    if ((about.get(what)?.since ?? '') > since) continue
    const to = refHref(o.apiVersion ?? '', o.kind, o.namespace, o.name)
    about.set(what, { key: what, what, to: to && to + '?tab=why', word: e.reason, tone: 'bad', why: e.message ?? '', since })
  }
  for (const c of claims ?? []) {
    const what = nameOf('PersistentVolumeClaim', c.metadata)
    if (c.status?.phase === 'Bound' || about.has(what)) continue
    about.set(what, {
      key: what,
      what,
      to: k && objectHref(k, c.metadata.namespace, c.metadata.name, { tab: 'why' }),
      word: c.status?.phase ?? 'Pending',
      tone: c.status?.phase === 'Lost' ? 'bad' : 'warn',
      why: c.spec.storageClassName ? `of the class ${c.spec.storageClassName}` : 'of no class',
      since: c.metadata.creationTimestamp,
    })
  }
  return [...about.values()]
}

/** undeleted looks through the metadata of all kinds, the first 500 objects of each. */
const undeleted = async (ns: string): Promise<Reason[]> => {
  const of = kinds.value.filter((k) => listable(k) && k.verbs.includes('delete') && (k.namespaced || !ns) && k.resource !== 'events')
  const out: Reason[] = []
  const look = async (): Promise<void> => {
    for (let k = of.pop(); k; k = of.pop()) {
      const path = withQuery(pathOf(k, ns), { limit: '500' })
      const l = await raw(path, { accept: asMetadata })
        .then((r) => r.json() as Promise<List>)
        .catch(() => undefined) // what may not be read
      for (const o of l?.items ?? []) {
        if (!o.metadata.deletionTimestamp) continue
        const f = o.metadata.finalizers ?? (k.resource === 'namespaces' ? ['kubernetes'] : [])
        out.push({
          key: o.metadata.uid!,
          what: nameOf(k.kind, o.metadata),
          to: objectHref(k, o.metadata.namespace, o.metadata.name, { tab: 'why' }),
          word: f.join(', ') || 'ends',
          tone: f.length ? 'warn' : 'idle',
          why: f.map(remover).join('; ') || `has ${o.metadata.deletionGracePeriodSeconds ?? 0} s to end`,
          since: o.metadata.deletionTimestamp,
        })
      }
    }
  }
  await Promise.all([1, 2, 3, 4, 5, 6].map(look))
  return out
}

const Reasons_ = (p: {
  title: string
  fine: string
  load: (ns: string) => Promise<Reason[]>
  head: string
  every: number
}): JSX.Element => {
  const ns = inNamespace()
  const all = useLoad(() => p.load(ns), p.title + ns, p.every)
  return (
    <Section title={p.title} aside={all.data && all.data.length > 0 && many(all.data.length, 'object')}>
      <Show of={all} what="these objects">
        {(rows) =>
          rows.length === 0 ? (
            <p class="fine">
              <Mark word={p.fine} tone="ok" />
            </p>
          ) : (
            <Grid
              label={p.title}
              head={['Object', p.head, 'Why', 'Since']}
              rows={rows.slice(0, 200).map((r) => ({
                key: r.key,
                cells: [
                  r.to ? <a href={r.to}>{r.what}</a> : r.what,
                  <Mark word={r.word} tone={r.tone} />,
                  <Long text={r.why} most={240} />,
                  <Age at={r.since} />,
                ],
              }))}
            />
          )
        }
      </Show>
    </Section>
  )
}

export const Reasons = (): JSX.Element => {
  const ns = inNamespace()
  return (
    <div class="page">
      <div class="title">
        <h1>Why it waits{ns && <small>{ns}</small>}</h1>
      </div>
      <Reasons_ title="Not running" fine="No pod is pending" load={pending} head="State" every={5000} />
      <Reasons_ title="Not scaling" fine="No autoscaler is held back" load={unscaled} head="State" every={10000} />
      <Reasons_ title="Not mounted" fine="No volume is missing" load={unmounted} head="State" every={10000} />
      <Reasons_ title="Not deleted" fine="Nothing is being deleted" load={undeleted} head="Finalizers" every={0} />
    </div>
  )
}
