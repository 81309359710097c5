// The pages by their addresses. Those that people open at once are in the first bundle, the others come when they are needed.
import type { FunctionComponent, JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { Missing, Wait, Wrong } from '../ui/parts'
import { Failure } from '../api'
import { Overview } from './overview'
import { ListPage } from './list'

export interface PageProps {
  path: string[]
}
export type Page = FunctionComponent<PageProps>

const lazy = (load: () => Promise<Page>): Page => {
  let loaded: Page | undefined
  return (p: PageProps): JSX.Element => {
    const [, set] = useState(0)
    const [wrong, fail] = useState('')
    useEffect(() => {
      if (!loaded)
        load().then(
          (c) => {
            loaded = c
            set(1)
          },
          () =>
            fail('This part of the console cannot be loaded. The server may have been replaced by another version: load the page anew.'),
        )
    }, [])
    const C = loaded
    return C ? <C {...p} /> : wrong ? <Wrong f={new Failure(0, { message: wrong }, '', '')} /> : <Wait />
  }
}

const Nothing = (): JSX.Element => (
  <Missing title="No such page">
    There is no such page. <a href="./">Overview</a>
  </Missing>
)

const pages: Record<string, Page> = {
  nodes: lazy(() => import('./nodes').then((m) => m.Nodes)),
  usage: lazy(() => import('./usage').then((m) => m.Usage)),
  reasons: lazy(() => import('./reasons').then((m) => m.Reasons)),
  rollouts: lazy(() => import('./rollouts').then((m) => m.Rollouts)),
  kinds: lazy(() => import('./kinds').then((m) => m.Kinds)),
  extensions: lazy(() => import('./extensions').then((m) => m.Extensions)),
  writes: lazy(() => import('./writes').then((m) => m.Writes)),
  definitions: lazy(() => import('./definitions').then((m) => m.Definitions)),
  access: lazy(() => import('./access').then((m) => m.Access)),
  api: lazy(() => import('./explorer').then((m) => m.Explorer)),
}
const Detail = lazy(() => import('./detail').then((m) => m.Detail))

/** page returns the page of a path. */
export const page = (path: string[]): Page => {
  const [first] = path
  if (!first) return Overview
  if (first === 'k') return path.length === 4 ? ListPage : path.length === 6 ? Detail : Nothing
  return pages[first] ?? Nothing
}
