// What the tests fill a cluster with.
const meta = (name, namespace, more = {}) => ({ name, ...(namespace && { namespace }), ...more })

export const namespace = (name) => ({ apiVersion: 'v1', kind: 'Namespace', metadata: meta(name) })

export const configMap = (namespace, name, data, more) => ({ apiVersion: 'v1', kind: 'ConfigMap', metadata: meta(name, namespace, more), data })

export const pod = (namespace, name, cpu = '10m') => ({
  apiVersion: 'v1', kind: 'Pod', metadata: meta(name, namespace),
  spec: { containers: [{ name: 'main', image: 'busybox', resources: { requests: { cpu } } }] },
})

/** shell is a pod of a real container, which runs a script. */
export const shell = (namespace, name, script, restartPolicy = 'Never') => ({
  apiVersion: 'v1', kind: 'Pod', metadata: meta(name, namespace),
  spec: { restartPolicy, terminationGracePeriodSeconds: 1, containers: [{ name: 'main', image: 'mortise.local/busybox:1', command: ['sh', '-c', script] }] },
})

export const deployment = (namespace, name, replicas = 2) => ({
  apiVersion: 'apps/v1', kind: 'Deployment', metadata: meta(name, namespace, { labels: { app: name } }),
  spec: {
    replicas, selector: { matchLabels: { app: name } },
    template: { metadata: { labels: { app: name } }, spec: { containers: [{ name: 'main', image: 'nginx:1', ports: [{ containerPort: 80 }] }] } },
  },
})

export const service = (namespace, name) => ({
  apiVersion: 'v1', kind: 'Service', metadata: meta(name, namespace), spec: { selector: { app: name }, ports: [{ port: 80 }] },
})

export const definition = {
  apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: meta('widgets.example.com'),
  spec: {
    group: 'example.com', scope: 'Namespaced', names: { plural: 'widgets', singular: 'widget', kind: 'Widget' },
    versions: [{
      name: 'v1', served: true, storage: true, additionalPrinterColumns: [{ name: 'Size', type: 'integer', jsonPath: '.spec.size' }],
      schema: { openAPIV3Schema: { type: 'object', properties: { spec: { type: 'object', required: ['size'], properties: {
        size: { type: 'integer', minimum: 1, description: 'How large it is.' }, colour: { type: 'string', enum: ['red', 'blue'] } } } } } },
    }],
  },
}

export const autoscaler = (namespace, name) => ({
  apiVersion: 'autoscaling/v2', kind: 'HorizontalPodAutoscaler', metadata: meta(name, namespace),
  spec: { scaleTargetRef: { apiVersion: 'apps/v1', kind: 'Deployment', name }, minReplicas: 1, maxReplicas: 2,
    metrics: [{ type: 'Resource', resource: { name: 'cpu', target: { type: 'Utilization', averageUtilization: 50 } } }] },
})

/** claim is one for a volume of a class. */
export const claim = (namespace, name, storageClassName) => ({
  apiVersion: 'v1', kind: 'PersistentVolumeClaim', metadata: meta(name, namespace),
  spec: { storageClassName, accessModes: ['ReadWriteOnce'], resources: { requests: { storage: '1Gi' } } },
})

/** storing is a pod of a real container with a volume at /data. */
export const storing = (namespace, name, volume) => {
  const pod = shell(namespace, name, 'trap exit TERM; echo kept > /data/file; sleep 3600 & wait')
  pod.spec.volumes = [{ name: 'data', ...volume }]
  pod.spec.containers[0].volumeMounts = [{ name: 'data', mountPath: '/data' }]
  return pod
}

/** deadWebhook is a webhook that nobody serves: it refuses all new config maps of a namespace. */
export const deadWebhook = (namespace) => ({
  apiVersion: 'admissionregistration.k8s.io/v1', kind: 'ValidatingWebhookConfiguration', metadata: meta('guard'),
  webhooks: [{
    name: 'guard.example.com', admissionReviewVersions: ['v1'], sideEffects: 'None', timeoutSeconds: 2,
    clientConfig: { service: { name: 'guard', namespace, path: '/check' } },
    rules: [{ apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['configmaps'] }],
    namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': namespace } },
  }],
})

/** reader may read one namespace only. */
export const reader = (namespace) => [
  { apiVersion: 'v1', kind: 'ServiceAccount', metadata: meta('reader', namespace) },
  { apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'Role', metadata: meta('reader', namespace),
    rules: [{ apiGroups: ['', 'apps'], resources: ['*'], verbs: ['get', 'list', 'watch'] }] },
  { apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'RoleBinding', metadata: meta('reader', namespace),
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'reader' }, subjects: [{ kind: 'ServiceAccount', name: 'reader', namespace }] },
]

/** viewer has a user see the config maps of a namespace. */
export const viewer = (namespace, user) => [
  { apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'Role', metadata: meta('viewer', namespace),
    rules: [{ apiGroups: [''], resources: ['configmaps'], verbs: ['get', 'list', 'watch'] }] },
  { apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'RoleBinding', metadata: meta('viewer', namespace),
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'viewer' },
    subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: user }] },
]

/** hostile are texts that a page which makes elements of text would run, in places where the API takes any text. */
export const hostile = [
  '<script>window.pwned=1</script>', '<img src=x onerror="window.pwned=1">', '"><svg onload=window.pwned=1>', "javascript:window.pwned=1",
  '{{constructor.constructor("window.pwned=1")()}}', '<iframe srcdoc="<script>parent.pwned=1</script>">', '</textarea><script>window.pwned=1</script>',
  '<a href="javascript:window.pwned=1">x</a>', '\u202egnihtemos\u202c \u0000\u001b[31m red', '<style>*{display:none}</style>', '__proto__',
].map((s) => s.replaceAll('\u0000', ''))

export const hostileObjects = (namespace) => [
  configMap(namespace, 'hostile', Object.fromEntries(hostile.map((h, i) => ['key' + i, h])), {
    annotations: Object.fromEntries(hostile.map((h, i) => ['example.com/a' + i, h])), finalizers: ['example.com/x'] }),
  { apiVersion: 'v1', kind: 'Event', metadata: meta('hostile', namespace), type: 'Warning', reason: hostile[1], message: hostile.join('\n'),
    involvedObject: { apiVersion: 'v1', kind: 'ConfigMap', namespace, name: 'hostile' }, source: { component: hostile[2] }, count: 3,
    firstTimestamp: new Date().toISOString(), lastTimestamp: new Date().toISOString() },
  { ...definition, metadata: meta('evils.example.com'), spec: { ...definition.spec, names: { plural: 'evils', singular: 'evil', kind: 'Evil' },
    versions: [{ ...definition.spec.versions[0], schema: { openAPIV3Schema: { type: 'object', description: hostile[0], properties: { spec: { type: 'object',
      properties: { field: { type: 'string', description: hostile[1], default: hostile[2] } } } } } },
    additionalPrinterColumns: [{ name: hostile[1], type: 'string', jsonPath: '.spec.field', description: hostile[0] }] }] } },
]
