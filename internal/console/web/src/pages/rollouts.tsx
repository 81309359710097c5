// Rollouts as they happen: workloads whose newest template is not everywhere yet come first.
import type { JSX } from 'preact'
import { find, objectHref, pathOf, type Kind } from '../discovery'
import type { Obj } from '../api'
import { useObjects } from '../live'
import { inNamespace } from '../places'
import { Age, Bar, Empty, Grid, Long, Mark, Section, Wait, Wrong } from '../ui/parts'

interface State {
  want: number
  updated: number
  ready: number
  done: boolean
  word: string
  tone: 'ok' | 'warn' | 'bad'
  why: string
  since?: string | undefined
}

const stateOf = (o: Obj): State => {
  const s = o.status ?? {}
  const want = o.spec.replicas ?? s.desiredNumberScheduled ?? 0
  const updated = s.updatedReplicas ?? s.updatedNumberScheduled ?? 0,
    ready = s.readyReplicas ?? s.numberReady ?? 0
  const progress = (s.conditions ?? []).find((c: { type: string }) => c.type === 'Progressing')
  const failed = (s.conditions ?? []).find((c: { type: string; status: string }) => c.type === 'ReplicaFailure' && c.status === 'True')
  const seen = (s.observedGeneration ?? 0) >= (o.metadata.generation ?? 0)
  const total = s.replicas ?? s.currentNumberScheduled ?? 0
  const done = seen && updated >= want && ready >= want && total <= want
  const stuck = progress?.reason === 'ProgressDeadlineExceeded' || failed
  return {
    want,
    updated,
    ready,
    done,
    word: done ? 'done' : stuck ? 'stuck' : o.spec.paused ? 'paused' : 'going on',
    tone: done ? 'ok' : stuck ? 'bad' : 'warn',
    why: done ? '' : (failed?.message ?? progress?.message ?? (seen ? '' : 'the controller has not seen the newest change')),
    since: progress?.lastUpdateTime,
  }
}

const Kinds = ({ k, ns }: { k: Kind; ns: string }): JSX.Element => {
  const all = useObjects(pathOf(k, ns))
  if (all.failure) return <Wrong f={all.failure} what={k.resource} />
  if (!all.data) return <Wait />
  const rows = all.data
    .map((o) => ({ o, s: stateOf(o) }))
    .sort(
      (a, b) =>
        Number(a.s.done) - Number(b.s.done) ||
        ((a.o.metadata.namespace ?? '') + a.o.metadata.name < (b.o.metadata.namespace ?? '') + b.o.metadata.name ? -1 : 1),
    )
  return (
    <Grid
      label={k.kind}
      empty={`No ${k.resource}.`}
      head={['Name', 'State', 'Newest template', 'Ready', 'Changed', 'Why']}
      rows={rows.slice(0, 300).map(({ o, s }) => ({
        key: o.metadata.uid!,
        cells: [
          <>
            <a href={objectHref(k, o.metadata.namespace, o.metadata.name)}>{o.metadata.name}</a>
            {!ns && (
              <div>
                <small>{o.metadata.namespace}</small>
              </div>
            )}
          </>,
          <Mark word={s.word} tone={s.tone} />,
          <Bar goal of={s.updated} whole={Math.max(s.want, 1)} label={`${s.updated}/${s.want}`} />,
          <Bar goal of={s.ready} whole={Math.max(s.want, 1)} label={`${s.ready}/${s.want}`} />,
          <Age at={s.since} />,
          <Long text={s.why} most={160} />,
        ],
      }))}
    />
  )
}

export const Rollouts = (): JSX.Element => {
  const ns = inNamespace()
  const of = ['deployments', 'statefulsets', 'daemonsets'].map((r) => find('apps', r)).filter((k) => k !== undefined)
  return (
    <div class="page">
      <div class="title">
        <h1>Rollouts{ns && <small>{ns}</small>}</h1>
      </div>
      {of.length === 0 && <Empty>The server has no workloads.</Empty>}
      {of.map((k) => (
        <Section title={k.kind + 's'}>
          <Kinds k={k} ns={ns} />
        </Section>
      ))}
    </div>
  )
}
