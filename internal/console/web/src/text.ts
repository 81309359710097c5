// Words and numbers as people read them.
import { signal } from '@preact/signals'

/** now ticks once a second while the page is looked at; ages follow it. */
export const now = signal(Date.now())
setInterval(() => {
  if (document.visibilityState === 'visible') now.value = Date.now()
}, 1000)

/** ago is kubectl's form of a duration: 5s, 3m12s, 4h, 12d. */
export const span = (ms: number): string => {
  const s = Math.max(0, Math.floor(ms / 1000))
  if (s < 120) return s + 's'
  const m = Math.floor(s / 60)
  if (m < 10) return m + 'm' + (s % 60 ? (s % 60) + 's' : '')
  if (m < 180) return m + 'm'
  const h = Math.floor(m / 60)
  if (h < 8) return h + 'h' + (m % 60 ? (m % 60) + 'm' : '')
  if (h < 48) return h + 'h'
  const d = Math.floor(h / 24)
  return d < 730 ? d + 'd' : Math.floor(d / 365) + 'y'
}

export const seconds = (s: number | undefined): string => {
  if (!s) return '–'
  if (s < 0.001) return Math.round(s * 1e6) + ' µs'
  if (s < 1) return (s * 1000).toFixed(s < 0.01 ? 2 : s < 0.1 ? 1 : 0) + ' ms'
  return s.toFixed(s < 10 ? 2 : 1) + ' s'
}

export const count = (n: number): string => n.toLocaleString('en')

export const many = (n: number, one: string, more = one + 's'): string => `${count(n)} ${n === 1 ? one : more}`

const suffix: Record<string, number> = {
  n: 1e-9,
  u: 1e-6,
  m: 1e-3,
  '': 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  P: 1e15,
  E: 1e18,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
  Pi: 2 ** 50,
  Ei: 2 ** 60,
}

/** quantity is the number of a resource.Quantity. */
export const quantity = (q: unknown): number => {
  const m = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)$/.exec(String(q ?? '0').trim())
  return m ? Number(m[1]) * (suffix[m[2]!] ?? 1) : NaN
}

export const bytes = (n: number): string => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
  let i = 0
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024
    i++
  }
  return (i === 0 ? n.toFixed(0) : n >= 100 ? n.toFixed(0) : n.toFixed(1)) + ' ' + units[i]
}

export const cores = (n: number): string => (n < 1 ? Math.round(n * 1000) + ' m' : n < 10 ? n.toFixed(2) : n.toFixed(1))

export type Tone = 'ok' | 'warn' | 'bad' | 'idle'

const good = /^(Running|Ready|Active|Bound|Available|Complete|Completed|Succeeded|True|ok|Established|Healthy|Approved.*|Deployed)$/
const wrong =
  /(Error|BackOff|Failed|Failing|NotReady|Unknown|Evicted|OOMKilled|Lost|Invalid|^False|Unhealthy|open|failing|Denied|Invalid)/
const waits = /(Pending|Creating|Terminating|Init:|PodInitializing|SchedulingDisabled|Released|waited|Progressing|Unschedulable|Gated)/

/** tone is what a status word of any kind means. */
export const tone = (word: string): Tone => (good.test(word) ? 'ok' : wrong.test(word) ? 'bad' : waits.test(word) ? 'warn' : 'idle')

export const shown = (v: unknown): string => {
  if (v === null || v === undefined || v === '') return '–'
  if (typeof v === 'string') return v
  if (typeof v === 'number' || typeof v === 'boolean') return String(v)
  return JSON.stringify(v)
}

export const compare = new Intl.Collator('en', { numeric: true }).compare
