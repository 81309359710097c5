// Writes, and the way of each: stages, steps with what they changed, and who refused it.
import type { JSX } from 'preact'
import { get, withQuery } from '../api'
import { find, objectHref, refHref } from '../discovery'
import type { Change, Step, Trace, Traces } from '../extension'
import { useLoad } from '../live'
import { inNamespace } from '../places'
import { href, route, setQuery } from '../router'
import { bytes, count, seconds, shown } from '../text'
import { Age, Empty, Facts, Grid, Long, Mark, Section, Show } from '../ui/parts'
import type { PageProps } from './index'

const codeTone = (t: Trace): 'ok' | 'bad' | 'warn' => (t.code < 400 ? 'ok' : t.code >= 500 ? 'bad' : 'warn')

const who = (t: Trace): string => {
  const s = t.steps?.find((x) => x.result === 'denied' || x.result === 'failed')
  return s ? `${s.kind} ${s.name}` : (t.refused ?? '')
}

export const WriteList = ({ traces }: { traces: Trace[] }): JSX.Element => (
  <Grid
    label="Writes"
    numbers={[5]}
    head={['When', 'Verb', 'Object', 'User', 'Answer', 'Time', 'What happened']}
    empty="No writes are remembered."
    rows={traces.map((t) => ({
      key: t.auditID,
      tone: t.code >= 400 ? ('bad' as const) : ('idle' as const),
      cells: [
        <Age at={t.time} />,
        t.verb,
        <a href={href(['writes', t.auditID])}>
          {t.resource}
          {t.subresource && '/' + t.subresource} {t.namespace && t.namespace + '/'}
          {t.name ?? ''}
        </a>,
        <>
          {t.as ?? t.user}
          <small> {t.userAgent?.split(/[/ ]/)[0]}</small>
        </>,
        <Mark word={String(t.code)} tone={codeTone(t)} />,
        seconds(t.seconds),
        t.code >= 400 ? (
          <>
            <strong>{who(t)}</strong> <Long text={t.message ?? ''} most={200} />
          </>
        ) : (
          (t.steps ?? [])
            .filter((s) => s.kind !== 'request' && s.changes?.length)
            .map((s) => `${s.name || s.kind}: ${s.changes!.length}`)
            .join(', ') || (t.dryRun ? 'dry run' : '–')
        ),
      ],
    }))}
  />
)

const all = (q: URLSearchParams): string =>
  withQuery('/debug/explain', {
    rejected: q.get('refused') === '1' ? 'true' : undefined,
    brief: q.get('brief') === '1' ? 'true' : undefined,
    since: q.get('since') ?? undefined,
    namespace: inNamespace(),
    limit: q.get('limit') ?? '100',
  })

const resourceOf = (q: URLSearchParams): Record<string, string | undefined> => {
  const [r, ...g] = (q.get('resource') ?? '').split('.')
  return r ? { resource: r, group: g.join('.') || undefined } : {}
}

export const Writes = ({ path }: PageProps): JSX.Element => (path[1] ? <Way id={path[1]} /> : <Latest />)

const Latest = (): JSX.Element => {
  const q = route.value.query
  const url = withQuery(all(q), resourceOf(q))
  const t = useLoad(() => get<Traces>(url), url, 3000)
  const flip = (k: string): void => setQuery({ [k]: q.get(k) === '1' ? '' : '1' })
  return (
    <div class="page">
      <div class="title">
        <h1>Writes</h1>
        {t.data && (
          <span class="count">
            {count(t.data.kept.traces)} remembered in {bytes(t.data.kept.bytes)} of {bytes(t.data.kept.bound)}
          </span>
        )}
      </div>
      <div class="tools">
        <label class="check">
          <input type="checkbox" checked={q.get('refused') === '1'} onChange={() => flip('refused')} />
          refused only
        </label>
        <label class="check">
          <input type="checkbox" checked={q.get('brief') === '1'} onChange={() => flip('brief')} />
          with those of components
        </label>
        <select aria-label="Age" value={q.get('since') ?? ''} onChange={(e) => setQuery({ since: e.currentTarget.value })}>
          <option value="">any age</option>
          <option value="1m">last minute</option>
          <option value="10m">last 10 minutes</option>
          <option value="1h">last hour</option>
        </select>
        <input
          aria-label="Resource"
          placeholder="Resource: deployments.apps"
          value={q.get('resource') ?? ''}
          onChange={(e) => setQuery({ resource: e.currentTarget.value.trim() })}
        />
        <form
          onSubmit={(e) => {
            e.preventDefault()
            const id = new FormData(e.currentTarget).get('id')
            if (typeof id === 'string' && id)
              setTimeout(() => {
                location.assign(new URL(href(['writes', id.trim()]), document.baseURI))
              })
          }}>
          <input name="id" aria-label="Audit ID" placeholder="Audit ID" />
        </form>
      </div>
      <Section title="Newest first">
        <Show of={t} what="the traces of writes">
          {(d) => <WriteList traces={d.traces ?? []} />}
        </Show>
      </Section>
    </div>
  )
}

const target = (t: Trace): string | undefined => {
  const o = t.objects?.[0]
  const k = find(t.group ?? '', t.resource)
  const name = t.name ?? o?.name
  return k && name ? objectHref(k, t.namespace, name) : undefined
}

const Way = ({ id }: { id: string }): JSX.Element => {
  const t = useLoad(() => get<Traces>('/debug/explain/' + encodeURIComponent(id)), id)
  return (
    <div class="page">
      <div class="title">
        <h1>
          A write and its way<small>{id}</small>
        </h1>
        <a href="writes">all writes</a>
      </div>
      <Show of={t} what="this trace">
        {(d) =>
          (d.traces ?? []).length === 0 ? (
            <Empty>The server does not remember this write.</Empty>
          ) : (
            <>
              {d.traces!.map((x) => (
                <One t={x} />
              ))}
            </>
          )
        }
      </Show>
    </div>
  )
}

const One = ({ t }: { t: Trace }): JSX.Element => {
  const to = target(t)
  const slow = Math.max(...t.stages.map((s) => s.seconds), 1e-9)
  return (
    <>
      {t.code >= 400 && (
        <p class="wrong" role="alert">
          <strong>
            {who(t) || 'The server'} refused it: {t.code} {t.reason}
          </strong>
          <span>{t.message}</span>
        </p>
      )}
      <div class="columns">
        <Section title="Request">
          <Facts
            of={[
              [
                'Request',
                <>
                  <strong>{t.verb}</strong>{' '}
                  <code>
                    {t.method} {t.uri}
                  </code>
                </>,
              ],
              [
                'Object',
                to ? (
                  <a href={to}>
                    {t.namespace && t.namespace + '/'}
                    {t.name ?? t.objects?.[0]?.name}
                  </a>
                ) : (
                  (t.name ?? '–')
                ),
              ],
              [
                'User',
                <>
                  {t.user}
                  {t.as && (
                    <>
                      {' '}
                      as <strong>{t.as}</strong>
                    </>
                  )}
                </>,
              ],
              ['Client', t.userAgent ?? '–'],
              ['From', t.source ?? '–'],
              t.manager && ['Field manager', `${t.manager}, ${t.operation}`],
              [
                'When',
                <>
                  {t.time}{' '}
                  <small>
                    <Age at={t.time} /> ago
                  </small>
                </>,
              ],
              ['Answer', <Mark word={`${t.code} ${t.reason ?? ''}`} tone={codeTone(t)} />],
              ['Took', seconds(t.seconds)],
              t.dryRun && ['Dry run', 'nothing was stored'],
              t.redacted && ['Values', 'hidden, as they are of a Secret'],
            ]}
          />
        </Section>
        <Section title="Decisions">
          <Facts
            of={[
              t.authorization && [
                'Authorization',
                <>
                  <Mark word={t.authorization.allowed ? 'allowed' : 'denied'} tone={t.authorization.allowed ? 'ok' : 'bad'} />
                  {t.authorization.by && ' by ' + t.authorization.by}
                </>,
              ],
              t.authorization?.reason && ['Reason', <Long text={t.authorization.reason} />],
              t.flowControl && ['Flow schema', t.flowControl.flowSchema],
              t.flowControl && ['Priority level', t.flowControl.priorityLevel],
            ]}
          />
          <h3>Time in each stage</h3>
          <Grid
            label="Stages"
            head={['Stage', 'Time', '']}
            numbers={[1]}
            rows={t.stages.map((s) => ({
              key: s.name,
              cells: [
                s.name,
                seconds(s.seconds),
                <span class="bar">
                  <span class="track">
                    <i style={{ width: (s.seconds / slow) * 100 + '%' }} />
                  </span>
                </span>,
              ],
            }))}
          />
        </Section>
      </div>
      {(t.steps ?? []).length > 0 && (
        <Section title="Steps" aside="in their order; each with what it changed">
          <ol class="way">
            {t.steps!.map((s) => (
              <StepRow s={s} />
            ))}
          </ol>
        </Section>
      )}
      {(t.objects ?? []).map((o) => (
        <Section
          title={
            <>
              Stored: {o.action} {o.resource} {o.namespace && o.namespace + '/'}
              {o.name}
            </>
          }
          aside={o.revision && 'revision ' + o.revision}>
          <Changes of={o.changes} />
        </Section>
      ))}
      {!!t.moreObjects && <p class="hint">and {count(t.moreObjects)} more objects</p>}
    </>
  )
}

const StepRow = ({ s }: { s: Step }): JSX.Element => {
  const kind = s.kind === 'webhook' ? (s.phase === 'mutate' ? 'MutatingWebhookConfiguration' : 'ValidatingWebhookConfiguration') : ''
  const to = kind && s.configuration ? refHref('admissionregistration.k8s.io/v1', kind, undefined, s.configuration) : undefined
  return (
    <li class={s.result}>
      <span class="dot" aria-hidden="true" />
      <div>
        <strong>{s.name || s.kind}</strong>{' '}
        <small>
          {s.phase} · {s.kind}
          {s.configuration && <> of {to ? <a href={to}>{s.configuration}</a> : s.configuration}</>}
        </small>{' '}
        <Mark
          word={s.result}
          tone={
            s.result === 'denied' || s.result === 'failed'
              ? 'bad'
              : s.result === 'ignored'
                ? 'warn'
                : s.result === 'allowed'
                  ? 'ok'
                  : 'idle'
          }
        />
        {s.reason && (
          <div>
            <Long text={s.reason} />
          </div>
        )}
        {s.untold && <div class="dim">{s.untold}</div>}
        {s.kind === 'request' ? (
          s.changes && (
            <details>
              <summary>{s.changes.length} values</summary>
              <Changes of={s.changes} />
            </details>
          )
        ) : (
          <Changes of={s.changes} />
        )}
      </div>
      <span class="dim">{seconds(s.seconds)}</span>
    </li>
  )
}

const value = (v: unknown): string =>
  typeof v === 'string' ? v : v === undefined ? '' : (JSON.stringify(v, null, typeof v === 'object' ? 1 : 0) ?? shown(v))

/** Changes are a JSON patch as a diff. */
const Changes = ({ of }: { of: Change[] | undefined }): JSX.Element | null =>
  !of?.length ? null : (
    <div class="diff" tabIndex={0} role="region" aria-label="Changes">
      {of.map((c) => (
        <>
          {c.op !== 'add' && c.was !== undefined && (
            <div class="del">
              <span aria-hidden="true">- </span>
              {c.field}: <del>{value(c.was)}</del>
            </div>
          )}
          {c.op === 'remove' ? (
            c.was === undefined && (
              <div class="del">
                <span aria-hidden="true">- </span>
                {c.field}
              </div>
            )
          ) : (
            <div class="add">
              <span aria-hidden="true">{c.op === 'replace' && c.was === undefined ? '~ ' : '+ '}</span>
              {c.field}: <ins>{value(c.value)}</ins>
            </div>
          )}
        </>
      ))}
    </div>
  )
