// One object, or a short list of whole objects, kept up to date; and loading of what has no watch.
import { useEffect, useRef, useState } from 'preact/hooks'
import { Failure, get, list, withQuery, type Obj } from './api'
import { subscribe } from './watch'

export interface Loaded<T> {
  data?: T
  failure?: Failure
  loading: boolean
  reload(): void
}

const asFailure = (e: unknown, path = ''): Failure => (e instanceof Failure ? e : new Failure(0, { message: String(e) }, path, ''))

/** useLoad calls f when the key changes, and every `every` ms while the page is looked at. */
export const useLoad = <T>(f: (signal: AbortSignal) => Promise<T>, key: string, every = 0): Loaded<T> => {
  const [turn, setTurn] = useState(0)
  const [s, set] = useState<{ key: string; data?: T; failure?: Failure }>({ key: '' })
  useEffect(() => {
    const abort = new AbortController()
    f(abort.signal).then(
      (data) => {
        if (!abort.signal.aborted) set({ key, data })
      },
      (e) => {
        if (!abort.signal.aborted)
          set((o) => ({ key, failure: asFailure(e), ...(o.key === key && o.data !== undefined && { data: o.data }) }))
      },
    )
    return () => abort.abort()
  }, [key, turn])
  useEffect(() => {
    if (!every) return
    const t = setInterval(() => {
      if (document.visibilityState === 'visible') setTurn((n) => n + 1)
    }, every)
    return () => clearInterval(t)
  }, [key, every])
  const current = s.key === key
  return {
    ...(current && s.data !== undefined && { data: s.data }),
    ...(current && s.failure && { failure: s.failure }),
    loading: !current,
    reload: () => setTurn((n) => n + 1),
  }
}

/** useObject reads an object and follows it. A deleted object stays, with `deleted` set. */
export const useObject = (collection: string, name: string, key: string): Loaded<Obj> & { deleted: boolean } => {
  const [s, set] = useState<{ key: string; data?: Obj; failure?: Failure; deleted: boolean }>({ key: '', deleted: false })
  const [turn, setTurn] = useState(0)
  useEffect(() => {
    let stop: (() => void) | undefined,
      closed = false,
      rv = ''
    const read = async (): Promise<void> => {
      try {
        const o = await get(collection + '/' + encodeURIComponent(name))
        if (closed) return
        rv = o.metadata.resourceVersion ?? ''
        set({ key, data: o, deleted: false })
        stop = subscribe<Obj>({
          path: withQuery(collection, { fieldSelector: 'metadata.name=' + name }),
          version: () => rv,
          events: (events) => {
            for (const e of events) {
              rv = e.object.metadata?.resourceVersion ?? rv
              if (e.type === 'BOOKMARK') continue
              set({ key, data: e.object, deleted: e.type === 'DELETED' })
            }
          },
          gone: () => void read(),
        })
      } catch (e) {
        if (!closed) set((old) => ({ ...old, key, failure: asFailure(e, collection) }))
      }
    }
    void read()
    return () => {
      closed = true
      stop?.()
    }
  }, [key, turn])
  const current = s.key === key
  return {
    ...(current && s.data && { data: s.data }),
    ...(current && s.failure && { failure: s.failure }),
    loading: !current,
    deleted: current && s.deleted,
    reload: () => setTurn((n) => n + 1),
  }
}

/** useObjects reads a list of whole objects, at most 5,000, and follows it. An empty path reads nothing. */
export const useObjects = (path: string): Loaded<Obj[]> => {
  const [s, set] = useState<{ key: string; data?: Obj[]; failure?: Failure }>({ key: '\n' })
  const [turn, setTurn] = useState(0)
  const all = useRef(new Map<string, Obj>())
  useEffect(() => {
    if (!path) {
      set({ key: path, data: [] })
      return
    }
    let stop: (() => void) | undefined,
      closed = false,
      rv = '',
      frame = 0
    const show = (): void => {
      frame = 0
      if (!closed) set({ key: path, data: [...all.current.values()] })
    }
    const read = async (): Promise<void> => {
      try {
        const first = await get<{ items: Obj[]; metadata: { resourceVersion?: string; continue?: string } }>(
          withQuery(path, { limit: '500' }),
        )
        const items = first.metadata.continue ? await list(path) : (first.items ?? [])
        if (closed) return
        rv = first.metadata.resourceVersion ?? ''
        all.current = new Map(items.map((o) => [o.metadata.uid ?? o.metadata.name, o]))
        show()
        stop = subscribe<Obj>({
          path,
          version: () => rv,
          events: (events) => {
            for (const e of events) {
              rv = e.object.metadata?.resourceVersion ?? rv
              if (e.type === 'BOOKMARK') continue
              const id = e.object.metadata.uid ?? e.object.metadata.name
              if (e.type === 'DELETED') all.current.delete(id)
              else all.current.set(id, e.object)
            }
            frame ||= requestAnimationFrame(show)
          },
          gone: () => void read(),
        })
      } catch (e) {
        if (!closed) set({ key: path, failure: asFailure(e, path) })
      }
    }
    void read()
    return () => {
      closed = true
      stop?.()
      cancelAnimationFrame(frame)
    }
  }, [path, turn])
  const current = s.key === path
  return {
    ...(current && s.data && { data: s.data }),
    ...(current && s.failure && { failure: s.failure }),
    loading: !current,
    reload: () => setTurn((n) => n + 1),
  }
}
