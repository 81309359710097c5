// The router: the address is the state. Pages read `route`, links are ordinary relative links that `follow` intercepts.
import { signal } from '@preact/signals'
import { base } from './base'

export interface Route {
  path: string[]
  query: URLSearchParams
}

const read = (): Route => {
  const rest = location.pathname.startsWith(base.pathname) ? location.pathname.slice(base.pathname.length) : ''
  return { path: rest.split('/').filter(Boolean).map(decoded), query: new URLSearchParams(location.search) }
}

const decoded = (s: string): string => {
  try {
    return decodeURIComponent(s)
  } catch {
    return s
  }
}

export const route = signal<Route>(read())

/** href joins segments to a path below the console. */
export const href = (path: readonly string[], query?: Record<string, string | undefined>): string => {
  const q = new URLSearchParams()
  for (const [k, v] of Object.entries(query ?? {})) if (v) q.set(k, v)
  const s = q.toString()
  return (path.map(encodeURIComponent).join('/') || './') + (s ? '?' + s : '')
}

const changed = (top: boolean): void => {
  route.value = read()
  if (top) scrollTo(0, 0)
}

/** go shows another page. */
export const go = (to: string, replace = false): void => {
  const url = new URL(to, base)
  if (url.href === location.href) return
  const top = url.pathname !== location.pathname
  history[replace ? 'replaceState' : 'pushState'](null, '', url)
  changed(top)
}

/** setQuery changes parameters of the current page; undefined and "" remove one. */
export const setQuery = (change: Record<string, string | undefined>, replace = true): void => {
  const url = new URL(location.href)
  for (const [k, v] of Object.entries(change)) {
    if (v) url.searchParams.set(k, v)
    else url.searchParams.delete(k)
  }
  go(url.href, replace)
}

/** start follows the browser's history and the clicks on links below the console. */
export const start = (): void => {
  addEventListener('popstate', () => changed(false))
  document.addEventListener('click', (e) => {
    if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return
    const a = (e.target as Element).closest?.('a')
    if (!(a instanceof HTMLAnchorElement) || a.target || a.hasAttribute('download') || a.dataset.server !== undefined) return
    const url = new URL(a.href)
    if (url.origin !== base.origin || !url.pathname.startsWith(base.pathname)) return
    e.preventDefault()
    go(url.href)
  })
}
