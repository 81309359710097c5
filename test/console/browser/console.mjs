// The tests of the console, for any browser.
import { after, before, test } from 'node:test'
import assert from 'node:assert/strict'
import { Cluster } from './cluster.mjs'
import { Page, launch } from './page.mjs'
import * as objects from './objects.mjs'

/** full is a run with all tests in all browsers, each page in both themes. The suite leaves some of that out, for the time. */
const full = process.env.CONSOLE_BROWSERS === 'full'


const pages = [
  './', 'reasons', 'nodes', 'usage', 'rollouts', 'kinds', 'extensions', 'extensions/validating-webhook', 'extensions/custom-resource', 'writes', 'writes?refused=1',
  'definitions', 'definitions/widgets.example.com', 'access?tab=who&verb=get&resource=pods', 'access?tab=what&account=kube-system/default', 'access?tab=mine', 'api',
  'api/api/v1', 'k/core/v1/pods', 'k/core/v1/nodes/_/simulated-0', 'k/core/v1/events', 'k/example.com/v1/widgets', 'k/core/v1/configmaps/shop/settings',
  'k/core/v1/services/shop/web', 'k/autoscaling/v2/horizontalpodautoscalers/shop/web?tab=why', 'k/core/v1/pods/shop/big?tab=why', 'k/core/v1/pods/shop/one',
  ...['summary', 'why', 'yaml', 'events', 'logs', 'related', 'writes'].map((t) => 'k/apps/v1/deployments/shop/web?tab=' + t),
  'k/core/v1/pods/shop/one?tab=shell',
]

/** tests are the tests of the console in a browser: "chromium" or "firefox". */
export const tests = (name) => {
  const cluster = new Cluster()
  let browser, p
  const chromium = name === 'chromium'

  before(async () => {
    const starting = launch(name)
    await cluster.start()
    await cluster.apply(objects.namespace('shop'), objects.namespace('other'), objects.definition)
    await cluster.apply(objects.deployment('shop', 'web'), objects.service('shop', 'web'), objects.configMap('shop', 'settings', { mode: 'fast' }),
      objects.pod('shop', 'one'), objects.pod('shop', 'big', '900'), objects.autoscaler('shop', 'web'), ...objects.reader('shop'))
    await cluster.kubectl('wait', '--for=create', 'sa/reader', '-n', 'shop', '--timeout=60s')
    browser = await starting
    p = await Page.open(browser, cluster.base)
  }, { timeout: 240e3 })

  after(async () => {
    await browser?.close()
    await cluster.stop(true)
  })

  test('a link signs in once, and its code does not stay', async () => {
    const link = await cluster.link()
    await p.signIn(link)
    assert.ok(!p.page.url().includes('code='), p.page.url())
    assert.equal(await p.page.evaluate(() => document.cookie), '')
    await p.page.waitForSelector('[data-line=live]')
    const second = await Page.open(browser, cluster.base)
    await second.page.goto(link)
    await second.page.waitForSelector('.gate .wrong')
    await second.page.context().close()
    await p.fine()
  })

  test('each page loads, and is without violations in both themes', async () => {
    for (const [i, path] of pages.entries()) {
      if (!chromium && !full && i % 3 > 0) continue
      await p.go(path)
      for (const dark of full ? [false, true] : [i % 2 === 0]) {
        await p.theme(dark)
        if (chromium || full) assert.deepEqual(await p.axe(), [], `${path}, ${dark ? 'dark' : 'light'}`)
      }
      await p.fine(path)
    }
  })

  test('the page is as auditors of web pages want it', async () => {
    const answers = new Map()
    const take = (r) => answers.set(r.url(), r)
    p.page.on('response', take)
    await p.page.goto(cluster.base)
    await p.page.waitForSelector('main h1')
    await p.page.waitForSelector('[data-line=live]')
    p.page.off('response', take)
    const told = await p.page.evaluate(() => ({
      title: document.title, lang: document.documentElement.lang, doctype: document.doctype?.name, charset: document.characterSet,
      viewport: document.querySelector('meta[name=viewport]')?.content ?? '', description: document.querySelector('meta[name=description]')?.content ?? '',
      icon: document.querySelector('link[rel=icon]')?.href ?? '', mains: document.querySelectorAll('main').length, h1: document.querySelectorAll('h1').length,
      blocking: document.querySelectorAll('head script:not([type=module]):not([defer]):not([async])').length,
      elements: document.querySelectorAll('*').length, bare: [...document.querySelectorAll('button, a[href]')]
        .filter((e) => !e.textContent.trim() && !e.getAttribute('aria-label') && !e.title).map((e) => e.outerHTML.slice(0, 100)),
      outside: performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith(location.origin)),
    }))
    assert.match(told.title, /Mortise/)
    assert.deepEqual([told.lang, told.doctype, told.charset, told.mains, told.h1, told.blocking], ['en', 'html', 'UTF-8', 1, 1, 0])
    assert.match(told.viewport, /width=device-width/)
    assert.ok(!/user-scalable=no|maximum-scale/.test(told.viewport), told.viewport)
    assert.ok(told.description && told.icon)
    assert.ok(told.elements < 1400, `${told.elements} elements`)
    assert.deepEqual([told.bare, told.outside], [[], []])
    let assets = 0
    for (const [url, r] of answers) {
      if (r.status() === 101) continue // a WebSocket
      const h = r.headers()
      assert.equal(h['x-content-type-options'], 'nosniff', url)
      if (url.includes('/console/assets/')) {
        assets++
        assert.match(h['cache-control'], /max-age=31536000, immutable/, url)
        assert.match(h['content-encoding'] ?? '', /gzip|br/, url)
      }
      if (url === cluster.base) {
        assert.match(h['content-security-policy'], /default-src 'none'/)
        assert.ok(!/unsafe/.test(h['content-security-policy']), h['content-security-policy'])
        assert.equal(h['cache-control'], 'no-cache')
      }
      assert.ok(r.status() < 400, `${r.status()} ${url}`)
    }
    assert.ok(assets >= 2, `${assets} assets`)
    await p.fine()
  })

  test('what is clicked is large enough, and stays where it is', async () => {
    // WCAG 2.2, 2.5.8: 24 pixels, but for links within text and what has room around it.
    for (const path of ['./', 'reasons', 'extensions', 'k/core/v1/pods', 'k/apps/v1/deployments/shop/web', 'writes', 'access?tab=mine']) {
      await p.go(path)
      assert.deepEqual(await p.smallTargets(), [], path)
    }
    if (!chromium) return // Firefox does not tell shifts of the layout
    for (const path of ['./', 'k/core/v1/pods', 'extensions']) {
      await p.page.goto(cluster.base + path)
      await p.settled()
      const shift = await p.page.evaluate(() => new Promise((resolve) => {
        let sum = 0
        const o = new PerformanceObserver((l) => l.getEntries().forEach((e) => (sum += e.hadRecentInput ? 0 : e.value)))
        o.observe({ type: 'layout-shift', buffered: true })
        requestAnimationFrame(() => setTimeout(() => resolve(sum)))
      }))
      assert.ok(shift < 0.1, `the layout of ${path} shifts by ${shift}`)
    }
    await p.fine()
  })

  test('all that waits is listed with its reason', async () => {
    await cluster.apply(objects.configMap('shop', 'held', {}, { finalizers: ['example.com/nobody'] }), objects.claim('shop', 'lonely', 'none'))
    await cluster.kubectl('delete', 'cm', 'held', '-n', 'shop', '--wait=false')
    await p.go('reasons')
    for (const [section, object, why] of [['Not running', 'Pod shop/big', /Insufficient cpu/], ['Not mounted', 'PersistentVolumeClaim shop/lonely', /./],
      ['Not scaling', 'Autoscaler shop/web', /./], ['Not deleted', 'ConfigMap shop/held', /a controller of example.com/]]) {
      const row = p.page.locator(`section:has(h2:has-text("${section}")) tr`, { hasText: object }).first()
      await row.waitFor()
      assert.match(await row.textContent(), why, object)
    }
    await cluster.kubectl('patch', 'cm', 'held', '-n', 'shop', '--type=merge', '-p', '{"metadata":{"finalizers":null}}')
    await p.fine()
  })

  test('a page is readable at 320 pixels', async () => {
    await p.page.setViewportSize({ width: 320, height: 640 })
    for (const path of ['./', 'reasons', 'k/core/v1/pods', 'k/apps/v1/deployments/shop/web', 'extensions', 'writes', 'usage']) {
      await p.go(path)
      const wide = await p.page.evaluate(() => Math.max(document.documentElement.scrollWidth, document.getElementById('main').scrollWidth))
      assert.ok(wide <= 320, `${path} is ${wide} pixels wide`)
    }
    await p.page.setViewportSize({ width: 1280, height: 800 })
  })

  test('changes appear by themselves', async () => {
    await p.go('k/core/v1/pods?ns=shop')
    await cluster.apply(objects.pod('shop', 'comes-and-goes'))
    await p.row('comes-and-goes').waitFor()
    await cluster.kubectl('delete', 'pod', 'comes-and-goes', '-n', 'shop', '--wait=false')
    await p.row('comes-and-goes').waitFor({ state: 'detached' })
    await p.fine()
  })

  test('the keyboard leads everywhere', async () => {
    await p.go('./')
    await p.page.keyboard.press('g')
    await p.page.keyboard.press('p')
    await p.page.waitForSelector('.grid')
    assert.match(p.page.url(), /\/k\/core\/v1\/pods$/)
    await p.page.keyboard.press('/')
    await p.page.waitForSelector('dialog input:focus')
    await p.page.keyboard.type('deploy web')
    await p.page.locator('#hits li', { hasText: 'Deployment in shop' }).first().waitFor()
    await p.page.locator('#hits li', { hasText: 'Deployment in shop' }).first().click()
    await p.page.waitForSelector('h1:has-text("web")')
    await p.page.keyboard.press('?')
    await p.page.waitForSelector('dialog .keys')
    await p.page.keyboard.press('Escape')
    await p.page.waitForSelector('dialog', { state: 'detached' })
    await p.go('k/core/v1/pods?ns=shop&q=one')
    await p.page.waitForSelector('h1:has-text("Pod")')
    await p.page.waitForSelector('.count:has-text("1 of ")')
    await p.page.locator('.grid').press('Enter')
    await p.page.waitForURL(/\/k\/core\/v1\/pods\/shop\/one/)
    await p.fine()
  })

  const edit = async (change) => {
    await p.page.locator('.cm-content').click()
    const text = await p.page.evaluate(() => {
      const root = document.querySelector('.editor').shadowRoot
      return [...root.querySelectorAll('.cm-line')].map((l) => l.textContent).join('\n')
    })
    await p.page.keyboard.press('Control+a')
    await p.page.evaluate((to) => {
      const clipboardData = new DataTransfer()
      clipboardData.setData('text/plain', to)
      const content = document.querySelector('.editor').shadowRoot.querySelector('.cm-content')
      const paste = new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true })
      // Firefox ignores the constructor's clipboardData.
      if (!paste.clipboardData?.types.length) Object.defineProperty(paste, 'clipboardData', { value: clipboardData })
      content.dispatchEvent(paste)
    }, change(text))
    await p.page.click('button:has-text("Review changes")')
  }

  test('an edit shows what it would do, and who is against it', async () => {
    await cluster.apply(objects.configMap('shop', 'edited', { mode: 'fast', size: '1' }))
    await p.go('k/core/v1/configmaps/shop/edited?tab=yaml')
    await p.page.waitForSelector('.cm-content')
    await edit((t) => t.replace('metadata:', 'metadata:\n  labels:\n    by: console'))
    await p.page.waitForSelector('dialog .diff .add')
    await p.page.click('dialog button:has-text("Apply")')
    await p.page.waitForSelector('dialog', { state: 'detached' })
    let now = JSON.parse(await cluster.kubectl('get', 'cm', 'edited', '-n', 'shop', '-o', 'json', '--show-managed-fields'))
    assert.equal(now.metadata.labels.by, 'console')
    const mine = now.metadata.managedFields.find((m) => m.manager === 'mortise-console')
    assert.deepEqual(Object.keys(mine.fieldsV1), ['f:metadata'], 'the console owns what was edited alone')

    await edit((t) => t.replace('mode: fast', 'mode: slow'))
    await p.page.waitForSelector('dialog table:has-text(".data.mode")')
    assert.match(await p.page.textContent('dialog table'), /kubectl/)
    assert.deepEqual(await p.axe(), [])
    await p.page.click('dialog button:has-text("Take the fields over")')
    await p.page.waitForSelector('dialog .diff .add')
    await p.page.click('dialog button:has-text("Apply")')
    await p.page.waitForSelector('dialog', { state: 'detached' })
    now = JSON.parse(await cluster.kubectl('get', 'cm', 'edited', '-n', 'shop', '-o', 'json'))
    assert.deepEqual([now.data, now.metadata.labels], [{ mode: 'slow', size: '1' }, { by: 'console' }])

    await edit((t) => t.replace(/\n {2}size: "1"/, ''))
    await p.page.click('dialog button:has-text("Replace the object")')
    await p.page.waitForSelector('dialog', { state: 'detached' })
    now = JSON.parse(await cluster.kubectl('get', 'cm', 'edited', '-n', 'shop', '-o', 'json'))
    assert.deepEqual(now.data, { mode: 'slow' })
    await p.fine()
  })

  test('a workload is scaled, restarted, and its object deleted', async () => {
    await p.go('k/apps/v1/deployments/shop/web')
    await p.page.click('button:has-text("Scale")')
    await p.page.press('dialog input', 'Control+a') // Firefox cannot set the selection of a number, so that fill would append
    await p.page.keyboard.type('3')
    await p.page.click('dialog button.primary')
    await p.page.waitForSelector('dialog', { state: 'detached' })
    await p.page.waitForSelector('dd:has-text("3 of 3")')
    await p.page.click('.acts button:has-text("Restart")')
    await p.page.waitForSelector('.notes .ok')
    await p.go('k/core/v1/configmaps/shop/edited')
    await p.page.click('.acts button.danger')
    await p.page.click('dialog button.danger')
    await p.page.waitForSelector('.title .mark:has-text("deleted")')
    await p.fine()
  })

  test('logs are read, of a pod and of a workload', async () => {
    await p.go('k/core/v1/pods/shop/one?tab=logs')
    await p.page.waitForSelector('.logs div:has-text("simulated")')
    await p.go('k/apps/v1/deployments/shop/web?tab=logs')
    await p.page.waitForSelector('.logs div:has-text("simulated")')
    await p.fine()
  })

  test('a terminal says why it does not open', async () => {
    await p.go('k/core/v1/pods/shop/one?tab=shell')
    await p.page.click('.tools button:has-text("Open")')
    await p.page.waitForSelector('.tools .hint:has-text("simulated node")')
    await p.page.waitForSelector('.terminal .xterm-screen')
    await p.fine()
  })

  test('a webhook that blocks everything is found and put right', async () => {
    await cluster.apply(objects.deadWebhook('shop'))
    await assert.rejects(cluster.kubectl('create', 'configmap', 'blocked', '-n', 'shop'))
    await p.go('./')
    await p.page.waitForSelector('.troubles a:has-text("guard.example.com")')
    await p.page.waitForSelector('.page:not(:has(.wait))')
    await p.theme(false)
    await p.page.evaluate(() => document.querySelectorAll('.notes button').forEach((b) => b.click()))
    await p.picture('overview')
    await p.page.click('.troubles a:has-text("guard.example.com")')
    await p.page.waitForSelector('pre.wrong:has-text("guard")')
    await p.page.waitForSelector('.mark:has-text("all these writes are refused")')
    await p.picture('webhook')
    await p.page.click('a:has-text("Refused writes")')
    await p.page.locator('table a', { hasText: 'configmaps' }).first().click()
    await p.page.waitForSelector('.way .failed')
    await p.picture('write')
    assert.deepEqual(await p.axe(), [])
    await p.page.click('.way a:has-text("guard")')
    await p.page.waitForSelector('.acts')
    if (process.env.CONSOLE_PICTURES) {
      await p.go('k/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/_/guard?tab=yaml')
      await p.page.waitForSelector('.cm-content')
      await edit((text) => text.replace('failurePolicy: Fail', 'failurePolicy: Ignore'))
      await p.page.waitForSelector('dialog')
      await p.page.waitForFunction(() => !document.querySelector('dialog .wait'))
      await p.picture('edit')
      await p.page.keyboard.press('Escape')
      await p.go('k/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/_/guard')
      await p.page.waitForSelector('.acts')
    }
    await p.page.click('.acts button.danger')
    await p.page.click('dialog button.danger')
    await p.page.waitForSelector('.title .mark:has-text("deleted")')
    await cluster.kubectl('create', 'configmap', 'blocked', '-n', 'shop')
    await p.fine()
  })

  test('hostile texts stay texts', async () => {
    await cluster.apply(...objects.hostileObjects('shop'))
    await cluster.kubectl('wait', '--for=condition=Established', 'crd/evils.example.com', '--timeout=60s')
    await cluster.apply({ apiVersion: 'example.com/v1', kind: 'Evil', metadata: { name: 'evil', namespace: 'shop' }, spec: { field: objects.hostile[1] } })
    await cluster.kubectl('delete', 'cm', 'hostile', '-n', 'shop', '--wait=false')
    await p.page.goto(cluster.base)
    await p.page.evaluate(() => document.addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective)))
    for (const path of ['./', 'k/core/v1/events?ns=shop', 'k/core/v1/configmaps/shop/hostile', 'k/core/v1/configmaps/shop/hostile?tab=why',
      'k/core/v1/configmaps/shop/hostile?tab=yaml', 'k/core/v1/configmaps/shop/hostile?tab=events', 'k/core/v1/configmaps/shop/hostile?tab=writes', 'writes',
      'k/example.com/v1/evils', 'k/example.com/v1/evils/shop/evil', 'definitions/evils.example.com', 'api/apis/example.com/v1',
      'k/core/v1/pods?q=' + encodeURIComponent(objects.hostile[0]), 'k/core/v1/pods/' + encodeURIComponent(objects.hostile[1]) + '/x',
      'extensions/' + encodeURIComponent(objects.hostile[1]), 'writes/' + encodeURIComponent(objects.hostile[0])]) {
      await p.go(path)
      assert.equal(await p.page.evaluate(() => window.pwned), undefined, path)
      assert.equal(await p.page.evaluate(() => document.querySelectorAll('main script, main iframe, main img, main style').length), 0, path)
    }
    await p.fine()
  })

  test('who may read one namespace sees that, and what is closed says so', async () => {
    const r = await Page.open(browser, cluster.base)
    await r.signInByToken(await cluster.token('shop', 'reader'))
    await r.page.fill('form.ns input', 'shop')
    await r.page.keyboard.press('Enter')
    await r.go('k/core/v1/pods')
    await r.row('one').waitFor()
    await r.go('./')
    await r.page.waitForSelector('.hint:has-text("You may not read")')
    for (const [path, text] of [['nodes', 'may not read nodes'], ['extensions', 'may not read the extensions'], ['k/core/v1/secrets?ns=other', 'may not read secrets']]) {
      await r.go(path)
      await r.page.waitForSelector(`.wrong:has-text("${text}")`)
      assert.deepEqual(await r.axe(), [], path)
    }
    await r.go('k/core/v1/pods/shop/one')
    await r.page.waitForSelector('h2:has-text("Containers")')
    await r.fine()
    await r.page.context().close()
  })

  test('the page goes on after a restart of the server', async () => {
    await p.go('k/core/v1/pods?ns=shop')
    await p.page.waitForSelector('[data-line=live]')
    await cluster.stop()
    await p.page.waitForSelector('[data-line=broken]')
    await cluster.start()
    await p.page.waitForSelector('[data-line=live]')
    await cluster.apply(objects.pod('shop', 'after-restart'))
    await p.row('after-restart').waitFor()
    await p.page.click('.who summary')
    await p.page.click('button:has-text("Sign out")')
    await p.page.waitForSelector('input[name=token]')
    assert.deepEqual(await p.axe(), [])
  })
}
