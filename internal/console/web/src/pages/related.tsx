// The graph of an object: who owns it, what it owns, what it refers to, what refers to it.
import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { asMetadata, Failure, get, list, raw, withQuery, type Any, type List, type Obj } from '../api'
import { byKind, find, kinds, listable, objectHref, pathOf, type Kind } from '../discovery'
import { tone, type Tone } from '../text'
import { Empty, Grid, Mark, Section, Wait } from '../ui/parts'
import { selectorOf } from './summary'

export interface Vertex {
  id: string
  kind: string
  name: string
  to?: string | undefined
  tone?: Tone | undefined
  self?: boolean
  missing?: boolean
}
export interface Edge {
  from: string
  to: string
  why: string
  owns: boolean
}
export interface Graph {
  vertices: Map<string, Vertex>
  edges: Edge[]
  blind: Set<string>
}

const most = 80

const idOf = (kind: string, ns: string | undefined, name: string): string => `${kind}/${ns ?? ''}/${name}`

class Builder {
  g: Graph = { vertices: new Map(), edges: [], blind: new Set() }

  add(apiVersion: string, kind: string, ns: string | undefined, name: string, more: Partial<Vertex> = {}): string {
    const k = byKind(apiVersion, kind)
    const id = idOf(kind, k && !k.namespaced ? undefined : ns, name)
    const old = this.g.vertices.get(id)
    if (old) Object.assign(old, more)
    else if (this.g.vertices.size < most) this.g.vertices.set(id, { id, kind, name, to: k && objectHref(k, ns, name), ...more })
    return id
  }

  edge(from: string, to: string, why: string, owns = false): void {
    if (from === to || !this.g.vertices.has(from) || !this.g.vertices.has(to)) return
    if (!this.g.edges.some((e) => e.from === from && e.to === to && e.why === why)) this.g.edges.push({ from, to, why, owns })
  }

  async read<T>(what: string, f: () => Promise<T>): Promise<T | undefined> {
    try {
      return await f()
    } catch (e) {
      if (e instanceof Failure && e.forbidden) this.g.blind.add(what)
      return undefined
    }
  }
}

// Where a kind's spec names other objects.
const podRefs = (b: Builder, id: string, spec: Any, ns: string | undefined): void => {
  const to = (kind: string, name: unknown, why: string, apiVersion = 'v1'): void => {
    if (typeof name === 'string' && name) b.edge(id, b.add(apiVersion, kind, ns, name), why)
  }
  to('ServiceAccount', spec.serviceAccountName, 'account')
  to('Node', spec.nodeName, 'runs on')
  to('PriorityClass', spec.priorityClassName, 'priority', 'scheduling.k8s.io/v1')
  to('RuntimeClass', spec.runtimeClassName, 'runtime', 'node.k8s.io/v1')
  for (const s of spec.imagePullSecrets ?? []) to('Secret', s.name, 'pulls with')
  for (const v of spec.volumes ?? []) {
    to('ConfigMap', v.configMap?.name, 'mounts')
    to('Secret', v.secret?.secretName, 'mounts')
    to('PersistentVolumeClaim', v.persistentVolumeClaim?.claimName, 'mounts')
    for (const p of v.projected?.sources ?? []) {
      to('ConfigMap', p.configMap?.name, 'mounts')
      to('Secret', p.secret?.name, 'mounts')
    }
  }
  for (const c of [...(spec.initContainers ?? []), ...(spec.containers ?? [])]) {
    for (const e of c.envFrom ?? []) {
      to('ConfigMap', e.configMapRef?.name, 'environment')
      to('Secret', e.secretRef?.name, 'environment')
    }
    for (const e of c.env ?? []) {
      to('ConfigMap', e.valueFrom?.configMapKeyRef?.name, 'environment')
      to('Secret', e.valueFrom?.secretKeyRef?.name, 'environment')
    }
  }
  for (const r of spec.resourceClaims ?? []) to('ResourceClaim', r.resourceClaimName, 'claims', 'resource.k8s.io/v1')
}

const webhookRefs = (b: Builder, id: string, o: Obj): void => {
  for (const w of o.webhooks ?? []) {
    const s = w.clientConfig?.service
    if (s) b.edge(id, b.add('v1', 'Service', s.namespace, s.name), w.name)
  }
  const s = o.spec?.service ?? o.spec?.conversion?.webhook?.clientConfig?.service
  if (s?.namespace && s.name && o.kind !== 'Ingress') b.edge(id, b.add('v1', 'Service', s.namespace, s.name), 'calls')
}

const refs = (b: Builder, id: string, o: Obj): void => {
  const ns = o.metadata.namespace,
    s = o.spec ?? {}
  const to = (apiVersion: string, kind: string, name: unknown, why: string, space = ns): void => {
    if (typeof name === 'string' && name) b.edge(id, b.add(apiVersion, kind, space, name), why)
  }
  if (o.kind === 'Pod') podRefs(b, id, s, ns)
  else if (s.template?.spec?.containers) podRefs(b, id, s.template.spec, ns)
  if (s.jobTemplate?.spec?.template?.spec) podRefs(b, id, s.jobTemplate.spec.template.spec, ns)
  webhookRefs(b, id, o)
  if (s.scaleTargetRef) to(s.scaleTargetRef.apiVersion, s.scaleTargetRef.kind, s.scaleTargetRef.name, 'scales')
  to('v1', 'PersistentVolume', o.kind === 'PersistentVolumeClaim' && s.volumeName, 'bound to')
  to('storage.k8s.io/v1', 'StorageClass', s.storageClassName, 'class')
  to('networking.k8s.io/v1', 'IngressClass', s.ingressClassName, 'class')
  if (s.claimRef) to('v1', 'PersistentVolumeClaim', s.claimRef.name, 'bound to', s.claimRef.namespace)
  if (o.roleRef) to('rbac.authorization.k8s.io/v1', o.roleRef.kind, o.roleRef.name, 'grants')
  for (const x of o.subjects ?? []) if (x.kind === 'ServiceAccount') to('v1', 'ServiceAccount', x.name, 'to', x.namespace)
  for (const r of s.rules ?? []) for (const p of r.http?.paths ?? []) to('v1', 'Service', p.backend?.service?.name, p.path ?? '/')
  to('v1', 'Service', s.defaultBackend?.service?.name, 'default')
  to('v1', 'Service', o.kind === 'StatefulSet' && s.serviceName, 'governed by')
}

const status = (o: Obj): Tone | undefined => {
  const s = o.status ?? {}
  if (o.metadata.deletionTimestamp) return 'warn'
  if (o.kind === 'Pod') return tone(s.reason ?? s.phase ?? '')
  if (o.spec?.replicas !== undefined && s.replicas !== undefined) return (s.readyReplicas ?? 0) >= o.spec.replicas ? 'ok' : 'warn'
  return undefined
}

/** owners walks up. */
const owners = async (b: Builder, id: string, o: Obj, depth = 0): Promise<void> => {
  for (const r of o.metadata.ownerReferences ?? []) {
    const up = b.add(r.apiVersion, r.kind, o.metadata.namespace, r.name)
    b.edge(up, id, r.controller ? 'controls' : 'owns', true)
    const k = byKind(r.apiVersion, r.kind)
    if (!k || depth > 4) continue
    const owner = await b.read(k.resource, () =>
      get(pathOf(k, o.metadata.namespace, r.name)).catch((e) => {
        if (e instanceof Failure && e.code === 404)
          b.add(r.apiVersion, r.kind, o.metadata.namespace, r.name, { missing: true, tone: 'bad' })
        throw e
      }),
    )
    if (owner) {
      const t = status({ ...owner, kind: r.kind })
      b.add(r.apiVersion, r.kind, o.metadata.namespace, r.name, t ? { tone: t } : {})
      await owners(b, up, { ...owner, kind: r.kind, apiVersion: r.apiVersion }, depth + 1)
    }
  }
}

const ownable = [
  'replicasets',
  'pods',
  'jobs',
  'endpointslices',
  'controllerrevisions',
  'persistentvolumeclaims',
  'configmaps',
  'secrets',
  'services',
  'deployments',
  'statefulsets',
  'daemonsets',
  'resourceclaims',
]

/** owned walks down: objects of common kinds, and of custom ones, that name the object as owner. */
const owned = async (b: Builder, o: Obj): Promise<void> => {
  const ns = o.metadata.namespace
  if (!ns) return
  const custom = (k: Kind): boolean => k.group.includes('.') && !/\.k8s\.io$/.test(k.group)
  const of = kinds.value.filter((k) => k.namespaced && listable(k) && (ownable.includes(k.resource) || custom(k))).slice(0, 30)
  const found = (
    await Promise.all(
      of.map((k) =>
        b.read(k.resource, async () => {
          const l = (await (await raw(withQuery(pathOf(k, ns), { limit: '1000' }), { accept: asMetadata })).json()) as List<Obj>
          return l.items.map((x) => ({ k, x }))
        }),
      ),
    )
  ).flatMap((x) => x ?? [])
  const down = (uid: string, id: string, depth: number): void => {
    for (const { k, x } of found) {
      if (!x.metadata.ownerReferences?.some((r) => r.uid === uid)) continue
      const child = b.add(
        (k.group ? k.group + '/' : '') + k.version,
        k.kind,
        ns,
        x.metadata.name,
        x.metadata.deletionTimestamp ? { tone: 'warn' } : {},
      )
      b.edge(id, child, 'owns', true)
      if (depth < 4 && x.metadata.uid) down(x.metadata.uid, child, depth + 1)
    }
  }
  if (o.metadata.uid) down(o.metadata.uid, idOf(o.kind!, ns, o.metadata.name), 0)
}

const fits = (selector: Any, labels: Record<string, string> | undefined): boolean => {
  const all = Object.entries(selector ?? {})
  return all.length > 0 && all.every(([k, v]) => labels?.[k] === v)
}

/** users are what refers to it: services to a pod, pods to a claim, bindings to a role, autoscalers to a workload. */
const users = async (b: Builder, id: string, o: Obj): Promise<void> => {
  const ns = o.metadata.namespace
  const all = async (group: string, resource: string): Promise<Obj[]> => {
    const k = find(group, resource)
    return k
      ? ((await b.read(resource, async () =>
          (await list(pathOf(k, k.namespaced ? ns : undefined), 1000)).map((x) => ({
            ...x,
            kind: k.kind,
            apiVersion: (k.group ? k.group + '/' : '') + k.version,
          })),
        )) ?? [])
      : []
  }
  const template = o.kind === 'Pod' ? o.metadata.labels : o.spec?.template?.metadata?.labels
  if (template && ns) {
    for (const s of await all('', 'services'))
      if (fits(s.spec.selector, template)) b.edge(b.add('v1', 'Service', ns, s.metadata.name), id, 'selects')
    for (const h of await all('autoscaling', 'horizontalpodautoscalers')) {
      const r = h.spec.scaleTargetRef
      if (r.kind === o.kind && r.name === o.metadata.name) b.edge(b.add(h.apiVersion!, h.kind!, ns, h.metadata.name), id, 'scales')
    }
    for (const p of await all('policy', 'poddisruptionbudgets')) {
      if (fits(p.spec.selector?.matchLabels, template)) b.edge(b.add(p.apiVersion!, p.kind!, ns, p.metadata.name), id, 'protects')
    }
  }
  if (o.kind === 'Service' && ns) {
    const pods = find('', 'pods'),
      s = selectorOf(o.spec.selector)
    if (pods && s)
      for (const p of (await b.read('pods', () => list(withQuery(pathOf(pods, ns), { labelSelector: s }), 200))) ?? []) {
        b.edge(id, b.add('v1', 'Pod', ns, p.metadata.name, { tone: status({ ...p, kind: 'Pod' }) }), 'selects')
      }
    for (const i of await all('networking.k8s.io', 'ingresses')) refs(b, b.add(i.apiVersion!, i.kind!, ns, i.metadata.name), i)
  }
  if (['ConfigMap', 'Secret', 'PersistentVolumeClaim', 'ServiceAccount'].includes(o.kind ?? '') && ns) {
    const trial = new Builder()
    for (const p of await all('', 'pods')) {
      const pid = trial.add('v1', 'Pod', ns, p.metadata.name)
      podRefs(trial, pid, p.spec, ns)
      const e = trial.g.edges.find((x) => x.from === pid && x.to === id)
      if (e) b.edge(b.add('v1', 'Pod', ns, p.metadata.name, { tone: status({ ...p, kind: 'Pod' }) }), id, e.why)
      trial.g.vertices.clear()
      trial.g.edges = []
      trial.add(o.apiVersion ?? 'v1', o.kind!, ns, o.metadata.name)
    }
  }
}

const build = async (o: Obj): Promise<Graph> => {
  const b = new Builder()
  const id = b.add(o.apiVersion ?? 'v1', o.kind ?? '', o.metadata.namespace, o.metadata.name, { self: true, tone: status(o) })
  refs(b, id, o)
  await Promise.all([owners(b, id, o), owned(b, o), users(b, id, o)])
  return b.g
}

type Draw = (typeof import('../lazy/graph'))['Drawing']

export const Related = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  const [g, set] = useState<Graph>()
  const [D, load] = useState<{ draw: Draw }>()
  useEffect(() => {
    void import('../lazy/graph').then((m) => load({ draw: m.Drawing }))
  }, [])
  useEffect(() => {
    let closed = false
    void build(o).then((x) => {
      if (!closed) set(x)
    })
    return () => {
      closed = true
    }
  }, [o.metadata.uid, o.metadata.generation, k.resource])
  if (!g || !D) return <Wait what="Following references" />
  const Drawing = D.draw
  const name = (id: string): JSX.Element => {
    const v = g.vertices.get(id)!
    return (
      <>
        {v.kind} {v.to && !v.self ? <a href={v.to}>{v.name}</a> : v.name} {v.missing && <Mark word="does not exist" tone="bad" />}
      </>
    )
  }
  return (
    <div class="page">
      {g.edges.length === 0 ? <Empty>Nothing refers to it, and it refers to nothing.</Empty> : <Drawing g={g} />}
      <Section title="The same in words">
        <Grid
          label="References"
          head={['From', '', 'To']}
          empty="None."
          rows={g.edges.map((e, i) => ({ key: String(i), cells: [name(e.from), <small>{e.why}</small>, name(e.to)] }))}
        />
        {g.vertices.size >= most && <p class="hint">The first {most} objects are shown.</p>}
        {g.blind.size > 0 && <p class="hint">You may not read {[...g.blind].join(', ')}: references from and to them are not shown.</p>}
      </Section>
    </div>
  )
}
