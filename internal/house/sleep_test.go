// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// looks are the functions that look again and again, or let time pass, by file and name, each with the reason why no event tells them.
// A function that needs to be here is a question of review.
var looks = map[string]string{
	"bench/rows/aggregated.go bulk":                                       "it measures readers that ask at a pace",
	"bench/rows/definitions.go use":                                       "it measures when a kind is served, which other servers do not tell",
	"bench/rows/events.go untilWritten":                                   "it counts what a server writes behind, which other servers do not tell",
	"bench/load/upstream.go untilReady":                                   "a peer that the bench starts does not tell when it is ready",
	"bench/rows/quietclient.go pacing":                                    "it measures at a pace",
	"bench/rows/watches.go flood":                                         "it measures at a pace",
	"bench/load/observe.go Read":                                          "it reads rarely, so as not to be what is measured",
	"bench/rows/scheduling.go churn":                                      "upstream's workload changes objects at this pace",
	"bench/rows/services.go changeProxied":                                "it begins when the proxy has been quiet for a while",
	"embed/aggregated/aggregated_test.go eventually":                      "what other servers tell of themselves is fetched in the background",
	"internal/cluster/identitylease.go hold":                              "a lease is renewed at an interval",
	"bench/rows/plugins.go sandboxed":                                     "it is the time in which a pod's sandbox starts",
	"bench/rows/plugins.go ListAndWatch":                                  "it is a plug-in that lists its devices each millisecond",
	"internal/agent/eviction_test.go look":                                "it steps a fake clock for a node that looks at its figures by that clock",
	"internal/agent/eviction_test.go awaitStep":                           "it steps a fake clock for a node that looks at its figures by that clock",
	"internal/agent/proxy/packets_choice_test.go checkPacketsToTheChosen": "the kernel forgets whom it keeps to an endpoint without an event",
	"internal/agent/proxy/packets_choice_test.go released":                "a client that is kept to an endpoint has to be silent for as long as that lasts",
	"internal/agent/routes/routes_test.go TestRun":                        "it reads the kernel's routes in a namespace of which the test hears no events",
	"internal/agent/worker_test.go TestNodeIsRegistered":                  "it steps a fake clock for whoever waits on it next",
	"internal/apiserver/authenticate/jwt.go replace":                      "the library that discovers issuers tells only who asks",
	"internal/apiserver/authenticate/jwt_test.go eventually":              "the library that discovers issuers tells only who asks",
	"internal/agent/announce/announce.go Run":                             "a lease and addresses are renewed at an interval",
	"internal/apiserver/compaction.go compact":                            "the store is compacted at an interval",
	"internal/apiserver/fanout_test.go TestThousandWatchers":              "goroutines of net/http end without an event",
	"internal/apiserver/flowcontrol/flowcontrol.go Run":                   "levels lend to each other at an interval, as upstream's do",
	"internal/apiserver/reload/reload.go Watch":                           "files are read again at an interval, as upstream does; mounts of Secrets give no events",
	"internal/apiserver/server.go sendBookmarks":                          "bookmarks are sent at an interval",
	"internal/cli/quiet.go whenQuiet":                                     "the collection that it makes itself may be told, or be one with another",
	"internal/cli/notify.go beat":                                         "systemd's watchdog wants a sign of life in each interval",
	"internal/console/watch.go write":                                     "a browser is asked at an interval whether it is still there",
	"internal/machine/containerd.go start":                                "another program's readiness gives no event",
	"test/aggregated/programs_test.go until":                              "kubectl is asked until other programs' servers are known",
	"embed/resourcemetrics_test.go TestResourceMetrics":                   "what a simulated node has measured has no event",
	"test/aggregated/sample_test.go TestSampleServer":                     "another program's admission plug-in and caches learn without an event",
	"test/census_test.go leavesNothing":                                   "processes end and the proxy writes without an event",
	"test/robustness/faults_test.go limp":                                 "a slow process is one that runs for moments at a pace",
	"test/etcd/protocol_test.go watch":                                    "an etcd whose watches are behind leaves a question for progress without an answer",
	"test/csi/many_test.go until":                                         "kubectl waits for one object at a time, and this counts a thousand",
	"test/dex/login_test.go TestLogin":                                    "dex and the discovery of its keys tell nobody; a token has to expire by the real clock",
	"test/programs/programs.go Listening":                                 "another program's readiness gives no event",
	"test/ingress/node_test.go answers":                                   "the ingress controller polls the API server, and reports nothing",
	"test/hostile_test.go stands":                                         "whoever served a client that has gone gives up its memory without an event",
	"test/node_addresses_test.go TestNodeAddressesChange":                 "a link has to be down for longer than the node waits for it to come back",
	"test/node_addresses_test.go untilLogs":                               "a node takes its certificate without an event",
	"test/several_nodes_test.go awaitAnswer":                              "a node writes its rules without an event",
	"test/nodes_test.go TestNodeServingCertificate":                       "a node takes its certificate without an event",
}

// TestNobodySleeps finds what lets time pass in place of an event: a receive from time.After outside a select, one in a loop that goes on
// after it, tickers, and functions that poll. In a file that uses testing/synctest, time costs nothing and tells the truth.
func TestNobodySleeps(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range tree(t) {
		if slices.Contains(s.imports(), "testing/synctest") {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			at := s.path + " " + f.Name.Name
			for n, what := range waits(f.Body) {
				seen[at] = true
				if looks[at] == "" {
					t.Errorf("%s:%d: %s: wait for an event, or list %q with the reason", s.path, s.line(n), what, at)
				}
			}
		}
	}
	for at := range looks {
		if !seen[at] {
			t.Errorf("%q neither looks again nor lets time pass: take it off the list", at)
		}
	}
}

// waits are the places of a function that let time pass, and what they do.
func waits(body *ast.BlockStmt) map[ast.Node]string {
	found := map[ast.Node]string{}
	cases := map[ast.Node]bool{} // statements of select's cases
	var walk func(n ast.Node, loop bool)
	walk = func(n ast.Node, loop bool) {
		ast.Inspect(n, func(m ast.Node) bool {
			switch m := m.(type) {
			case *ast.ForStmt:
				if m != n {
					walk(m, true)
					return false
				}
			case *ast.RangeStmt:
				if m != n {
					walk(m, true)
					return false
				}
			case *ast.FuncLit:
				if m != n {
					walk(m, false)
					return false
				}
			case *ast.CommClause:
				if m.Comm == nil {
					break
				}
				cases[m.Comm] = true
				if loop && after(m.Comm) && !leaves(m.Body) {
					found[m] = "a loop that goes on after time.After"
				}
			case *ast.ExprStmt:
				if !cases[m] && after(m) {
					found[m] = "<-time.After lets time pass"
				}
			case *ast.CallExpr:
				if name := called(m); name == "time.NewTicker" || name == "time.Tick" {
					found[m] = name + " looks again and again"
				} else if _, short, _ := strings.Cut(name, "."); strings.HasPrefix(short, "Eventually") || strings.HasPrefix(name, "wait.Poll") {
					found[m] = name + " looks again and again"
				}
			}
			return true
		})
	}
	walk(body, false)
	return found
}

// called is the name of what is called, with its package or receiver.
func called(c *ast.CallExpr) string {
	sel, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return "." + sel.Sel.Name
}

// after reports whether a statement receives from time.After itself.
func after(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	u, ok := e.X.(*ast.UnaryExpr)
	if !ok || u.Op != token.ARROW {
		return false
	}
	c, ok := u.X.(*ast.CallExpr)
	return ok && called(c) == "time.After"
}

// leaves reports whether a case ends what it stands in: it is the limit of a wait.
func leaves(body []ast.Stmt) bool {
	for _, s := range body {
		switch s := s.(type) {
		case *ast.ReturnStmt:
			return true
		case *ast.BranchStmt:
			return s.Tok == token.BREAK && s.Label != nil || s.Tok == token.GOTO
		case *ast.ExprStmt:
			if c, ok := s.X.(*ast.CallExpr); ok {
				name := called(c)
				if id, ok := c.Fun.(*ast.Ident); ok && id.Name == "panic" || strings.HasSuffix(name, ".Fatal") || strings.HasSuffix(name, ".Fatalf") {
					return true
				}
			}
		}
	}
	return false
}

func TestWaits(t *testing.T) {
	for body, want := range map[string]int{
		"<-time.After(d)":                                                  1,
		"t := time.NewTicker(d); _ = t":                                    1,
		"for range time.Tick(d) {}":                                        1,
		"require.Eventually(t, f, d, d)":                                   1,
		"assert.EventuallyWithT(t, f, d, d)":                               1,
		"g.Eventually(f)":                                                  1,
		"_ = wait.PollUntilContextTimeout(ctx, d, d, true, f)":             1,
		"for { select { case <-time.After(d): } }":                         1,
		"for { func() { <-time.After(d) }() }":                             1,
		"for { select { case <-e: case <-time.After(d): return } }":        0,
		"for { select { case <-e: case <-time.After(d): t.Fatal(1) } }":    0,
		"select { case <-e: case <-time.After(d): t.Error(1) }":            0,
		"late := time.After(d); for { select { case <-e: case <-late: } }": 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() {\n"+body+"\n}\n", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := waits(file.Decls[0].(*ast.FuncDecl).Body); len(got) != want {
			t.Errorf("%s: %d are found, want %d", body, len(got), want)
		}
	}
}
