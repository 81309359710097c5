// What the editor applies: the fields that the user changed, and those that the console applied before. All else stays with those who
// set it. Which lists are maps, and by which keys, is in the object's managedFields: no schema is needed.
import { manager, type Any, type Fields, type Obj } from './api'

type Plain = Record<string, Any>

const isMap = (v: unknown): v is Plain => typeof v === 'object' && v !== null && !Array.isArray(v)

export const same = (a: unknown, b: unknown): boolean => {
  if (a === b) return true
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((x, i) => same(x, b[i]))
  if (isMap(a) && isMap(b)) {
    const k = Object.keys(a)
    return k.length === Object.keys(b).length && k.every((x) => x in b && same(a[x], b[x]))
  }
  return false
}

/** merged is the union of what managers have. */
const merged = (all: Fields[]): Fields => {
  const out: Fields = {}
  for (const f of all) for (const [k, v] of Object.entries(f)) out[k] = out[k] ? merged([out[k], v]) : v
  return out
}

/** keysOf returns the keys of the list at f, or nothing if its items are not told apart by keys. */
const keysOf = (f: Fields | undefined): string[] | undefined => {
  for (const k of Object.keys(f ?? {})) {
    if (k.startsWith('k:')) return Object.keys(JSON.parse(k.slice(2)) as Plain)
  }
  return undefined
}

const isSet = (f: Fields | undefined): boolean => Object.keys(f ?? {}).some((k) => k.startsWith('v:'))

const nameOf = (item: Any, keys: string[]): string => JSON.stringify(keys.map((k) => item?.[k]))

const nested = (f: Fields | undefined, item: Any, keys: string[]): Fields | undefined => {
  for (const [k, v] of Object.entries(f ?? {})) {
    if (k.startsWith('k:') && nameOf(JSON.parse(k.slice(2)), keys) === nameOf(item, keys)) return v
  }
  return undefined
}

/**
 * part returns the value to apply at a place: of `after`, what differs from `before`, and what `mine` says is applied by the console.
 * undefined: nothing. all are the fields of all managers.
 */
const part = (before: Any, after: Any, all: Fields | undefined, mine: Fields | undefined): Any => {
  if (isMap(after) && isMap(before)) {
    const out: Plain = {}
    for (const [k, v] of Object.entries(after)) {
      const p = part(before[k], v, all?.['f:' + k], mine?.['f:' + k])
      if (p !== undefined) out[k] = p
    }
    return Object.keys(out).length || (mine && '.' in mine) ? out : undefined
  }
  const keys = keysOf(all)
  if (Array.isArray(after) && Array.isArray(before) && keys) {
    const out: Any[] = []
    for (const item of after) {
      const old = before.find((b) => nameOf(b, keys) === nameOf(item, keys))
      const own = nested(mine, item, keys)
      const p = old === undefined ? item : part(old, item, nested(all, item, keys), own)
      if (p === undefined && !own) continue
      out.push(
        old === undefined ? item : { ...Object.fromEntries(keys.filter((k) => item[k] !== undefined).map((k) => [k, item[k]])), ...p },
      )
    }
    return out.length ? out : undefined
  }
  if (Array.isArray(after) && Array.isArray(before) && isSet(all)) {
    const out = after.filter((x) => !before.some((b) => same(b, x)) || mine?.['v:' + JSON.stringify(x)])
    return out.length ? out : undefined
  }
  return !same(before, after) || mine ? after : undefined
}

const applied = (o: Obj): Fields =>
  merged(
    (o.metadata.managedFields ?? [])
      .filter((m) => m.manager === manager && m.operation === 'Apply' && !m.subresource)
      .map((m) => m.fieldsV1 ?? {}),
  )

const everybody = (o: Obj): Fields => merged((o.metadata.managedFields ?? []).map((m) => m.fieldsV1 ?? {}))

/** configuration returns what to apply to make `after` of `before`. */
export const configuration = (before: Obj, after: Obj): Obj => {
  const all = everybody(before),
    mine = applied(before)
  const out = (part(clean(before), clean(after), all, mine) ?? {}) as Plain
  const m = { ...(isMap(out.metadata) ? out.metadata : {}) } as Plain
  m.name = before.metadata.name
  if (before.metadata.namespace) m.namespace = before.metadata.namespace
  return { ...out, apiVersion: before.apiVersion, kind: before.kind, metadata: m } as unknown as Obj
}

const serverSet = [
  'managedFields',
  'resourceVersion',
  'uid',
  'generation',
  'creationTimestamp',
  'deletionTimestamp',
  'deletionGracePeriodSeconds',
  'selfLink',
]

/** clean returns an object without what the server sets: the text that people edit. */
export const clean = (o: Obj): Obj => {
  const metadata = Object.fromEntries(Object.entries(o.metadata).filter(([k]) => !serverSet.includes(k)))
  const { status: _, ...rest } = o
  return { ...rest, metadata } as unknown as Obj
}

/** left are fields that the user removed and that stay after an apply, as others set them. */
export const left = (before: Any, after: Any, result: Any, path = ''): string[] => {
  if (isMap(before) && isMap(result)) {
    const to: Plain = isMap(after) ? after : {}
    return Object.keys(before).flatMap((k) => {
      const p = path ? path + '.' + k : k
      if (!(k in result)) return []
      return k in to ? left(before[k], to[k], result[k], p) : [p]
    })
  }
  if (
    Array.isArray(before) &&
    Array.isArray(after) &&
    Array.isArray(result) &&
    after.length < before.length &&
    result.length > after.length
  ) {
    return [path]
  }
  return []
}

export interface Line {
  kind: 'same' | 'add' | 'del' | 'gap'
  text: string
}

/** difference compares texts line by line, with `around` lines about each change. */
export const difference = (a: string, b: string, around = 3): Line[] => {
  const x = a.split('\n'),
    y = b.split('\n')
  let start = 0,
    end = 0
  while (start < x.length && start < y.length && x[start] === y[start]) start++
  while (end < x.length - start && end < y.length - start && x[x.length - 1 - end] === y[y.length - 1 - end]) end++
  const p = x.slice(start, x.length - end),
    q = y.slice(start, y.length - end)
  const all: Line[] = x.slice(0, start).map((text) => ({ kind: 'same', text }))
  if (p.length * q.length > 4e6) {
    all.push(...p.map((text): Line => ({ kind: 'del', text })), ...q.map((text): Line => ({ kind: 'add', text })))
  } else {
    const w = q.length + 1
    const t = new Uint32Array((p.length + 1) * w) // longest common subsequences of the ends
    for (let i = p.length - 1; i >= 0; i--)
      for (let j = q.length - 1; j >= 0; j--) {
        t[i * w + j] = p[i] === q[j] ? t[(i + 1) * w + j + 1]! + 1 : Math.max(t[(i + 1) * w + j]!, t[i * w + j + 1]!)
      }
    let i = 0,
      j = 0
    while (i < p.length || j < q.length) {
      if (i < p.length && j < q.length && p[i] === q[j]) {
        all.push({ kind: 'same', text: p[i]! })
        i++
        j++
      } else if (i < p.length && (j >= q.length || t[(i + 1) * w + j]! >= t[i * w + j + 1]!)) all.push({ kind: 'del', text: p[i++]! })
      else all.push({ kind: 'add', text: q[j++]! })
    }
  }
  all.push(...x.slice(x.length - end).map((text): Line => ({ kind: 'same', text })))
  const near = all.map((_, i) => all.slice(Math.max(0, i - around), i + around + 1).some((l) => l.kind !== 'same'))
  const out: Line[] = []
  all.forEach((l, i) => {
    if (near[i]) out.push(l)
    else if (out.length === 0 || out[out.length - 1]!.kind !== 'gap') out.push({ kind: 'gap', text: '…' })
  })
  return out.some((l) => l.kind === 'add' || l.kind === 'del') ? out : []
}
