// The door: a one-time code, a token, an issuer, or a certificate.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { at } from '../base'
import { login, type Ways } from '../session'

export const SignIn = ({ ways, wrong }: { ways: Ways; wrong: string }): JSX.Element => {
  const [token, type] = useState('')
  const [told, tell] = useState('')
  const [busy, work] = useState(false)
  const has = (m: string): boolean => !ways.methods || ways.methods.includes(m)
  const submit = async (e: Event): Promise<void> => {
    e.preventDefault()
    work(true)
    const t = token.trim()
    tell(await login(/^[A-Za-z0-9_-]{8,64}$/.test(t) && !t.includes('.') && has('code') && !has('token') ? { code: t } : { token: t }))
    work(false)
  }
  return (
    <main class="gate" id="main">
      <h1>Mortise</h1>
      <p>
        The quickest way in: run <code>mortise console</code> on the machine of the cluster, and open the address that it prints.
      </p>
      {(told || wrong) && (
        <p class="wrong" role="alert">
          {told || wrong}
        </p>
      )}
      {has('token') && (
        <form onSubmit={(e) => void submit(e)}>
          <label class="field">
            Bearer token
            <input
              type="password"
              name="token"
              autocomplete="off"
              spellcheck={false}
              value={token}
              onInput={(e) => type(e.currentTarget.value)}
              required
            />
          </label>
          <p class="hint">
            Such as that of <code>kubectl create token NAME</code>. Everything that you see and do is then that account’s.
          </p>
          <button class="primary" disabled={busy || !token.trim()}>
            Sign in
          </button>
        </form>
      )}
      {(ways.issuers ?? []).map((i) => (
        <p>
          <a class="button" data-server href={at('api/oidc/login?issuer=' + encodeURIComponent(i))}>
            Sign in at {i}
          </a>
        </p>
      ))}
      {has('certificate') && (
        <p>
          <button type="button" disabled={busy} onClick={() => void login('certificate').then(tell)}>
            Sign in with a client certificate
          </button>
        </p>
      )}
    </main>
  )
}
