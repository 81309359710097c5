// All kinds of the server, and the creation of objects.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { kinds, listable, listHref, plural, type Kind } from '../discovery'
import { inNamespace } from '../places'
import { route, setQuery } from '../router'
import { Grid, Section } from '../ui/parts'
import { Create } from './yaml'

const blank = (k: Kind | undefined): string => {
  if (!k) return 'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: \n  namespace: default\n'
  const ns = k.namespaced ? `\n  namespace: ${inNamespace() || 'default'}` : ''
  return `apiVersion: ${k.group ? k.group + '/' : ''}${k.version}\nkind: ${k.kind}\nmetadata:\n  name: ""${ns}\nspec: {}\n`
}

export const Kinds = (): JSX.Element => {
  const q = route.value.query
  const create = q.get('create')
  const [words, type] = useState('')
  const w = words.toLowerCase()
  const all = kinds.value.filter((k) => listable(k) && (plural(k) + ' ' + k.kind + ' ' + k.short.join(' ')).toLowerCase().includes(w))
  const groups = [...new Set(all.map((k) => k.group))].sort()
  return (
    <div class="page">
      <div class="title">
        <h1>All kinds</h1>
        <span class="count">{all.length}</span>
      </div>
      <div class="tools">
        <input
          type="search"
          data-filter
          aria-label="Filter"
          placeholder="Filter"
          value={words}
          onInput={(e) => type(e.currentTarget.value)}
        />
        <button type="button" onClick={() => setQuery({ create: '*' })}>
          Create an object
        </button>
      </div>
      {groups.map((g) => (
        <Section title={g || 'core'}>
          <Grid
            label={g || 'core'}
            head={['Kind', 'Resource', 'Short', 'Version', 'Scope', 'Verbs']}
            rows={all
              .filter((k) => k.group === g)
              .map((k) => ({
                key: k.resource,
                cells: [
                  <a href={listHref(k)}>{k.kind}</a>,
                  k.resource,
                  k.short.join(', ') || '–',
                  k.version,
                  k.namespaced ? 'namespace' : 'cluster',
                  <small>{k.verbs.join(' ')}</small>,
                ],
              }))}
          />
        </Section>
      ))}
      {create && <Create text={blank(kinds.value.find((k) => plural(k) === create))} close={() => setQuery({ create: '' })} />}
    </div>
  )
}
