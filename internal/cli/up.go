// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// runUp starts a cluster and stays until a signal or a failure ends it.
func runUp(ctx context.Context, p Program, args []string) int {
	o, code, ok := parseUp(p, args)
	if !ok {
		return code
	}
	return stay(ctx, p, o.Logger, o.Started, func(ctx context.Context) (Cluster, error) { return p.Start(ctx, o) })
}

// stay starts a cluster, or a node, and stays until a signal or a failure ends it.
func stay(ctx context.Context, p Program, log *slog.Logger, started time.Time, start func(context.Context) (Cluster, error)) int {
	klog.SetSlogLogger(log)

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	go func() {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		close(stop)
		select {
		case <-signals:
			os.Exit(130) // the second signal ends it at once
		case <-ctx.Done():
		}
	}()

	starting, abandon := context.WithCancel(ctx)
	defer abandon()
	go func() {
		select {
		case <-stop:
			abandon()
		case <-starting.Done():
		}
	}()
	shareProcessors()
	askForShortSlices()
	stillStarting := time.AfterFunc(time.Second, func() { fmt.Fprintln(p.Err, "mortise: starting ...") })
	cluster, err := start(starting)
	stillStarting.Stop()
	if err != nil {
		select {
		case <-stop:
			return 0
		default:
			return fail(p, err)
		}
	}
	url, kubeconfig, node := cluster.Ready()
	fmt.Fprintf(p.Err, "mortise: ready in %d ms, %s, kubeconfig %s, node: %s\n", time.Since(started).Milliseconds(), url, kubeconfig, node)

	go func() {
		select {
		case <-cluster.Settled():
			if err := trimMemory(); err != nil {
				log.Warn("memory is not given back", "error", err)
			}
			if os.Getenv("GOGC") == "" { // who sets it knows better
				go paceCollections(ctx)
			}
			giveBack(ctx, log)
		case <-ctx.Done():
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- cluster.Wait() }()
	select {
	case <-stop:
		if err := cluster.Stop(); err != nil {
			return fail(p, err)
		}
		<-ended
		return 0
	case err := <-ended:
		return fail(p, errors.Join(err, cluster.Stop()))
	}
}

// parseUp reads the flags of `up`. When ok is false the command ends with code.
func parseUp(p Program, args []string) (o UpOptions, code int, ok bool) {
	o.Started = processStart()
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	var controllers, level string
	var gates map[string]string
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "where all state is kept")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:6443", "HOST:PORT that the API answers on; port 0 picks a free one")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "where the administrator's kubeconfig is written (default DATA-DIR/kubeconfig)")
	f.StringVar(&o.Store, "store", "local", "local: on disk, durable; memory: gone when the process ends")
	f.StringVar(&o.Node, "node", "auto", "auto, cri: real containers, simulated: pods without containers, none")
	f.IntVar(&o.Nodes, "nodes", 1, "how many simulated nodes")
	f.StringVar(&o.CRISocket, "cri-socket", "", "the runtime's socket (default: containerd's)")
	f.StringVar(&o.PodCIDR, "pod-cidr", "10.244.0.0/16", "addresses of pods; each node gets a part; two ranges, one of each IP family, for both")
	f.StringVar(&o.ServiceCIDR, "service-cidr", "10.96.0.0/16", "addresses of services; a second range of the other IP family behind a comma")
	f.StringVar(&controllers, "controllers", "*", "'*', none, or a list: a,b or *,-b")
	f.StringToStringVar(&gates, "feature-gates", nil, "upstream's feature gates that differ from their defaults: CBORServingAndStorage=true")
	var config []string
	f.StringSliceVar(&config, "runtime-config", nil, "APIs to switch on or off: api/beta=true, GROUP/VERSION=false, GROUP/VERSION/RESOURCE=true ...")
	o.APIServer.Explain.Enabled = true
	o.APIServer.Authentication.BootstrapTokens = true // nobody has one before `mortise token create`
	o.APIServer.AddFlags(f)
	f.StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	f.Usage = func() {
		fmt.Fprintf(p.Err, "Usage: mortise up [flags]\n\nStarts a cluster in the foreground. SIGTERM or Ctrl-C stops it; pods are left running.\n\n%s", f.FlagUsages())
	}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return o, 0, false
		}
		fmt.Fprintf(p.Err, "mortise up: %v\n", err)
		return o, 2, false
	}
	wrong := func(format string, a ...any) (UpOptions, int, bool) {
		fmt.Fprintf(p.Err, "mortise up: "+format+"\n", a...)
		return o, 2, false
	}
	if f.NArg() > 0 {
		return wrong("unexpected argument %q", f.Arg(0))
	}
	if !slices.Contains([]string{"local", "memory"}, o.Store) {
		return wrong("--store %q: want local or memory", o.Store)
	}
	if !slices.Contains([]string{"auto", "cri", "simulated", "none"}, o.Node) {
		return wrong("--node %q: want auto, cri, simulated or none", o.Node)
	}
	if f.Changed("nodes") && (o.Node == "cri" || o.Node == "none" || o.Nodes < 1) {
		return wrong("--nodes takes a number above 0, with simulated nodes only")
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return wrong("--log-level %q: want debug, info, warn or error", level)
	}
	o.Logger = slog.New(slog.NewTextHandler(p.Err, &slog.HandlerOptions{Level: l}))
	for c := range strings.SplitSeq(controllers, ",") {
		if c = strings.TrimSpace(c); c != "" {
			o.Controllers = append(o.Controllers, c)
		}
	}
	if len(o.Controllers) == 0 {
		return wrong("--controllers is empty: want '*', none, or names")
	}
	for _, pair := range config {
		key, value, _ := strings.Cut(pair, "=")
		if o.RuntimeConfig == nil {
			o.RuntimeConfig = map[string]string{}
		}
		o.RuntimeConfig[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	for name, value := range gates {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return wrong("--feature-gates %s=%s: want true or false", name, value)
		}
		if o.FeatureGates == nil {
			o.FeatureGates = map[string]bool{}
		}
		o.FeatureGates[name] = on
	}
	var err error
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return wrong("--data-dir: %v", err)
	}
	if o.Kubeconfig == "" {
		o.Kubeconfig = filepath.Join(o.DataDir, "kubeconfig")
	}
	return o, 0, true
}

// defaultDataDir is /var/lib/mortise for root, the user's own data directory otherwise (XDG Base Directory).
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/mortise"
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "mortise")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ".mortise"
	}
	return filepath.Join(home, ".local", "share", "mortise")
}
