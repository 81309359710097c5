// The map of extension points: what is plugged in where, how it does, and what a dead one affects.
import type { JSX } from 'preact'
import { get, list, type Any, type List, type Obj } from '../api'
import { byKind, byWord, find, objectHref, pathOf } from '../discovery'
import { configured, ending, troubled, type Extension, type Extensions as All, type Point } from '../extension'
import { useLoad } from '../live'
import { href, route } from '../router'
import { count, many, seconds, type Tone } from '../text'
import { Age, Empty, Facts, Grid, Long, Mark, Missing, Section, Show } from '../ui/parts'
import type { PageProps } from './index'
import { KindTable } from './list'

export const stateTone = (e: Extension): Tone =>
  troubled(e) ? 'bad' : e.state === 'waited for' || ending(e) ? 'warn' : e.state === 'ok' ? 'ok' : 'idle'

const words: Record<string, string> = {
  open: 'open: calls are held back',
  failing: 'failing',
  ok: 'ok',
  'never called': 'never called',
  'waited for': 'waited for',
}

// Where a request meets the points, for the map.
const parts: [string, string[]][] = [
  ['Before the request', ['kubectl-plugin', 'exec-credential', 'component-config', 'annotations']],
  [
    'Who are you, may you',
    ['oidc-issuer', 'token-webhook', 'token-signer', 'authorization-webhook', 'certificate-signer', 'audit-webhook'],
  ],
  ['Kinds and who serves them', ['custom-resource', 'conversion-webhook', 'aggregated-api', 'metrics-api', 'egress-proxy']],
  [
    'Admission of a write',
    [
      'mutating-webhook',
      'mutating-admission-policy',
      'admission-plugin',
      'initializer',
      'validating-admission-policy',
      'validating-webhook',
      'image-policy-webhook',
    ],
  ],
  ['The store', ['kms', 'store-engine']],
  ['Control loops', ['controller', 'scheduler-plugin', 'scheduler-extender', 'scheduler', 'cloud-controller', 'load-balancer-class']],
  ['The node', ['cri', 'runtime-class', 'cni', 'csi', 'device-plugin', 'dra', 'node-plugin', 'image-credentials', 'lifecycle-hook']],
]

export const Extensions = ({ path }: PageProps): JSX.Element => {
  const x = useLoad(() => get<All>('/debug/extensions'), 'extensions', 3000)
  return (
    <div class="page">
      {!x.data && (
        <div class="title">
          <h1>Extension points</h1>
        </div>
      )}
      <Show of={x} what="the extensions">
        {(d) => (path[1] ? <OnePoint d={d} point={path[1]} /> : <Map_ d={d} />)}
      </Show>
    </div>
  )
}

const Map_ = ({ d }: { d: All }): JSX.Element => {
  const all = d.extensions ?? []
  const bad = all.filter((e) => stateTone(e) === 'bad' || stateTone(e) === 'warn')
  const counts = useCounts()
  const named = new Set(parts.flatMap(([, p]) => p))
  const rest = d.points.filter((p) => !named.has(p.point)).map((p) => p.point)
  return (
    <>
      <div class="title">
        <h1>Extension points</h1>
        <span class="count">
          {many(all.length, 'extension')} at {many(new Set(all.map((e) => e.point)).size, 'point')} of {d.points.length}
        </span>
      </div>
      {bad.length > 0 && (
        <Section title="In trouble" class="first">
          <Rows rows={bad} point />
        </Section>
      )}
      {[...parts, ...(rest.length ? [['Others', rest] as [string, string[]]] : [])].map(([title, of]) => (
        <Section title={title}>
          <div class="points">
            {of.map((id) => {
              const p = d.points.find((y) => y.point === id)
              return p && <Card p={p} of={all.filter((e) => e.point === id)} objects={counts[id] ?? 0} />
            })}
          </div>
        </Section>
      ))}
      {all.length > 0 && (
        <Section title="All that is plugged in">
          <Rows rows={all} point />
        </Section>
      )}
    </>
  )
}

// Points at which objects plug in, beside what the ledger counts the calls of.
const kindsOf: Record<string, [string, string]> = {
  'custom-resource': ['apiextensions.k8s.io', 'customresourcedefinitions'],
  'runtime-class': ['node.k8s.io', 'runtimeclasses'],
  csi: ['storage.k8s.io', 'csidrivers'],
  dra: ['resource.k8s.io', 'deviceclasses'],
  initializer: ['extension.mortise.dev', 'initializerconfigurations'],
  'mutating-admission-policy': ['admissionregistration.k8s.io', 'mutatingadmissionpolicies'],
  'validating-admission-policy': ['admissionregistration.k8s.io', 'validatingadmissionpolicies'],
}

const useCounts = (): Record<string, number> =>
  useLoad(async () => {
    const out: Record<string, number> = {}
    await Promise.all(
      Object.entries(kindsOf).map(async ([point, [group, resource]]) => {
        const k = find(group, resource)
        if (!k) return
        const l = await get<List>(pathOf(k) + '?limit=1').catch(() => undefined)
        if (l) out[point] = l.items.length + (l.metadata.remainingItemCount ?? 0)
      }),
    )
    return out
  }, 'counts').data ?? {}

const Card = ({ p, of, objects }: { p: Point; of: Extension[]; objects: number }): JSX.Element => {
  const bad = of.filter(troubled).length
  const calls = of.reduce((n, e) => n + e.calls, 0)
  return (
    <a class={'point ' + (bad ? 'bad' : of.length || objects ? '' : 'none')} href={href(['extensions', p.point])}>
      <span class="head">
        <span>{p.title}</span>
        <span>{of.length || objects || (p.way === 'absent' ? 'not called' : '–')}</span>
      </span>
      {bad > 0 ? (
        <Mark word={bad === of.length ? 'failing' : `${bad} of ${of.length} failing`} tone="bad" />
      ) : of.length > 0 ? (
        <small>{calls > 0 ? `${count(calls)} calls, p99 ${seconds(Math.max(...of.map((e) => e.p99Seconds)))}` : 'plugged in'}</small>
      ) : (
        objects > 0 && <small>{many(objects, 'object')}</small>
      )}
    </a>
  )
}

const Rows = ({ rows, point }: { rows: Extension[]; point?: boolean }): JSX.Element => (
  <Grid
    label="Extensions"
    numbers={[2, 3, 4, 5, 6]}
    head={['Extension', 'State', 'Calls', 'Failed', 'Held back', 'p50', 'p99', 'Certificate', 'Last error']}
    rows={rows.map((e) => ({
      key: e.point + e.name,
      tone: troubled(e) ? 'bad' : 'idle',
      cells: [
        <>
          <a href={href(['extensions', e.point], { name: e.name })}>{e.name}</a>
          {point && (
            <div>
              <small>{e.point}</small>
            </div>
          )}
        </>,
        <Mark word={words[e.state] ?? e.state} tone={stateTone(e)} />,
        count(e.calls),
        count(e.failures),
        count(e.refused),
        seconds(e.p50Seconds),
        seconds(e.p99Seconds),
        <Certificate e={e} />,
        e.lastError ? (
          <>
            <Long text={e.lastError} most={140} />{' '}
            {e.lastFailure && (
              <small>
                <Age at={e.lastFailure} /> ago
              </small>
            )}
          </>
        ) : (
          '–'
        ),
      ],
    }))}
  />
)

const Certificate = ({ e }: { e: Extension }): JSX.Element => {
  if (!e.certificateEnds) return <>–</>
  const days = Math.floor((Date.parse(e.certificateEnds) - Date.now()) / 86400e3)
  return (
    <span title={e.certificateEnds}>
      {days < 0 ? <Mark word="expired" tone="bad" /> : days < 14 ? <Mark word={many(days, 'day')} tone="warn" /> : many(days, 'day')}
    </span>
  )
}

const OnePoint = ({ d, point }: { d: All; point: string }): JSX.Element => {
  const p = d.points.find((x) => x.point === point)
  const name = route.value.query.get('name')
  const of = (d.extensions ?? []).filter((e) => e.point === point)
  if (!p) return <Missing title={point}>There is no such extension point.</Missing>
  const [group, resource] = kindsOf[point] ?? []
  const kind = group !== undefined && resource ? find(group, resource) : undefined
  const shown = name ? of.filter((e) => e.name === name) : of
  return (
    <>
      <div class="title">
        <h1>
          {p.title}
          <small>{p.point}</small>
        </h1>
        <a href="extensions">all points</a>
      </div>
      <Section title="The contract">
        <Facts
          of={[
            ['Contract', p.contract],
            ['Way', ways[p.way] ?? p.way],
            ['Plugged in by', p.configured],
            [
              'Documented',
              /^https:/.test(p.documented) ? (
                <a href={p.documented} target="_blank" rel="noreferrer noopener">
                  {p.documented}
                </a>
              ) : (
                p.documented
              ),
            ],
            d.effects?.[point] && ['If it is dead', d.effects[point]],
          ]}
        />
      </Section>
      {of.length === 0 && (
        <Section title="Plugged in">
          {kind ? (
            <KindTable kind={kind} path={pathOf(kind)} spaces={false} fit empty="Nothing is plugged in here." />
          ) : (
            <Empty>Nothing is plugged in here.</Empty>
          )}
        </Section>
      )}
      {of.length > 1 && (
        <Section title="Plugged in" aside={name && <a href={href(['extensions', point])}>all {of.length}</a>}>
          <Rows rows={of} />
        </Section>
      )}
      {(shown.length <= 5 ? shown : []).map((e) => (
        <OneExtension e={e} />
      ))}
    </>
  )
}

const ways: Record<string, string> = {
  called: 'the server calls it',
  drives: 'it is a client of the API, and is not called',
  linked: 'code or configuration in the server’s process',
  client: 'the client calls it',
  absent: 'this release does not call it',
}

const OneExtension = ({ e }: { e: Extension }): JSX.Element => {
  const c = configured(e)
  const k = c && byWord(c.kind)
  return (
    <Section title={e.name} class={troubled(e) ? 'first' : ''}>
      <Facts
        of={[
          ['State', <Mark word={words[e.state] ?? e.state} tone={stateTone(e)} />],
          ['Configured by', c && k ? <a href={objectHref(k, undefined, c.name)}>{e.configured}</a> : (e.configured ?? '–')],
          ['Calls', `${count(e.calls)}, ${count(e.failures)} failed, ${count(e.refused)} held back by the breaker`],
          ['Duration', `median ${seconds(e.p50Seconds)}, 99 % below ${seconds(e.p99Seconds)}, longest ${seconds(e.longestSeconds)}`],
          ['Certificate', <Certificate e={e} />],
          e.lastFailure && [
            'Last failure',
            <>
              <Age at={e.lastFailure} /> ago <small>{e.lastFailure}</small>
            </>,
          ],
        ]}
      />
      {e.lastError && (
        <>
          <h3>Last error</h3>
          <pre class="wrong">{e.lastError}</pre>
        </>
      )}
      {(e.affects ?? []).length > 0 && (
        <>
          <h3>{troubled(e) ? 'Affected now' : 'Affected if it is dead'}</h3>
          <Grid
            label="Affected"
            head={['What', 'Effect']}
            rows={e.affects!.map((a, i) => ({
              key: String(i),
              cells: [a.what, <Mark word={a.effect} tone={a.effect === 'refused' || a.effect === 'unavailable' ? 'bad' : 'warn'} />],
            }))}
          />
        </>
      )}
      {c && k && /WebhookConfiguration$/.test(k.kind) && <Webhook kind={k.kind} config={c.name} name={e.name} />}
      {(e.waiting ?? []).length > 0 && (
        <>
          <h3>{many(e.waits ?? 0, 'object')} wait for it</h3>
          <Grid
            label="Waiting objects"
            head={['Object', 'Since', 'At the latest until']}
            rows={e.waiting!.map((w) => ({
              key: w.object,
              cells: [
                w.object,
                <>
                  <Age at={w.since} /> ago
                </>,
                w.until,
              ],
            }))}
          />
        </>
      )}
    </Section>
  )
}

/** Webhook shows which writes a webhook sees, and what comes of them when it does not answer. */
const Webhook = ({ kind, config, name }: { kind: string; config: string; name: string }): JSX.Element | null => {
  const k = byKind('admissionregistration.k8s.io/v1', kind)
  const o = useLoad(async () => (k ? await get(pathOf(k, undefined, config)) : undefined), kind + config)
  const w = (o.data as Obj | undefined)?.webhooks?.find((x: Any) => x.name === name || name.endsWith('/' + x.name) || name === config)
  if (!w) return null
  const s = w.clientConfig?.service
  return (
    <>
      <h3>Which writes it sees</h3>
      <Facts
        of={[
          ...(w.rules ?? []).map(
            (r: Any) =>
              [
                'Rule',
                `${(r.operations ?? []).join(', ')} of ${(r.resources ?? []).join(', ')} in ` +
                  `${(r.apiGroups ?? []).map((g: string) => g || 'core').join(', ')} ${(r.apiVersions ?? []).join(', ')}`,
              ] as const,
          ),
          [
            'Where it is',
            s ? (
              <>
                service {s.namespace}/{s.name}
                {s.path}, port {s.port ?? 443}
                {s && <Ends ns={s.namespace} name={s.name} />}
              </>
            ) : (
              <code>{w.clientConfig?.url}</code>
            ),
          ],
          [
            'When it does not answer',
            w.failurePolicy === 'Ignore' ? (
              <Mark word="Ignore: writes go on without it" tone="ok" />
            ) : (
              <Mark word="Fail: all these writes are refused" tone="warn" />
            ),
          ],
          ['Time limit', `${w.timeoutSeconds ?? 10} s`],
          w.namespaceSelector &&
            Object.keys(w.namespaceSelector).length > 0 && ['Namespaces', <code>{JSON.stringify(w.namespaceSelector)}</code>],
          w.objectSelector && Object.keys(w.objectSelector).length > 0 && ['Objects', <code>{JSON.stringify(w.objectSelector)}</code>],
        ]}
      />
      <p class="foot">
        {k && (
          <>
            <a class="button" href={objectHref(k, undefined, config, { tab: 'yaml' })}>
              Edit the configuration
            </a>
            <a class="button" href={objectHref(k, undefined, config)}>
              Open it
            </a>
          </>
        )}
        <a class="button" href="writes?refused=1">
          Refused writes
        </a>
      </p>
    </>
  )
}

const Ends = ({ ns, name }: { ns: string; name: string }): JSX.Element => {
  const k = find('discovery.k8s.io', 'endpointslices')
  const e = useLoad(
    async () => (k ? await list(pathOf(k, ns) + '?labelSelector=' + encodeURIComponent('kubernetes.io/service-name=' + name), 50) : []),
    ns + name,
    5000,
  )
  if (!e.data) return <></>
  const ready = e.data.flatMap((s) => s.endpoints ?? []).filter((x: Any) => x.conditions?.ready !== false).length
  return <div>{ready === 0 ? <Mark word="no ready endpoint" tone="bad" /> : <Mark word={many(ready, 'ready endpoint')} tone="ok" />}</div>
}
