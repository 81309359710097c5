// A terminal, logs and volumes of real containers. The Go test TestContainers runs this on a node in namespaces of its own.
import { after, before, test } from 'node:test'
import assert from 'node:assert/strict'
import { Cluster } from './cluster.mjs'
import { Page, launch } from './page.mjs'
import * as objects from './objects.mjs'

const cluster = new Cluster({ args: JSON.parse(process.env.CONSOLE_NODE) })
let browser, p

before(async () => {
  const starting = launch('chromium')
  await cluster.start()
  await cluster.apply(objects.namespace('shop'))
  await cluster.kubectl('wait', '--for=create', 'sa/default', '-n', 'shop', '--timeout=60s')
  await cluster.apply(objects.shell('shop', 'talker', 'trap exit TERM; echo ready; sleep 3600 & wait'),
    objects.shell('shop', 'restarts', 'echo this run ends; exit 0', 'Always'))
  await cluster.kubectl('wait', '--for=condition=Ready', 'pod/talker', '-n', 'shop', '--timeout=120s')
  browser = await starting
  p = await Page.open(browser, cluster.base)
  await p.signIn(await cluster.link())
}, { timeout: 240e3 })

after(async () => {
  await browser?.close()
  await cluster.kubectl('delete', 'namespace', 'shop', '--timeout=60s').catch(() => undefined)
  await cluster.stop(true)
})

const screen = (text) => p.page.locator('.terminal .xterm-accessibility', { hasText: text })

test('a terminal runs commands in a container, and knows its size', async () => {
  await p.go('k/core/v1/pods/shop/talker?tab=shell')
  await p.page.click('button:has-text("Open")')
  await p.page.waitForSelector('.tools .hint:has-text("Connected")')
  await p.page.waitForSelector('.xterm-helper-textarea:focus', { state: 'attached' })
  await screen(/[#$] $/m).waitFor() // a shell discards what was typed before its prompt
  await p.page.keyboard.type('echo $((6*7)) in $(hostname)\n')
  await screen('42 in talker').waitFor()
  await p.page.keyboard.type('stty size > /tmp/size; cat /tmp/size | sed s/^/size:/\n')
  await screen(/size:\d\d+ \d\d+/).waitFor()
  await p.picture('terminal')
  await p.page.keyboard.type('exit 7\n')
  await p.page.waitForSelector('.tools .hint:has-text("exit code 7")')
  await p.fine()
})

test('a command of the user\'s choice runs in the container', async () => {
  await p.page.fill('input[aria-label=Command]', 'cat /etc/hostname')
  await p.page.click('button.primary')
  await screen('talker').waitFor()
  await p.page.waitForSelector('.tools .hint:has-text("The command ended.")')
  await p.fine()
})

test('the log is followed, and the previous run can be read', async () => {
  await p.go('k/core/v1/pods/shop/talker?tab=logs')
  await p.page.waitForSelector('.logs div:has-text("ready")')
  await cluster.kubectl('exec', 'talker', '-n', 'shop', '--', 'sh', '-c', 'echo a new line > /proc/1/fd/1')
  await p.page.waitForSelector('.logs div:has-text("a new line")')
  await cluster.kubectl('wait', '--for=jsonpath={.status.containerStatuses[0].lastState.terminated}', 'pod/restarts', '-n', 'shop', '--timeout=120s')
  await p.go('k/core/v1/pods/shop/restarts?tab=logs&previous=1')
  await p.page.waitForSelector('.logs div:has-text("this run ends")')
  assert.equal(await p.page.isChecked('label:has-text("previous run") input'), true)
  await p.fine()
})

test('the calls to a CSI driver are shown at the pod, its claim and its volume', async () => {
  await cluster.apply(objects.claim('shop', 'data'), objects.storing('shop', 'keeper', { persistentVolumeClaim: { claimName: 'data' } }))
  await cluster.kubectl('wait', '--for=condition=Ready', 'pod/keeper', '-n', 'shop', '--timeout=120s')
  const volume = await cluster.kubectl('get', 'pvc', 'data', '-n', 'shop', '-o', 'jsonpath={.spec.volumeName}')
  for (const of of ['pods/shop/keeper', 'persistentvolumeclaims/shop/data', 'persistentvolumes/_/' + volume]) {
    await p.go(`k/core/v1/${of}?tab=why`)
    await p.page.locator('main tr', { hasText: 'NodePublishVolume' }).filter({ hasText: 'storage.mortise.dev' }).filter({ hasText: 'OK' }).first().waitFor()
    assert.deepEqual(await p.axe(), [], of)
  }
  await p.go('extensions')
  await p.page.locator('a', { hasText: 'storage.mortise.dev' }).first().waitFor()
  await p.fine()
})

test('a pod whose CSI driver is not there says which', async () => {
  await cluster.apply(objects.storing('shop', 'alone', { csi: { driver: 'absent.example.com' } }))
  await p.go('k/core/v1/pods/shop/alone?tab=why')
  await p.page.locator('main tr', { hasText: 'FailedMount' }).filter({ hasText: 'absent.example.com' }).first().waitFor()
  await p.fine()
})
