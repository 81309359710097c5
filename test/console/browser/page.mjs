// A browser with the console open, which remembers all that goes wrong in it.
import Module, { createRequire } from 'node:module'
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

const require = createRequire(import.meta.url)
const axe = require.resolve('axe-core/axe.min.js')

// Playwright sends a command for preferred colours that Debian's Firefox does not know, whatever the options say. It goes without.
const load = Module._extensions['.js']
Module._extensions['.js'] = (module, file) => {
  if (!file.endsWith('coreBundle.js')) return load(module, file)
  module._compile(readFileSync(file, 'utf8').replaceAll('.send("emulation.setMediaFeaturesOverride",', '.sendMayFail("emulation.setMediaFeaturesOverride",'), file)
}
const { chromium, firefox } = require('playwright-core')
Module._extensions['.js'] = load

export const launch = (name) =>
  name === 'firefox'
    ? firefox.launch({ executablePath: process.env.CONSOLE_FIREFOX, channel: 'moz-firefox', timeout: 180e3 })
    : chromium.launch({ executablePath: process.env.CONSOLE_CHROMIUM, args: ['--no-sandbox'], timeout: 120e3 })

// Firefox cannot be told what the system of its user prefers.
const calm = (browser) =>
  browser.browserType().name() === 'firefox' ? { colorScheme: null, reducedMotion: null, forcedColors: null, contrast: null } : { reducedMotion: 'reduce' }

export class Page {
  constructor(page, base) {
    this.page = page
    this.base = base
    /** wrong are errors of the console of the browser, and of the page's code. */
    this.wrong = []
    page.setDefaultTimeout(60e3)
    page.on('pageerror', (e) => this.wrong.push('page: ' + (e.stack ?? e)))
    page.on('dialog', (d) => {
      this.wrong.push('dialog: ' + d.message())
      void d.dismiss()
    })
    page.on('console', (m) => {
      if (m.type() !== 'error') return
      // That a request is refused is the server's word, and the page shows it.
      if (/Failed to load resource|WebSocket connection to/.test(m.text())) return
      const { url, lineNumber, columnNumber } = m.location()
      this.wrong.push(`console: ${m.text()} (${url}:${lineNumber}:${columnNumber})`)
    })
  }

  static async open(browser, base, options = {}) {
    const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1280, height: 800 }, ...calm(browser), ...options })
    return new Page(await context.newPage(), base)
  }

  async signIn(link) {
    await this.page.goto(link)
    await this.page.waitForSelector('nav')
  }

  async signInByToken(token) {
    await this.page.goto(this.base)
    await this.page.fill('input[name=token]', token)
    await this.page.click('button.primary')
    await this.page.waitForSelector('nav')
  }

  /** go shows a page of the console without loading it anew, as a link does, and waits until it has its contents. */
  async go(path) {
    await this.page.evaluate((to) => {
      const a = document.createElement('a')
      a.href = to
      document.body.append(a)
      a.click()
      a.remove()
    }, path)
    await this.settled()
  }

  async settled() {
    await this.page.waitForSelector('main h1')
    await this.page.waitForFunction(() => !document.querySelector('main .wait'))
  }

  /** picture keeps what the page looks like, as WebP, where CONSOLE_PICTURES names a directory. */
  async picture(name) {
    const dir = process.env.CONSOLE_PICTURES
    if (!dir) return
    const png = (await this.page.screenshot()).toString('base64')
    const blank = await this.page.context().newPage()
    const webp = await blank.evaluate(async (data) => {
      const image = new Image()
      image.src = 'data:image/png;base64,' + data
      await image.decode()
      const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height })
      canvas.getContext('2d').drawImage(image, 0, 0)
      return canvas.toDataURL('image/webp', 0.6).split(',')[1]
    }, png)
    await blank.close()
    await writeFile(join(dir, name + '.webp'), Buffer.from(webp, 'base64'))
    if (process.env.CONSOLE_PICTURES_PNG) await writeFile(join(process.env.CONSOLE_PICTURES_PNG, name + '.png'), Buffer.from(png, 'base64'))
  }

  row(text) {
    return this.page.locator('.grid .body [role=row]', { hasText: text }).first()
  }

  /** fine fails if anything went wrong since it was called last. */
  async fine(what) {
    assert.deepEqual(this.wrong.splice(0), [], what)
  }

  /** axe returns the violations of WCAG 2.1 AA. */
  async axe() {
    if (!(await this.page.evaluate(() => 'axe' in window))) {
      await this.page.evaluate(await readFile(axe, 'utf8'))
    }
    return this.page.evaluate(async () => {
      const r = await window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'], resultTypes: ['violations'] })
      return r.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ' ' + n.html.slice(0, 120)).join(' | ')}`)
    })
  }

  /** smallTargets are what one can click that is smaller than 24 pixels and has a neighbour within them. */
  smallTargets() {
    return this.page.evaluate(() => {
      const all = [...document.querySelectorAll('button, a[href], input, select, summary, [role=tab]')]
        .map((e) => ({ e, r: e.getBoundingClientRect() }))
        .filter(({ e, r }) => r.width > 0 && r.height > 0 && e.checkVisibility())
      const centre = (r) => [r.left + r.width / 2, r.top + r.height / 2]
      const small = ({ r }) => r.width < 23.5 || r.height < 23.5
      // A circle of 24 pixels around the centre of a small one touches no other one, nor the circle of another small one.
      const near = (a, b) => {
        const [x, y] = centre(a.r)
        if (small(b)) {
          const [u, v] = centre(b.r)
          if (Math.hypot(x - u, y - v) < 23.5) return true
        }
        const dx = Math.max(b.r.left - x, 0, x - b.r.right),
          dy = Math.max(b.r.top - y, 0, y - b.r.bottom)
        return Math.hypot(dx, dy) < 11.5
      }
      const inText = (e) => e.matches('p a, .hint a, dd a, td a, small a, .chips a, .why a')
      return all
        .filter((a) => small(a) && !inText(a.e) && all.some((b) => b !== a && !a.e.contains(b.e) && !b.e.contains(a.e) && near(a, b)))
        .map((a) => `${Math.round(a.r.width)}×${Math.round(a.r.height)} ${a.e.outerHTML.slice(0, 110)}`)
        .slice(0, 5)
    })
  }

  async theme(dark) {
    const is = await this.page.evaluate(() => document.documentElement.dataset.theme === 'dark')
    if (is !== dark) await this.page.click(`button[aria-label="${dark ? 'Dark' : 'Light'} theme"]`)
  }
}
