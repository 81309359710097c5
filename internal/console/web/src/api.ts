// The client of the Kubernetes API: everything goes through the console's proxy, as the signed-in user.
import { at, cluster } from './base'
import { lost } from './session'

export interface Meta {
  name: string
  namespace?: string
  uid?: string
  resourceVersion?: string
  generation?: number
  creationTimestamp?: string
  deletionTimestamp?: string
  deletionGracePeriodSeconds?: number
  labels?: Record<string, string>
  annotations?: Record<string, string>
  finalizers?: string[]
  ownerReferences?: Owner[]
  managedFields?: ManagedFields[]
}

export interface Owner {
  apiVersion: string
  kind: string
  name: string
  uid: string
  controller?: boolean
}

export interface ManagedFields {
  manager?: string
  operation?: string
  subresource?: string
  time?: string
  fieldsV1?: Fields
}

export interface Fields {
  [key: string]: Fields
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- objects of any kind come at run time
export type Any = any

export interface Obj {
  apiVersion?: string
  kind?: string
  metadata: Meta
  [field: string]: Any
}

export interface Status {
  message?: string
  reason?: string
  code?: number
  details?: { name?: string; kind?: string; causes?: { reason?: string; message?: string; field?: string }[] }
}

/** Failure is an answer of the server that is no success. */
export class Failure extends Error {
  constructor(
    readonly code: number,
    readonly status: Status,
    readonly path: string,
    readonly audit: string,
  ) {
    super(status.message || `The server answered ${code}.`)
  }

  get forbidden(): boolean {
    return this.code === 403
  }
}

export interface Request {
  method?: string
  body?: string | object
  type?: string
  accept?: string
  signal?: AbortSignal
}

const send = async (url: string, path: string, r: Request): Promise<Response> => {
  const headers: Record<string, string> = { Accept: r.accept ?? 'application/json' }
  const method = r.method ?? 'GET'
  if (method !== 'GET') headers['X-Mortise-Console'] = '1'
  if (r.body !== undefined) headers['Content-Type'] = r.type ?? 'application/json'
  const body = r.body === undefined || typeof r.body === 'string' ? r.body : JSON.stringify(r.body)
  let answer: Response
  try {
    answer = await fetch(url, { method, headers, body: body ?? null, signal: r.signal ?? null, credentials: 'same-origin' })
  } catch (e) {
    if (e instanceof DOMException && e.name === 'AbortError') throw e
    throw new Failure(0, { reason: 'Unreachable', message: 'The server does not answer.' }, path, '')
  }
  if (answer.ok) return answer
  const text = await answer.text()
  let status: Status = { message: text.trim().slice(0, 2000) }
  try {
    const parsed = JSON.parse(text) as Status
    if (parsed && typeof parsed === 'object') status = parsed
  } catch {
    /* the text is the message */
  }
  if (answer.status === 401) lost()
  throw new Failure(answer.status, status, path, answer.headers.get('Audit-Id') ?? '')
}

/** raw asks the cluster and returns the response. */
export const raw = (path: string, r: Request = {}): Promise<Response> => send(cluster(path), path, r)

/** own asks the console itself, such as "api/session". */
export const own = (path: string, r: Request = {}): Promise<Response> => send(at(path), path, r)

export const get = async <T = Obj>(path: string, signal?: AbortSignal): Promise<T> =>
  (await (await raw(path, signal ? { signal } : {})).json()) as T

export const text = async (path: string, accept = '*/*'): Promise<string> => (await raw(path, { accept })).text()

export const send2 = async <T = Obj>(method: string, path: string, body?: object | string, type?: string): Promise<T> =>
  (await (await raw(path, { method, ...(body !== undefined && { body }), ...(type && { type }) })).json()) as T

export interface List<T = Obj> {
  items: T[]
  metadata: { resourceVersion?: string; continue?: string; remainingItemCount?: number }
}

/** list reads a collection in pages of 500, at most `most` objects. */
export const list = async <T = Obj>(path: string, most = 5000): Promise<T[]> => {
  const items: T[] = []
  let next = ''
  do {
    const p: List<T> = await get<List<T>>(withQuery(path, { limit: '500', continue: next }))
    items.push(...(p.items ?? []))
    next = p.metadata.continue ?? ''
  } while (next && items.length < most)
  return items
}

export const withQuery = (path: string, q: Record<string, string | undefined>): string => {
  const [p = '', old = ''] = path.split('?')
  const s = new URLSearchParams(old)
  for (const [k, v] of Object.entries(q)) if (v) s.set(k, v)
  const t = s.toString()
  return t ? p + '?' + t : p
}

export const asTable = 'application/json;as=Table;v=v1;g=meta.k8s.io'
export const asMetadata = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io'

export interface Column {
  name: string
  type: string
  format?: string
  description?: string
  priority: number
}
export interface TableRow {
  cells: unknown[]
  object: { metadata: Meta }
}
export interface Table {
  columnDefinitions?: Column[]
  rows?: TableRow[]
  metadata: { resourceVersion?: string; continue?: string; remainingItemCount?: number }
}

/** table reads one page of a collection, printed by the server. */
export const table = async (path: string, q: Record<string, string | undefined> = {}, signal?: AbortSignal): Promise<Table> =>
  (await (
    await raw(withQuery(path, { includeObject: 'Metadata', limit: '500', ...q }), { accept: asTable, ...(signal && { signal }) })
  ).json()) as Table

/** apply is a server-side apply by the console's field manager. */
export const manager = 'mortise-console'
export const apply = (path: string, body: object, o: { dryRun?: boolean; force?: boolean } = {}): Promise<Obj> =>
  send2(
    'PATCH',
    withQuery(path, {
      fieldManager: manager,
      dryRun: o.dryRun ? 'All' : undefined,
      force: o.force ? 'true' : undefined,
      fieldValidation: 'Strict',
    }),
    body,
    'application/apply-patch+yaml',
  )

export const mergePatch = (path: string, body: object): Promise<Obj> =>
  send2('PATCH', withQuery(path, { fieldManager: manager }), body, 'application/merge-patch+json')
