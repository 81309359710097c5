// Dark and light: as the system has it, until the user chooses.
import { signal } from '@preact/signals'

export type Theme = 'system' | 'light' | 'dark'

const stored = (): Theme => {
  try {
    const t = localStorage.getItem('mortise.theme')
    return t === 'light' || t === 'dark' ? t : 'system'
  } catch {
    return 'system'
  }
}

export const theme = signal<Theme>('system')
const system = matchMedia('(prefers-color-scheme: dark)')
/** dark reports whether the page is dark now; what draws by itself follows it. */
export const dark = signal(false)

const show = (): void => {
  dark.value = theme.value === 'dark' || (theme.value === 'system' && system.matches)
  document.documentElement.dataset.theme = dark.value ? 'dark' : 'light'
}

export const dress = (): void => {
  theme.value = stored()
  system.addEventListener('change', show)
  show()
}

export const choose = (t: Theme): void => {
  theme.value = t
  try {
    localStorage.setItem('mortise.theme', t)
  } catch {
    /* the choice then lasts as long as the page */
  }
  show()
}
