import { tests } from './console.mjs'

tests('firefox')
