// One object: what it is, and what can be done with it.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { get, mergePatch, raw, send2, withQuery, type Any, type List, type Obj } from '../api'
import { find, kindAt, listHref, pathOf, type Kind } from '../discovery'
import type { Traces } from '../extension'
import { useLoad, useObject } from '../live'
import { route, setQuery } from '../router'
import { Age, Grid, Long, Mark, Missing, Modal, Section, Show, Sure, Tabs, Wait, Wrong, tried, type Tab } from '../ui/parts'
import { Summary } from './summary'
import { Yaml } from './yaml'
import { Logs } from './logs'
import { Shell } from './shell'
import { Related } from './related'
import { Why } from './why'
import { WriteList } from './writes'
import { linksOf } from '../added'
import type { PageProps } from './index'

export const Detail = ({ path }: PageProps): JSX.Element => {
  const [, group = '', version = '', resource = '', ns = '', name = ''] = path
  const k = kindAt(group, version, resource)
  return k ? <One k={k} ns={ns === '_' ? '' : ns} name={name} /> : <Missing title={name}>The server has no resource {resource}.</Missing>
}

const workload = (k: Kind): boolean =>
  (k.group === 'apps' && ['deployments', 'statefulsets', 'daemonsets', 'replicasets'].includes(k.resource)) ||
  (k.group === 'batch' && k.resource === 'jobs')

const tabsOf = (k: Kind): Tab[] => [
  { id: 'summary', title: 'Summary' },
  { id: 'why', title: 'Why' },
  { id: 'yaml', title: 'YAML' },
  { id: 'events', title: 'Events' },
  ...((k.resource === 'pods' && k.group === '') || workload(k) ? [{ id: 'logs', title: 'Logs' }] : []),
  ...(k.resource === 'pods' && k.group === '' ? [{ id: 'shell', title: 'Terminal' }] : []),
  { id: 'related', title: 'Related' },
  { id: 'writes', title: 'Writes' },
]

const One = ({ k, ns, name }: { k: Kind; ns: string; name: string }): JSX.Element => {
  const collection = pathOf(k, ns)
  const loaded = useObject(collection, name, collection + '/' + name)
  const o = loaded.data && {
    ...loaded.data,
    apiVersion: loaded.data.apiVersion ?? (k.group ? k.group + '/' : '') + k.version,
    kind: loaded.data.kind ?? k.kind,
  }
  const tab = route.value.query.get('tab') ?? 'summary'
  const path = pathOf(k, ns, name)
  const tabs = tabsOf(k)
  const full = tab === 'yaml' || tab === 'logs' || tab === 'shell'
  return (
    <div class={'page' + (full ? ' full' : '')}>
      <div class="title">
        <h1>
          {name}
          <small>
            <a href={listHref(k)}>{k.kind}</a>
            {ns && (
              <>
                {' '}
                in <a href={`k/core/v1/namespaces/_/${ns}`}>{ns}</a>
              </>
            )}
          </small>
        </h1>
        {loaded.deleted && <Mark word="deleted" tone="bad" />}
        {o?.metadata.deletionTimestamp && !loaded.deleted && <Mark word="being deleted" tone="warn" />}
        {o && (
          <span class="dim">
            <Age at={o.metadata.creationTimestamp} /> old
          </span>
        )}
        {o &&
          linksOf(k, o).map((l) => (
            <a href={l.url} target="_blank" rel="noreferrer noopener">
              {l.title} ↗
            </a>
          ))}
        {o && !loaded.deleted && <Acts k={k} o={o} path={path} />}
      </div>
      <Tabs tabs={tabs} now={tab} label="Views of the object" pick={(id) => setQuery({ tab: id === 'summary' ? '' : id }, false)} />
      <div role="tabpanel" id="tabpanel" aria-labelledby={'tab-' + tab} class="view">
        {loaded.failure && <Wrong f={loaded.failure} what={k.kind + ' ' + name} retry={loaded.reload} />}
        {!o && !loaded.failure && <Wait />}
        {o && <View tab={tab} k={k} o={o} path={path} />}
      </div>
    </div>
  )
}

const View = ({ tab, k, o, path }: { tab: string; k: Kind; o: Obj; path: string }): JSX.Element => {
  switch (tab) {
    case 'why':
      return <Why k={k} o={o} />
    case 'yaml':
      return <Yaml path={path} object={o} />
    case 'events':
      return <Events o={o} />
    case 'logs':
      return <Logs k={k} o={o} />
    case 'shell':
      return <Shell o={o} />
    case 'related':
      return <Related k={k} o={o} />
    case 'writes':
      return <Written k={k} o={o} />
    default:
      return <Summary k={k} o={o} />
  }
}

const Acts = ({ k, o, path }: { k: Kind; o: Obj; path: string }): JSX.Element => {
  const [open, show] = useState<'' | 'delete' | 'scale' | 'force' | 'drain'>('')
  const name = o.metadata.name
  const template = k.group === 'apps' && ['deployments', 'statefulsets', 'daemonsets'].includes(k.resource)
  const node = k.group === '' && k.resource === 'nodes'
  const restart = (): Promise<boolean> =>
    tried('Restarting ' + name, () =>
      mergePatch(path, {
        spec: {
          template: { metadata: { annotations: { 'kubectl.kubernetes.io/restartedAt': new Date().toISOString().replace(/\.\d+/, '') } } },
        },
      }),
    )
  return (
    <div class="acts">
      {k.subresources.includes('scale') && (
        <button type="button" onClick={() => show('scale')}>
          Scale
        </button>
      )}
      {template && (
        <button type="button" onClick={() => void restart()}>
          Restart
        </button>
      )}
      {k.group === 'apps' && k.resource === 'deployments' && (
        <button
          type="button"
          onClick={() =>
            void tried(o.spec.paused ? 'Resumed' : 'Paused', () => mergePatch(path, { spec: { paused: o.spec.paused ? null : true } }))
          }>
          {o.spec.paused ? 'Resume' : 'Pause'}
        </button>
      )}
      {k.group === 'batch' && k.resource === 'cronjobs' && (
        <button
          type="button"
          onClick={() =>
            void tried(o.spec.suspend ? 'Resumed' : 'Suspended', () => mergePatch(path, { spec: { suspend: !o.spec.suspend } }))
          }>
          {o.spec.suspend ? 'Resume' : 'Suspend'}
        </button>
      )}
      {node && (
        <button
          type="button"
          onClick={() =>
            void tried(o.spec.unschedulable ? 'New pods may come' : 'No new pods will come', () =>
              mergePatch(path, { spec: { unschedulable: o.spec.unschedulable ? null : true } }),
            )
          }>
          {o.spec.unschedulable ? 'Uncordon' : 'Cordon'}
        </button>
      )}
      {k.verbs.includes('delete') && (
        <button type="button" class="danger" onClick={() => show('delete')}>
          Delete
        </button>
      )}
      {open === 'delete' && (
        <Sure
          title={'Delete ' + name}
          verb="Delete"
          close={() => show('')}
          name={k.resource === 'namespaces' || k.resource === 'customresourcedefinitions' ? name : undefined!}
          text={
            <>
              <p>
                Delete the {k.kind} <code>{name}</code>
                {o.metadata.namespace && (
                  <>
                    {' '}
                    in <code>{o.metadata.namespace}</code>
                  </>
                )}
                , and what it owns.
              </p>
              {k.resource === 'namespaces' && (
                <p>
                  <strong>All objects in the namespace go with it.</strong>
                </p>
              )}
              {k.resource === 'customresourcedefinitions' && (
                <p>
                  <strong>All objects of this kind go with it.</strong>
                </p>
              )}
              {(o.metadata.finalizers ?? []).length > 0 && (
                <p>
                  It stays until these finalizers are removed:{' '}
                  {o.metadata.finalizers!.map((f) => (
                    <code>{f} </code>
                  ))}
                </p>
              )}
            </>
          }
          act={async () => {
            await raw(path, {
              method: 'DELETE',
              body: { kind: 'DeleteOptions', apiVersion: 'v1', propagationPolicy: 'Background', preconditions: { uid: o.metadata.uid } },
            })
          }}
        />
      )}
      {open === 'scale' && <Scale path={path} name={name} close={() => show('')} />}
    </div>
  )
}

const Scale = ({ path, name, close }: { path: string; name: string; close: () => void }): JSX.Element => {
  const scale = useLoad(() => get(path + '/scale'), path)
  const [n, set] = useState<number>()
  return (
    <Modal title={'Scale ' + name} close={close}>
      <Show of={scale} what="the scale">
        {(s) => (
          <form
            onSubmit={(e) => {
              e.preventDefault()
              void tried(`Scaled ${name} to ${n ?? s.spec?.replicas ?? 0}`, () =>
                send2('PATCH', path + '/scale', { spec: { replicas: n ?? s.spec?.replicas ?? 0 } }, 'application/merge-patch+json'),
              ).then((ok) => {
                if (ok) close()
              })
            }}>
            <label class="field">
              Replicas
              <input
                type="number"
                min="0"
                max="10000"
                autofocus
                value={n ?? s.spec?.replicas ?? 0}
                onInput={(e) => set(Number(e.currentTarget.value))}
              />
            </label>
            <p class="hint">There are {s.status?.replicas ?? 0} now.</p>
            <div class="foot">
              <button type="button" onClick={close}>
                Cancel
              </button>
              <button class="primary">Scale</button>
            </div>
          </form>
        )}
      </Show>
    </Modal>
  )
}

/** eventsOf are the events about an object, the newest first. */
export const eventsOf = async (o: Obj): Promise<Obj[]> => {
  const k = find('', 'events')
  if (!k) return []
  const l = await get<List<Any>>(
    withQuery(pathOf(k, o.metadata.namespace ?? ''), {
      fieldSelector: `involvedObject.name=${o.metadata.name},involvedObject.kind=${o.kind}`,
      limit: '500',
    }),
  )
  return l.items
    .filter((e: Obj) => !e.involvedObject?.uid || e.involvedObject.uid === o.metadata.uid || o.kind === 'Node')
    .sort((a: Obj, b: Obj) => (when(a) < when(b) ? 1 : -1))
}

export const when = (e: Obj): string => e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp ?? ''

export const EventTable = ({ events }: { events: Obj[] }): JSX.Element => (
  <Grid
    label="Events"
    empty="No events."
    head={['Type', 'Reason', 'Age', 'Count', 'From', 'Message']}
    numbers={[3]}
    rows={events.map((e) => ({
      key: e.metadata.uid ?? e.metadata.name,
      tone: e.type === 'Warning' ? ('warn' as const) : ('idle' as const),
      cells: [
        <Mark word={e.type} tone={e.type === 'Warning' ? 'warn' : 'idle'} />,
        e.reason,
        <Age at={when(e)} />,
        e.series?.count ?? e.count ?? 1,
        e.source?.component || e.reportingComponent || '–',
        <Long text={e.message ?? ''} />,
      ],
    }))}
  />
)

const Events = ({ o }: { o: Obj }): JSX.Element => {
  const events = useLoad(() => eventsOf(o), (o.metadata.uid ?? '') + o.metadata.resourceVersion, 5000)
  return (
    <Section title="Events">
      <Show of={events} what="events">
        {(all) => <EventTable events={all} />}
      </Show>
    </Section>
  )
}

const Written = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  const traces = useLoad(
    () =>
      get<Traces>(
        withQuery('/debug/explain', {
          group: k.group,
          resource: k.resource,
          namespace: o.metadata.namespace,
          name: o.metadata.name,
          limit: '100',
        }),
      ),
    (o.metadata.uid ?? '') + o.metadata.resourceVersion,
  )
  return (
    <Section title="Writes to it" aside="the newest first; a restart of the server forgets them">
      <Show of={traces} what="the traces of writes">
        {(t) => <WriteList traces={t.traces ?? []} />}
      </Show>
    </Section>
  )
}
