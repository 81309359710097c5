import { after, before, test } from 'node:test'
import assert from 'node:assert/strict'
import { Cluster } from './cluster.mjs'
import { Page, launch } from './page.mjs'
import * as objects from './objects.mjs'

const cluster = new Cluster()
let browser, p

before(async () => {
  const starting = launch('firefox')
  await cluster.start(1)
  await cluster.apply(objects.namespace('shop'))
  await cluster.apply(objects.deployment('shop', 'web'), objects.pod('shop', 'one'))
  browser = await starting
  p = await Page.open(browser, cluster.base)
}, { timeout: 240e3 })

after(async () => {
  await browser?.close()
  await cluster.stop(true)
})

test('the console works in Firefox', async () => {
  await p.signIn(await cluster.link())
  await p.page.waitForSelector('[data-line=live]')
  for (const path of ['./', 'k/core/v1/pods', 'extensions', 'writes', 'usage', 'k/apps/v1/deployments/shop/web?tab=related']) {
    await p.go(path)
    await p.fine(path)
  }
  await p.go('k/core/v1/pods?ns=shop')
  await cluster.apply(objects.pod('shop', 'comes'))
  await p.row('comes').waitFor()
  await p.go('k/core/v1/pods/shop/one?tab=yaml')
  await p.page.waitForSelector('.cm-content:has-text("busybox")')
  await p.go('k/core/v1/pods/shop/one?tab=shell')
  await p.page.click('button:has-text("Open")')
  await p.page.waitForSelector('.terminal .xterm-screen')
  await p.go('k/core/v1/pods/shop/one?tab=logs')
  await p.page.waitForSelector('.logs div:has-text("simulated")')
  assert.equal(await p.page.evaluate(() => document.cookie), '')
  await p.fine()
})
