// Builds the console into ../z_dist: bundles with the hash of their content in their name, a gzip of each, the page, and
// z_manifest.json. The output depends on the sources and the lock file alone.
import * as esbuild from 'esbuild'
import { createHash } from 'node:crypto'
import { mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const out = join(here, 'out')
const dev = process.argv.includes('--dev')

const built = await esbuild.build({
  absWorkingDir: here,
  entryPoints: { main: 'src/main.tsx', style: 'src/style.css', icon: 'src/icon.svg' },
  bundle: true,
  splitting: true,
  format: 'esm',
  minify: !dev,
  sourcemap: dev ? 'inline' : false,
  metafile: true,
  write: false,
  target: ['chrome115', 'firefox115', 'safari16.4'],
  outdir: join(here, 'out'),
  entryNames: '[name]-[hash]',
  chunkNames: '[name]-[hash]',
  assetNames: '[name]-[hash]',
  loader: { '.svg': 'copy' },
  legalComments: 'none',
  charset: 'utf8',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  logLevel: 'warning',
})

await rm(out, { recursive: true, force: true })
await mkdir(out, { recursive: true })

const names = {} // entry → name in assets
const imports = {} // name → names that it imports at once
for (const [path, o] of Object.entries(built.metafile.outputs)) {
  const name = basename(path)
  if (o.entryPoint) names[o.entryPoint] = name
  imports[name] = o.imports.filter((i) => i.kind === 'import-statement').map((i) => basename(i.path))
}
for (const f of built.outputFiles) await writeFile(join(out, basename(f.path)), f.contents)
const at = (entry) => 'assets/' + names[entry]
const page = (await readFile(join(here, 'index.html'), 'utf8'))
  .replace('{{main}}', at('src/main.tsx'))
  .replace('{{style}}', at('src/style.css'))
  .replace('{{icon}}', at('src/icon.svg'))
await writeFile(join(out, 'index.html'), page)

const initial = new Set([names['src/style.css'], names['src/icon.svg']])
const reach = (name) => {
  if (initial.has(name)) return
  initial.add(name)
  for (const i of imports[name] ?? []) reach(i)
}
reach(names['src/main.tsx'])
const sources = createHash('sha256')
for (const f of await sourcesOf(here))
  sources
    .update(f + '\0')
    .update(await readFile(join(here, f)))
    .update('\0')
const manifest = { assets: built.outputFiles.map((f) => basename(f.path)).sort(), initial: [...initial].sort(), sources: sources.digest('hex') }
await writeFile(join(out, 'manifest.json'), JSON.stringify(manifest, null, 1) + '\n')

// sourcesOf are the files that the output depends on; a test compares their hash with the manifest's.
async function sourcesOf(dir) {
  const all = ['build.mjs', 'index.html', 'package-lock.json', 'package.json', 'tsconfig.json']
  for (const f of await readdir(join(dir, 'src'), { recursive: true, withFileTypes: true })) {
    if (f.isFile()) all.push(relative(dir, join(f.parentPath, f.name)))
  }
  return all.sort()
}

// The licences of what is in the bundles, in one file.
const parts = new Set()
for (const path of Object.keys(built.metafile.inputs)) {
  const m = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/)
  if (m) parts.add(m[1])
}
let text = 'The console contains these parts.\n'
for (const part of [...parts].sort()) {
  const dir = join(here, 'node_modules', part)
  const about = JSON.parse(await readFile(join(dir, 'package.json'), 'utf8'))
  const file = (await readdir(dir)).find((f) => /^licen[cs]e/i.test(f))
  text += `\n${'-'.repeat(80)}\n${part} ${about.version} (${about.license})\n\n`
  text += file ? (await readFile(join(dir, file), 'utf8')).trim() + '\n' : 'The package has no file with its licence.\n'
}
await writeFile(join(out, 'licences.txt'), text)
