// Why an object is as it is: what it waits for, who is asked, who refused.
import type { JSX } from 'preact'
import { Failure, get, withQuery, type Any, type Obj } from '../api'
import { find, pathOf, type Kind } from '../discovery'
import { troubled, type Autoscaling, type Extensions, type NodeCall, type Scheduling, type Traces } from '../extension'
import { useLoad } from '../live'
import { seconds, shown, span } from '../text'
import { Age, Empty, Facts, Grid, Long, Mark, Section, Show } from '../ui/parts'
import { Conditions, Ref, toneOf } from './summary'
import { EventTable, eventsOf } from './detail'
import { WriteList } from './writes'
import { Deletion } from './deletion'

const explain = (q: Record<string, string | undefined>): string => withQuery('/debug/explain', q)

const Scheduled = ({ o }: { o: Obj }): JSX.Element => {
  const s = useLoad(
    () =>
      get<Scheduling>(
        explain({ group: '', resource: 'pods', namespace: o.metadata.namespace, name: o.metadata.name, scheduling: 'true' }),
      ),
    (o.metadata.uid ?? '') + o.metadata.resourceVersion,
    o.spec.nodeName ? 0 : 3000,
  )
  return (
    <Section title={o.spec.nodeName ? 'Why it is on its node' : 'Why it has no node'}>
      <Show of={s} what="the scheduler’s decisions">
        {(d) => (
          <>
            {d.place && (
              <Facts
                of={[
                  [
                    'Now',
                    <>
                      <Mark
                        word={d.place.where}
                        tone={d.place.where === 'bound' ? 'ok' : d.place.where === 'unschedulable' ? 'bad' : 'warn'}
                      />
                      {d.place.plugins?.length ? ' by ' + d.place.plugins.join(', ') : ''}
                      {d.place.node && ' to ' + d.place.node}
                    </>,
                  ],
                  d.place.since && [
                    'Since',
                    <>
                      <Age at={d.place.since} /> ago, after {d.place.attempts ?? 0} attempts
                    </>,
                  ],
                  d.place.until && ['Tried again', `at ${d.place.until} at the latest`],
                  d.place.nominatedNode && ['Nominated', `to ${d.place.nominatedNode}: preemption frees resources there`],
                ]}
              />
            )}
            {d.note && <p class="hint">{d.note}</p>}
            {(d.decisions ?? []).length === 0 && <Empty>No decision is remembered.</Empty>}
            {(d.decisions ?? []).slice(0, 5).map((x) => (
              <div>
                <h3>
                  Attempt {x.attempt}, <Age at={x.time} /> ago, profile {x.profile}, in {seconds(x.seconds)}
                </h3>
                <p>
                  <Mark word={x.outcome} tone={x.outcome === 'bound' || x.outcome === 'binding' ? 'ok' : 'bad'} />{' '}
                  {x.node && <Ref apiVersion="v1" kind="Node" name={x.node} />} <Long text={x.message ?? ''} />
                </p>
                <p class="dim">
                  {x.nodes} nodes, {x.asked} asked, {x.feasible} feasible
                </p>
                {!!x.filtered?.length && (
                  <Grid
                    label="Nodes that were filtered out"
                    numbers={[0]}
                    head={['Nodes', 'Plug-in', 'Reason', 'Which']}
                    rows={x.filtered.map((f, i) => ({
                      key: String(i),
                      cells: [
                        f.count,
                        f.plugin ?? '–',
                        f.reason,
                        (f.nodes ?? []).join(', ') + ((f.nodes?.length ?? 0) < f.count ? ', …' : ''),
                      ],
                    }))}
                  />
                )}
                {!!x.scores?.length && (
                  <Grid
                    label="Scores"
                    numbers={[1]}
                    head={['Node', 'Total', 'By plug-in, weighted']}
                    rows={x.scores.map((n) => ({
                      key: n.node,
                      cells: [
                        n.node,
                        n.total,
                        n.plugins
                          .filter((p) => p.weighted)
                          .map((p) => `${p.plugin} ${p.weighted}`)
                          .join(', ') || '–',
                      ],
                    }))}
                  />
                )}
                {!!x.victims?.length && (
                  <p>
                    It preempts {x.victims.map((v) => `${v.namespace}/${v.name}`).join(', ')}
                    {x.moreVictims ? ` and ${x.moreVictims} more` : ''}.
                  </p>
                )}
              </div>
            ))}
          </>
        )}
      </Show>
    </Section>
  )
}

const remedies: Record<string, string> = {
  ErrImagePull: 'The image cannot be pulled: check its name, the registry, and imagePullSecrets.',
  ImagePullBackOff:
    'The image cannot be pulled, and the node waits before it tries again: check its name, the registry, and imagePullSecrets.',
  CrashLoopBackOff: 'The container ends soon after each start, and the node waits before it starts it again: its previous log says why.',
  CreateContainerConfigError: 'A ConfigMap, Secret or key that the container needs is not there.',
  ContainerCreating: 'The node prepares volumes, network and image; the events say what takes long.',
  OOMKilled: 'It used more memory than its limit.',
}

const NotRunning = ({ o }: { o: Obj }): JSX.Element | null => {
  const bad = [...(o.status?.initContainerStatuses ?? []), ...(o.status?.containerStatuses ?? [])].flatMap((s: Any) => {
    const t = s.state?.terminated,
      l = s.lastState?.terminated,
      w = s.state?.waiting
    if (w) return [{ name: s.name, word: w.reason ?? 'Waiting', text: w.message ?? '', hint: remedies[w.reason] ?? '', last: l }]
    if (t && t.exitCode !== 0)
      return [
        {
          name: s.name,
          word: t.reason ?? 'Error',
          text: `exit code ${t.exitCode}. ${t.message ?? ''}`,
          hint: remedies[t.reason] ?? '',
          last: l,
        },
      ]
    if (s.state?.running && !s.ready && !s.started)
      return [{ name: s.name, word: 'not started', text: 'Its startup probe has not succeeded yet.', hint: '', last: l }]
    if (s.state?.running && !s.ready) return [{ name: s.name, word: 'not ready', text: 'Its readiness probe fails.', hint: '', last: l }]
    return []
  })
  return bad.length === 0 ? null : (
    <Section title="Why containers do not run">
      <Grid
        label="Containers that do not run"
        head={['Container', 'State', 'Why', 'Before']}
        rows={bad.map((b) => ({
          key: b.name,
          cells: [
            b.name,
            <Mark word={b.word} tone="bad" />,
            <>
              {b.hint && <p>{b.hint}</p>}
              <Long text={b.text} />
            </>,
            b.last ? `${b.last.reason ?? ''} exit code ${b.last.exitCode}` : '–',
          ],
        }))}
      />
    </Section>
  )
}

const Gates = ({ o }: { o: Obj }): JSX.Element | null =>
  !(o.spec.schedulingGates ?? []).length ? null : (
    <Section title="Gates">
      <p>
        It is not scheduled until these gates are removed:{' '}
        {o.spec.schedulingGates.map((g: Any) => (
          <code>{g.name} </code>
        ))}
      </p>
    </Section>
  )

/** callsOf returns the calls to plug-ins of the node that concern a pod, a persistent volume, or the volume of a claim. */
const callsOf = async (k: Kind, o: Obj): Promise<NodeCall[]> => {
  if (k.group !== '') return []
  const { namespace, name } = o.metadata
  const calls = async (of: Record<string, string | undefined>): Promise<NodeCall[]> =>
    (await get<Traces>(explain({ group: '', ...of, limit: '1' }))).calls ?? []
  switch (k.resource) {
    case 'pods':
      return calls({ resource: 'pods', namespace, name })
    case 'persistentvolumes':
      return calls({ resource: 'persistentvolumes', name })
    case 'persistentvolumeclaims':
      return o.spec.volumeName ? calls({ resource: 'persistentvolumes', name: o.spec.volumeName }) : []
  }
  return []
}

const NodeCalls = ({ calls }: { calls: NodeCall[] }): JSX.Element => (
  <Grid
    label="Calls to plug-ins of the node"
    numbers={[4]}
    head={['When', 'Plug-in', 'Method', 'Code', 'Time', 'Error']}
    rows={calls.map((c, i) => ({
      key: String(i),
      tone: c.error ? 'bad' : 'idle',
      cells: [
        <Age at={c.time} />,
        `${c.point} ${c.extension}`,
        c.method ?? '–',
        c.code ?? '–',
        seconds(c.seconds),
        c.error ? <Long text={c.error} /> : '–',
      ],
    }))}
  />
)

const Scaled = ({ o }: { o: Obj }): JSX.Element => {
  const s = useLoad(
    () =>
      get<Autoscaling>(
        explain({
          group: 'autoscaling',
          resource: 'horizontalpodautoscalers',
          namespace: o.metadata.namespace,
          name: o.metadata.name,
          autoscaling: 'true',
        }),
      ),
    (o.metadata.uid ?? '') + o.metadata.resourceVersion,
    5000,
  )
  return (
    <Section title="Why it scales, or does not">
      <Show of={s} what="the autoscaler’s decisions">
        {(d) => (
          <>
            {(d.decisions ?? []).length === 0 && <Empty>No decision is remembered.</Empty>}
            {(d.decisions ?? []).slice(0, 5).map((x) => (
              <div>
                <h3>
                  <Age at={x.time} /> ago, about {x.target}
                  {x.evaluations > 1 && (
                    <>
                      , the same in {x.evaluations} evaluations since <Age at={x.since} />
                    </>
                  )}
                </h3>
                <p>
                  <Mark word={x.outcome} tone={x.outcome === 'failed' ? 'bad' : x.outcome === 'disabled' ? 'warn' : 'ok'} />{' '}
                  <Long text={x.message ?? ''} />
                </p>
                <p>
                  {x.replicas} replicas found{x.proposed !== undefined && `, ${x.proposed} proposed by the metrics`}
                  {x.desired !== undefined && `, ${x.desired} desired`}
                </p>
                {(x.limits ?? []).map((l) => (
                  <p>
                    {l.from} → {l.to} by {l.detail} <small>({l.reason})</small>
                  </p>
                ))}
                {!!x.metrics?.length && (
                  <Grid
                    label="Metrics"
                    numbers={[2, 3, 4, 6]}
                    head={['Metric', 'Read at', 'Value', 'Target', 'Ratio', 'Age', 'Proposes', '']}
                    rows={x.metrics.map((m, i) => ({
                      key: String(i),
                      tone: m.error ? 'bad' : 'idle',
                      cells: [
                        `${m.type} ${m.name}`,
                        <>
                          <code>{m.path ?? '–'}</code>
                          {m.service ? ' of ' + m.service : m.builtIn ? ' of this server' : ''}
                        </>,
                        shown(m.value),
                        shown(m.target),
                        m.ratio?.toFixed(2) ?? '–',
                        m.ageSeconds !== undefined ? span(m.ageSeconds * 1000) : '–',
                        shown(m.proposed),
                        <Long text={m.error ?? m.kept ?? ''} />,
                      ],
                    }))}
                  />
                )}
              </div>
            ))}
          </>
        )}
      </Show>
    </Section>
  )
}

const Claim = ({ o }: { o: Obj }): JSX.Element => {
  const k = find('storage.k8s.io', 'storageclasses')
  const name = o.spec.storageClassName as string | undefined
  const c = useLoad(async () => (k && name ? get(pathOf(k, undefined, name)) : undefined), 'class' + name)
  const x = useLoad(() => get<Extensions>('/debug/extensions'), 'extensions')
  const driver = c.data?.provisioner as string | undefined
  const plugged = (x.data?.extensions ?? []).filter((e) => e.point === 'csi' && driver && e.name.includes(driver))
  return (
    <Section title="Where the volume comes from">
      <Facts
        of={[
          ['Phase', <Mark word={o.status?.phase ?? 'Pending'} />],
          [
            'Class',
            name ? (
              <>
                <Ref apiVersion="storage.k8s.io/v1" kind="StorageClass" name={name} />{' '}
                {c.failure?.code === 404 && <Mark word="does not exist: nobody will make the volume" tone="bad" />}
              </>
            ) : (
              <Mark word="none: it waits for a volume that somebody makes" tone="warn" />
            ),
          ],
          driver && ['Provisioner', <code>{driver}</code>],
          c.data?.volumeBindingMode === 'WaitForFirstConsumer' &&
            !o.spec.volumeName && ['Binding', <Mark word="waits for a pod that uses it" tone="warn" />],
          o.spec.volumeName && ['Volume', <Ref apiVersion="v1" kind="PersistentVolume" name={o.spec.volumeName} />],
        ]}
      />
      {plugged.map((e) => (
        <p>
          <Mark word={e.state} tone={troubled(e) ? 'bad' : 'ok'} /> {e.name} <Long text={e.lastError ?? ''} />
        </p>
      ))}
    </Section>
  )
}

/** Selected shows why a workload has fewer pods than it should. */
const Short = ({ o }: { o: Obj }): JSX.Element | null => {
  const bad = (o.status?.conditions ?? []).filter((c: Any) => toneOf(c) === 'bad')
  return bad.length === 0 ? null : (
    <Section title="What it says of itself">
      <ul class="troubles">
        {bad.map((c: Any) => (
          <li class="bad">
            <Mark word={`${c.type} ${c.status}`} tone="bad" />
            <span>{c.reason}</span>
            <span class="why">
              <Long text={shown(c.message)} />
            </span>
            <Age at={c.lastTransitionTime} />
          </li>
        ))}
      </ul>
    </Section>
  )
}

export const Why = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  const pod = k.group === '' && k.resource === 'pods'
  const key = (o.metadata.uid ?? '') + o.metadata.resourceVersion
  const events = useLoad(() => eventsOf(o), key, 5000)
  const refused = useLoad(
    () =>
      get<Traces>(
        explain({
          group: k.group,
          resource: k.resource,
          namespace: o.metadata.namespace,
          name: o.metadata.name,
          rejected: 'true',
          limit: '20',
        }),
      ),
    key,
  )
  const calls = useLoad(() => callsOf(k, o), 'calls' + key, 5000)
  const warnings = (events.data ?? []).filter((e) => e.type === 'Warning')
  return (
    <div class="page">
      {o.metadata.deletionTimestamp && <Deletion k={k} o={o} />}
      <Short o={o} />
      {pod && (
        <>
          <NotRunning o={o} />
          <Gates o={o} />
          <Scheduled o={o} />
        </>
      )}
      {k.group === 'autoscaling' && k.resource === 'horizontalpodautoscalers' && <Scaled o={o} />}
      {k.group === '' && k.resource === 'persistentvolumeclaims' && <Claim o={o} />}
      {(calls.data ?? []).length > 0 && (
        <Section title="Calls to plug-ins of the node">
          <NodeCalls calls={calls.data!} />
        </Section>
      )}
      <Section title="Warnings about it">
        {events.failure ? <NotRead f={events.failure} what="events" /> : <EventTable events={warnings} />}
      </Section>
      <Section title="Refused writes to it">
        {refused.failure ? (
          <NotRead f={refused.failure} what="traces of writes" />
        ) : (refused.data?.traces ?? []).length === 0 ? (
          <Empty>None is remembered.</Empty>
        ) : (
          <WriteList traces={refused.data!.traces!} />
        )}
      </Section>
      {!pod && <Conditions of={o.status?.conditions} />}
    </div>
  )
}

const NotRead = ({ f, what }: { f: Failure; what: string }): JSX.Element => (
  <p class="hint">{f.forbidden ? `You may not read ${what}.` : f.message}</p>
)
