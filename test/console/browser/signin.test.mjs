// Signing in with what the cluster did not make itself: an issuer of other people's, dex, and a client certificate.
import { after, before, test } from 'node:test'
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Cluster, freePort } from './cluster.mjs'
import { Page, launch } from './page.mjs'
import * as objects from './objects.mjs'

const cluster = new Cluster({ args: ['--node', 'none'] })
let browser, issuer, dex

// dex is at localhost, the cluster at 127.0.0.1: to a browser these are different sites, as they are elsewhere.
const startDex = async () => {
  const port = await freePort()
  issuer = `https://localhost:${port}/dex`
  const pki = join(cluster.dir, 'data', 'pki')
  const config = join(cluster.dir, 'dex.json')
  const password = '$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W' // password
  await writeFile(config, JSON.stringify({
    issuer, storage: { type: 'memory' }, enablePasswordDB: true, oauth2: { skipApprovalScreen: true },
    web: { https: `127.0.0.1:${port}`, tlsCert: join(pki, 'apiserver.crt'), tlsKey: join(pki, 'apiserver.key') },
    staticClients: [{ id: 'mortise', name: 'mortise', public: true, redirectURIs: [cluster.base + 'api/oidc/callback'] }],
    staticPasswords: [{ email: 'alice@example.com', hash: password, username: 'alice', userID: '1' }],
  }))
  dex = spawn(process.env.CONSOLE_DEX, ['serve', config], { stdio: ['ignore', 'pipe', 'pipe'] })
  let said = ''
  await new Promise((resolve, reject) => {
    const read = (b) => {
      said += b
      if (/listening on.*https/.test(said)) resolve()
    }
    dex.stdout.on('data', read)
    dex.stderr.on('data', read)
    dex.on('exit', (code) => reject(new Error(`dex ended with ${code}: ${said}`)))
  })
  return readFile(join(pki, 'ca.crt'), 'utf8')
}

before(async () => {
  const starting = launch('chromium')
  await cluster.start()
  if (process.env.CONSOLE_DEX) {
    const certificateAuthority = await startDex()
    const config = join(cluster.dir, 'authentication.json')
    await writeFile(config, JSON.stringify({
      apiVersion: 'apiserver.config.k8s.io/v1', kind: 'AuthenticationConfiguration',
      jwt: [{ issuer: { url: issuer, audiences: ['mortise'], certificateAuthority }, claimMappings: { username: { claim: 'email', prefix: 'dex:' } } }],
    }))
    await cluster.stop()
    cluster.args.push('--authentication-config', config)
    await cluster.start()
    await cluster.apply(objects.namespace('shop'), objects.configMap('shop', 'plan', { a: 'b' }), ...objects.viewer('shop', 'dex:alice@example.com'))
  }
  browser = await starting
}, { timeout: 240e3 })

after(async () => {
  await browser?.close()
  if (dex?.exitCode === null) {
    dex.removeAllListeners('exit')
    dex.kill('SIGTERM')
    await once(dex, 'exit')
  }
  await cluster.stop(true)
})

const dexed = { skip: process.env.CONSOLE_DEX ? false : 'CONSOLE_DEX names no program' }

test('a user signs in at an issuer, by an authorization code with PKCE', dexed, async () => {
  const p = await Page.open(browser, cluster.base)
  const asked = []
  p.page.on('request', (r) => {
    if (r.url().startsWith(issuer + '/auth?')) asked.push(new URL(r.url()).searchParams)
  })
  await p.page.goto(cluster.base)
  await p.page.click(`a:has-text("Sign in at ${issuer}")`)
  await p.page.fill('input[name=login]', 'alice@example.com')
  await p.page.fill('input[name=password]', 'password')
  await p.page.click('button[type=submit]')
  await p.page.waitForSelector('nav')
  assert.equal(await p.page.textContent('.who summary'), 'dex:alice@example.com')
  assert.deepEqual([asked[0].get('response_type'), asked[0].get('code_challenge_method')], ['code', 'S256'])
  assert.ok(asked[0].get('code_challenge').length >= 43 && asked[0].get('state') && asked[0].get('nonce'), String(asked[0]))
  assert.equal(p.page.url(), cluster.base)
  // She may do what her binding says, and no more.
  await p.go('k/core/v1/configmaps?ns=shop')
  await p.row('plan').waitFor()
  await p.go('k/core/v1/secrets?ns=shop')
  await p.page.waitForSelector('.wrong:has-text("You may not read secrets")')
  await p.fine()
  await p.page.context().close()
})

test('a sign-in at an issuer that the browser did not begin is refused, and says so', dexed, async () => {
  const p = await Page.open(browser, cluster.base)
  await p.page.goto(cluster.base + 'api/oidc/callback?code=x&state=y')
  await p.page.waitForSelector('.gate .wrong:has-text("did not begin the sign-in")')
  assert.ok(!p.page.url().includes('error='), p.page.url())
  await p.page.context().close()
})

test('a client certificate signs in', async () => {
  const config = JSON.parse(await cluster.kubectl('config', 'view', '--raw', '-o', 'json'))
  const user = config.users[0].user
  const certificate = { origin: new URL(cluster.base).origin, cert: Buffer.from(user['client-certificate-data'], 'base64'),
    key: Buffer.from(user['client-key-data'], 'base64') }
  const p = await Page.open(browser, cluster.base, { clientCertificates: [certificate] })
  await p.page.goto(cluster.base)
  await p.page.click('button:has-text("Sign in with a client certificate")')
  await p.page.waitForSelector('nav')
  assert.match(await p.page.textContent('.who'), /system:masters|mortise:/)
  await p.go('k/core/v1/namespaces')
  await p.row('kube-system').waitFor()
  await p.fine()
  await p.page.context().close()
  // Without one the page does not offer it.
  const other = await Page.open(browser, cluster.base)
  await other.page.goto(cluster.base)
  await other.page.waitForSelector('input[name=token]')
  assert.equal(await other.page.locator('button:has-text("client certificate")').count(), 0)
  await other.page.context().close()
})
