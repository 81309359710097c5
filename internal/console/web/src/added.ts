// Links and columns that ConsoleExtension objects add. Values of objects are percent-encoded into URLs; no code comes from outside.
import { signal } from '@preact/signals'
import { list, type Any, type Column, type Obj } from './api'
import { find, pathOf, type Kind } from './discovery'

interface Extra {
  resource?: { group?: string; resource: string }
  links?: { title: string; url: string }[]
  columns?: (Column & { jsonPath: string })[]
}

const extras = signal<Extra[]>([])

/** readExtras reads the extensions of the console, if the user may. */
export const readExtras = async (): Promise<void> => {
  const k = find('extension.mortise.dev', 'consoleextensions')
  if (!k) return
  extras.value = await list<Obj>(pathOf(k)).then(
    (all) => all.map((o) => o.spec as Extra),
    () => [],
  )
}

const of = (k: Kind | undefined): Extra[] =>
  extras.value.filter((e) => (k ? e.resource?.resource === k.resource && (e.resource.group ?? '') === k.group : !e.resource))

/** valueAt evaluates the simple JSONPaths of printer columns: .spec.a, ['key'], [0]. */
export const valueAt = (o: Any, path: string): unknown => {
  let v: Any = o
  for (const m of path.matchAll(/\.((?:[^.[\]\\]|\\.)+)|\[(?:'([^']*)'|"([^"]*)"|(\d+))\]/g)) {
    if (v === null || typeof v !== 'object') return undefined
    const key = m[1]?.replace(/\\(.)/g, '$1') ?? m[2] ?? m[3] ?? m[4]!
    v = Object.hasOwn(v, key) ? v[key] : undefined
  }
  return v
}

/** linksOf are the links of an object or, without one, of the cluster. Only https and http lead anywhere. */
export const linksOf = (k?: Kind, o?: Obj): { title: string; url: string }[] =>
  of(k)
    .flatMap((e) => e.links ?? [])
    .flatMap((l) => {
      const url = l.url.replace(/\{([^{}]+)\}/g, (_, path: string) => {
        const v = valueAt(o, path)
        return v === undefined || v === null ? '' : encodeURIComponent(typeof v === 'object' ? JSON.stringify(v) : String(v))
      })
      return /^https?:\/\//i.test(url) ? [{ title: l.title, url }] : []
    })

/** columnsOf are the columns that are added to a kind's list. */
export const columnsOf = (k: Kind): (Column & { jsonPath: string })[] => of(k).flatMap((e) => e.columns ?? [])
