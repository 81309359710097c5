// The small parts of which pages are made. Texts are always text nodes.
import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { signal } from '@preact/signals'
import { Failure } from '../api'
import { now, span, tone, type Tone } from '../text'

export type Children = ComponentChildren

export const Age = ({ at }: { at: string | undefined }): JSX.Element =>
  at ? (
    <time dateTime={at} title={at}>
      {span(now.value - Date.parse(at))}
    </time>
  ) : (
    <span>–</span>
  )

/** Mark is a status: a word with a sign of its own shape, so that it does not depend on colours. */
export const Mark = ({ word, tone: t }: { word: string; tone?: Tone }): JSX.Element => (
  <span class={'mark ' + (t ?? tone(word))}>
    <i aria-hidden="true" />
    {word}
  </span>
)

export const Section = (p: { title: Children; aside?: Children; children: Children; id?: string; class?: string }): JSX.Element => (
  <section class={'panel ' + (p.class ?? '')} id={p.id}>
    <header>
      <h2>{p.title}</h2>
      {p.aside && <div class="aside">{p.aside}</div>}
    </header>
    {p.children}
  </section>
)

export const Empty = ({ children }: { children: Children }): JSX.Element => <p class="empty">{children}</p>

/** Missing is a page of something that the server does not have. */
export const Missing = ({ title, children }: { title: string; children: Children }): JSX.Element => (
  <div class="page">
    <div class="title">
      <h1>{title}</h1>
    </div>
    <Empty>{children}</Empty>
  </div>
)

export const Wait = ({ what = 'Reading' }: { what?: string }): JSX.Element => (
  <p class="wait" role="status">
    {what}…
  </p>
)

/** Wrong shows what the server answered, where it concerns, and nothing else breaks. */
export const Wrong = ({ f, what, retry }: { f: Failure; what?: string; retry?: () => void }): JSX.Element => (
  <div class={'wrong ' + (f.forbidden ? 'quiet' : '')} role="alert">
    <strong>
      {f.forbidden
        ? `You may not read ${what ?? 'this'}.`
        : f.code === 0
          ? 'No answer'
          : `${what ? what + ': ' : ''}${f.status.reason ?? f.code}`}
    </strong>
    <span>{f.message}</span>
    {f.status.details?.causes?.map((c) => (
      <span class="cause">
        <code>{c.field}</code> {c.message}
      </span>
    ))}
    {f.audit && f.code >= 400 && f.code !== 403 && f.code !== 404 && (
      <small>
        Audit ID <code>{f.audit}</code>
      </small>
    )}
    {retry && !f.forbidden && (
      <button type="button" onClick={retry}>
        Try again
      </button>
    )}
  </div>
)

/** Show shows loaded data, that it is awaited, or why there is none. */
export const Show = <T,>(p: {
  of: { data?: T; failure?: Failure; loading: boolean; reload?: () => void }
  what: string
  children: (data: T) => Children
}): JSX.Element => (
  <>
    {p.of.failure && <Wrong f={p.of.failure} what={p.what} {...(p.of.reload && { retry: p.of.reload })} />}
    {p.of.data !== undefined ? p.children(p.of.data) : !p.of.failure && <Wait />}
  </>
)

export const Facts = ({ of }: { of: readonly (readonly [Children, Children] | false | undefined | null | '')[] }): JSX.Element => (
  <dl class="facts">
    {of.map(
      (f) =>
        f && (
          <div>
            <dt>{f[0]}</dt>
            <dd>{f[1]}</dd>
          </div>
        ),
    )}
  </dl>
)

export const Pairs = ({ of, empty = '–' }: { of: Record<string, string> | undefined; empty?: string }): JSX.Element => {
  const all = Object.entries(of ?? {})
  return all.length ? (
    <ul class="pairs">
      {all.map(([k, v]) => (
        <li>
          <Long text={v ? `${k}=${v}` : k} most={160} />
        </li>
      ))}
    </ul>
  ) : (
    <>{empty}</>
  )
}

/** Long cuts long text, and shows it all when asked. */
export const Long = ({ text, most = 400 }: { text: string; most?: number }): JSX.Element => {
  const [all, set] = useState(false)
  if (text.length <= most) return <span class="long">{text}</span>
  return (
    <span class="long">
      {all ? text : text.slice(0, most) + '…'}{' '}
      <button type="button" class="link" onClick={() => set(!all)}>
        {all ? 'less' : 'all ' + text.length + ' characters'}
      </button>
    </span>
  )
}

export const Copy = ({ text, label = 'Copy' }: { text: string; label?: string }): JSX.Element => {
  const [done, set] = useState(false)
  return (
    <button
      type="button"
      onClick={() => {
        void navigator.clipboard?.writeText(text).then(
          () => {
            set(true)
            setTimeout(() => set(false), 1500)
          },
          () => say('The browser does not let the page copy.', 'bad'),
        )
      }}>
      {done ? 'Copied' : label}
    </button>
  )
}

/** Grid is a plain table for few rows; List pages have VirtualTable. */
export const Grid = (p: {
  head: Children[]
  rows: { key: string; cells: Children[]; tone?: Tone }[]
  label: string
  numbers?: number[]
  empty?: Children
}): JSX.Element =>
  p.rows.length === 0 && p.empty !== undefined ? (
    <Empty>{p.empty}</Empty>
  ) : (
    <div class="scroll" tabIndex={0} role="region" aria-label={p.label}>
      <table>
        <thead>
          <tr>
            {p.head.map((h, i) => (
              <th scope="col" class={p.numbers?.includes(i) ? 'num' : ''}>
                {h}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {p.rows.map((r) => (
            <tr key={r.key} class={r.tone ?? ''}>
              {r.cells.map((c, i) => (
                <td class={p.numbers?.includes(i) ? 'num' : ''}>{c}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )

export interface Tab {
  id: string
  title: string
  count?: number
}

export const Tabs = (p: { tabs: Tab[]; now: string; pick: (id: string) => void; label: string }): JSX.Element => {
  const move = (e: KeyboardEvent): void => {
    const by = e.key === 'ArrowRight' ? 1 : e.key === 'ArrowLeft' ? -1 : 0
    if (!by) return
    e.preventDefault()
    const i = (p.tabs.findIndex((t) => t.id === p.now) + by + p.tabs.length) % p.tabs.length
    p.pick(p.tabs[i]!.id)
    ;((e.currentTarget as Element).children[i] as HTMLElement).focus()
  }
  return (
    <div class="tabs" role="tablist" aria-label={p.label} onKeyDown={move}>
      {p.tabs.map((t) => (
        <button
          type="button"
          role="tab"
          id={'tab-' + t.id}
          aria-selected={t.id === p.now}
          aria-controls="tabpanel"
          tabIndex={t.id === p.now ? 0 : -1}
          onClick={() => p.pick(t.id)}>
          {t.title}
          {t.count !== undefined && <b>{t.count}</b>}
        </button>
      ))}
    </div>
  )
}

/** Modal is a dialog that holds the focus; Escape closes it. */
export const Modal = (p: { title: string; close: () => void; children: Children; wide?: boolean }): JSX.Element => {
  const ref = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    if (!ref.current?.open) ref.current?.showModal()
  }, [])
  return (
    <dialog
      ref={ref}
      class={p.wide ? 'wide' : ''}
      aria-label={p.title}
      onClose={p.close}
      onClick={(e) => {
        if (e.target === ref.current) p.close()
      }}>
      <header>
        <h2>{p.title}</h2>
        <button type="button" class="link" onClick={p.close} aria-label="Close">
          ✕
        </button>
      </header>
      {p.children}
    </dialog>
  )
}

/** Sure asks before something is done that cannot be undone. */
export const Sure = (p: {
  title: string
  text: Children
  verb: string
  name?: string
  act: () => Promise<unknown>
  close: () => void
}): JSX.Element => {
  const [failure, fail] = useState<Failure>()
  const [busy, work] = useState(false)
  const [typed, type] = useState('')
  const act = async (): Promise<void> => {
    work(true)
    try {
      await p.act()
      p.close()
    } catch (e) {
      fail(e instanceof Failure ? e : new Failure(0, { message: String(e) }, '', ''))
    }
    work(false)
  }
  return (
    <Modal title={p.title} close={p.close}>
      <form
        onSubmit={(e) => {
          e.preventDefault()
          void act()
        }}>
        <div class="say">{p.text}</div>
        {p.name && (
          <label class="field">
            Type <code>{p.name}</code> to go on
            <input value={typed} autofocus autocomplete="off" onInput={(e) => type(e.currentTarget.value)} />
          </label>
        )}
        {failure && <Wrong f={failure} what={p.verb} />}
        <footer>
          <button type="button" onClick={p.close}>
            Cancel
          </button>
          <button class="danger" disabled={busy || (p.name !== undefined && typed !== p.name)}>
            {p.verb}
          </button>
        </footer>
      </form>
    </Modal>
  )
}

interface Note {
  id: number
  text: string
  tone: Tone
}
const notes = signal<Note[]>([])
let noted = 0

/** say tells the outcome of what the user did. */
export const say = (text: string, t: Tone = 'ok'): void => {
  const id = ++noted
  notes.value = [...notes.value.slice(-3), { id, text, tone: t }]
  setTimeout(
    () => {
      notes.value = notes.value.filter((n) => n.id !== id)
    },
    t === 'bad' ? 12000 : 5000,
  )
}

export const Notes = (): JSX.Element => (
  <div class="notes" role="status" aria-live="polite">
    {notes.value.map((n) => (
      <div key={n.id} class={n.tone}>
        {n.text}
        <button
          type="button"
          class="link"
          aria-label="Dismiss"
          onClick={() => {
            notes.value = notes.value.filter((o) => o !== n)
          }}>
          ✕
        </button>
      </div>
    ))}
  </div>
)

/** Bar shows a share of a whole: of a capacity, which should not be reached, or of a goal, which should. */
export const Bar = ({ of, whole, label, goal }: { of: number; whole: number; label: string; goal?: boolean }): JSX.Element => {
  const part = whole > 0 ? Math.min(1, of / whole) : 0
  return (
    <span class="bar">
      <span class={'track ' + (goal ? (part >= 1 ? 'ok' : 'warn') : part > 0.9 ? 'bad' : part > 0.75 ? 'warn' : '')} aria-hidden="true">
        <i style={{ width: part * 100 + '%' }} />
      </span>
      <span>{label}</span>
    </span>
  )
}

/** tried runs what a user asked for, and tells the failure where nothing else shows it. */
export const tried = async (what: string, f: () => Promise<unknown>): Promise<boolean> => {
  try {
    await f()
    say(what)
    return true
  } catch (e) {
    say(e instanceof Error ? e.message : String(e), 'bad')
    return false
  }
}
