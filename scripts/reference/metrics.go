// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// metric is a row of the reference.
type metric struct{ name, kind, labels, help, at string }

// kinds are the constructors of metrics, and what Prometheus calls their type.
var kinds = map[string]string{
	"NewCounter": "counter", "NewCounterVec": "counter", "NewCounterFunc": "counter", "NewGauge": "gauge", "NewGaugeVec": "gauge",
	"NewGaugeFunc": "gauge", "NewHistogram": "histogram", "NewHistogramVec": "histogram", "NewSummary": "summary", "NewSummaryVec": "summary",
	"NewDesc": "",
}

const prometheus = "github.com/prometheus/client_golang/prometheus"

// endpoints are the places that serve metrics: the packages that define them, longest first.
var endpoints = []struct{ prefix, title, about string }{
	{"agent/server/cadvisor", "Node: /metrics/cadvisor", "Metrics of containers and pods, with the names of kubelet's cAdvisor."},
	{"agent/resourcemetrics", "Node: /metrics/resource", "The metrics that a metrics server reads."},
	{"agent/probe", "Node: /metrics/probes", "Metrics of containers' probes."},
	{"agent/proxy", "Node: /metrics, the service proxy", "These metrics have kube-proxy's names."},
	{"node/containers", "Node: /metrics, the service proxy", ""},
	{"agent", "Node: /metrics", "These metrics have kubelet's names. The node serves them on its port (10250), and the server at `/api/v1/nodes/NAME/proxy/metrics`."},
	{"scheduler", "Server: /metrics, the scheduler", "These metrics have kube-scheduler's names."},
	{"controllers", "Server: /metrics, controllers", "These metrics have kube-controller-manager's names."},
	{"", "Server: /metrics", "These metrics have kube-apiserver's names. A name that begins with `mortise_` is Mortise's own."},
}

// metricsPage is the page of all metrics.
func metricsPage(s *source) (string, error) {
	all, err := s.metrics()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Metrics\n\n%d metrics, generated from the source code. “%s” stands for a part that is known only when the program runs.\n\n"+
		"A server also has the metrics of Go's runtime (`go_*`, `process_*`) and of the Kubernetes libraries that it links, under their names, such\n"+
		"as `apiserver_cel_*` and `rest_client_*`. They are not listed here.\n", len(all), unknown)
	titles := []string{}
	for _, e := range endpoints {
		if !slices.Contains(titles, e.title) {
			titles = append(titles, e.title)
		}
	}
	slices.Reverse(titles)
	for _, title := range titles {
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, e := range endpoints {
			if e.title == title && e.about != "" {
				fmt.Fprintf(&b, "%s\n\n", e.about)
			}
		}
		b.WriteString("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n")
		for _, m := range all {
			if m.at == title {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.ReplaceAll(cell(m.labels), ",", ", "), cell(m.help))
			}
		}
	}
	return b.String(), nil
}

// cell makes a text fit for a table of Markdown.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(strings.TrimSpace(text))
}

// metrics finds all metrics.
func (s *source) metrics() ([]metric, error) {
	seen := map[string]metric{}
	computed := s.computed()
	var failures []error
	for _, c := range s.calls {
		fun := s.callee(c.expr)
		if fun == nil || fun.Pkg() == nil || fun.Pkg().Path() != prometheus || len(c.expr.Args) == 0 {
			continue
		}
		kind, ok := kinds[fun.Name()]
		if !ok {
			continue
		}
		for _, row := range s.metricAt(c.expr, fun.Name()) {
			m := metric{name: strings.Join(slices.DeleteFunc(row[:3], func(p string) bool { return p == "" || p == unknown }), "_"),
				kind: kind, help: row[3], labels: row[4], at: served(c.at, s.set.Position(c.expr.Pos()).Filename)}
			if row[2] == unknown || m.name == "" {
				failures = append(failures, fmt.Errorf("%s: a metric without a name", s.set.Position(c.expr.Pos())))
				continue
			}
			if m.kind == "" {
				m.kind = cmp.Or(computed[m.name], byName(m.name))
			}
			seen[m.at+" "+m.name] = m
		}
	}
	out := make([]metric, 0, len(seen))
	for _, m := range seen {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b metric) int { return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.at, b.at)) })
	return out, errors.Join(failures...)
}

// metricAt returns namespace, subsystem, name, help and labels of the metrics that a constructor's call makes.
func (s *source) metricAt(c *ast.CallExpr, constructor string) [][]string {
	labels := func(i int) ast.Expr {
		if i < len(c.Args) {
			return c.Args[i]
		}
		return &ast.CompositeLit{}
	}
	if constructor == "NewDesc" {
		return s.ways([]ast.Expr{&ast.CompositeLit{}, &ast.CompositeLit{}, c.Args[0], c.Args[1], labels(2)})
	}
	var more ast.Expr = &ast.CompositeLit{}
	if strings.HasSuffix(constructor, "Vec") {
		more = labels(1)
	}
	options, given := c.Args[0], map[string]ast.Expr{}
	if made, ok := options.(*ast.CallExpr); ok { // a function makes the options
		k := s.calleeKey(made)
		bound := s.arguments(k, &call{expr: made})
		for _, r := range s.results[k] {
			options = r.Results[0]
		}
		for v, e := range bound {
			given[v.Name()] = e
		}
	}
	l, ok := options.(*ast.CompositeLit)
	if !ok {
		return [][]string{{"", "", unknown, "", ""}}
	}
	part := func(name string) ast.Expr {
		e := fieldOf(l, name, s.constantsOf[l].Type)
		if e == nil {
			return &ast.CompositeLit{}
		}
		if id, ok := e.(*ast.Ident); ok && given[id.Name] != nil {
			return given[id.Name]
		}
		return e
	}
	return s.ways([]ast.Expr{part("Namespace"), part("Subsystem"), part("Name"), part("Help"), more})
}

// served is the title of the endpoint that serves a package's metrics.
func served(at, file string) string {
	if strings.HasSuffix(file, "/cadvisor.go") {
		at += "/cadvisor"
	}
	for _, e := range endpoints {
		if at == e.prefix || e.prefix == "" || strings.HasPrefix(at, e.prefix+"/") {
			return e.title
		}
	}
	return ""
}

// byName is the type of a metric whose collector takes description and type from a table: Prometheus' convention names counters _total.
func byName(name string) string {
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}
