import { tests } from './console.mjs'

tests('chromium')
