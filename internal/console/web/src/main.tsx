// The console's start: who is signed in, then the page of the address.
import { render } from 'preact'
import { start } from './router'
import { begin } from './session'
import { dress } from './theme'
import { App } from './app'

dress()
start()
const root = document.getElementById('app')!
render(<App wrong="" />, root)
void begin().then((wrong) => {
  if (wrong) render(<App wrong={wrong} />, root)
})
