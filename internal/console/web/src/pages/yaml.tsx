// The object as YAML, and its change: edit, see what the server would make of it, apply; conflicts with their owners.
import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { apply, Failure, manager, raw, send2, withQuery, type Obj } from '../api'
import { clean, configuration, difference, left, same, type Line } from '../apply'
import type { Editor } from '../lazy/editor'
import { Modal, Wait, Wrong, say } from '../ui/parts'
import { go } from '../router'
import { pathOf, byKind, objectHref } from '../discovery'

type Module = typeof import('../lazy/editor')

const useEditor = (): Module | undefined => {
  const [m, set] = useState<Module>()
  useEffect(() => {
    void import('../lazy/editor').then(set)
  }, [])
  return m
}

export const Diff = ({ lines }: { lines: Line[] }): JSX.Element =>
  lines.length === 0 ? (
    <p class="empty">Nothing changes.</p>
  ) : (
    <div class="diff" tabIndex={0} role="region" aria-label="Changes">
      {lines.map((l) => (
        <div class={l.kind}>
          <span aria-hidden="true">{l.kind === 'add' ? '+ ' : l.kind === 'del' ? '- ' : '  '}</span>
          {l.kind === 'add' ? (
            <ins aria-label="added">{l.text}</ins>
          ) : l.kind === 'del' ? (
            <del aria-label="removed">{l.text}</del>
          ) : (
            l.text
          )}
        </div>
      ))}
    </div>
  )

/** The dialogue of an edit: what it would do, and who is against it. */
interface Review {
  before: Obj
  after: Obj
  config: Obj
  result?: Obj | undefined
  failure?: Failure | undefined
  force: boolean
  kept: string[]
}

export const Yaml = ({ path, object }: { path: string; object: Obj }): JSX.Element => {
  const m = useEditor()
  const host = useRef<HTMLDivElement>(null)
  const editor = useRef<Editor | undefined>(undefined)
  const base = useRef<Obj>(object) // what the text was made of
  const [dirty, soil] = useState(false)
  const [full, showFull] = useState(false)
  const [wrong, tell] = useState('')
  const [review, show] = useState<Review>()
  const mine = useRef(false)
  const saving = useRef<() => void>(() => undefined)
  mine.current = dirty
  const text = (o: Obj): string => m!.print(full ? o : clean(o))
  useEffect(() => {
    if (!m || !host.current) return
    base.current = object
    const e = m.edit(host.current, text(object), {
      label: 'YAML of ' + object.metadata.name,
      readOnly: full,
      changed: () => {
        if (!mine.current) soil(true)
      },
      save: () => saving.current(),
    })
    editor.current = e
    soil(false)
    return () => e.close()
  }, [m, full, path])
  // As long as nobody edits, the text follows the object.
  useEffect(() => {
    if (!m || !editor.current || mine.current || same(object, base.current)) return
    base.current = object
    editor.current.set(text(object))
  }, [object])
  const newer =
    dirty && base.current.metadata.resourceVersion !== object.metadata.resourceVersion && !same(clean(base.current), clean(object))
  const ask = async (before: Obj, after: Obj, force: boolean): Promise<void> => {
    const config = configuration(before, after)
    try {
      const result = await apply(path, config, { dryRun: true, force })
      show({ before, after, config, result, force, kept: left(clean(before), after, clean(result)) })
    } catch (e) {
      if (!(e instanceof Failure)) throw e
      show({ before, after, config, failure: e, force, kept: [] })
    }
  }
  const save = async (): Promise<void> => {
    tell('')
    if (full || !m || !editor.current) return
    try {
      const after = m.parse(editor.current.text()) as Obj
      if (!after || typeof after !== 'object' || !after.metadata) throw new Error('The text is not an object.')
      if (after.metadata.name !== object.metadata.name || after.kind !== object.kind)
        throw new Error('The name and the kind cannot be changed.')
      await ask(base.current, after, false)
    } catch (e) {
      tell(e instanceof Error ? e.message : String(e))
    }
  }
  saving.current = () => void save()
  const done = (o: Obj, what: string): void => {
    base.current = o
    show(undefined)
    soil(false)
    mine.current = false
    editor.current?.set(text(o))
    say(what)
  }
  return (
    <div class="page full">
      <div class="tools">
        <button type="button" class="primary" disabled={!dirty || full} onClick={() => void save()}>
          Review changes
        </button>
        <button
          type="button"
          disabled={!dirty}
          onClick={() => {
            base.current = object
            editor.current?.set(text(object))
            soil(false)
            tell('')
          }}>
          Discard
        </button>
        <label class="check">
          <input type="checkbox" checked={full} disabled={dirty} onChange={() => showFull(!full)} />
          all fields, read only
        </label>
        <span class="hint">
          <kbd>Ctrl</kbd>+<kbd>S</kbd> reviews; <kbd>Esc</kbd> <kbd>Tab</kbd> leaves the editor
        </span>
      </div>
      <div>
        {newer && (
          <p class="wrong quiet" role="status">
            <strong>The object has changed since you began.</strong> Your edit is compared with what you saw; the server decides about
            conflicts.
          </p>
        )}
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
      </div>
      {m ? <div class="editor" ref={host} /> : <Wait what="Loading the editor" />}
      {review && m && (
        <ReviewDialog
          m={m}
          r={review}
          path={path}
          close={() => show(undefined)}
          done={done}
          force={() => void ask(review.before, review.after, true)}
        />
      )}
    </div>
  )
}

const conflicts = (f: Failure): { who: string; field: string }[] =>
  (f.status.details?.causes ?? [])
    .filter((c) => c.reason === 'FieldManagerConflict')
    .map((c) => ({ who: c.message ?? '', field: c.field ?? '' }))

const ReviewDialog = ({
  m,
  r,
  path,
  close,
  done,
  force,
}: {
  m: Module
  r: Review
  path: string
  close: () => void
  done: (o: Obj, what: string) => void
  force: () => void
}): JSX.Element => {
  const [failure, fail] = useState<Failure>()
  const [busy, work] = useState(false)
  const act = async (f: () => Promise<Obj>, what: string): Promise<void> => {
    work(true)
    try {
      done(await f(), what)
    } catch (e) {
      fail(e instanceof Failure ? e : new Failure(0, { message: String(e) }, path, ''))
      work(false)
    }
  }
  const clash = r.failure ? conflicts(r.failure) : []
  const replace = (): Promise<Obj> =>
    send2('PUT', withQuery(path, { fieldManager: manager, fieldValidation: 'Strict' }), {
      ...r.after,
      ...(r.before.status !== undefined && { status: r.before.status }),
      metadata: { ...r.after.metadata, resourceVersion: r.before.metadata.resourceVersion },
    })
  const lines = r.result ? difference(m.print(clean(r.before)), m.print(clean(r.result))) : []
  return (
    <Modal title="What the server would do" wide close={close}>
      {clash.length > 0 ? (
        <>
          <p class="wrong" role="alert">
            <strong>Conflict</strong> Others manage {clash.length === 1 ? 'a field' : 'fields'} that you changed. They may set
            {clash.length === 1 ? ' it' : ' them'} again.
          </p>
          <table>
            <thead>
              <tr>
                <th scope="col">Field</th>
                <th scope="col">Managed by</th>
              </tr>
            </thead>
            <tbody>
              {clash.map((c) => (
                <tr>
                  <td>
                    <code>{c.field}</code>
                  </td>
                  <td>{c.who.replace(/^conflict with /, '')}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      ) : r.failure ? (
        <Wrong f={r.failure} what="Refused" />
      ) : (
        <Diff lines={lines} />
      )}
      {r.force && r.result && <p class="hint">Forced: the console takes these fields from their managers.</p>}
      {r.kept.length > 0 && (
        <p class="wrong quiet">
          <strong>These stay:</strong>{' '}
          {r.kept.map((k) => (
            <code>{k} </code>
          ))}{' '}
          You removed them, but others set them, and an apply does not take away what others set. Replacing the object does.
        </p>
      )}
      <details>
        <summary>What is sent</summary>
        <pre>{m.print(r.config)}</pre>
      </details>
      {failure && <Wrong f={failure} what="Not saved" />}
      <div class="foot">
        <button type="button" onClick={close}>
          Back to the text
        </button>
        {clash.length > 0 && (
          <button type="button" class="danger" onClick={force}>
            Take the fields over…
          </button>
        )}
        {r.kept.length > 0 && (
          <button type="button" disabled={busy} onClick={() => void act(replace, 'Replaced')}>
            Replace the object
          </button>
        )}
        {r.result && (
          <button
            type="button"
            class="primary"
            disabled={busy || lines.length === 0}
            onClick={() => void act(() => apply(path, r.config, { force: r.force }), 'Applied')}>
            Apply
          </button>
        )}
      </div>
    </Modal>
  )
}

/** Create makes an object of a text. */
export const Create = ({ text, close }: { text: string; close: () => void }): JSX.Element => {
  const m = useEditor()
  const host = useRef<HTMLDivElement>(null)
  const editor = useRef<Editor | undefined>(undefined)
  const [failure, fail] = useState<Failure>()
  useEffect(() => {
    if (!m || !host.current) return
    const e = m.edit(host.current, text, { label: 'YAML of the new object' })
    editor.current = e
    return () => e.close()
  }, [m])
  const create = async (dry: boolean): Promise<void> => {
    fail(undefined)
    try {
      const o = m!.parse(editor.current!.text()) as Obj
      const k = byKind(o?.apiVersion ?? '', o?.kind ?? '')
      if (!k) throw new Error(`The server has no kind ${o?.kind} of ${o?.apiVersion}.`)
      const p = withQuery(pathOf(k, o.metadata.namespace ?? 'default'), {
        dryRun: dry ? 'All' : undefined,
        fieldManager: manager,
        fieldValidation: 'Strict',
      })
      const made = (await (await raw(p, { method: 'POST', body: o })).json()) as Obj
      if (dry) return say('The server would create it.')
      say('Created')
      close()
      go(objectHref(k, made.metadata.namespace, made.metadata.name))
    } catch (e) {
      fail(e instanceof Failure ? e : new Failure(0, { message: e instanceof Error ? e.message : String(e) }, '', ''))
    }
  }
  return (
    <Modal title="Create" wide close={close}>
      {m ? <div class="editor tall" ref={host} /> : <Wait what="Loading the editor" />}
      {failure && <Wrong f={failure} what="Not created" />}
      <div class="foot">
        <button type="button" onClick={() => void create(true)}>
          Try without creating
        </button>
        <button type="button" class="primary" onClick={() => void create(false)}>
          Create
        </button>
      </div>
    </Modal>
  )
}
