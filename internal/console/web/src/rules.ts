// RBAC as the server evaluates it: roles, bindings, who they give what.
import { Failure, list, type Any, type Obj } from './api'
import { find, pathOf } from './discovery'

export interface Rule {
  verbs: string[]
  apiGroups?: string[]
  resources?: string[]
  resourceNames?: string[]
  nonResourceURLs?: string[]
}
export interface Subject {
  kind: string
  name: string
  namespace?: string
}
export interface Grant {
  subject: Subject
  rules: Rule[]
  role: { kind: string; name: string; namespace?: string | undefined }
  binding: { kind: string; name: string; namespace?: string | undefined }
}
export interface Granted {
  grants: Grant[]
  blind: string[]
}

const group = 'rbac.authorization.k8s.io'

/** grants reads all roles and bindings that the user may read. */
export const grants = async (): Promise<Granted> => {
  const blind: string[] = []
  const all = async (resource: string): Promise<Obj[]> => {
    const k = find(group, resource)
    if (!k) return []
    try {
      return await list(pathOf(k), 20000)
    } catch (e) {
      if (!(e instanceof Failure && e.forbidden)) throw e
      blind.push(resource)
      return []
    }
  }
  const [roles, clusterRoles, bindings, clusterBindings] = await Promise.all(
    ['roles', 'clusterroles', 'rolebindings', 'clusterrolebindings'].map(all),
  )
  const rules = new Map<string, Rule[]>()
  for (const r of roles!) rules.set(`Role/${r.metadata.namespace}/${r.metadata.name}`, r.rules ?? [])
  for (const r of clusterRoles!) rules.set(`ClusterRole//${r.metadata.name}`, r.rules ?? [])
  const out: Grant[] = []
  for (const b of [...bindings!, ...clusterBindings!]) {
    const ns = b.metadata.namespace
    const kind = b.roleRef.kind as string
    const of = rules.get(`${kind}/${kind === 'Role' ? ns : ''}/${b.roleRef.name}`) ?? []
    for (const s of (b.subjects ?? []) as Subject[]) {
      out.push({
        subject: s,
        rules: of,
        role: { kind, name: b.roleRef.name, namespace: kind === 'Role' ? ns : undefined },
        binding: { kind: ns ? 'RoleBinding' : 'ClusterRoleBinding', name: b.metadata.name, namespace: ns },
      })
    }
  }
  return { grants: out, blind }
}

export interface Question {
  verb: string
  group: string
  resource: string
  subresource?: string
  name?: string
  namespace?: string
  url?: string
}

const has = (all: string[] | undefined, x: string): boolean => (all ?? []).some((a) => a === '*' || a === x)

/** allows reports whether a rule gives what is asked. */
export const allows = (r: Rule, q: Question): boolean => {
  if (!has(r.verbs, q.verb)) return false
  if (q.url) return (r.nonResourceURLs ?? []).some((u) => u === q.url || (u.endsWith('*') && q.url!.startsWith(u.slice(0, -1))))
  const full = q.subresource ? q.resource + '/' + q.subresource : q.resource
  return (
    has(r.apiGroups, q.group) &&
    (has(r.resources, full) || (q.subresource !== undefined && (r.resources ?? []).includes('*/' + q.subresource))) &&
    (!r.resourceNames?.length || (q.name !== undefined && r.resourceNames.includes(q.name)))
  )
}

/** whoCan are the grants that allow it; a binding of a namespace counts in that namespace alone. */
export const whoCan = (all: Grant[], q: Question): Grant[] =>
  all.filter((g) => (!g.binding.namespace || g.binding.namespace === q.namespace) && g.rules.some((r) => allows(r, q)))

/** accountOf is a user with the groups that the server gives a service account. */
export const accountOf = (text: string): { user: string; groups: string[] } => {
  const m = /^(?:system:serviceaccount:)?([^:/]+)[:/]([^:/]+)$/.exec(text)
  if (m && (text.startsWith('system:serviceaccount:') || text.includes('/'))) {
    return {
      user: `system:serviceaccount:${m[1]}:${m[2]}`,
      groups: ['system:serviceaccounts', 'system:serviceaccounts:' + m[1], 'system:authenticated'],
    }
  }
  return { user: text, groups: ['system:authenticated'] }
}

export const matches = (s: Subject, user: string, groups: string[]): boolean =>
  s.kind === 'User'
    ? s.name === user
    : s.kind === 'Group'
      ? groups.includes(s.name)
      : user === `system:serviceaccount:${s.namespace}:${s.name}`

export const wordsOf = (r: Rule): string =>
  r.nonResourceURLs?.length
    ? r.nonResourceURLs.join(', ')
    : (r.resources ?? [])
        .map((x) => (r.apiGroups ?? ['']).map((g) => x + (g && g !== '*' ? '.' + g : g === '*' ? '.*' : '')).join(', '))
        .join(', ') + (r.resourceNames?.length ? ` named ${r.resourceNames.join(', ')}` : '')

export const answer = (a: Any): { allowed: boolean; reason: string } => ({
  allowed: a?.status?.allowed === true,
  reason: a?.status?.reason ?? a?.status?.evaluationError ?? '',
})
