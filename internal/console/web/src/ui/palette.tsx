// The search for everything: places, kinds, and objects by name.
import type { JSX } from 'preact'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { asMetadata, raw, withQuery, type List, type Obj } from '../api'
import { byWord, kinds, listable, listHref, objectHref, pathOf, type Kind } from '../discovery'
import { inNamespace, places } from '../places'
import { go } from '../router'
import { Modal } from './parts'

interface Hit {
  title: string
  detail: string
  to: string
}

// Names of objects of these kinds are searched when no kind is named.
const common = [
  'pods',
  'deployments.apps',
  'services',
  'statefulsets.apps',
  'daemonsets.apps',
  'jobs.batch',
  'configmaps',
  'nodes',
  'namespaces',
  'customresourcedefinitions.apiextensions.k8s.io',
  'validatingwebhookconfigurations.admissionregistration.k8s.io',
  'mutatingwebhookconfigurations.admissionregistration.k8s.io',
  'persistentvolumeclaims',
]

const named = async (k: Kind, words: string, abort: AbortSignal, most: number): Promise<Hit[]> => {
  const found: Hit[] = []
  let next = ''
  for (let pages = 0; pages < 4 && found.length < most; pages++) {
    const path = withQuery(pathOf(k, inNamespace()), { limit: '1000', continue: next })
    const l = (await (await raw(path, { accept: asMetadata, signal: abort })).json()) as List<Obj>
    for (const o of l.items ?? []) {
      if (o.metadata.name.includes(words))
        found.push({
          title: o.metadata.name,
          detail: k.kind + (o.metadata.namespace ? ' in ' + o.metadata.namespace : ''),
          to: objectHref(k, o.metadata.namespace, o.metadata.name),
        })
    }
    next = l.metadata.continue ?? ''
    if (!next) break
  }
  return found.slice(0, most)
}

export const Palette = ({ close }: { close: () => void }): JSX.Element => {
  const [words, type] = useState('')
  const [objects, find] = useState<Hit[]>([])
  const [at, move] = useState(0)
  const [busy, work] = useState(false)
  const listed = useRef<HTMLUListElement>(null)
  const w = words.trim().toLowerCase()
  const fixed = useMemo((): Hit[] => {
    const p = places.filter((x) => x.title.toLowerCase().includes(w)).map((x) => ({ title: x.title, detail: x.keys ?? 'page', to: x.to }))
    if (!w) return p
    const exact = byWord(w)
    const k = kinds.value.filter(
      (x) => listable(x) && (x.resource.includes(w) || x.kind.toLowerCase().includes(w) || x.short.includes(w)),
    )
    const sorted = exact ? [exact, ...k.filter((x) => x !== exact)] : k
    return [
      ...p,
      ...sorted.slice(0, 8).map((x) => ({ title: x.kind, detail: x.resource + (x.group ? '.' + x.group : ''), to: listHref(x) })),
    ]
  }, [w, kinds.value])
  useEffect(() => {
    move(0)
    find([])
    if (w.length < 2) return
    const abort = new AbortController()
    const timer = setTimeout(() => {
      const [first = '', rest] = w.split(/[\s/]+/, 2)
      const k = rest === undefined ? undefined : byWord(first)
      const among = k
        ? [k]
        : common
            .map((c) => {
              const [r, ...g] = c.split('.')
              return kinds.value.find((x) => x.resource === r && x.group === g.join('.'))
            })
            .filter((x) => x !== undefined)
      work(true)
      let open = among.length
      for (const x of among) {
        named(x, k ? rest! : w, abort.signal, k ? 30 : 6)
          .then(
            (hits) => {
              if (!abort.signal.aborted) find((o) => [...o, ...hits])
            },
            () => undefined,
          )
          .finally(() => {
            if (--open === 0 && !abort.signal.aborted) work(false)
          })
      }
    }, 150)
    return () => {
      abort.abort()
      clearTimeout(timer)
      work(false)
    }
  }, [w])
  const hits = [...fixed, ...objects].slice(0, 60)
  const pick = (h: Hit | undefined): void => {
    if (!h) return
    close()
    go(h.to)
  }
  const key = (e: KeyboardEvent): void => {
    const by = e.key === 'ArrowDown' ? 1 : e.key === 'ArrowUp' ? -1 : 0
    if (by && hits.length) {
      e.preventDefault()
      const n = (at + by + hits.length) % hits.length
      move(n)
      listed.current?.children[n]?.scrollIntoView({ block: 'nearest' })
    } else if (e.key === 'Enter') {
      e.preventDefault()
      pick(hits[at])
    }
  }
  return (
    <Modal title="Search everything" close={close}>
      <input
        class="palette"
        role="combobox"
        aria-expanded="true"
        aria-controls="hits"
        aria-activedescendant={hits.length ? 'hit-' + at : undefined}
        aria-label="Search"
        placeholder="A page, a kind, a name; “pod web” searches one kind"
        autofocus
        autocomplete="off"
        spellcheck={false}
        value={words}
        onInput={(e) => type(e.currentTarget.value)}
        onKeyDown={key}
      />
      <ul id="hits" class="hits" role="listbox" aria-label="Found" ref={listed}>
        {hits.map((h, i) => (
          <li
            id={'hit-' + i}
            role="option"
            aria-selected={i === at}
            onClick={() => pick(h)}
            onMouseMove={() => {
              if (i !== at) move(i)
            }}>
            <span>{h.title}</span>
            <small>{h.detail}</small>
          </li>
        ))}
      </ul>
      <p class="hint" role="status">
        {busy ? 'Searching names…' : hits.length ? '' : 'Nothing has this name.'}
      </p>
    </Modal>
  )
}

export const Help = ({ close }: { close: () => void }): JSX.Element => (
  <Modal title="Keys" close={close}>
    <dl class="keys">
      <div>
        <dt>
          <kbd>/</kbd>
        </dt>
        <dd>search everything</dd>
      </div>
      <div>
        <dt>
          <kbd>f</kbd>
        </dt>
        <dd>filter the list</dd>
      </div>
      <div>
        <dt>
          <kbd>↑</kbd> <kbd>↓</kbd> <kbd>j</kbd> <kbd>k</kbd>
        </dt>
        <dd>move in a list</dd>
      </div>
      <div>
        <dt>
          <kbd>Enter</kbd>
        </dt>
        <dd>open the row</dd>
      </div>
      <div>
        <dt>
          <kbd>?</kbd>
        </dt>
        <dd>these keys</dd>
      </div>
      {places
        .filter((p) => p.keys)
        .map((p) => (
          <div>
            <dt>
              {p.keys!.split(' ').map((k) => (
                <>
                  <kbd>{k}</kbd>{' '}
                </>
              ))}
            </dt>
            <dd>{p.title}</dd>
          </div>
        ))}
    </dl>
  </Modal>
)
