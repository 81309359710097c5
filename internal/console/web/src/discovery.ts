// What kinds the server has, from aggregated discovery.
import { signal } from '@preact/signals'
import { raw, type Obj } from './api'
import { href } from './router'

export interface Kind {
  group: string
  version: string
  resource: string
  kind: string
  namespaced: boolean
  verbs: string[]
  short: string[]
  subresources: string[]
  categories: string[]
}

interface Discovered {
  items: {
    metadata: { name?: string }
    versions: {
      version: string
      freshness?: string
      resources?: {
        resource: string
        responseKind: { kind: string }
        scope: string
        verbs: string[]
        shortNames?: string[]
        categories?: string[]
        subresources?: { subresource: string }[]
      }[]
    }[]
  }[]
}

export const kinds = signal<Kind[]>([])
/** stale are groups whose server does not answer: what is known of them is old. */
export const stale = signal<string[]>([])

const accept = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList'

const part = async (path: string): Promise<{ kinds: Kind[]; stale: string[] }> => {
  const d = (await (await raw(path, { accept })).json()) as Discovered
  const found: Kind[] = []
  const old: string[] = []
  for (const g of d.items ?? []) {
    const seen = new Set<string>() // the first version that has a resource is the preferred one
    for (const v of g.versions) {
      if (v.freshness === 'Stale') old.push((g.metadata.name ?? '') + '/' + v.version)
      for (const r of v.resources ?? []) {
        if (seen.has(r.resource)) continue
        seen.add(r.resource)
        found.push({
          group: g.metadata.name ?? '',
          version: v.version,
          resource: r.resource,
          kind: r.responseKind?.kind ?? r.resource,
          namespaced: r.scope === 'Namespaced',
          verbs: r.verbs,
          short: r.shortNames ?? [],
          categories: r.categories ?? [],
          subresources: (r.subresources ?? []).map((s) => s.subresource),
        })
      }
    }
  }
  return { kinds: found, stale: old }
}

/** discover reads both halves of discovery. */
export const discover = async (): Promise<void> => {
  const [core, named] = await Promise.all([part('/api'), part('/apis')])
  kinds.value = [...core.kinds, ...named.kinds]
  stale.value = [...core.stale, ...named.stale]
}

export const listable = (k: Kind): boolean => k.verbs.includes('list')

/** find returns the kind of a resource, of the given version or of the preferred one. */
export const find = (group: string, resource: string): Kind | undefined =>
  kinds.value.find((k) => k.group === group && k.resource === resource)

export const byKind = (apiVersion: string, kind: string): Kind | undefined => {
  const group = apiVersion.includes('/') ? apiVersion.split('/')[0]! : ''
  return kinds.value.find((k) => k.group === group && k.kind === kind && listable(k))
}

/** byWord finds a kind by what people type: po, pods, Pod, deploy. */
export const byWord = (word: string): Kind | undefined => {
  const w = word.toLowerCase()
  const all = kinds.value.filter(listable)
  return all.find((k) => k.resource === w) ?? all.find((k) => k.short.includes(w)) ?? all.find((k) => k.kind.toLowerCase() === w)
}

export const prefix = (k: { group: string; version: string }): string =>
  k.group === '' ? `/api/${k.version}` : `/apis/${k.group}/${k.version}`

/** pathOf is the path of a collection or, with a name, of an object. */
export const pathOf = (k: Kind, namespace?: string, name?: string): string => {
  let p = prefix(k)
  if (k.namespaced && namespace) p += '/namespaces/' + encodeURIComponent(namespace)
  p += '/' + k.resource
  return name === undefined ? p : p + '/' + encodeURIComponent(name)
}

const core = (group: string): string => group || 'core'

/** listHref and objectHref are addresses of pages. */
export const listHref = (k: Kind, q?: Record<string, string | undefined>): string => href(['k', core(k.group), k.version, k.resource], q)
export const objectHref = (k: Kind, namespace: string | undefined, name: string, q?: Record<string, string | undefined>): string =>
  href(['k', core(k.group), k.version, k.resource, k.namespaced && namespace ? namespace : '_', name], q)

/** refHref links to an object that is named by kind, such as an owner. */
export const refHref = (apiVersion: string, kind: string, namespace: string | undefined, name: string): string | undefined => {
  const k = byKind(apiVersion, kind)
  return k && objectHref(k, namespace, name)
}

/** kindAt is the kind that a page's address names; unknown versions and kinds are given as they are. */
export const kindAt = (group: string, version: string, resource: string): Kind | undefined => {
  const g = group === 'core' ? '' : group
  const k = find(g, resource)
  return k && (k.version === version ? k : { ...k, version })
}

export const plural = (k: Kind): string => k.resource + (k.group ? '.' + k.group : '')

export const selfPath = (o: Obj): string | undefined => {
  const k = byKind(o.apiVersion ?? '', o.kind ?? '')
  return k && pathOf(k, o.metadata.namespace, o.metadata.name)
}
