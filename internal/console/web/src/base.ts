// Where the console is mounted: the page's <base> is relative, so a path prefix in front of the server needs no setting.
export const base: URL = new URL(document.baseURI)

/** at returns the absolute URL of a path below the console, such as "api/session". */
export const at = (path: string): string => new URL(path.replace(/^\/+/, ''), base).href

/** cluster returns the URL of a path of the Kubernetes API, such as "/api/v1/pods". */
export const cluster = (path: string): string => at('cluster/' + path.replace(/^\/+/, ''))

/** socket returns a URL for a WebSocket. */
export const socket = (url: string): string => url.replace(/^http/, 'ws')
