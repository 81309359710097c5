// xterm.js under a content security policy without inline styles: its <style> elements become constructed style sheets, and style
// attributes become properties, by a document of our own that makes the terminal's elements.
import { Terminal } from '@xterm/xterm'
import { FitAddon } from '@xterm/addon-fit'

const sheets = new Set<CSSStyleSheet>()

const create = (doc: Document, name: string): HTMLElement => Document.prototype.createElement.call(doc, name)

// A stand-in for a <style> element: even an empty one in the page is against its policy.
const styleElement = (doc: Document): HTMLElement => {
  const el = create(doc, 'template')
  const sheet = new CSSStyleSheet()
  sheets.add(sheet)
  doc.adoptedStyleSheets = [...doc.adoptedStyleSheets, sheet]
  let css = ''
  Object.defineProperty(el, 'textContent', {
    get: () => css,
    set: (v: string) => {
      css = v
      sheet.replaceSync(v)
    },
  })
  return el
}

const element = (doc: Document, name: string): HTMLElement => {
  if (name.toLowerCase() === 'style') return styleElement(doc)
  const el = create(doc, name)
  el.setAttribute = (key: string, value: string): void => {
    if (key === 'style') el.style.cssText = value
    else Element.prototype.setAttribute.call(el, key, value)
  }
  return el
}

const ours = (doc: Document): Document =>
  new Proxy(doc, {
    get: (target, key) => {
      if (key === 'createElement') return (name: string) => element(target, name)
      const v: unknown = Reflect.get(target, key, target)
      return typeof v === 'function' ? (v as (...a: unknown[]) => unknown).bind(target) : v
    },
  })

export interface Term {
  write(data: Uint8Array | string): void
  focus(): void
  close(): void
  size(): { Width: number; Height: number }
}

export const open = (host: HTMLElement, o: { data: (s: string) => void; size: (s: { Width: number; Height: number }) => void }): Term => {
  const options = {
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue('--mono').trim() || 'monospace',
    fontSize: 13,
    cursorBlink: false,
    theme: { background: '#101316', foreground: '#e2e5e8', cursor: '#e2e5e8' },
    scrollback: 5000,
    screenReaderMode: true,
    documentOverride: ours(document),
  }
  const t = new Terminal(options)
  const fit = new FitAddon()
  t.loadAddon(fit)
  // The viewport takes the page's document, whatever the option says, and makes its style sheet while it opens.
  document.createElement = ((name: string) => element(document, name)) as typeof document.createElement
  try {
    t.open(host)
  } finally {
    Reflect.deleteProperty(document, 'createElement')
  }
  const size = (): { Width: number; Height: number } => ({ Width: t.cols, Height: t.rows })
  t.onData(o.data)
  t.onResize(() => o.size(size()))
  const watch = new ResizeObserver(() => fit.fit())
  watch.observe(host)
  fit.fit()
  return {
    write: (d) => t.write(d),
    focus: () => t.focus(),
    size,
    close: () => {
      watch.disconnect()
      t.dispose()
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => !sheets.has(s))
      sheets.clear()
    },
  }
}
