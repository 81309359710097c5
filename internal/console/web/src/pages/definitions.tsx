// Custom resources: their definitions, schemas, an example, and how they are.
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import type { Any, Obj } from '../api'
import { find, kinds, listHref, objectHref, pathOf } from '../discovery'
import { useObject, useObjects } from '../live'
import { inNamespace } from '../places'
import { href } from '../router'
import { Age, Copy, Empty, Facts, Grid, Mark, Missing, Section, Show } from '../ui/parts'
import type { PageProps } from './index'
import { Tree, example } from './schema'
import { Conditions } from './summary'
import { Create } from './yaml'

const crds = () => find('apiextensions.k8s.io', 'customresourcedefinitions')

export const Definitions = ({ path }: PageProps): JSX.Element => {
  const k = crds()
  if (!k) return <Missing title="Custom resources">The server has no custom resources.</Missing>
  return path[1] ? <One name={path[1]} /> : <All />
}

const established = (o: Obj): boolean => (o.status?.conditions ?? []).some((c: Any) => c.type === 'Established' && c.status === 'True')

const All = (): JSX.Element => {
  const all = useObjects(pathOf(crds()!))
  return (
    <div class="page">
      <div class="title">
        <h1>Custom resources</h1>
        {all.data && <span class="count">{all.data.length}</span>}
      </div>
      <Section title="Definitions">
        <Show of={all} what="custom resource definitions">
          {(d) => (
            <Grid
              label="Definitions"
              head={['Kind', 'Group', 'Versions', 'Scope', 'State', 'Age', 'Objects']}
              empty="No custom resources are defined."
              rows={[...d]
                .sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1))
                .map((o) => {
                  const k = find(o.spec.group, o.spec.names.plural)
                  return {
                    key: o.metadata.name,
                    cells: [
                      <a href={href(['definitions', o.metadata.name])}>{o.spec.names.kind}</a>,
                      o.spec.group,
                      o.spec.versions
                        .map((v: Any) => v.name + (v.storage ? ' (stored)' : '') + (v.served ? '' : ' (not served)'))
                        .join(', '),
                      o.spec.scope,
                      <Mark word={established(o) ? 'Established' : 'not established'} tone={established(o) ? 'ok' : 'bad'} />,
                      <Age at={o.metadata.creationTimestamp} />,
                      k ? <a href={listHref(k)}>list</a> : '–',
                    ],
                  }
                })}
            />
          )}
        </Show>
      </Section>
    </div>
  )
}

const plain = (v: Any, indent = ''): string => {
  if (Array.isArray(v))
    return v.length === 0
      ? ' []\n'
      : '\n' +
          v
            .map(
              (x) =>
                indent +
                '-' +
                (x && typeof x === 'object' && !Array.isArray(x)
                  ? plain(x, indent + '  ').replace(/^\n\s*/, ' ')
                  : plain(x, indent + '  ')),
            )
            .join('')
  if (v && typeof v === 'object') {
    const all = Object.entries(v)
    return all.length === 0 ? ' {}\n' : '\n' + all.map(([k, x]) => `${indent}${k}:${plain(x, indent + '  ')}`).join('')
  }
  return ' ' + JSON.stringify(v ?? null) + '\n'
}

const One = ({ name }: { name: string }): JSX.Element => {
  const k = crds()!
  const o = useObject(pathOf(k), name, name)
  const [version, pick] = useState('')
  const [making, make] = useState('')
  return (
    <div class="page">
      <Show of={o} what={name}>
        {(d) => {
          const v = d.spec.versions.find((x: Any) => x.name === version) ?? d.spec.versions.find((x: Any) => x.storage)
          const schema = v?.schema?.openAPIV3Schema ?? {}
          const listed = kinds.value.find((x) => x.group === d.spec.group && x.resource === d.spec.names.plural)
          const ns = d.spec.scope === 'Namespaced' ? { namespace: inNamespace() || 'default' } : {}
          const text = plain({
            apiVersion: `${d.spec.group}/${v?.name}`,
            kind: d.spec.names.kind,
            metadata: { name: 'example', ...ns },
            ...example(schema),
          }).trimStart()
          const hook = d.spec.conversion?.webhook?.clientConfig
          return (
            <>
              <div class="title">
                <h1>
                  {d.spec.names.kind}
                  <small>{name}</small>
                </h1>
                <div class="acts">
                  {listed && (
                    <a class="button" href={listHref(listed)}>
                      Objects
                    </a>
                  )}
                  <a class="button" href={objectHref(k, undefined, name)}>
                    Definition
                  </a>
                </div>
              </div>
              <div class="columns">
                <Section title="Definition">
                  <Facts
                    of={[
                      ['Group', d.spec.group],
                      ['Scope', d.spec.scope],
                      ['Names', [d.spec.names.plural, d.spec.names.singular, ...(d.spec.names.shortNames ?? [])].join(', ')],
                      [
                        'Versions',
                        d.spec.versions.map((x: Any) => (
                          <div>
                            {x.name} {x.storage && <small>stored </small>}
                            {!x.served && <small>not served </small>}
                            {x.deprecated && <Mark word="deprecated" tone="warn" />}
                          </div>
                        )),
                      ],
                      ['Subresources', Object.keys(v?.subresources ?? {}).join(', ') || '–'],
                      [
                        'Conversion',
                        hook ? (
                          <a href={href(['extensions', 'conversion-webhook'])}>
                            by webhook {hook.service ? `${hook.service.namespace}/${hook.service.name}` : hook.url}
                          </a>
                        ) : (
                          (d.spec.conversion?.strategy ?? 'None')
                        ),
                      ],
                      [
                        'Columns',
                        (v?.additionalPrinterColumns ?? []).map((c: Any) => (
                          <div>
                            {c.name} <code>{c.jsonPath}</code>
                          </div>
                        )),
                      ],
                    ]}
                  />
                </Section>
                <Section
                  title="Example"
                  aside={
                    <>
                      <Copy text={text} />
                      <button type="button" onClick={() => make(text)}>
                        Create…
                      </button>
                    </>
                  }>
                  <pre>{text}</pre>
                </Section>
              </div>
              <Conditions of={d.status?.conditions} />
              <Section
                title={<>Schema of {v?.name}</>}
                aside={
                  d.spec.versions.length > 1 && (
                    <select aria-label="Version" value={v?.name} onChange={(e) => pick(e.currentTarget.value)}>
                      {d.spec.versions.map((x: Any) => (
                        <option>{x.name}</option>
                      ))}
                    </select>
                  )
                }>
                {schema.properties ? (
                  <div class="tree">
                    <Tree schema={schema} />
                  </div>
                ) : (
                  <Empty>The schema names no fields{schema['x-kubernetes-preserve-unknown-fields'] ? ': any are kept' : ''}.</Empty>
                )}
              </Section>
              {making && <Create text={making} close={() => make('')} />}
            </>
          )
        }}
      </Show>
    </div>
  )
}
