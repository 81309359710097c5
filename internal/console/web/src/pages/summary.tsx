// What an object is, of any kind; a pod, a workload, a node and a service say more.
import type { JSX } from 'preact'
import { mergePatch, withQuery, type Any, type Meta, type Obj } from '../api'
import { find, listHref, objectHref, pathOf, refHref, type Kind } from '../discovery'
import { useObjects } from '../live'
import { chooseNamespace } from '../places'
import { bytes, shown, span, now } from '../text'
import { Age, Bar, Copy, Empty, Facts, Grid, Long, Mark, Pairs, Section, Show, tried } from '../ui/parts'
import { KindTable } from './list'
import { NodeParts } from './nodeparts'

/** selectorOf is a label selector as a query has it. */
export const selectorOf = (s: Any): string | undefined => {
  if (!s) return undefined
  const labels = s.matchLabels ?? (s.matchExpressions ? {} : s)
  const parts = Object.entries(labels as Record<string, string>).map(([k, v]) => `${k}=${v}`)
  for (const e of s.matchExpressions ?? []) {
    parts.push(
      e.operator === 'Exists'
        ? e.key
        : e.operator === 'DoesNotExist'
          ? '!' + e.key
          : `${e.key} ${e.operator === 'In' ? 'in' : 'notin'} (${(e.values ?? []).join(',')})`,
    )
  }
  return parts.length ? parts.join(',') : undefined
}

export const Ref = ({
  apiVersion,
  kind,
  ns,
  name,
}: {
  apiVersion: string
  kind: string
  ns?: string | undefined
  name: string
}): JSX.Element => {
  const to = refHref(apiVersion, kind, ns, name)
  return (
    <span>
      {kind} {to ? <a href={to}>{name}</a> : <code>{name}</code>}
    </span>
  )
}

const About = ({ m }: { m: Meta }): JSX.Element => (
  <Section title="About">
    <Facts
      of={[
        m.creationTimestamp && [
          'Created',
          <>
            <Age at={m.creationTimestamp} /> ago <small>{m.creationTimestamp}</small>
          </>,
        ],
        m.deletionTimestamp && [
          'Being deleted',
          <Mark word={'since ' + span(now.value - Date.parse(m.deletionTimestamp))} tone="warn" />,
        ],
        !!m.ownerReferences?.length && [
          'Owned by',
          m.ownerReferences.map((o) => (
            <div>
              <Ref apiVersion={o.apiVersion} kind={o.kind} ns={m.namespace} name={o.name} />
            </div>
          )),
        ],
        !!m.finalizers?.length && [
          'Finalizers',
          m.finalizers.map((f) => (
            <div>
              <code>{f}</code>
            </div>
          )),
        ],
        ['Labels', <Pairs of={m.labels} />],
        m.annotations && ['Annotations', <Pairs of={m.annotations} />],
        ['UID', <code>{m.uid}</code>],
        [
          'Version',
          <code>
            {m.resourceVersion}
            {m.generation !== undefined && `, generation ${m.generation}`}
          </code>,
        ],
      ]}
    />
  </Section>
)

export const Conditions = ({ of }: { of: Any[] | undefined }): JSX.Element | null =>
  !Array.isArray(of) || of.length === 0 ? null : (
    <Section title="Conditions">
      <Grid
        label="Conditions"
        head={['Type', 'Status', 'Since', 'Reason', 'Message']}
        rows={of
          .filter((c) => c && typeof c === 'object')
          .map((c, i) => ({
            key: String(c.type ?? i),
            cells: [
              shown(c.type),
              <Mark word={shown(c.status)} tone={toneOf(c)} />,
              <Age at={c.lastTransitionTime} />,
              shown(c.reason),
              <Long text={shown(c.message)} />,
            ],
          }))}
      />
    </Section>
  )

// Of these conditions, True is the bad one.
const inverse =
  /Pressure$|Unavailable$|^(ReplicaFailure|Failed|FailureTarget|Stalled|Degraded|NonStructuralSchema|.*Failure|Denied|Terminating)$/

export const toneOf = (c: Any): 'ok' | 'bad' | 'idle' =>
  c.status === 'Unknown'
    ? 'bad'
    : inverse.test(String(c.type))
      ? c.status === 'True'
        ? 'bad'
        : 'ok'
      : c.status === 'True'
        ? 'ok'
        : 'bad'

const stateOf = (s: Any): { word: string; more: string } => {
  if (s?.state?.running) return { word: 'Running', more: '' }
  const t = s?.state?.terminated
  if (t)
    return {
      word: t.reason ?? 'Terminated',
      more: [t.exitCode !== undefined && `exit code ${t.exitCode}`, t.message].filter(Boolean).join('. '),
    }
  return { word: s?.state?.waiting?.reason ?? 'Waiting', more: s?.state?.waiting?.message ?? '' }
}

const Containers = ({ o }: { o: Obj }): JSX.Element => {
  const all = [
    ...(o.spec.initContainers ?? []).map((c: Any) => ({ c, of: 'init', s: o.status?.initContainerStatuses })),
    ...(o.spec.containers ?? []).map((c: Any) => ({ c, of: '', s: o.status?.containerStatuses })),
    ...(o.spec.ephemeralContainers ?? []).map((c: Any) => ({ c, of: 'ephemeral', s: o.status?.ephemeralContainerStatuses })),
  ]
  return (
    <Section title="Containers">
      <Grid
        label="Containers"
        numbers={[3]}
        head={['Name', 'State', 'Image', 'Restarts', 'Requests', 'Ports', '']}
        rows={all.map(({ c, of, s }) => {
          const st = (s ?? []).find((x: Any) => x.name === c.name)
          const { word, more } = stateOf(st)
          const last = st?.lastState?.terminated
          const r = c.resources?.requests ?? {}
          return {
            key: of + c.name,
            cells: [
              <>
                <strong>{c.name}</strong>
                {of && <small> {of}</small>}
              </>,
              <>
                <Mark word={word} />
                {word === 'Running' && st?.ready === false && <small> not ready</small>}
                {more && (
                  <div>
                    <Long text={more} most={200} />
                  </div>
                )}
                {last && (
                  <div>
                    <small>
                      before: {last.reason ?? ''} {last.exitCode !== undefined && `exit code ${last.exitCode}`},{' '}
                      <Age at={last.finishedAt} /> ago
                    </small>
                  </div>
                )}
              </>,
              <code>{c.image}</code>,
              st?.restartCount ?? 0,
              [r.cpu && r.cpu + ' CPU', r.memory].filter(Boolean).join(', ') || '–',
              (c.ports ?? []).map((p: Any) => `${p.containerPort}/${p.protocol ?? 'TCP'}`).join(', ') || '–',
              <a
                href={`?tab=logs&container=${encodeURIComponent(c.name)}`}
                onClick={(e) => {
                  e.preventDefault()
                  document.getElementById('tab-logs')?.click()
                }}>
                logs
              </a>,
            ],
          }
        })}
      />
    </Section>
  )
}

const Pod = ({ o }: { o: Obj }): JSX.Element => {
  const s = o.status ?? {}
  const port = (o.spec.containers ?? []).flatMap((c: Any) => c.ports ?? [])[0]?.containerPort
  const forward = `kubectl port-forward -n ${o.metadata.namespace} pod/${o.metadata.name} ${port ?? 8080}`
  return (
    <>
      <div class="columns">
        <Section title="State">
          <Facts
            of={[
              ['Phase', <Mark word={s.reason ?? s.phase ?? 'Unknown'} />],
              s.message && ['Message', <Long text={s.message} />],
              [
                'Node',
                o.spec.nodeName ? <Ref apiVersion="v1" kind="Node" name={o.spec.nodeName} /> : <Mark word="none yet" tone="warn" />,
              ],
              ['Addresses', (s.podIPs ?? []).map((i: Any) => i.ip).join(', ') || '–'],
              [
                'Account',
                <Ref apiVersion="v1" kind="ServiceAccount" ns={o.metadata.namespace} name={o.spec.serviceAccountName ?? 'default'} />,
              ],
              ['Quality of service', s.qosClass ?? '–'],
              o.spec.priorityClassName && ['Priority', `${o.spec.priorityClassName} (${o.spec.priority ?? 0})`],
              [
                'Forward a port',
                <>
                  <code>{forward}</code> <Copy text={forward} />
                </>,
              ],
            ]}
          />
        </Section>
        <About m={o.metadata} />
      </div>
      <Containers o={o} />
      {(o.spec.volumes ?? []).length > 0 && (
        <Section title="Volumes">
          <Grid
            label="Volumes"
            head={['Name', 'Kind', 'Of']}
            rows={o.spec.volumes.map((v: Any) => {
              const kind = Object.keys(v).find((x) => x !== 'name') ?? ''
              const source = v[kind] ?? {}
              const of =
                kind === 'persistentVolumeClaim' ? (
                  <Ref apiVersion="v1" kind="PersistentVolumeClaim" ns={o.metadata.namespace} name={source.claimName} />
                ) : kind === 'configMap' ? (
                  <Ref apiVersion="v1" kind="ConfigMap" ns={o.metadata.namespace} name={source.name} />
                ) : kind === 'secret' ? (
                  <Ref apiVersion="v1" kind="Secret" ns={o.metadata.namespace} name={source.secretName} />
                ) : kind === 'projected' ? (
                  (source.sources ?? []).map((x: Any) => Object.keys(x)[0]).join(', ')
                ) : (
                  shown(source.driver ?? source.path ?? source.server)
                )
              return { key: v.name, cells: [v.name, kind, of] }
            })}
          />
        </Section>
      )}
      <Conditions of={s.conditions} />
    </>
  )
}

/** Revisions are the replica sets of a deployment as a rollout goes on. */
const Revisions = ({ o, path }: { o: Obj; path: string }): JSX.Element => {
  const rs = find('apps', 'replicasets')
  const sets = useObjects(rs ? withQuery(pathOf(rs, o.metadata.namespace), { labelSelector: selectorOf(o.spec.selector) }) : '')
  const revision = (s: Obj): number => Number(s.metadata.annotations?.['deployment.kubernetes.io/revision'] ?? 0)
  return (
    <Section title="Revisions">
      <Show of={sets} what="replica sets">
        {(all) => {
          const own = all
            .filter((s) => s.metadata.ownerReferences?.some((r) => r.uid === o.metadata.uid))
            .sort((a, b) => revision(b) - revision(a))
          return (
            <Grid
              label="Revisions"
              empty="No revision yet."
              numbers={[0]}
              head={['Revision', 'Replica set', 'Age', 'Ready', 'Images', '']}
              rows={own.map((s, i) => ({
                key: s.metadata.uid!,
                cells: [
                  revision(s),
                  <a href={objectHref(rs!, s.metadata.namespace, s.metadata.name)}>{s.metadata.name}</a>,
                  <Age at={s.metadata.creationTimestamp} />,
                  <Bar
 goal
                    of={s.status?.readyReplicas ?? 0}
                    whole={Math.max(s.spec.replicas ?? 0, 1)}
                    label={`${s.status?.readyReplicas ?? 0}/${s.spec.replicas ?? 0}`}
                  />,
                  <code>{(s.spec.template.spec.containers ?? []).map((c: Any) => c.image).join(', ')}</code>,
                  i > 0 ? (
                    <button
                      type="button"
                      onClick={() =>
                        void tried(`Rolling back to revision ${revision(s)}`, () => {
                          const { 'pod-template-hash': _, ...labels } = s.spec.template.metadata?.labels ?? {}
                          // Null removes what the newer template has and the older has not.
                          const was = o.spec.template.metadata?.annotations ?? {},
                            is = s.spec.template.metadata?.annotations ?? {}
                          const annotations = { ...Object.fromEntries(Object.keys(was).map((x) => [x, null])), ...is }
                          return mergePatch(path, {
                            metadata: { resourceVersion: o.metadata.resourceVersion },
                            spec: { template: { metadata: { labels, annotations }, spec: s.spec.template.spec } },
                          })
                        })
                      }>
                      Roll back
                    </button>
                  ) : (
                    'current'
                  ),
                ],
              }))}
            />
          )
        }}
      </Show>
    </Section>
  )
}

const Workload = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  const s = o.status ?? {}
  const want = o.spec.replicas ?? s.desiredNumberScheduled ?? s.replicas ?? 0
  const ready = s.readyReplicas ?? s.numberReady ?? 0
  const updated = s.updatedReplicas ?? s.updatedNumberScheduled
  const pods = find('', 'pods')
  const selector = selectorOf(o.spec.selector)
  return (
    <>
      <div class="columns">
        <Section title="State">
          <Facts
            of={[
              ['Ready', <Bar goal of={ready} whole={Math.max(want, 1)} label={`${ready} of ${want}`} />],
              updated !== undefined && [
                'Of the newest template',
                <Bar goal of={updated} whole={Math.max(want, 1)} label={`${updated} of ${want}`} />,
              ],
              k.resource === 'deployments' && ['Available', `${s.availableReplicas ?? 0} of ${want}`],
              o.spec.paused && ['Rollout', <Mark word="paused" tone="warn" />],
              s.observedGeneration !== undefined &&
                s.observedGeneration < (o.metadata.generation ?? 0) && [
                  'Seen',
                  <Mark word="the controller has not seen the newest change" tone="warn" />,
                ],
              ['Strategy', shown(o.spec.strategy?.type ?? o.spec.updateStrategy?.type)],
              ['Selector', <code>{selector ?? '–'}</code>],
              [
                'Images',
                (o.spec.template?.spec?.containers ?? []).map((c: Any) => (
                  <div>
                    <code>{c.image}</code>
                  </div>
                )),
              ],
            ]}
          />
        </Section>
        <About m={o.metadata} />
      </div>
      {k.resource === 'deployments' && <Revisions o={o} path={pathOf(k, o.metadata.namespace, o.metadata.name)} />}
      <Conditions of={s.conditions} />
      {pods && selector && (
        <Section title="Pods">
            <KindTable
              kind={pods}
              path={withQuery(pathOf(pods, o.metadata.namespace), { labelSelector: selector })}
              spaces={false}
              fit
              empty="No pods."
            />
        </Section>
      )}
    </>
  )
}

const Service = ({ o }: { o: Obj }): JSX.Element => {
  const slices = find('discovery.k8s.io', 'endpointslices')
  const ends = useObjects(
    slices ? withQuery(pathOf(slices, o.metadata.namespace), { labelSelector: 'kubernetes.io/service-name=' + o.metadata.name }) : '',
  )
  return (
    <>
      <div class="columns">
        <Section title="Service">
          <Facts
            of={[
              ['Type', o.spec.type ?? 'ClusterIP'],
              ['Addresses', (o.spec.clusterIPs ?? []).join(', ') || o.spec.externalName || '–'],
              [
                'Ports',
                (o.spec.ports ?? []).map((p: Any) => (
                  <div>
                    {p.name && p.name + ' '}
                    <code>
                      {p.port}/{p.protocol} → {shown(p.targetPort)}
                    </code>
                    {p.nodePort && ' node port ' + p.nodePort}
                  </div>
                )),
              ],
              ['Selector', <code>{selectorOf(o.spec.selector) ?? '–'}</code>],
            ]}
          />
        </Section>
        <About m={o.metadata} />
      </div>
      <Section title="Endpoints">
        <Show of={ends} what="endpoint slices">
          {(all) => {
            const rows = all.flatMap((s) =>
              (s.endpoints ?? []).map((e: Any) => ({
                key: s.metadata.name + e.addresses?.[0],
                cells: [
                  (e.addresses ?? []).join(', '),
                  <Mark
                    word={e.conditions?.ready === false ? 'not ready' : 'ready'}
                    tone={e.conditions?.ready === false ? 'warn' : 'ok'}
                  />,
                  e.targetRef ? <Ref apiVersion="v1" kind={e.targetRef.kind} ns={e.targetRef.namespace} name={e.targetRef.name} /> : '–',
                  e.nodeName ?? '–',
                ],
              })),
            )
            return (
              <Grid
                label="Endpoints"
                head={['Address', 'State', 'Of', 'Node']}
                rows={rows}
                empty="No endpoints: connections to the service fail."
              />
            )
          }}
        </Show>
      </Section>
    </>
  )
}

const Data = ({ o, secret }: { o: Obj; secret: boolean }): JSX.Element => {
  const all: [string, string][] = [...Object.entries<string>(o.data ?? {}), ...Object.entries<string>(o.binaryData ?? {})]
  return (
    <Section title="Data">
      {all.length === 0 ? (
        <Empty>No data.</Empty>
      ) : (
        all.map(([key, v]) => (
          <details open={!secret && v.length < 2000 && all.length < 6}>
            <summary>
              <code>{key}</code> <small>{bytes(secret || o.binaryData?.[key] ? (v.length * 3) / 4 : v.length)}</small>
            </summary>
            <pre>{secret ? decode(v) : v}</pre>
          </details>
        ))
      )}
    </Section>
  )
}

const decode = (v: string): string => {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(atob(v), (c) => c.charCodeAt(0)))
  } catch {
    return v
  }
}

/** Generic shows spec and status of kinds that this page knows nothing about, custom resources foremost. */
const Generic = ({ o }: { o: Obj }): JSX.Element => {
  const scalars = (of: Any): [string, string][] =>
    Object.entries(of ?? {})
      .filter(([, v]) => v === null || typeof v !== 'object')
      .map(([k, v]) => [k, shown(v)])
  const deep = (of: Any): [string, Any][] =>
    Object.entries(of ?? {}).filter(([k, v]) => v !== null && typeof v === 'object' && k !== 'conditions')
  return (
    <>
      <div class="columns">
        {[
          ['Spec', o.spec],
          ['Status', o.status],
        ].map(
          ([title, of]) =>
            of &&
            typeof of === 'object' &&
            Object.keys(of).length > 0 && (
              <Section title={title}>
                <Facts of={scalars(of).map(([a, b]) => [a, <Long text={b} />] as const)} />
                {deep(of).map(([a, b]) => (
                  <details>
                    <summary>
                      {a}
                      {Array.isArray(b) && <small> {b.length}</small>}
                    </summary>
                    <pre>{JSON.stringify(b, null, 2)}</pre>
                  </details>
                ))}
              </Section>
            ),
        )}
        <About m={o.metadata} />
      </div>
      <Conditions of={o.status?.conditions} />
    </>
  )
}

export const Summary = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  if (k.group === '') {
    if (k.resource === 'pods')
      return (
        <div class="page">
          <Pod o={o} />
        </div>
      )
    if (k.resource === 'services')
      return (
        <div class="page">
          <Service o={o} />
        </div>
      )
    if (k.resource === 'nodes')
      return (
        <div class="page">
          <NodeParts o={o} />
          <About m={o.metadata} />
        </div>
      )
    if (k.resource === 'configmaps' || k.resource === 'secrets') {
      return (
        <div class="page">
          <Data o={o} secret={k.resource === 'secrets'} />
          <About m={o.metadata} />
        </div>
      )
    }
    if (k.resource === 'namespaces') {
      return (
        <div class="page">
          <p>
            <a class="button" href={listHref(find('', 'pods') ?? k)} onClick={() => chooseNamespace(o.metadata.name)}>
              Work in this namespace
            </a>
          </p>
          <Generic o={o} />
        </div>
      )
    }
  }
  if ((k.group === 'apps' && k.resource !== 'controllerrevisions') || (k.group === 'batch' && k.resource === 'jobs'))
    return (
      <div class="page">
        <Workload k={k} o={o} />
      </div>
    )
  return (
    <div class="page">
      <Generic o={o} />
    </div>
  )
}
