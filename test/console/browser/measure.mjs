// Measures the console on 50,000 simulated pods and 2,000 nodes, in Chromium: CONSOLE_MORTISE=PROGRAM CONSOLE_CHROMIUM=PATH node measure.mjs
// With KUBECONFIG the cluster of that file is measured, which has the pods already: deployments crowd/web-0 to web-9 of 5,000 each. Some of
// its pods are deleted.
import { Cluster } from './cluster.mjs'
import { Page, launch } from './page.mjs'
import * as objects from './objects.mjs'
import { readFileSync } from 'node:fs'
import { loadavg } from 'node:os'

const pods = Number(process.env.PODS ?? 50000)
const cluster = new Cluster({ nodes: Number(process.env.NODES ?? 2000) })
const note = (what, value) => console.log(`${what}: ${value}`)
if (process.env.KUBECONFIG) {
  cluster.kubeconfig = process.env.KUBECONFIG
  const [server] = /https:[^\s]+/.exec(readFileSync(cluster.kubeconfig, 'utf8'))
  cluster.base = server + '/console/'
} else {
  await cluster.start()
  const begun = Date.now()
  await cluster.apply(objects.namespace('crowd'))
  const each = 5000
  for (let i = 0; i < pods / each; i++) await cluster.apply(objects.deployment('crowd', 'web-' + i, each))
  for (let i = 0; i < pods / each; i++)
    await cluster.kubectl('wait', '-n', 'crowd', 'deployment/web-' + i, `--for=jsonpath={.status.readyReplicas}=${each}`, '--timeout=1500s')
  note('pods are ready after', (Date.now() - begun) / 1000 + ' s')
}
note('load of the machine', loadavg().map((l) => l.toFixed(1)).join(' '))

const browser = await launch('chromium')
const p = await Page.open(browser, cluster.base)
const cdp = await p.page.context().newCDPSession(p.page)
await cdp.send('Performance.enable', { timeDomain: 'threadTicks' })
const metrics = async () => Object.fromEntries((await cdp.send('Performance.getMetrics')).metrics.map((m) => [m.name, m.value]))
const heap = async () => {
  await cdp.send('HeapProfiler.collectGarbage')
  return ((await metrics()).JSHeapUsedSize / 1e6).toFixed(1) + ' MB'
}
// tab is the memory of the process that draws the page: its own pages, and its share of those that it has in common with others.
const tab = async () => {
  const { processInfo } = await (await browser.newBrowserCDPSession()).send('SystemInfo.getProcessInfo')
  const sizes = processInfo.filter((i) => i.type === 'renderer')
    .map((i) => Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${i.id}/smaps_rollup`, 'utf8'))[1]))
  return (Math.max(...sizes) / 1024).toFixed(0) + ' MiB'
}
await p.signIn(await cluster.link())
for (let i = 0; i < 3; i++) {
  await p.page.goto(cluster.base + 'k/core/v1/pods')
  await p.page.waitForSelector('.grid .body [role=row] a')
  note('first paint, ms; first rows', (await p.page.evaluate(() => [performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now()]))
    .map(Math.round).join('; '))
}
const reading = await metrics()
await p.page.waitForFunction((n) => document.querySelector('.count')?.dataset.rows >= n && document.querySelector('.count').dataset.remaining === '0', pods,
  { timeout: 500e3 })
note('main thread to read all pods, ms', Math.round(((await metrics()).TaskDuration - reading.TaskDuration) * 1000))
note('heap with all pods', await heap())
note('memory of the tab with all pods', await tab())

for (const step of [60, 400, 5000]) {
  const before = await metrics()
  const frames = await p.page.evaluate(async (step) => {
    const grid = document.querySelector('.grid')
    const times = []
    for (let i = 0, last = performance.now(); i < 180; i++) {
      grid.scrollTop += step
      await new Promise(requestAnimationFrame)
      const now = performance.now()
      times.push(now - last)
      last = now
    }
    return times.sort((a, b) => a - b)
  }, step)
  const after = await metrics()
  note(`scrolling ${step} pixels a frame`, `main thread ${((after.TaskDuration - before.TaskDuration) * 1000 / frames.length).toFixed(1)} ms a frame; ` +
    `frames of ${frames[90].toFixed(1)} ms in the middle, 95 % below ${frames[170].toFixed(1)} ms`)
}

const read = () => p.page.waitForFunction(() => document.querySelector('.count')?.dataset.remaining === '0', undefined, { timeout: 300e3 })
// Another tab, in a process of its own, counts the events: who listens to the messages of a tab takes of its main thread.
const counter = await Page.open(browser, cluster.base)
await counter.signIn(await cluster.link())
await counter.go('k/core/v1/pods')
await counter.page.waitForFunction(() => document.querySelector('.count')?.dataset.remaining === '0', undefined, { timeout: 300e3 })
const listener = await counter.page.context().newCDPSession(counter.page)
await listener.send('Network.enable')
for (const [i, what, query] of [[1, 'as the list is', ''], [2, 'sorted by node', '?sort=Node'], [3, 'filtered', '?q=web-4']]) {
  await p.go('k/core/v1/pods' + query)
  await read()
  await p.page.waitForSelector('[data-line=live]')
  let seen = 0
  const count = (f) => {
    for (const m of f.response.payloadData.matchAll(/"type":"(ADDED|MODIFIED|DELETED)"/g)) if (m) seen++
  }
  const idle = await metrics()
  await p.page.waitForTimeout(5000)
  const before = await metrics()
  const quiet = (before.TaskDuration - idle.TaskDuration) / (before.Timestamp - idle.Timestamp)
  listener.on('Network.webSocketFrameReceived', count)
  const from = Date.now()
  await cluster.kubectl('delete', '--raw', '/api/v1/namespaces/crowd/pods?labelSelector=app%3Dweb-' + i)
  await p.page.waitForTimeout(3000)
  const after = await metrics()
  listener.off('Network.webSocketFrameReceived', count)
  const s = (Date.now() - from) / 1000
  const task = (after.TaskDuration - before.TaskDuration - quiet * s) * 1000
  note(`events, ${what}`, `${seen} in ${s.toFixed(1)} s, main thread ${(task / seen * 1000).toFixed(0)} ms per 1,000 (script ` +
    `${((after.ScriptDuration - before.ScriptDuration) * 1e6 / seen).toFixed(0)}) over the ${(quiet * 100).toFixed(1)} % of idleness`)
}
note('heap at the end', await heap())
note('load of the machine', loadavg().map((l) => l.toFixed(1)).join(' '))
await browser.close()
if (cluster.process) await cluster.stop(true)
