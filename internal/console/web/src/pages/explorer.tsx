// The API as OpenAPI v3 describes it: paths, parameters, schemas, and a GET to try.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { Failure, get, raw, type Any } from '../api'
import { useLoad } from '../live'
import { href, route, setQuery } from '../router'
import { Empty, Grid, Long, Section, Show, Wrong } from '../ui/parts'
import type { PageProps } from './index'
import { Tree } from './schema'

interface Root {
  paths: Record<string, { serverRelativeURL: string }>
}
interface Doc {
  paths: Record<string, Any>
  components?: { schemas?: Record<string, Any> }
}

export const Explorer = ({ path }: PageProps): JSX.Element => {
  const root = useLoad(() => get<Root>('/openapi/v3'), 'openapi')
  const gv = path.slice(1).join('/')
  return (
    <div class="page">
      <div class="title">
        <h1>API explorer{gv && <small>{gv}</small>}</h1>
        {gv && <a href="api">all groups</a>}
      </div>
      <Show of={root} what="the OpenAPI documents">
        {(r) =>
          gv ? (
            r.paths[gv] ? (
              <Group url={r.paths[gv].serverRelativeURL} />
            ) : (
              <Empty>There is no document {gv}.</Empty>
            )
          ) : (
            <Section title="Documents">
              <Grid
                label="Documents"
                head={['Path', 'Document']}
                rows={Object.keys(r.paths)
                  .sort()
                  .map((p) => ({
                    key: p,
                    cells: [
                      <a href={href(['api', ...p.split('/')])}>/{p}</a>,
                      <code>{r.paths[p]!.serverRelativeURL.split('?')[0]}</code>,
                    ],
                  }))}
              />
            </Section>
          )
        }
      </Show>
    </div>
  )
}

const methods = ['get', 'post', 'put', 'patch', 'delete']

const Group = ({ url }: { url: string }): JSX.Element => {
  const doc = useLoad(() => get<Doc>(url), url)
  const q = route.value.query
  const words = (q.get('q') ?? '').toLowerCase()
  return (
    <Show of={doc} what="the document">
      {(d) => {
        const resolve = (ref: string): Any => d.components?.schemas?.[ref.replace('#/components/schemas/', '')] ?? {}
        const all = Object.entries(d.paths).filter(([p]) => p.toLowerCase().includes(words))
        const open = q.get('path')
        return (
          <>
            <div class="tools">
              <input
                type="search"
                data-filter
                aria-label="Filter"
                placeholder="Filter paths"
                value={q.get('q') ?? ''}
                onInput={(e) => setQuery({ q: e.currentTarget.value })}
              />
            </div>
            {open && d.paths[open] && <Path p={open} item={d.paths[open]} resolve={resolve} />}
            <Section title="Paths" aside={String(all.length)}>
              <Grid
                label="Paths"
                head={['Path', 'Methods']}
                rows={all.slice(0, 400).map(([p, item]) => ({
                  key: p,
                  cells: [
                    <a href={href(['api', ...route.value.path.slice(1)], { q: q.get('q') ?? undefined, path: p })}>
                      <code>{p}</code>
                    </a>,
                    <small>{methods.filter((m) => item[m]).join(' ')}</small>,
                  ],
                }))}
              />
            </Section>
            <Section title="Schemas">
              {Object.entries(d.components?.schemas ?? {})
                .filter(([n]) => n.toLowerCase().includes(words))
                .slice(0, 200)
                .map(([n, s]) => (
                  <Schema n={n} s={s} resolve={resolve} />
                ))}
            </Section>
          </>
        )
      }}
    </Show>
  )
}

const Schema = ({ n, s, resolve }: { n: string; s: Any; resolve: (r: string) => Any }): JSX.Element => {
  const [open, set] = useState(false)
  return (
    <details onToggle={(e) => set(e.currentTarget.open)}>
      <summary>
        <code>{n}</code>
      </summary>
      {open && (
        <div class="tree">
          {s.description && (
            <p>
              <Long text={s.description} />
            </p>
          )}
          <Tree schema={s} resolve={resolve} />
        </div>
      )}
    </details>
  )
}

const Path = ({ p, item, resolve }: { p: string; item: Any; resolve: (r: string) => Any }): JSX.Element => {
  const [values, set] = useState<Record<string, string>>({ namespace: 'default' })
  const [answer, show] = useState('')
  const [failure, fail] = useState<Failure>()
  const op = item.get
  const params: Any[] = [...(item.parameters ?? []), ...(op?.parameters ?? [])]
  const inPath = [...p.matchAll(/\{([^}]+)\}/g)].map((m) => m[1]!)
  const run = async (e: Event): Promise<void> => {
    e.preventDefault()
    fail(undefined)
    try {
      const query = new URLSearchParams(params.filter((x) => x.in === 'query' && values[x.name]).map((x) => [x.name, values[x.name]!]))
      if (!query.has('limit') && params.some((x) => x.name === 'limit')) query.set('limit', '10')
      const t = await (
        await raw(p.replace(/\{([^}]+)\}/g, (_, n: string) => encodeURIComponent(values[n] ?? '')) + (query.size ? '?' + query : ''))
      ).text()
      show(pretty(t).slice(0, 200000))
    } catch (x) {
      fail(x as Failure)
    }
  }
  return (
    <Section title={<code>{p}</code>} class="first">
      {methods
        .filter((m) => item[m])
        .map((m) => (
          <details>
            <summary>
              <strong>{m.toUpperCase()}</strong> {item[m].description}
            </summary>
            <Grid
              label={'Parameters of ' + m}
              empty="No parameters."
              head={['Parameter', 'In', 'Type', 'Meaning']}
              rows={[...(item.parameters ?? []), ...(item[m].parameters ?? [])].map((x: Any, i: number) => ({
                key: String(i),
                cells: [<code>{x.name}</code>, x.in, x.schema?.type ?? '–', <Long text={x.description ?? ''} most={120} />],
              }))}
            />
            {item[m].requestBody && (
              <>
                <h3>Body</h3>
                <div class="tree">
                  <Tree schema={(Object.values(item[m].requestBody.content ?? {})[0] as Any)?.schema} resolve={resolve} />
                </div>
              </>
            )}
          </details>
        ))}
      {op && !p.includes('/watch/') && (
        <form class="form" onSubmit={(e) => void run(e)}>
          {[...inPath, 'labelSelector', 'fieldSelector', 'limit']
            .filter((n) => inPath.includes(n) || params.some((x) => x.name === n))
            .map((n) => (
              <label class="field">
                {n}
                <input
                  value={values[n] ?? ''}
                  required={inPath.includes(n)}
                  onInput={(e) => set({ ...values, [n]: e.currentTarget.value })}
                />
              </label>
            ))}
          <button class="primary">GET</button>
        </form>
      )}
      {failure && <Wrong f={failure} />}
      {answer && (
        <pre class="diff" tabIndex={0} role="region" aria-label="Answer">
          {answer}
        </pre>
      )}
    </Section>
  )
}

const pretty = (t: string): string => {
  try {
    return JSON.stringify(JSON.parse(t), null, 2)
  } catch {
    return t
  }
}
