// Nodes: the list as the server prints it, with what is under pressure.
import type { JSX } from 'preact'
import { find } from '../discovery'
import { Missing } from '../ui/parts'
import { Listed } from './list'

export const Nodes = (): JSX.Element => {
  const k = find('', 'nodes')
  if (!k) return <Missing title="Nodes">The server has no nodes.</Missing>
  return (
    <Listed
      k={k}
      title="Nodes"
      always
      more={
        <a class="button" href="usage">
          Usage
        </a>
      }
    />
  )
}
