// Who is signed in, and how one signs in. Nothing is kept here but what the server says.
import { signal } from '@preact/signals'
import { at } from './base'

export interface User {
  username: string
  groups?: string[]
}
export interface Session {
  user: User
  expires?: string
}
export interface Ways {
  methods?: string[]
  /** issuers are URLs. */
  issuers?: string[]
}

export type State = { is: 'asking' } | { is: 'in'; session: Session } | { is: 'out'; ways: Ways } | { is: 'away' }

export const state = signal<State>({ is: 'asking' })

const post = (path: string, body: object): Promise<Response> =>
  fetch(at(path), {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'X-Mortise-Console': '1' },
    body: JSON.stringify(body),
    credentials: 'same-origin',
  })

/** ask learns the state of the session from the server. */
export const ask = async (): Promise<void> => {
  let r: Response
  try {
    r = await fetch(at('api/session'), { credentials: 'same-origin' })
  } catch {
    if (state.value.is !== 'in') state.value = { is: 'away' }
    return
  }
  if (r.ok) state.value = { is: 'in', session: (await r.json()) as Session }
  else state.value = { is: 'out', ways: (await r.json().catch(() => ({}))) as Ways }
}

/** lost is called where an answer says that the session ended. */
export const lost = (): void => {
  if (state.value.is === 'in') void ask()
}

/** login signs in with a one-time code, a bearer token, or the connection's client certificate; it returns what went wrong, or nothing. */
export const login = async (by: { code: string } | { token: string } | 'certificate'): Promise<string> => {
  const asked = by === 'certificate' ? fetch(at('api/certificate'), { credentials: 'same-origin' }) : post('api/login', by)
  const r = await asked.catch(() => undefined)
  if (!r) return 'The server does not answer.'
  if (r.ok) {
    await ask()
    return ''
  }
  const told = await r.text()
  try {
    return (JSON.parse(told) as { message?: string }).message || told
  } catch {
    return told.trim() || `The server answered ${r.status}.`
  }
}

export const logout = async (): Promise<void> => {
  await post('api/logout', {}).catch(() => undefined)
  await ask()
}

/** begin signs in with the one-time code of the address, if there is one, and then asks who is signed in. It returns what went wrong, with
 * the code or at an issuer. */
export const begin = async (): Promise<string> => {
  const told = new URLSearchParams(location.hash.slice(1))
  const code = told.get('code')
  let wrong = told.get('error') ?? ''
  if (code || wrong) history.replaceState(null, '', location.pathname + location.search)
  if (code) {
    wrong = await login({ code })
    if (!wrong) return ''
  }
  await ask()
  return state.value.is === 'in' ? '' : wrong
}
