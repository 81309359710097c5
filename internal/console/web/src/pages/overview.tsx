// The overview: what is wrong now comes first, then what there is.
import type { JSX } from 'preact'
import { useEffect, useMemo } from 'preact/hooks'
import { Feed, type Row } from '../feed'
import { find, objectHref, pathOf, refHref, type Kind } from '../discovery'
import { Failure, get, raw, withQuery, type List, type Obj } from '../api'
import { ending, troubled, type Extensions, type Traces } from '../extension'
import { linksOf } from '../added'
import { useLoad } from '../live'
import { inNamespace } from '../places'
import { href } from '../router'
import { count, many, shown, type Tone } from '../text'
import { Age, Empty, Facts, Long, Mark, Section } from '../ui/parts'

interface Trouble {
  key: string
  tone: Tone
  what: string
  where: string
  to?: string | undefined
  why: string
  at?: string | undefined
}

const column = (f: Feed, r: Row, name: string): string => {
  const i = f.columns.value.findIndex((c) => c.name === name)
  return i < 0 ? '' : shown(r.cells[i])
}

interface Check {
  kind: Kind
  feed: Feed
  bad(f: Feed, r: Row): { why: string; tone: Tone } | undefined
}

const isShort = (word: string): boolean => {
  const m = /^(\d+)\/(\d+)$/.exec(word)
  return m !== null && Number(m[1]) < Number(m[2])
}

const fresh = (r: Row, s: number): boolean => Date.now() - Date.parse(r.meta.creationTimestamp ?? '') < s * 1000

/** checks are lists of which one can say by a column what is wrong. */
const checks = (ns: string): Check[] => {
  const out: Check[] = []
  const add = (group: string, resource: string, q: Record<string, string>, bad: Check['bad']): void => {
    const kind = find(group, resource)
    if (kind) out.push({ kind, feed: new Feed(withQuery(pathOf(kind, ns), q), 500), bad })
  }
  add('', 'nodes', {}, (f, r) => {
    const s = column(f, r, 'Status')
    return s.includes('NotReady')
      ? { why: s, tone: 'bad' }
      : s.includes('SchedulingDisabled')
        ? { why: 'no new pods: ' + s, tone: 'warn' }
        : undefined
  })
  add('', 'pods', { fieldSelector: 'status.phase!=Running,status.phase!=Succeeded' }, (f, r) => {
    const s = column(f, r, 'Status')
    if (fresh(r, 5) && /Pending|Creating|Initializing/.test(s)) return undefined
    return { why: s, tone: /Pending|Creating|Init|Gated/.test(s) && !/Err|BackOff/.test(s) ? 'warn' : 'bad' }
  })
  for (const resource of ['deployments', 'statefulsets']) {
    add('apps', resource, {}, (f, r) => {
      const s = column(f, r, 'Ready')
      return isShort(s) ? { why: s + ' replicas are ready', tone: s.startsWith('0/') ? 'bad' : 'warn' } : undefined
    })
  }
  add('apps', 'daemonsets', {}, (f, r) => {
    const want = Number(column(f, r, 'Desired')),
      have = Number(column(f, r, 'Ready'))
    return have < want ? { why: `${have}/${want} pods are ready`, tone: 'warn' } : undefined
  })
  add('batch', 'jobs', {}, (f, r) => {
    const s = column(f, r, 'Status')
    return s === 'Failed' || s === 'FailureTarget' ? { why: s, tone: 'bad' } : undefined
  })
  add('', 'persistentvolumeclaims', {}, (f, r) => {
    const s = column(f, r, 'Status')
    return s !== 'Bound' && !fresh(r, 5) ? { why: s, tone: s === 'Lost' ? 'bad' : 'warn' } : undefined
  })
  add('', 'namespaces', {}, (f, r) => {
    const s = column(f, r, 'Status')
    return s === 'Terminating' ? { why: 'is being deleted', tone: 'warn' } : undefined
  })
  add('apiregistration.k8s.io', 'apiservices', {}, (f, r) => {
    const s = column(f, r, 'Available')
    return s.startsWith('False') ? { why: 'its server does not answer: ' + s, tone: 'bad' } : undefined
  })
  return out
}

const useChecks = (ns: string): Check[] => {
  const all = useMemo(() => checks(ns), [ns])
  useEffect(
    () => () => {
      for (const c of all) c.feed.close()
    },
    [all],
  )
  return all
}

interface Warning {
  key: string
  reason: string
  message: string
  object: string
  to?: string | undefined
  times: number
  last: string
}

const warningsOf = (events: Obj[]): Warning[] => {
  const by = new Map<string, Warning>()
  for (const e of events) {
    const o = e.involvedObject ?? e.regarding ?? {}
    const last: string = e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp ?? ''
    const key = [e.reason, o.kind, o.namespace, o.name].join('\n')
    const times = e.series?.count ?? e.count ?? 1
    const old = by.get(key)
    if (old && old.last >= last) old.times += times
    else
      by.set(key, {
        key,
        reason: e.reason ?? '',
        message: e.message ?? '',
        object: `${o.kind ?? ''} ${o.namespace ? o.namespace + '/' : ''}${o.name ?? ''}`,
        to: o.kind && refHref(o.apiVersion ?? '', o.kind, o.namespace, o.name),
        times: times + (old?.times ?? 0),
        last,
      })
  }
  return [...by.values()].sort((a, b) => (a.last < b.last ? 1 : -1))
}

const extensionTroubles = (x: Extensions | undefined): Trouble[] =>
  (x?.extensions ?? []).flatMap((e): Trouble[] => {
    const to = href(['extensions', e.point], { name: e.name })
    const where = `${e.point} ${e.name}`
    if (troubled(e)) {
      return [
        {
          key: 'x' + where,
          tone: 'bad',
          what: e.state === 'open' ? 'calls held back' : 'calls fail',
          where,
          to,
          why: e.lastError ?? '',
          at: e.lastFailure,
        },
      ]
    }
    if (e.waits) return [{ key: 'x' + where, tone: 'warn', what: 'waited for', where, to, why: many(e.waits, 'object') + ' wait for it' }]
    return ending(e) ? [{ key: 'c' + where, tone: 'warn', what: 'certificate ends', where, to, why: e.certificateEnds ?? '' }] : []
  })

const refusedOf = (t: Traces | undefined): Trouble[] => {
  const by = new Map<string, Trouble & { n: number }>()
  for (const w of t?.traces ?? []) {
    const who = w.steps?.find((s) => s.result === 'denied' || s.result === 'failed')
    const where = who ? `${who.kind} ${who.name}` : w.refused || 'server'
    // Only what others plug in is a trouble of the cluster; that a client asks for what it may not is everyday life.
    if (!who || (who.kind === 'plug-in' && w.code < 500)) continue
    const key = 'r' + where + who.result
    const old = by.get(key)
    if (old) {
      old.n++
      continue
    }
    by.set(key, {
      key,
      tone: who.result === 'failed' ? 'bad' : 'warn',
      what: 'refuses writes',
      where,
      to: href(['writes', w.auditID]),
      why: `${w.verb} ${w.resource}${w.name ? ' ' + w.name : ''}: ${w.message ?? who.reason ?? ''}`,
      at: w.time,
      n: 1,
    })
  }
  return [...by.values()].map((t) => ({ ...t, what: t.n > 1 ? `refused ${t.n} writes` : 'refused a write' }))
}

const rank: Record<Tone, number> = { bad: 0, warn: 1, idle: 2, ok: 3 }

const Wrongs = ({ all, blind }: { all: Trouble[]; blind: string[] }): JSX.Element => (
  <Section
    title="Wrong now"
    aside={
      <>
        {all.length > 0 && many(all.length, 'thing')} <a href="reasons">Why it waits</a>
      </>
    }
    class={all.length ? 'first' : ''}>
    {all.length === 0 && (
      <p class="fine">
        <Mark word="Nothing is wrong" tone="ok" /> {blind.length > 0 ? 'in what you may read.' : ''}
      </p>
    )}
    <ul class="troubles">
      {all.slice(0, 60).map((t) => (
        <li key={t.key} class={t.tone}>
          <Mark word={t.what} tone={t.tone} />
          {t.to ? <a href={t.to}>{t.where}</a> : <span>{t.where}</span>}
          <span class="why">
            <Long text={t.why} most={180} />
          </span>
          {t.at && <Age at={t.at} />}
        </li>
      ))}
    </ul>
    {all.length > 60 && <p class="hint">and {all.length - 60} more</p>}
    {blind.length > 0 && <p class="hint">You may not read {blind.join(', ')}: what is wrong there is not shown.</p>}
  </Section>
)

const health = async (): Promise<{ ok: boolean; lines: string[] }> => {
  try {
    const t = await (await raw('/readyz?verbose', { accept: 'text/plain' })).text()
    return { ok: true, lines: t.split('\n').filter((l) => l.startsWith('[')) }
  } catch (e) {
    if (e instanceof Failure && e.code === 500) return { ok: false, lines: e.message.split('\n').filter((l) => l.startsWith('[')) }
    throw e
  }
}

export const Overview = (): JSX.Element => {
  const ns = inNamespace()
  const all = useChecks(ns)
  const ready = useLoad(health, 'readyz', 15000)
  const version = useLoad(() => get<{ gitVersion: string; platform: string }>('/version'), 'version')
  const extensions = useLoad(() => get<Extensions>('/debug/extensions'), 'extensions', 5000)
  const refused = useLoad(
    () => get<Traces>(withQuery('/debug/explain', { rejected: 'true', since: '10m', limit: '50', namespace: ns })),
    'refused' + ns,
    5000,
  )
  const eventKind = find('', 'events')
  const events = useLoad(
    async () =>
      (
        await get<List<Obj>>(
          withQuery(eventKind ? pathOf(eventKind, ns) : '/api/v1/events', { fieldSelector: 'type=Warning', limit: '500' }),
        )
      ).items,
    'events' + ns,
    10000,
  )
  const troubles: Trouble[] = []
  const blind: string[] = []
  for (const c of all) {
    void c.feed.version.value
    if (c.feed.failure.value) {
      if (c.feed.failure.value.forbidden) blind.push(c.kind.resource)
      continue
    }
    for (const r of c.feed.rows) {
      const bad = c.bad(c.feed, r)
      if (bad)
        troubles.push({
          key: r.key,
          tone: bad.tone,
          what: c.kind.kind,
          where: (r.meta.namespace ? r.meta.namespace + '/' : '') + r.meta.name,
          to: objectHref(c.kind, r.meta.namespace, r.meta.name, { tab: 'why' }),
          why: bad.why,
          at: r.meta.creationTimestamp,
        })
    }
  }
  if (ready.data && !ready.data.ok) {
    troubles.push({
      key: 'readyz',
      tone: 'bad',
      what: 'not ready',
      where: 'API server',
      why: ready.data.lines.filter((l) => l.startsWith('[-]')).join(' '),
    })
  }
  troubles.push(...extensionTroubles(extensions.data), ...refusedOf(refused.data))
  if (extensions.failure?.forbidden) blind.push('extensions')
  if (refused.failure?.forbidden) blind.push('refused writes')
  troubles.sort((a, b) => rank[a.tone] - rank[b.tone])
  const reading = all.some((c) => c.feed.loading.value)
  const warnings = warningsOf(events.data ?? [])
  return (
    <div class="page">
      <div class="title">
        <h1>Overview{ns && <small>{ns}</small>}</h1>
        {linksOf().map((l) => (
          <a href={l.url} target="_blank" rel="noreferrer noopener">
            {l.title} ↗
          </a>
        ))}
        <span class="count">{version.data && `${version.data.gitVersion} · ${version.data.platform}`}</span>
      </div>
      {reading && troubles.length === 0 ? (
        <Section title="Wrong now">
          <p class="wait" role="status">
            Looking…
          </p>
        </Section>
      ) : (
        <Wrongs all={troubles} blind={blind} />
      )}
      <div class="columns">
        <Section title="Health">
          {ready.failure ? (
            <p class="hint">{ready.failure.forbidden ? 'You may not read the health of the server.' : ready.failure.message}</p>
          ) : (
            <Facts
              of={[
                [
                  'API server',
                  ready.data ? <Mark word={ready.data.ok ? 'ready' : 'not ready'} tone={ready.data.ok ? 'ok' : 'bad'} /> : '…',
                ],
                [
                  'Checks',
                  ready.data && `${ready.data.lines.filter((l) => l.startsWith('[+]')).length} of ${ready.data.lines.length} pass`,
                ],
              ]}
            />
          )}
          <Facts
            of={all.map((c) => {
              const n = c.feed.rows.length
              if (c.feed.failure.value) return false
              const word = c.kind.resource === 'pods' ? 'Pods not running' : c.kind.kind === 'APIService' ? 'API services' : undefined
              return [
                word ?? nice(c.kind.resource),
                <a
                  href={
                    `k/${c.kind.group || 'core'}/${c.kind.version}/${c.kind.resource}` +
                    (c.kind.resource === 'pods' ? '?fields=' + encodeURIComponent('status.phase!=Running,status.phase!=Succeeded') : '')
                  }>
                  {count(n)}
                  {c.feed.remaining.value > 0 && '+'}
                </a>,
              ] as const
            })}
          />
        </Section>
        <Section title="Extensions" aside={<a href="extensions">All points</a>}>
          {extensions.failure ? (
            <p class="hint">{extensions.failure.forbidden ? 'You may not read the extensions.' : extensions.failure.message}</p>
          ) : (
            <Facts of={summary(extensions.data)} />
          )}
        </Section>
      </div>
      <Section title="Warnings" aside={events.data && many(warnings.length, 'kind')}>
        {events.failure ? (
          <p class="hint">{events.failure.message}</p>
        ) : warnings.length === 0 ? (
          <Empty>No warnings.</Empty>
        ) : (
          <ul class="troubles">
            {warnings.slice(0, 15).map((w) => (
              <li key={w.key}>
                <Mark word={w.reason} tone="warn" />
                {w.to ? <a href={w.to}>{w.object}</a> : <span>{w.object}</span>}
                <span class="why">
                  <Long text={w.message} most={180} />
                </span>
                <span>
                  {w.times > 1 && '×' + count(w.times) + ' '}
                  <Age at={w.last} />
                </span>
              </li>
            ))}
          </ul>
        )}
      </Section>
    </div>
  )
}

const nice = (resource: string): string =>
  ({
    nodes: 'Nodes',
    deployments: 'Deployments',
    statefulsets: 'Stateful sets',
    daemonsets: 'Daemon sets',
    jobs: 'Jobs',
    persistentvolumeclaims: 'Volume claims',
    namespaces: 'Namespaces',
  })[resource] ?? resource

const summary = (x: Extensions | undefined): [string, JSX.Element | string][] => {
  const by = new Map<string, { n: number; bad: number; calls: number }>()
  for (const e of x?.extensions ?? []) {
    const o = by.get(e.point) ?? { n: 0, bad: 0, calls: 0 }
    o.n++
    o.calls += e.calls
    if (troubled(e)) o.bad++
    by.set(e.point, o)
  }
  return [...by].map(([point, o]) => [
    x?.points.find((p) => p.point === point)?.title ?? point,
    <a href={href(['extensions', point])}>
      {o.bad ? <Mark word={o.n === 1 ? 'fails' : `${o.bad} of ${o.n} fail`} tone="bad" /> : `${o.n}`}
      {o.calls > 0 && <small>{` · ${many(o.calls, 'call')}`}</small>}
    </a>,
  ])
}
