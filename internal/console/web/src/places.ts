// The places of the console: what the navigation, the search and the keys lead to.
import { signal } from '@preact/signals'
import { find, listHref } from './discovery'
import { route } from './router'

export interface Place {
  title: string
  to: string
  keys?: string
  group: string
}

const kind = (title: string, resource: string, version = 'v1', group = '', keys?: string): Place => ({
  title,
  to: `k/${group || 'core'}/${version}/${resource}`,
  group: '',
  ...(keys && { keys }),
})

const grouped = (group: string, places: Place[]): Place[] => places.map((p) => ({ ...p, group }))

export const places: Place[] = [
  ...grouped('Cluster', [
    { title: 'Overview', to: './', keys: 'g o', group: '' },
    { title: 'Why it waits', to: 'reasons', keys: 'g y', group: '' },
    { title: 'Nodes', to: 'nodes', keys: 'g n', group: '' },
    { title: 'Usage', to: 'usage', keys: 'g u', group: '' },
    kind('Namespaces', 'namespaces'),
    kind('Events', 'events', 'v1', '', 'g e'),
  ]),
  ...grouped('Workloads', [
    kind('Pods', 'pods', 'v1', '', 'g p'),
    kind('Deployments', 'deployments', 'v1', 'apps', 'g d'),
    kind('Stateful sets', 'statefulsets', 'v1', 'apps'),
    kind('Daemon sets', 'daemonsets', 'v1', 'apps'),
    kind('Jobs', 'jobs', 'v1', 'batch', 'g j'),
    kind('Cron jobs', 'cronjobs', 'v1', 'batch'),
    kind('Autoscalers', 'horizontalpodautoscalers', 'v2', 'autoscaling'),
    { title: 'Rollouts', to: 'rollouts', keys: 'g r', group: '' },
  ]),
  ...grouped('Network, storage, settings', [
    kind('Services', 'services', 'v1', '', 'g s'),
    kind('Ingresses', 'ingresses', 'v1', 'networking.k8s.io'),
    kind('Config maps', 'configmaps', 'v1', '', 'g c'),
    kind('Secrets', 'secrets'),
    kind('Volume claims', 'persistentvolumeclaims'),
    kind('Volumes', 'persistentvolumes'),
    { title: 'All kinds', to: 'kinds', keys: 'g k', group: '' },
  ]),
  ...grouped('Extensions', [
    { title: 'Extension points', to: 'extensions', keys: 'g x', group: '' },
    { title: 'Writes', to: 'writes', keys: 'g w', group: '' },
    { title: 'Custom resources', to: 'definitions', keys: 'g m', group: '' },
  ]),
  ...grouped('Access and API', [
    { title: 'Access', to: 'access', keys: 'g a', group: '' },
    { title: 'API explorer', to: 'api', keys: 'g i', group: '' },
  ]),
]

/** namespace is the chosen one, '' means all; it is in the address, and kept for the next page. */
const kept = (): string => {
  try {
    return sessionStorage.getItem('mortise.namespace') ?? ''
  } catch {
    return ''
  }
}
export const namespace = signal(kept())

export const chooseNamespace = (n: string): void => {
  namespace.value = n
  try {
    sessionStorage.setItem('mortise.namespace', n)
  } catch {
    /* it then lasts as long as the page */
  }
}

/** inNamespace is the namespace of the current page: that of its address, else the chosen one. */
export const inNamespace = (): string => {
  const ns = route.value.query.get('ns')
  return ns === null ? namespace.value : ns === '*' ? '' : ns
}

export const podsHref = (q: Record<string, string>): string => {
  const k = find('', 'pods')
  return k ? listHref(k, q) : 'k/core/v1/pods'
}
