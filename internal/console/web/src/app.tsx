// The frame around each page: navigation, search, keys, the state of the connection.
import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { discover, kinds, listable, listHref, stale } from './discovery'
import { go, route } from './router'
import { logout, state } from './session'
import { line } from './watch'
import { choose, dark, theme } from './theme'
import { chooseNamespace, inNamespace, places } from './places'
import { get, type List, type Obj } from './api'
import { readExtras } from './added'
import { Notes, Wait } from './ui/parts'
import { Help, Palette } from './ui/palette'
import { page } from './pages'
import { SignIn } from './pages/signin'

const groups = [...new Set(places.map((p) => p.group))]

const here = (to: string): boolean => {
  const path = route.value.path.join('/')
  if (to === './') return path === ''
  return path === to || path.startsWith(to + '/')
}

const Nav = ({ open, close }: { open: boolean; close: () => void }): JSX.Element => {
  const known = kinds.value
  const there = (to: string): boolean => {
    const [k, g, , r] = to.split('/')
    return k !== 'k' || known.length === 0 || known.some((x) => (x.group || 'core') === g && x.resource === r)
  }
  return (
    <nav
      class={open ? 'open' : ''}
      aria-label="Places"
      onClick={(e) => {
        if ((e.target as Element).closest('a')) close()
      }}>
      {groups.map((g) => (
        <div>
          <h2>{g}</h2>
          <ul>
            {places
              .filter((p) => p.group === g && there(p.to))
              .map((p) => (
                <li>
                  <a href={p.to} aria-current={here(p.to) ? 'page' : undefined}>
                    {p.title}
                    {p.keys && <kbd aria-hidden="true">{p.keys}</kbd>}
                  </a>
                </li>
              ))}
          </ul>
        </div>
      ))}
    </nav>
  )
}

const Namespaces = (): JSX.Element => {
  const [names, set] = useState<string[]>([])
  const [typed, type] = useState<string>()
  useEffect(() => {
    get<List<Obj>>('/api/v1/namespaces?limit=500').then(
      (l) => set(l.items.map((n) => n.metadata.name)),
      () => set([]),
    )
  }, [])
  const now = inNamespace()
  const pick = (n: string): void => {
    chooseNamespace(n)
    const url = new URL(location.href)
    if (url.searchParams.has('ns')) {
      url.searchParams.delete('ns')
      go(url.href, true)
    }
  }
  // Who may not list namespaces types the one that they may read.
  if (names.length === 0)
    return (
      <form
        class="ns"
        onSubmit={(e) => {
          e.preventDefault()
          pick((typed ?? now).trim())
        }}>
        <input
          aria-label="Namespace"
          placeholder="all namespaces"
          value={typed ?? now}
          onInput={(e) => type(e.currentTarget.value)}
          onBlur={() => {
            if (typed !== undefined) pick(typed.trim())
          }}
        />
      </form>
    )
  return (
    <select class="ns" aria-label="Namespace" value={now} onChange={(e) => pick(e.currentTarget.value)}>
      <option value="">all namespaces</option>
      {(names.includes(now) || !now ? names : [now, ...names]).map((n) => (
        <option value={n}>{n}</option>
      ))}
    </select>
  )
}

const said = { idle: 'connected', connecting: 'connecting', live: 'live', broken: 'reconnecting' } as const
const toneOf = { idle: 'idle', connecting: 'warn', live: 'ok', broken: 'bad' } as const

const Head = (p: { menu: () => void; search: () => void; help: () => void }): JSX.Element => {
  const s = state.value
  const l = line.value
  return (
    <header class="top">
      <button type="button" class="menu" onClick={p.menu} aria-label="Menu">
        ☰
      </button>
      <a class="brand" href="./">
        Mortise
      </a>
      <Namespaces />
      <button type="button" class="search" onClick={p.search}>
        <span>Search everything</span>
        <kbd aria-hidden="true">/</kbd>
      </button>
      <span class="room" />
      <span class={'line mark ' + toneOf[l]} role="status" data-line={l}>
        <i aria-hidden="true" />
        {said[l]}
      </span>
      <button
        type="button"
        class="plain"
        onClick={() => choose(dark.value ? 'light' : 'dark')}
        onDblClick={() => choose('system')}
        title={`Theme: ${theme.value}. A double click follows the system.`}
        aria-label={dark.value ? 'Light theme' : 'Dark theme'}>
        {dark.value ? '☀' : '☾'}
      </button>
      <button type="button" class="plain" onClick={p.help} aria-label="Keys">
        ?
      </button>
      {s.is === 'in' && (
        <details class="who">
          <summary aria-label={'Signed in as ' + s.session.user.username}>{s.session.user.username}</summary>
          <div>
            <p>{(s.session.user.groups ?? []).join(', ') || 'no groups'}</p>
            <a href="access?tab=mine">What may I do?</a>
            <button type="button" onClick={() => void logout()}>
              Sign out
            </button>
          </div>
        </details>
      )}
    </header>
  )
}

const useKeys = (p: { search: () => void; help: () => void }): void => {
  useEffect(() => {
    let first = '',
      timer = 0
    const key = (e: KeyboardEvent): void => {
      const t = e.composedPath()[0] as HTMLElement
      if (
        e.ctrlKey ||
        e.metaKey ||
        e.altKey ||
        t.isContentEditable ||
        /^(INPUT|TEXTAREA|SELECT)$/.test(t.tagName) ||
        document.querySelector('dialog[open]')
      )
        return
      if (e.key === '/') p.search()
      else if (e.key === '?') p.help()
      else if (first === 'g') {
        const place = places.find((x) => x.keys === 'g ' + e.key)
        first = ''
        if (!place) return
        go(place.to)
      } else if (e.key === 'g') {
        first = 'g'
        clearTimeout(timer)
        timer = window.setTimeout(() => {
          first = ''
        }, 1500)
        return
      } else if (e.key === 'f') {
        const filter = document.querySelector<HTMLElement>('[data-filter]')
        if (!filter) return
        filter.focus()
      } else return
      e.preventDefault()
    }
    addEventListener('keydown', key)
    return () => removeEventListener('keydown', key)
  }, [])
}

const Inside = (): JSX.Element => {
  const [menu, showMenu] = useState(false)
  const [over, show] = useState<'' | 'search' | 'help'>('')
  const [told, tell] = useState('')
  useKeys({ search: () => show('search'), help: () => show('help') })
  useEffect(() => {
    discover()
      .then(readExtras)
      .catch((e: Error) => tell(e.message))
  }, [])
  const path = route.value.path
  const Page = page(path)
  useEffect(() => {
    const name = path[0] === 'k' ? (path[5] ?? path[3]) : (path[1] ?? places.find((p) => p.to === (path[0] ?? './'))?.title)
    document.title = (name ? name + ' · ' : '') + 'Mortise'
  }, [path.join('/')])
  const ready = kinds.value.length > 0 || told !== ''
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(e) => {
          e.preventDefault()
          document.getElementById('main')?.focus()
        }}>
        Skip to the page
      </a>
      <Head menu={() => showMenu(!menu)} search={() => show('search')} help={() => show('help')} />
      <Nav open={menu} close={() => showMenu(false)} />
      <main id="main" tabIndex={-1}>
        {told && (
          <p class="wrong" role="alert">
            The kinds of the server cannot be read: {told}
          </p>
        )}
        {stale.value.length > 0 && (
          <p class="hint">The servers of {stale.value.join(', ')} do not answer: these kinds are as last known.</p>
        )}
        {ready ? <Page key={path.join('/')} path={path} /> : <Wait />}
      </main>
      {over === 'search' && <Palette close={() => show('')} />}
      {over === 'help' && <Help close={() => show('')} />}
    </>
  )
}

export const App = ({ wrong }: { wrong: string }): JSX.Element => {
  const s = state.value
  return (
    <>
      {s.is === 'in' ? (
        <Inside />
      ) : s.is === 'out' ? (
        <SignIn ways={s.ways} wrong={wrong} />
      ) : (
        <main class="gate">
          <p role="status">{s.is === 'away' ? 'The server does not answer.' : 'Signing in…'}</p>
        </main>
      )}
      <Notes />
    </>
  )
}

export const kindPlaces = (): { title: string; detail: string; to: string }[] =>
  kinds.value.filter(listable).map((k) => ({ title: k.kind, detail: k.resource + (k.group ? '.' + k.group : ''), to: listHref(k) }))
