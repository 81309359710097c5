// RBAC read both ways: who can do this, and what can this account do.
import type { JSX } from 'preact'
import { useMemo } from 'preact/hooks'
import { send2, type Any } from '../api'
import { byWord, kinds, refHref } from '../discovery'
import { useLoad } from '../live'
import { inNamespace } from '../places'
import { route, setQuery } from '../router'
import { accountOf, answer, grants, matches, whoCan, wordsOf, type Grant, type Granted, type Question, type Rule } from '../rules'
import { state } from '../session'
import { Grid, Mark, Section, Show, Tabs, Wrong } from '../ui/parts'

const rbac = 'rbac.authorization.k8s.io/v1'

export const Access = (): JSX.Element => {
  const tab = route.value.query.get('tab') ?? 'who'
  return (
    <div class="page">
      <div class="title">
        <h1>Access</h1>
      </div>
      <Tabs
        label="Questions"
        now={tab}
        pick={(t) => setQuery({ tab: t })}
        tabs={[
          { id: 'who', title: 'Who can do this' },
          { id: 'what', title: 'What can this account do' },
          { id: 'mine', title: 'What may I do' },
        ]}
      />
      <div role="tabpanel" id="tabpanel" aria-labelledby={'tab-' + tab}>
        {tab === 'mine' ? <Mine /> : tab === 'what' ? <What /> : <Who />}
      </div>
    </div>
  )
}

const verbs = [
  'get',
  'list',
  'watch',
  'create',
  'update',
  'patch',
  'delete',
  'deletecollection',
  'impersonate',
  'bind',
  'escalate',
  'approve',
  'use',
  '*',
]

const questionOf = (q: URLSearchParams): Question | undefined => {
  const what = (q.get('resource') ?? '').trim()
  if (!what) return undefined
  const verb = q.get('verb') ?? 'get'
  if (what.startsWith('/')) return { verb, group: '', resource: '', url: what }
  const [full = '', sub] = what.split('/', 2)
  const k = byWord(full) ?? kinds.value.find((x) => x.resource + '.' + x.group === full)
  const [r = '', ...g] = full.split('.')
  return {
    verb,
    group: k?.group ?? g.join('.'),
    resource: k?.resource ?? r,
    ...(sub && { subresource: sub }),
    ...(q.get('name') && { name: q.get('name')! }),
    ...((!k || k.namespaced) && inNamespace() && { namespace: inNamespace() }),
  }
}

const Role = ({ of }: { of: { kind: string; name: string; namespace?: string | undefined } }): JSX.Element => {
  const to = refHref(rbac, of.kind, of.namespace, of.name)
  return (
    <>
      {of.kind} {to ? <a href={to}>{of.name}</a> : of.name}
      {of.namespace && <small> in {of.namespace}</small>}
    </>
  )
}

const subject = (g: Grant): JSX.Element => {
  const s = g.subject
  const to = s.kind === 'ServiceAccount' ? refHref('v1', 'ServiceAccount', s.namespace, s.name) : undefined
  return (
    <>
      <small>{s.kind} </small>
      {to ? (
        <a href={to}>
          {s.namespace}/{s.name}
        </a>
      ) : (
        <code>{s.name}</code>
      )}
    </>
  )
}

const Blind = ({ g }: { g: Granted }): JSX.Element | null =>
  g.blind.length === 0 ? null : (
    <p class="wrong quiet" role="status">
      <strong>You may not read {g.blind.join(', ')} everywhere.</strong> The answer is of what you may read.
    </p>
  )

const Who = (): JSX.Element => {
  const q = route.value.query
  const all = useLoad(grants, 'grants')
  const question = questionOf(q)
  const found = useMemo(() => (all.data && question ? whoCan(all.data.grants, question) : []), [all.data, q.toString(), inNamespace()])
  return (
    <Section title="Who can do this">
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault()
          const f = new FormData(e.currentTarget)
          setQuery({ verb: String(f.get('verb')), resource: String(f.get('resource')), name: String(f.get('name')) }, false)
        }}>
        <label class="field">
          Verb
          <select name="verb" value={q.get('verb') ?? 'get'}>
            {verbs.map((v) => (
              <option>{v}</option>
            ))}
          </select>
        </label>
        <label class="field">
          Resource or URL
          <input name="resource" defaultValue={q.get('resource') ?? ''} placeholder="pods/exec, deploy, /metrics" required />
        </label>
        <label class="field">
          Name, if one
          <input name="name" defaultValue={q.get('name') ?? ''} />
        </label>
        <button class="primary">Ask</button>
      </form>
      <p class="hint">
        In{' '}
        {inNamespace() ? (
          <>
            namespace <code>{inNamespace()}</code>
          </>
        ) : (
          'all namespaces'
        )}
        : choose another above. Roles of webhooks and nodes are not RBAC, and not here.
      </p>
      {question && (
        <Show of={all} what="roles and bindings">
          {(g) => (
            <>
              <Blind g={g} />
              <Grid
                label="Who can"
                empty="No binding gives it to anybody."
                head={['Who', 'By role', 'By binding']}
                rows={found.map((x, i) => ({ key: String(i), cells: [subject(x), <Role of={x.role} />, <Role of={x.binding} />] }))}
              />
            </>
          )}
        </Show>
      )}
    </Section>
  )
}

const What = (): JSX.Element => {
  const q = route.value.query
  const text = (q.get('account') ?? '').trim()
  const all = useLoad(grants, 'grants')
  const { user, groups } = accountOf(text)
  const extra = (q.get('groups') ?? '')
    .split(',')
    .map((x) => x.trim())
    .filter(Boolean)
  const found = useMemo(
    () => (all.data?.grants ?? []).filter((g) => matches(g.subject, user, [...groups, ...extra])),
    [all.data, text, q.get('groups')],
  )
  return (
    <Section title="What can this account do">
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault()
          const f = new FormData(e.currentTarget)
          setQuery({ account: String(f.get('account')), groups: String(f.get('groups')) }, false)
        }}>
        <label class="field">
          User, or NAMESPACE/ACCOUNT
          <input name="account" defaultValue={text} required placeholder="kube-system/default" />
        </label>
        <label class="field">
          Groups
          <input name="groups" defaultValue={q.get('groups') ?? ''} placeholder="team-a, team-b" />
        </label>
        <button class="primary">Ask</button>
      </form>
      {text && (
        <Show of={all} what="roles and bindings">
          {(g) => (
            <>
              <Blind g={g} />
              <p class="hint">
                <code>{user}</code> in {[...groups, ...extra].join(', ')}
              </p>
              <Grid
                label="What it can do"
                empty="No binding names it or its groups."
                head={['Verbs', 'Of', 'Where', 'By role', 'By binding']}
                rows={found.flatMap((x, i) =>
                  x.rules.map((r, j) => ({
                    key: i + '.' + j,
                    cells: [
                      r.verbs.join(', '),
                      wordsOf(r),
                      x.binding.namespace ?? 'everywhere',
                      <Role of={x.role} />,
                      <Role of={x.binding} />,
                    ],
                  })),
                )}
              />
              <Check user={user} groups={[...groups, ...extra]} />
            </>
          )}
        </Show>
      )}
    </Section>
  )
}

/** Check asks the server itself, which also asks webhooks. */
const Check = ({ user, groups }: { user: string; groups: string[] }): JSX.Element => {
  const q = route.value.query
  const question = questionOf(q)
  const key = JSON.stringify([user, groups, question])
  const a = useLoad(
    async () =>
      question
        ? answer(
            await send2<Any>('POST', '/apis/authorization.k8s.io/v1/subjectaccessreviews', {
              apiVersion: 'authorization.k8s.io/v1',
              kind: 'SubjectAccessReview',
              spec: { user, groups, ...attributes(question) },
            }),
          )
        : undefined,
    key,
  )
  return (
    <>
      <h3>Ask the server about one thing</h3>
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault()
          const f = new FormData(e.currentTarget)
          setQuery({ verb: String(f.get('verb')), resource: String(f.get('resource')) }, false)
        }}>
        <label class="field">
          Verb
          <select name="verb" value={q.get('verb') ?? 'get'}>
            {verbs.map((v) => (
              <option>{v}</option>
            ))}
          </select>
        </label>
        <label class="field">
          Resource or URL
          <input name="resource" defaultValue={q.get('resource') ?? ''} required />
        </label>
        <button>Ask</button>
      </form>
      {a.failure && <Wrong f={a.failure} what="the answer" />}
      {a.data && (
        <p>
          <Mark word={a.data.allowed ? 'allowed' : 'not allowed'} tone={a.data.allowed ? 'ok' : 'bad'} /> {a.data.reason}
        </p>
      )}
    </>
  )
}

const attributes = (q: Question): object =>
  q.url
    ? { nonResourceAttributes: { path: q.url, verb: q.verb } }
    : {
        resourceAttributes: {
          verb: q.verb,
          group: q.group,
          resource: q.resource,
          subresource: q.subresource,
          name: q.name,
          namespace: q.namespace,
        },
      }

const Mine = (): JSX.Element => {
  const ns = inNamespace() || 'default'
  const s = state.value
  const rules = useLoad(
    async () =>
      (
        await send2<Any>('POST', '/apis/authorization.k8s.io/v1/selfsubjectrulesreviews', {
          apiVersion: 'authorization.k8s.io/v1',
          kind: 'SelfSubjectRulesReview',
          spec: { namespace: ns },
        })
      ).status as { resourceRules?: Rule[]; nonResourceRules?: Rule[]; incomplete?: boolean; evaluationError?: string },
    'mine' + ns,
  )
  return (
    <Section
      title={
        <>
          What may {s.is === 'in' ? s.session.user.username : 'I'} do in {ns}
        </>
      }>
      <Show of={rules} what="your rules">
        {(r) => (
          <>
            {r.incomplete && <p class="hint">The list is not complete: {r.evaluationError || 'an authorizer cannot list its rules'}</p>}
            <Grid
              label="My rules"
              empty="Nothing."
              head={['Verbs', 'Of']}
              rows={[...(r.resourceRules ?? []), ...(r.nonResourceRules ?? [])].map((x, i) => ({
                key: String(i),
                cells: [x.verbs.join(', '), wordsOf(x)],
              }))}
            />
          </>
        )}
      </Show>
    </Section>
  )
}
