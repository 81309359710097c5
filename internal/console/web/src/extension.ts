// What /debug/extensions and /debug/explain say; the types of the Go packages extension and extension/trace.
export interface Extension {
  point: string
  name: string
  configured?: string
  state: 'never called' | 'ok' | 'failing' | 'open' | 'waited for'
  calls: number
  failures: number
  refused: number
  p50Seconds: number
  p99Seconds: number
  longestSeconds: number
  lastError?: string
  lastFailure?: string
  certificateEnds?: string
  waits?: number
  waiting?: { object: string; since: string; until: string }[]
  affects?: { what: string; effect: string }[]
}

export interface Point {
  point: string
  title: string
  way: string
  contract: string
  configured: string
  documented: string
}
export interface Extensions {
  extensions: Extension[] | null
  points: Point[]
  effects?: Record<string, string>
}

export interface Change {
  op: string
  path: string
  value?: unknown
  was?: unknown
  field: string
}

export interface Step {
  phase: 'mutate' | 'validate'
  kind: string
  configuration?: string
  name: string
  result: 'changed' | 'allowed' | 'denied' | 'failed' | 'ignored'
  reason?: string
  seconds: number
  changes?: Change[]
  untold?: string
}

export interface Trace {
  auditID: string
  time: string
  user?: string
  as?: string
  userAgent?: string
  source?: string
  method: string
  uri: string
  verb: string
  group?: string
  version: string
  resource: string
  subresource?: string
  namespace?: string
  name?: string
  dryRun?: boolean
  manager?: string
  operation?: string
  code: number
  reason?: string
  message?: string
  seconds: number
  refused?: string
  authorization?: { allowed: boolean; by?: string; reason?: string }
  flowControl?: { flowSchema: string; priorityLevel: string }
  stages: { name: string; seconds: number }[]
  steps?: Step[]
  objects?: {
    group?: string
    resource: string
    namespace?: string
    name: string
    uid?: string
    revision?: number
    action: string
    changes?: Change[]
  }[]
  moreObjects?: number
  brief?: boolean
  redacted?: boolean
}

export interface NodeCall {
  time: string
  point: string
  extension: string
  method?: string
  seconds: number
  code?: string
  error?: string
}

export interface Traces {
  traces: Trace[] | null
  more?: boolean
  kept: { started: string; traces: number; bytes: number; bound: number; oldest?: string }
  calls?: NodeCall[]
}

export interface Decided {
  time: string
  cycle: number
  attempt: number
  profile: string
  seconds: number
  outcome: string
  message?: string
  nodes: number
  asked: number
  feasible: number
  filtered?: { plugin?: string; reason: string; count: number; nodes?: string[] }[]
  scores?: { node: string; total: number; plugins: { plugin: string; raw: number; weighted: number }[] }[]
  node?: string
  nominatedNode?: string
  victims?: { namespace: string; name: string; uid: string }[]
  moreVictims?: number
}

export interface Scheduling {
  place?: { where: string; since?: string; until?: string; plugins?: string[]; attempts?: number; nominatedNode?: string; node?: string }
  decisions: Decided[] | null
  note?: string
}

export interface Autoscaling {
  decisions:
    | {
        time: string
        since: string
        evaluations: number
        seconds: number
        target: string
        outcome: string
        message?: string
        replicas: number
        proposed?: number
        desired?: number
        limits?: { reason: string; from: number; to: number; detail: string }[]
        metrics?: {
          type: string
          name: string
          path?: string
          service?: string
          builtIn?: boolean
          seconds: number
          value?: string
          target?: string
          ageSeconds?: number
          ratio?: number
          proposed?: number
          kept?: string
          error?: string
          pods?: { ready: number; unready?: number; missing?: number; ignored?: number }
        }[]
      }[]
    | null
}

/** troubled reports whether an extension hurts now. */
export const troubled = (e: Extension): boolean => e.state === 'failing' || e.state === 'open'

/** configured is the object that plugs an extension in, by its kind or its resource, such as validatingwebhookconfigurations/x. */
export const configured = (e: Extension): { kind: string; name: string } | undefined => {
  const m = /^([A-Za-z][A-Za-z.]+)\/([^/]+)$/.exec(e.configured ?? '')
  return m ? { kind: m[1]!, name: m[2]! } : undefined
}

/** ending reports whether a certificate ends within 14 days. */
export const ending = (e: Extension): boolean =>
  e.certificateEnds !== undefined && Date.parse(e.certificateEnds) - Date.now() < 14 * 24 * 3600e3
