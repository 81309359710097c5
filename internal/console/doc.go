// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package console serves the web page of a cluster below /console/, in front of the API server's pipeline.
//
// [New] makes a [Console]; [Console.Before] puts it in front of the API, and [Console.Run] ends its connections with the server. The page
// reads and does everything through the API as the user who signed in: the package has no rights, and no state but one-time codes. A
// Console may be used by any goroutine.
//
// # Paths
//
// All paths are below the prefix of X-Forwarded-Prefix, if a proxy in front sets it (and strips it from the path).
//
//	GET  /console/                      the page; every other path below it that is not listed here answers the page too
//	GET  /console/assets/NAME-HASH.EXT  an asset of the page; never changes
//	GET  /console/api/session           who is signed in
//	POST /console/api/login             sign in by {"code": "..."} or {"token": "..."}
//	GET  /console/api/certificate       sign in by the client certificate of the connection
//	GET  /console/api/oidc/login        ?issuer=URL: sign in at an issuer of the AuthenticationConfiguration; a navigation
//	GET  /console/api/oidc/callback     where the issuer sends the browser back to; ends at /console/, or /console/#error=TEXT
//	POST /console/api/logout            sign out
//	POST /console/api/codes             a one-time code for the user of the request's own credentials; for `mortise console`
//	GET  /console/api/watch             a WebSocket with many watches
//	ANY  /console/cluster/PATH          PATH of the API, as the user who signed in
//
// Errors are metav1.Status as JSON.
//
// # Rules for the page's requests
//
//   - A request other than GET and HEAD has the header X-Mortise-Console: 1, and comes from the page's origin: Sec-Fetch-Site says
//     same-origin, or, where a browser does not send that, Origin is the page's own. A WebSocket comes from the page's origin too.
//   - Requests below /console/cluster/ and /console/api/ are made by fetch or as WebSockets: Sec-Fetch-Dest is empty or websocket. The
//     server refuses a script, style, image or document from there, so that nothing that a pod says becomes a part of the page. To let
//     the user save a log, fetch it and make a blob URL. The navigations oidc/login and oidc/callback are the exception.
//   - The Host is an address, localhost, a name in a serving certificate, or one of --console-hosts.
//
// # Session
//
// Sign-in answers 204 and sets a cookie mortise-console-KEY (HttpOnly, Secure, SameSite=Strict, Path /console/): the session, sealed with a
// key of the data directory. KEY is of that key, so that two clusters on one host do not take each other's cookie. Long tokens take several
// cookies. A session ends after 12 hours, or with its token or certificate.
//
// GET session answers 200 {"user": {"username", "uid", "groups"}, "expires": RFC 3339, "method": "token" | "user"}; or 401, a
// Status with, beside its fields, {"methods": ["code", "token", "oidc", "certificate"], "issuers": [URL, ...]}: oidc only with issuers, and
// certificate only if the connection has a client certificate.
//
// POST codes answers 201 {"code", "expires"}.
//
// # Watches
//
// The page sends, as text messages:
//
//	{"id": 1, "path": "/api/v1/pods?resourceVersion=5", "table": true}
//	{"id": 1, "stop": true}
//
// id is a number of the page's choice, from 1 to 2^53-1, that no watch of the connection has. watch=true is added to the path. table asks
// for rows of a Table (with includeObject=Metadata unless the path has includeObject), as the same Accept header does for a list:
// application/json;as=Table;v=v1;g=meta.k8s.io.
//
// The server sends, as text messages:
//
//	{"id": 1, "events": [{"type": "ADDED", "object": {...}}, ...]}
//	{"id": 1, "end": null}
//
// Events that are there are sent at once, but for one connection not more often than every 50 ms. end is null after a stop, and when the
// server ended the watch (the page watches again from the last resourceVersion); otherwise a Status: that of a refusal, or one with code
// 410 if the page reads too slowly or the resourceVersion is too old (list again). A watch that has ended frees its id. A connection has at
// most 64 watches: another ends with code 429. Close codes: 4401 the session has ended, 1001 the server ends, 1008 a message that is
// none of the above.
//
// # What the API answers beside resources
//
// The page reads these below /console/cluster. A user needs a role with nonResourceURLs for them; without one the answer is 403, and the
// page leaves out what they tell. The types are those of package extension (view.go) and extension/trace (view.go, scheduling.go,
// autoscaling.go, deletion.go, calls.go).
//
//	/debug/extensions                extension.View: {"extensions": [Row], "points": [Description], "effects": {POINT: TEXT}}
//	                                 Row: point, name, configured ("KIND/NAME", a file, a flag), state ("never called", "ok", "failing",
//	                                 "open", "waited for"), calls, failures, refused, p50Seconds, p99Seconds, longestSeconds, lastError,
//	                                 lastFailure, certificateEnds, waits, waiting [{object, since, until}], and
//	                                 affects [{"what", "effect"}]: what a dead extension affects, by its configuration, with the effect
//	                                 "refused", "unchecked", "unavailable" or "delayed". effects has a sentence a point.
//	/debug/explain                   trace.View {"traces", "calls", "more", "kept"}: writes, the newest first. Query: group, resource,
//	                                 namespace, name, subresource; rejected=true; brief=true; since=10m; limit=100
//	/debug/explain/AUDIT-ID          the same with one write in full: stages with seconds, steps with changes (JSON patches) of each
//	                                 plug-in, policy and webhook, verdicts, who refused. Each response of the API has the header Audit-Id.
//	/debug/explain?field=PATH        with resource and name: trace.Field, what set a field, such as metadata.finalizers
//	/debug/explain?scheduling=true   with namespace and name of a pod: trace.Scheduling: where the pod is in the scheduler, and its
//	                                 attempts, each with the nodes that each plug-in filtered and why, scores, victims
//	/debug/explain?autoscaling=true  with namespace and name of a HorizontalPodAutoscaler: trace.Autoscaling
//	/debug/explain?deletion=true     with group, resource, namespace, name: trace.Deletion: since when the object is being deleted, its
//	                                 finalizers, each with who should remove it, on what condition, and who added it; of a namespace,
//	                                 what is left
//	/metrics                         Prometheus text; apiserver_request_duration_seconds and mortise_extension_* among others
//	/livez?verbose, /readyz?verbose  health, a check a line
//	/statusz, /flagz, /configz       the process
//	/openapi/v3, /version            as in Kubernetes
//
// Objects of the kind ConsoleExtension (extension.mortise.dev/v1alpha1, consoleextensions, cluster-scoped) add links and columns:
// spec {"resource": {"group", "resource"}, "links": [{"title", "url"}], "columns": [{"name", "type", "jsonPath", "description",
// "priority"}]}. The server's tables do not have these columns: the page asks for them with includeObject=Object. A URL is https or http
// with placeholders {JSONPATH}, such as https://grafana.example.com/d/x?var-ns={.metadata.namespace}; the page puts percent-encoded values
// in. Without a resource the links are of the cluster.
package console
