// Why an object that is being deleted is still there: its finalizers, and who should remove them.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { get, send2, withQuery, type Obj } from '../api'
import { pathOf, type Kind } from '../discovery'
import { useLoad } from '../live'
import { now, span } from '../text'
import { Facts, Grid, Long, Mark, Section, Sure, Wrong } from '../ui/parts'

/** Told is the answer of the server about a deletion. */
interface Told {
  since?: string
  graceSeconds?: number
  finalizers?: { name: string; remover?: string; until?: string; addedBy?: string[] }[]
  remains?: { type: string; reason?: string; message?: string }[]
}

const known: [RegExp, string][] = [
  [/^kubernetes$/, 'the namespace controller, when the namespace is empty'],
  [/^foregroundDeletion$/, 'the garbage collector, when all that it owns with blockOwnerDeletion is gone'],
  [/^orphan$/, 'the garbage collector, when what it owns no longer names it'],
  [/^kubernetes\.io\/pvc-protection$/, 'the controller of claims, when no pod uses it'],
  [/^kubernetes\.io\/pv-protection$/, 'the controller of volumes, when no claim is bound to it'],
  [/^external-attacher\//, 'the attacher of this CSI driver, when the volume is detached'],
  [/^external-provisioner\./, 'the provisioner of this CSI driver'],
  [/^service\.kubernetes\.io\/load-balancer-cleanup$/, 'the controller of the load balancer'],
  [/^customresourcecleanup\.apiextensions\.k8s\.io$/, 'the API server, when all objects of the kind are gone'],
  [/^batch\.kubernetes\.io\/job-tracking$/, 'the job controller, when it has counted the pod'],
  [/^resource\.kubernetes\.io\/delete-protection$/, 'the controller of resource claims, when no pod uses it'],
]

/** remover says who removes a finalizer. */
export const remover = (f: string): string =>
  known.find(([r]) => r.test(f))?.[1] ??
  (f.includes('/') ? `a controller of ${f.split('/')[0]}: if it no longer runs, nobody removes it` : 'nobody that this server knows')

export const Deletion = ({ k, o }: { k: Kind; o: Obj }): JSX.Element => {
  const [which, ask] = useState('')
  const t = useLoad(
    () =>
      get<Told>(
        withQuery('/debug/explain', {
          group: k.group,
          resource: k.resource,
          namespace: o.metadata.namespace,
          name: o.metadata.name,
          deletion: 'true',
        }),
      ).catch(() => undefined),
    (o.metadata.uid ?? '') + o.metadata.resourceVersion,
  )
  const told = new Map((t.data?.finalizers ?? []).map((f) => [f.name, f]))
  const all = o.metadata.finalizers ?? []
  const path = pathOf(k, o.metadata.namespace, o.metadata.name)
  const since = o.metadata.deletionTimestamp!
  return (
    <Section title="Why it is not deleted" class="first">
      <Facts
        of={[
          ['Asked for', <>{span(now.value - Date.parse(since) + (o.metadata.deletionGracePeriodSeconds ?? 0) * 1000)} ago</>],
          !!o.metadata.deletionGracePeriodSeconds && ['Grace period', `${o.metadata.deletionGracePeriodSeconds} s, until ${since}`],
        ]}
      />
      {all.length === 0 ? (
        <p>
          It has no finalizers:{' '}
          {k.resource === 'pods'
            ? 'its node stops the containers, and then removes it.'
            : k.resource === 'namespaces'
              ? 'the namespace controller deletes its contents.'
              : 'it is about to go.'}
        </p>
      ) : (
        <Grid
          label="Finalizers"
          head={['Finalizer', 'Removed by', '']}
          rows={all.map((f) => {
            const x = told.get(f)
            return {
              key: f,
              tone: 'bad' as const,
              cells: [
                <code>{f}</code>,
                <>
                  {x?.remover ? `${x.remover}${x.until ? ', ' + x.until : ''}` : remover(f)}
                  {!!x?.addedBy?.length && (
                    <div>
                      <small>set by {x.addedBy.join(', ')}</small>
                    </div>
                  )}
                </>,
                <button type="button" class="danger" onClick={() => ask(f)}>
                  Remove
                </button>,
              ],
            }
          })}
        />
      )}
      {!!t.data?.remains?.length && (
        <>
          <h3>What is left in it</h3>
          <Grid
            label="What is left"
            head={['Condition', 'Reason', 'What']}
            rows={t.data.remains.map((r) => ({ key: r.type, cells: [r.type, r.reason ?? '–', <Long text={r.message ?? ''} />] }))}
          />
        </>
      )}
      {t.failure && <Wrong f={t.failure} what="the deletion" />}
      {which && (
        <Sure
          title="Remove the finalizer"
          verb="Remove"
          name={o.metadata.name}
          close={() => ask('')}
          act={() =>
            send2(
              'PATCH',
              path,
              [
                { op: 'test', path: '/metadata/resourceVersion', value: o.metadata.resourceVersion },
                { op: 'replace', path: '/metadata/finalizers', value: all.filter((f) => f !== which) },
              ],
              'application/json-patch+json',
            )
          }
          text={
            <>
              <p>
                Without <code>{which}</code> the object may go before its controller has cleaned up what belongs to it elsewhere: volumes,
                addresses, records.
              </p>
              <p>
                Usually <Mark word={remover(which)} tone="warn" /> removes it.
              </p>
            </>
          }
        />
      )}
    </Section>
  )
}
