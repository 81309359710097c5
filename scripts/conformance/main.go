// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command conformance runs Kubernetes' own conformance tests against bin/mortise on this machine, and prints what passed, failed and was
// skipped, with the first line of each failure. It exits with 1 if a test fails that is not in known.tsv, the table of known failures and
// their causes, or if the time ends before every selected test has run.
//
//	make conformance PEERS=DIR                              # all runs
//	make conformance PEERS=DIR RUNS=simulated               # the tests that need no containers, and no root
//	make conformance PEERS=DIR RUNS=containers FOCUS='\[sig-node\]'
//	make conformance PEERS=DIR RUNS=containers TIMEOUT=15m  # as far as it gets; keep bin/conformance/containers/report.json
//	make conformance PEERS=DIR RUNS=containers TIMEOUT=15m AFTER=report.json,second.json # what has passed in neither
//	make conformance PEERS=DIR RUNS=autoscaling             # HorizontalPodAutoscaler's tests, which are not of conformance
//	make conformance PEERS=DIR RUNS=dra                     # those of dynamic resource allocation
//	make conformance PEERS=DIR RUNS=node FOCUS='Pods API'   # Kubernetes' own tests of kubelet: plug-ins and resource managers
//	make conformance PEERS=DIR RUNS=loadbalancers           # those of Services of type LoadBalancer, which are not of conformance either
//	make conformance PEERS=DIR RUNS=network                 # all tests of [sig-network] that Kubernetes runs by default, on two nodes
//	make conformance PEERS=DIR RUNS=csimock,csihostpath,csilocal # those of CSI drivers, with stock sidecars
//
// DIR is what scripts/conformance/build has made: Kubernetes' test programs in DIR/bin and, for real containers, a Debian tree in
// DIR/rootfs. Of these the command makes stand-ins for the images that the tests name, and serves them from a registry on a loopback
// address, which the node's containerd has as a mirror of registry.k8s.io. Reports and logs stay in bin/conformance.
//
// The files:
//
//	cluster.go   a cluster of bin/mortise for one run
//	images.go    the stand-ins of images
//	known.tsv    known failures: run, test, cause
//	main.go      the runs, and what is printed
//	node.go      the suite of nodes, with the program in kubelet's place
//	outside.go   a network for a second node, and for a suite that must not be on the node's machine
//	proxy.go     the proxy of the suite's DRA driver
//	registry.go  the registry that serves the stand-ins
//	report.go    what ginkgo's report says
//	second.go    a second node, with a network, a name and a containerd of its own
//	simulated.txt the tests that need no containers
//	storage.go   what the suites of CSI drivers need in a cluster
//	storage.yaml describes storage.mortise.dev to them
//	units.sh     stands in for systemd in the suite of nodes
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed known.tsv
var knownTable string

//go:embed simulated.txt
var simulatedTests string

// settings are the flags.
type settings struct {
	peers, binary, out string
	focus, skip        string
	after              string
	procs              int
	timeout            time.Duration
}

// run is one start of the suite on a cluster of its own.
type run struct {
	name       string
	containers bool
	labels     string   // ginkgo's filter
	tests      []string // "[sig-x] text" of each test; nil: all that the labels select
	procs      int
	areas      []area   // not nil: the run is of the suite of nodes, which are counted by these areas
	outside    bool     // the suite is in another network than the node
	flags      []string // of `mortise up`
	nodes      int      // the real nodes; 2: the second is on a host of its own
	storage    string   // not empty: the run is of the storage suites with these names
}

// runs are all runs, in order. Serial tests cannot share a cluster with others, and take the longest for their number. Disruptive tests end
// the processes of nodes over SSH. The tests of autoscaling, of DRA, of load balancers, of networks, of CSI drivers and of nodes are
// not, or not all, conformance tests, and run only when they are named.
func runs() []run {
	return []run{
		{name: "simulated", labels: "Conformance && !Disruptive", tests: strings.Split(strings.TrimSpace(simulatedTests), "\n"), procs: 4},
		{name: "containers", labels: "Conformance && !Serial && !Disruptive", containers: true, procs: 3},
		{name: "serial", labels: "Conformance && Serial && !Disruptive", containers: true, procs: 1},
		{name: "autoscaling", labels: "Feature: containsAny HPA", containers: true, procs: 1},
		{name: "dra", labels: "(DRA || Feature: containsAny DynamicResourceAllocation) && !(Feature: containsAny OffByDefault)",
			containers: true, procs: 3, flags: []string{"--runtime-config", "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"}},
		{name: "node", labels: "!(Feature: containsAny OffByDefault)", containers: true, procs: 1, areas: nodeAreas()},
		{name: "loadbalancers", labels: "Feature: containsAny LoadBalancer", containers: true, procs: 4, outside: true, nodes: 2},
		{name: "network", labels: "sig-network && !Disruptive && !Serial && Feature: isEmpty", containers: true, procs: 3, nodes: 2},
		{name: "csimock", labels: storageLabels, containers: true, procs: 3, storage: `\[sig-storage\] (CSI Mock|MutableCSINode)`},
		{name: "csihostpath", labels: storageLabels, containers: true, procs: 3, storage: `\[Driver: csi-hostpath\]`},
		{name: "csilocal", labels: storageLabels, containers: true, procs: 3, storage: `\[Driver: storage\.mortise\.dev\]`},
	}
}

// focus is a regular expression of the run's tests whose names match another.
func (r run) focus(match string) (string, error) {
	if r.areas != nil && match == "" {
		var all []string
		for _, a := range r.areas {
			all = append(all, regexp.QuoteMeta(a.match))
		}
		return strings.Join(all, "|"), nil
	}
	if r.storage != "" {
		if _, err := regexp.Compile(match); err != nil {
			return "", err
		}
		return r.storage + ".*(" + match + ")", nil
	}
	if r.tests == nil {
		return match, nil
	}
	re, err := regexp.Compile(match)
	if err != nil {
		return "", err
	}
	var out []string
	for _, t := range r.tests {
		if sig, text, ok := strings.Cut(t, " "); ok && re.MatchString(t) {
			out = append(out, regexp.QuoteMeta(sig)+".*"+regexp.QuoteMeta(text))
		}
	}
	if len(out) == 0 {
		return "", fmt.Errorf("no test of %s matches %q", r.name, match)
	}
	return strings.Join(out, "|"), nil
}

func main() {
	if filepath.Base(os.Args[0]) == proxyName {
		if err := proxyMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(hostVariable) != "" {
		if err := runHost(); err != nil {
			fmt.Fprintln(os.Stderr, "conformance: host:", err)
			os.Exit(1)
		}
		return
	}
	var s settings
	flag.StringVar(&s.peers, "peers", "", "the directory that scripts/conformance/build has made")
	flag.StringVar(&s.binary, "binary", "bin/mortise", "the program to test")
	flag.StringVar(&s.out, "out", "bin/conformance", "the directory of reports and logs")
	names := flag.String("runs", "simulated,containers,serial", "the runs, separated by commas")
	flag.StringVar(&s.focus, "focus", "", "of the runs' tests only those whose names match")
	flag.StringVar(&s.skip, "skip", "", "of the runs' tests none whose names match")
	flag.StringVar(&s.after, "after", "", "files report.json of earlier runs, separated by commas: of the runs' tests none that passed in one")
	flag.IntVar(&s.procs, "procs", 0, "processes of tests; 0: what each run has by default")
	flag.DurationVar(&s.timeout, "timeout", 3*time.Hour, "the time for each run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := s.all(ctx, strings.Split(*names, ","), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// all does the named runs and reports whether every failure is known.
func (s settings) all(ctx context.Context, names []string, w io.Writer) (ok bool, err error) {
	known, err := readKnown(knownTable)
	if err != nil {
		return false, err
	}
	var todo []run
	for _, n := range names {
		i := slices.IndexFunc(runs(), func(r run) bool { return r.name == n })
		if i < 0 {
			return false, fmt.Errorf("there is no run %q", n)
		}
		todo = append(todo, runs()[i])
	}
	if err := s.check(todo); err != nil {
		return false, err
	}
	if s.peers, err = filepath.Abs(s.peers); err != nil {
		return false, err
	}
	if s.out, err = filepath.Abs(s.out); err != nil {
		return false, err
	}
	if err := s.skipPassed(); err != nil {
		return false, err
	}
	ok = true
	for _, r := range todo {
		began := time.Now()
		results, unrun, err := s.one(ctx, r)
		if err != nil {
			return false, fmt.Errorf("%s: %w", r.name, err)
		}
		ok = results.print(w, r.name, known, unrun, time.Since(began)) && ok
		results.printAreas(w, r.areas)
		fmt.Fprintf(w, "  logs: %s\n", filepath.Join(s.out, r.name))
	}
	return ok, nil
}

// check says what is missing before anything is started.
func (s settings) check(todo []run) error {
	if s.peers == "" {
		return errors.New("no directory of test programs: scripts/conformance/build DIR makes it (half an hour), " +
			"then make conformance PEERS=DIR")
	}
	need := []string{"bin/e2e.test", "bin/ginkgo", "bin/kubectl"}
	if slices.ContainsFunc(todo, func(r run) bool { return r.areas != nil }) {
		need = append(need, "bin/e2e_node.test", "bin/sample-device-plugin")
	}
	if slices.ContainsFunc(todo, func(r run) bool { return r.containers }) {
		if os.Geteuid() != 0 {
			return errors.New("real containers need root; RUNS=simulated does not")
		}
		need = append(need, "bin/agnhost", "bin/nnp", "bin/sample-apiserver", "bin/resource-consumer", "bin/consume-cpu", "bin/etcd",
			"rootfs/bin/bash-static", "rootfs/usr/bin/stress")
	}
	if slices.ContainsFunc(todo, func(r run) bool { return r.storage != "" }) {
		for _, name := range storagePrograms() {
			need = append(need, "bin/"+name)
		}
		need = append(need, "bin/snapshot-controller", "snapshots")
	}
	for _, n := range need {
		if _, err := os.Stat(filepath.Join(s.peers, filepath.FromSlash(n))); err != nil {
			return fmt.Errorf("%w: scripts/conformance/build %s makes it", err, s.peers)
		}
	}
	if _, err := os.Stat(s.binary); err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	return nil
}

// skipPassed adds the tests that passed in earlier runs to what is skipped.
func (s *settings) skipPassed() error {
	skip := []string{s.skip}
	for _, path := range strings.Split(s.after, ",") {
		if path == "" {
			continue
		}
		earlier, _, err := readFile(path)
		if err != nil {
			return fmt.Errorf("read the earlier run: %w", err)
		}
		skip = append(skip, earlier.passed())
	}
	s.skip = strings.Join(slices.DeleteFunc(skip, func(s string) bool { return s == "" }), "|")
	return nil
}

func readFile(path string) (results, cut, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cut{}, err
	}
	defer f.Close()
	return readReport(f)
}

// one starts a cluster, runs the suite on it and reads the report.
func (s settings) one(ctx context.Context, r run) (results, cut, error) {
	out := filepath.Join(s.out, r.name)
	if err := os.RemoveAll(out); err != nil {
		return nil, cut{}, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, cut{}, err
	}
	if r.areas != nil {
		if err := s.node(ctx, r, out); err != nil {
			return nil, cut{}, err
		}
	} else if err := s.onCluster(ctx, r, out); err != nil {
		return nil, cut{}, err
	}
	got, unrun, err := readFile(filepath.Join(out, "report.json"))
	if err != nil {
		return nil, cut{}, fmt.Errorf("the suite wrote no report, see %s: %w", filepath.Join(out, "ginkgo.log"), err)
	}
	return got, unrun, nil
}

// onCluster runs the suite on a cluster of its own.
func (s settings) onCluster(ctx context.Context, r run, out string) (err error) {
	var l *lan
	if r.outside || r.nodes > 1 {
		if l, err = newLAN(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.close()) }()
	}
	c, err := s.start(ctx, r, l, out)
	if err != nil {
		return err
	}
	if r.storage == "" {
		return errors.Join(s.fromWhere(ctx, r, l, out, c.kubeconfig), c.stop())
	}
	end, err := s.startSnapshots(ctx, out, c.kubeconfig)
	if err != nil {
		return errors.Join(err, c.stop())
	}
	return errors.Join(s.fromWhere(ctx, r, l, out, c.kubeconfig), end(), c.stop())
}

// fromWhere runs the suite where it belongs.
func (s settings) fromWhere(ctx context.Context, r run, l *lan, out, kubeconfig string) error {
	if !r.outside {
		return s.suite(ctx, r, out, kubeconfig, func(program string, args []string) (string, []string) { return program, args })
	}
	if err := fromOutside(kubeconfig); err != nil {
		return err
	}
	return s.suite(ctx, r, out, kubeconfig, l.command)
}

// suite runs ginkgo, by the command line that line makes. That tests fail is no error: the report tells it.
func (s settings) suite(ctx context.Context, r run, out, kubeconfig string, line func(string, []string) (string, []string)) error {
	log, err := os.Create(filepath.Join(out, "ginkgo.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	procs := r.procs
	if s.procs > 0 {
		procs = s.procs
	}
	focus, err := r.focus(s.focus)
	if err != nil {
		return err
	}
	nodes, ready := strconv.Itoa(max(1, r.nodes)), "0"
	if !r.containers {
		nodes, ready = "0", "-1" // simulated nodes are nothing to the suite: it waits for no pods of the cluster's own
	}
	args := []string{"--procs", strconv.Itoa(procs), "--no-color", "--timeout", s.timeout.String(), "--label-filter", r.labels}
	if focus != "" {
		args = append(args, "--focus", focus)
	}
	if s.skip != "" {
		args = append(args, "--skip", s.skip)
	}
	args = append(args, "--json-report", "report.json", "--output-dir", out, filepath.Join(s.peers, "bin", "e2e.test"), "--",
		"--kubeconfig", kubeconfig, "--kubectl-path", filepath.Join(s.peers, "bin", "kubectl"), "--provider=skeleton",
		"--allowed-not-ready-nodes="+ready, "--num-nodes="+nodes, "--disable-log-dump", "--report-dir=")
	if r.storage != "" {
		more, err := storageFlags(out)
		if err != nil {
			return err
		}
		args = append(args, more...)
	}
	program, args := line(filepath.Join(s.peers, "bin", "ginkgo"), args)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, out
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(s.peers, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var failed *exec.ExitError
	if err := cmd.Run(); err != nil && (!errors.As(err, &failed) || ctx.Err() != nil) {
		return fmt.Errorf("run the suite: %w", err)
	}
	return nil
}
