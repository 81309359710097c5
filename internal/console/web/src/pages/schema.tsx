// A structural or OpenAPI schema as a tree, and an example of it.
import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Any } from '../api'
import { Long } from '../ui/parts'

export type Resolve = (ref: string) => Any

const resolved = (s: Any, resolve: Resolve | undefined): Any => {
  const ref = s?.$ref ?? (s?.allOf?.length === 1 ? s.allOf[0].$ref : undefined)
  return ref && resolve ? { ...resolve(ref), ...(s.description && { description: s.description }) } : (s ?? {})
}

const typeOf = (s: Any, resolve?: Resolve): string => {
  const r = resolved(s, resolve)
  if (r.type === 'array') return 'list of ' + typeOf(r.items ?? {}, resolve)
  if (r['x-kubernetes-int-or-string'] || (r.oneOf && !r.type)) return 'integer or string'
  if (r.type === 'object' && r.additionalProperties && typeof r.additionalProperties === 'object')
    return 'map of ' + typeOf(r.additionalProperties, resolve)
  return (r.type ?? 'any') + (r.format ? ` (${r.format})` : '')
}

const limits = (s: Any): string =>
  [
    s.enum && 'one of ' + s.enum.map((x: unknown) => JSON.stringify(x)).join(', '),
    s.default !== undefined && 'default ' + JSON.stringify(s.default),
    s.minimum !== undefined && 'at least ' + s.minimum,
    s.maximum !== undefined && 'at most ' + s.maximum,
    s.minLength !== undefined && `at least ${s.minLength} characters`,
    s.maxLength !== undefined && `at most ${s.maxLength} characters`,
    s.pattern && 'matches ' + s.pattern,
    s.maxItems !== undefined && `at most ${s.maxItems} items`,
    ...(s['x-kubernetes-validations'] ?? []).map((v: Any) => v.message || v.rule),
  ]
    .filter(Boolean)
    .join('; ')

export const Tree = ({ schema, resolve, depth = 0 }: { schema: Any; resolve?: Resolve | undefined; depth?: number }): JSX.Element => {
  let s = resolved(schema, resolve)
  while (s.type === 'array' || (s.type === 'object' && !s.properties && typeof s.additionalProperties === 'object')) {
    s = resolved(s.type === 'array' ? s.items : s.additionalProperties, resolve)
  }
  const fields = Object.entries(s.properties ?? {})
  return (
    <ul>
      {fields.map(([name, raw]) => {
        const f = resolved(raw, resolve)
        const l = limits(f)
        let inner = f
        while (
          inner.type === 'array' ||
          (inner.type === 'object' && !inner.properties && typeof inner.additionalProperties === 'object')
        ) {
          inner = resolved(inner.type === 'array' ? inner.items : inner.additionalProperties, resolve)
        }
        const head = (
          <>
            {name} <span class="type">{typeOf(f, resolve)}</span>
            {s.required?.includes(name) && <span class="must"> required</span>}
          </>
        )
        const about = (
          <>
            {f.description && (
              <p>
                <Long text={f.description} most={300} />
              </p>
            )}
            {l && <p>{l}</p>}
          </>
        )
        return (
          <li>
            {inner.properties && depth < 12 ? (
              <details>
                <summary>{head}</summary>
                {about}
                <Lazy schema={f} resolve={resolve} depth={depth + 1} />
              </details>
            ) : (
              <>
                <div>{head}</div>
                {about}
              </>
            )}
          </li>
        )
      })}
    </ul>
  )
}

/** Lazy draws a branch when it is opened: schemas refer to themselves. */
const Lazy = (p: { schema: Any; resolve?: Resolve | undefined; depth: number }): JSX.Element => {
  const ref = useRef<HTMLSpanElement>(null)
  const [open, set] = useState(false)
  useEffect(() => {
    const d = ref.current?.parentElement
    if (!(d instanceof HTMLDetailsElement)) return
    const toggle = (): void => {
      if (d.open) set(true)
    }
    d.addEventListener('toggle', toggle)
    return () => d.removeEventListener('toggle', toggle)
  }, [])
  return (
    <>
      {!open && <span ref={ref} />}
      {open && <Tree {...p} />}
    </>
  )
}

/** example makes a value that fits a schema: required fields, and the first optional ones. */
export const example = (schema: Any, resolve?: Resolve, depth = 0): Any => {
  const s = resolved(schema, resolve)
  if (s.default !== undefined) return s.default
  if (s.example !== undefined) return s.example
  if (s.enum) return s.enum[0]
  if (s.type === 'array') return depth > 5 ? [] : [example(s.items ?? {}, resolve, depth + 1)]
  if (s.type === 'integer' || s.type === 'number' || s['x-kubernetes-int-or-string'])
    return Math.max(s.minimum ?? 0, Math.min(1, s.maximum ?? 1))
  if (s.type === 'boolean') return false
  if (s.type === 'string') return s.format === 'date-time' ? '2026-01-01T00:00:00Z' : 'a'.repeat(Math.min(s.minLength ?? 0, 64)) || 'text'
  if (s.properties && depth < 6) {
    const required: string[] = s.required ?? []
    const names = Object.keys(s.properties).filter((n) => depth < 2 || required.includes(n) || (required.length === 0 && depth < 4))
    return Object.fromEntries(
      names
        .filter((n) => !['status', 'metadata', 'apiVersion', 'kind'].includes(n) || depth > 0)
        .map((n) => [n, example(s.properties[n], resolve, depth + 1)]),
    )
  }
  if (typeof s.additionalProperties === 'object' && depth < 6) return { key: example(s.additionalProperties, resolve, depth + 1) }
  return {}
}
