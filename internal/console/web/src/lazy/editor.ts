// CodeMirror for YAML, and YAML itself. The editor lives in a shadow root: there its styles are constructed style sheets, which the
// page's content security policy allows, as it allows no <style> elements.
import { EditorState } from '@codemirror/state'
import { EditorView, drawSelection, highlightActiveLine, highlightSpecialChars, keymap, lineNumbers } from '@codemirror/view'
import {
  HighlightStyle,
  bracketMatching,
  foldGutter,
  foldKeymap,
  indentOnInput,
  indentUnit,
  syntaxHighlighting,
} from '@codemirror/language'
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands'
import { highlightSelectionMatches, searchKeymap } from '@codemirror/search'
import { yaml } from '@codemirror/lang-yaml'
import { tags } from '@lezer/highlight'
import { parseDocument, stringify } from 'yaml'

const colours = HighlightStyle.define([
  { tag: [tags.definition(tags.propertyName), tags.propertyName], color: 'var(--key)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--str)' },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: 'var(--num)' },
  { tag: tags.comment, color: 'var(--dim)', fontStyle: 'italic' },
  { tag: [tags.meta, tags.punctuation, tags.separator], color: 'var(--dim)' },
])

const look = EditorView.theme({
  '&': { height: '100%', fontSize: '12px', backgroundColor: 'var(--panel)', color: 'var(--text)' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-2px' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.5', overflow: 'auto' },
  '.cm-content': { caretColor: 'var(--text)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--panel)', color: 'var(--dim)', border: 'none' },
  '.cm-activeLine': { backgroundColor: 'transparent' },
  '&.cm-focused .cm-activeLine, &.cm-focused .cm-activeLineGutter': { backgroundColor: 'var(--raise)' },
  '.cm-activeLineGutter': { backgroundColor: 'transparent' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': { background: 'var(--mark)' },
  '.cm-selectionMatch, .cm-searchMatch': { backgroundColor: 'var(--mark)' },
  '.cm-foldPlaceholder': { backgroundColor: 'var(--raise)', border: 'none', color: 'var(--dim)' },
  '.cm-panels': { backgroundColor: 'var(--raise)', color: 'var(--text)' },
  '.cm-textfield, .cm-button': {
    backgroundColor: 'var(--bg)',
    backgroundImage: 'none',
    color: 'var(--text)',
    border: '1px solid var(--line)',
  },
})

export interface Editor {
  text(): string
  set(text: string): void
  close(): void
  focus(): void
}

/** edit makes an editor in a host element. */
export const edit = (
  host: HTMLElement,
  text: string,
  o: { label: string; readOnly?: boolean; changed?: () => void; save?: () => void },
): Editor => {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
  const box = document.createElement('div')
  box.style.height = '100%'
  box.style.minHeight = '0'
  root.replaceChildren(box)
  const state = (doc: string): EditorState =>
    EditorState.create({
      doc,
      extensions: [
        lineNumbers(),
        foldGutter(),
        highlightSpecialChars(),
        history(),
        drawSelection(),
        indentOnInput(),
        indentUnit.of('  '),
        bracketMatching(),
        highlightActiveLine(),
        highlightSelectionMatches(),
        yaml(),
        syntaxHighlighting(colours),
        look,
        EditorView.lineWrapping,
        EditorState.readOnly.of(o.readOnly ?? false),
        EditorView.contentAttributes.of({ 'aria-label': o.label, tabindex: '0' }),
        keymap.of([
          {
            key: 'Mod-s',
            run: () => {
              o.save?.()
              return true
            },
          },
          // Escape, then Tab leaves the editor, as CodeMirror has it.
          ...defaultKeymap,
          ...historyKeymap,
          ...foldKeymap,
          ...searchKeymap,
          indentWithTab,
        ]),
        EditorView.updateListener.of((u) => {
          if (u.docChanged) o.changed?.()
        }),
      ],
    })
  const view = new EditorView({ root, parent: box, state: state(text) })
  return {
    text: () => view.state.doc.toString(),
    set: (t) => view.setState(state(t)),
    close: () => view.destroy(),
    focus: () => view.focus(),
  }
}

/** print writes an object as YAML. */
export const print = (o: unknown): string => stringify(o, { lineWidth: 0, aliasDuplicateObjects: false })

/** parse reads one YAML document. The error is its text. */
export const parse = (text: string): unknown => {
  const d = parseDocument(text, { uniqueKeys: true, version: '1.2' })
  const wrong = d.errors[0]
  if (wrong) throw new Error(wrong.message)
  return d.toJS({ maxAliasCount: 100 })
}
