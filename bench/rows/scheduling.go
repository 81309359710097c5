// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// waiting is pods that wait for a scheduler, and what there is beside them. Everything is created while there is no scheduler, so that what
// is timed is the scheduler and its writes alone.
type waiting struct {
	what   string
	nodes  int // 0: as many as the flag says
	pods   int
	pod    func(i int) string
	placed int // pods that run already, round the nodes
	run    func(i int) string
	churn  bool    // objects that cannot be helped come and go meanwhile
	floor  float64 // pods a second; 0: none
}

// The places and what pods want of each other are those of scheduler_perf of Kubernetes.
const (
	requests   = `"containers":[{"name":"c","image":"registry.k8s.io/pause:3.10","resources":{"requests":{"cpu":"100m","memory":"500Mi"}}}]`
	large      = `"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":%q}}}]`
	zoneLabel  = "topology.kubernetes.io/zone"
	hostLabel  = "kubernetes.io/hostname"
	blue       = `"labelSelector":{"matchLabels":{"color":"blue"}}`
	placeZones = 3
)

// waitingPod is a pod of a colour with a spec.
func waitingPod(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"color":"blue"}},"spec":{%s}}`, name, spec)
}

// likePods is n pods that differ in their names alone.
func likePods(spec string) func(i int) string {
	return func(i int) string { return waitingPod(fmt.Sprintf("p-%06d", i), spec) }
}

func waitingPods() []waiting {
	return []waiting{
		{what: "basic", pods: 50_000, pod: likePods(requests), floor: 8000},
		{what: "topology spreading over zones", pods: 10_000, floor: 3000,
			pod: likePods(`"topologySpreadConstraints":[{"maxSkew":5,"topologyKey":"` + zoneLabel + `","whenUnsatisfiable":"DoNotSchedule",` + blue +
				`}],` + requests)},
		{what: "topology spreading over nodes", pods: 10_000, floor: 3000,
			pod: likePods(`"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"` + hostLabel + `","whenUnsatisfiable":"ScheduleAnyway",` +
				blue + `}],` + requests)},
		{what: "node affinity", pods: 10_000,
			pod: likePods(`"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"` + zoneLabel + `","operator":"In","values":["zone-1","zone-2"]}]}]}}},` + requests)},
		{what: "pod affinity in a zone", pods: 10_000,
			pod: likePods(`"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"` + zoneLabel + `",` + blue +
				`}]}},` + requests)},
		{what: "preferred pod affinity to nodes", pods: 10_000,
			pod: likePods(`"affinity":{"podAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":{"topologyKey":"` + hostLabel + `",` + blue + `}}]}},` + requests)},
		{what: "required anti-affinity of nodes", pods: 4000, floor: 1000,
			pod: likePods(`"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"` + hostLabel + `",` +
				blue + `}]}},` + requests)},
		{what: "preemption", pods: 5000, placed: 20_000, // eight CPUs are free on a node
			run: func(i int) string { return fmt.Sprintf(large, "6") },
			pod: likePods(`"priorityClassName":"high",` + fmt.Sprintf(large, "14"))},
		{what: "with nodes, Services and pods that fit nowhere coming and going", pods: 10_000, pod: likePods(requests), churn: true},
	}
}

// scheduling is the scheduler with its API writes alone, for each of them.
func scheduling(ctx context.Context, b *bench, add adder) error {
	for _, c := range waitingPods() {
		if err := c.scheduled(ctx, b, add); err != nil {
			return fmt.Errorf("schedule %s: %w", c.what, err)
		}
	}
	return nil
}

// enormous is what a cluster of ten times the nodes does. It takes minutes and gigabytes.
func enormous(ctx context.Context, b *bench, add adder) error {
	c := waiting{what: "basic", nodes: 50_000, pods: 500_000, pod: likePods(requests), floor: 2000}
	return c.scheduled(ctx, b, add)
}

func (c *waiting) scheduled(ctx context.Context, b *bench, add adder) (err error) {
	c.nodes = cmp.Or(c.nodes, b.Nodes)
	s, err := load.Start(ctx, b.binary, append(load.Bare, "--disable-admission-plugins", "TaintNodesByCondition")...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	path, rv, err := c.create(ctx, s)
	if err != nil {
		return err
	}
	if err := s.Again(ctx, b.binary, "--node", "none", "--controllers", "serviceaccount", "--disable-admission-plugins",
		"TaintNodesByCondition"); err != nil {
		return err
	}
	base := s.Config.Host + path // the port is another one
	namespace := strings.TrimSuffix(base, "/pods")
	client, err := s.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	g, meanwhile := errgroup.WithContext(ctx)
	over, ended := context.WithCancel(meanwhile)
	defer ended()
	if c.churn {
		g.Go(func() error { return churn(over, s, namespace) })
	}
	var began, last time.Time
	var before, after time.Duration
	if c.placed > 0 { // the first binding comes when most have made their room already
		began = time.Now()
		if before, err = s.Cpu(); err != nil {
			return err
		}
	}
	g.Go(func() error {
		defer ended()
		if err := load.UntilAdded(meanwhile, &s.Target, base+"?watch=1&labelSelector=color&fieldSelector=spec.nodeName!%3D&resourceVersion="+rv,
			c.pods, func() (err error) {
				if began.IsZero() {
					began = time.Now()
					before, err = s.Cpu()
				}
				return err
			}); err != nil {
			return err
		}
		last = time.Now()
		var err error
		after, err = s.Cpu()
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	resident, _, err := s.Memory()
	if err != nil {
		return err
	}
	mixed := c.placed > 0 || c.churn
	told, err := untilWritten(ctx, &s.Target, client, namespace+"/events", c.pods, mixed)
	if err != nil {
		return err
	}
	slow, err := decision(ctx, client, s.Config.Host)
	if err != nil {
		return err
	}
	events := "events"
	if told.events < c.pods {
		events = fmt.Sprintf("%s of %s events", report.Number(float64(told.events)), report.Number(float64(c.pods)))
	}
	if mixed { // they are looked for once a second
		events += ", at most"
	}
	floor := report.Bound{}
	if c.floor > 0 {
		floor = report.Bound{Least: true, Limit: c.floor, Budgeted: true}
	}
	add(fmt.Sprintf("scheduled: %s, %s pods that wait, %s nodes", c.what, report.Number(float64(c.pods)), report.Number(float64(c.nodes))),
		report.Value{Unit: "/s", Number: float64(c.pods-1) / last.Sub(began).Seconds(), Bound: floor},
		report.Value{Name: "CPU until then", Unit: "ms", Number: load.Ms(after-before) / float64(c.pods)},
		report.Value{Name: events, Unit: "s later", Number: told.at.Sub(last).Seconds()},
		report.Value{Name: "CPU with them", Unit: "ms", Number: load.Ms(told.cpu-before) / float64(c.pods)},
		report.Value{Name: "p99 of a decision", Unit: "ms", Number: slow, Bound: report.AtMost(5)},
		report.Value{Name: "resident", Unit: "MB", Number: float64(resident) / (1 << 20)})
	return nil
}

// decision is the milliseconds within which 99 of 100 decisions were made, as the scheduler's histogram has it: between two of its
// bounds they are taken to be spread evenly.
func decision(ctx context.Context, client *http.Client, host string) (float64, error) {
	_, metrics, err := load.Say(ctx, client, "GET", host+"/metrics", "", "")
	if err != nil {
		return 0, err
	}
	const name = "scheduler_scheduling_algorithm_duration_seconds"
	var bounds, counts []float64
	for line := range strings.Lines(string(metrics)) {
		var most, n float64
		if _, err := fmt.Sscanf(line, name+`_bucket{le="%g"} %g`, &most, &n); err == nil {
			bounds, counts = append(bounds, most), append(counts, n)
		}
	}
	if len(counts) == 0 || counts[len(counts)-1] == 0 {
		return 0, errors.New("read decisions: there are none")
	}
	rank, from, before := 0.99*counts[len(counts)-1], 0.0, 0.0 // the last bound is infinite
	for i, n := range counts {
		if n >= rank && !math.IsInf(bounds[i], 1) {
			return 1000 * (from + (bounds[i]-from)*(rank-before)/(n-before)), nil
		}
		from, before = bounds[i], n
	}
	return 0, errors.New("read decisions: 99 of 100 are beyond all bounds")
}

// create makes the pods and nodes, and returns the path of the pods and the revision after them.
func (c *waiting) create(ctx context.Context, s *load.Server) (path, rv string, err error) {
	ns, err := s.Namespace(ctx)
	if err != nil {
		return "", "", err
	}
	client, err := s.Client(1)
	if err != nil {
		return "", "", err
	}
	defer client.CloseIdleConnections()
	post := func(url string, body func(i int) string) func(ctx context.Context, client *http.Client, i int) error {
		return func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", url, jsonContent, body(i))
		}
	}
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", s.Config.Host+"/apis/scheduling.k8s.io/v1/priorityclasses", jsonContent,
		`{"metadata":{"name":"high"},"value":1000}`); err != nil {
		return "", "", err
	}
	if err := load.Many(ctx, &s.Target, 16, c.nodes, post(s.Config.Host+"/api/v1/nodes",
		func(i int) string { return node(fmt.Sprintf("node-%06d", i-1), i%placeZones) })); err != nil {
		return "", "", err
	}
	path = "/api/v1/namespaces/" + ns + "/pods"
	base := s.Config.Host + path
	if err := load.Many(ctx, &s.Target, 16, c.placed, post(base, func(i int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"run-%06d"},"spec":{"nodeName":"node-%06d",%s}}`, i, i%c.nodes,
			c.run(i))
	})); err != nil {
		return "", "", err
	}
	if err := load.Many(ctx, &s.Target, 16, c.pods, post(base, c.pod)); err != nil {
		return "", "", err
	}
	rv, err = newest(ctx, client, base)
	return path, rv, err
}

// churn makes and deletes a node without room, a Service and a pod that fits nowhere, until ctx is done.
func churn(ctx context.Context, s *load.Server, namespace string) error {
	client, err := s.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	all := []struct{ url, name, body string }{
		{s.Config.Host + "/api/v1/nodes", "node-churn", strings.Replace(node("node-churn", 0), `"pods":"110"`, `"pods":"0"`, 2)},
		{namespace + "/services", "churn", `{"metadata":{"name":"churn"},"spec":{"selector":{"app":"foo"},"ports":[{"port":8080}]}}`},
		{namespace + "/pods", "pod-churn", `{"metadata":{"name":"pod-churn"},"spec":{"priorityClassName":"high",` +
			fmt.Sprintf(large, "99") + `}}`},
	}
	for there := false; ; there = !there {
		for _, o := range all {
			if there {
				err = load.Expect(ctx, client, http.StatusOK, "DELETE", o.url+"/"+o.name, jsonContent, "")
			} else {
				err = load.Expect(ctx, client, http.StatusCreated, "POST", o.url, jsonContent, o.body)
			}
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
