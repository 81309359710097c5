// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
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

	"github.com/mortise-dev/mortise/internal/config"
	"github.com/mortise-dev/mortise/internal/serverjoin"
)

// runUp starts a cluster and runs until a signal or a failure ends it.
func runUp(ctx context.Context, p Program, args []string) int {
	o, code, ok := parseUp(p, args)
	if !ok {
		return code
	}
	starts := newProgress(p.Err)
	o.Progress = starts.begin
	return stay(ctx, p, run{log: o.Logger, started: o.Started, progress: starts, server: true}, func(ctx context.Context) (Cluster, error) {
		if o.Join != "" {
			starts.begin("join the servers of " + o.Join)
		}
		if err := joinServers(ctx, p, &o); err != nil {
			return nil, err
		}
		cluster, err := p.Start(ctx, o)
		return cluster, o.applied.Explain(err)
	})
}

// joinServers fetches what the servers of a cluster have in common, if a server is to join them and has not done so.
func joinServers(ctx context.Context, p Program, o *UpOptions) error {
	pki := filepath.Join(o.DataDir, "pki")
	if o.Join != "" {
		discover := func(ctx context.Context, token serverjoin.Token) ([]byte, error) {
			return p.Authorities(ctx, o.Join, token.Token.String(), token.Hash)
		}
		if err := serverjoin.Join(ctx, serverjoin.Options{Server: o.Join, Token: o.Token, PKI: pki, Discover: discover}); err != nil {
			return err
		}
	}
	if o.APIServer.Encryption.ConfigFile == "" {
		o.APIServer.Encryption.ConfigFile = serverjoin.Encryption(pki)
	}
	return nil
}

// run is what stay needs to know of a cluster or a node.
type run struct {
	log      *slog.Logger
	started  time.Time // of the process
	progress *progress
	server   bool // it has an API server, whose health is the service's
}

// stay starts a cluster, or a node, and runs until a signal or a failure ends it. It reports its state to systemd, if systemd started it.
func stay(ctx context.Context, p Program, r run, start func(context.Context) (Cluster, error)) int {
	log := r.log
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
			os.Exit(130) // the second signal ends the process immediately
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
	cluster, err := start(starting)
	r.progress.end()
	if err != nil {
		select {
		case <-stop:
			return 0
		default:
			return failStart(p, err)
		}
	}
	url, kubeconfig, node := cluster.Ready()
	fmt.Fprintf(p.Err, "mortise: ready in %d ms, %s, kubeconfig %s, node: %s\n", time.Since(r.started).Milliseconds(), url, kubeconfig, node)
	notify(log, "READY=1\nSTATUS=Ready at "+url+", node: "+node)
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	go watchdog(watching, log, r.health(kubeconfig))

	go func() {
		select {
		case <-cluster.Settled():
			if err := trimMemory(); err != nil {
				log.Warn("Could not return free memory to the operating system", "error", err)
			}
			if os.Getenv("GOGC") == "" { // an explicit setting takes precedence
				go paceCollections(ctx, log)
			}
			giveBack(ctx, log)
		case <-ctx.Done():
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- cluster.Wait() }()
	select {
	case <-stop:
		unwatch()
		notify(log, "STOPPING=1\nSTATUS=Stopping; pods keep running")
		r.progress.stop()
		err := cluster.Stop()
		r.progress.end()
		if err != nil {
			return fail(p, err)
		}
		<-ended
		return 0
	case err := <-ended:
		notify(log, "STOPPING=1")
		return failStart(p, errors.Join(err, cluster.Stop()))
	}
}

// upFlags are the flags of `up` that do not set an option of a cluster directly.
type upFlags struct {
	set                  *pflag.FlagSet
	help                 helpFlag
	config               string // file
	controllers, level   string
	gates, runtimeConfig []string
	engines              []string // names
	aliases              aliasFlags
}

// newUpFlags binds the flags of `up` to o.
func newUpFlags(name string, p Program, o *UpOptions) *upFlags {
	u := &upFlags{set: pflag.NewFlagSet(name, pflag.ContinueOnError)}
	f := u.set
	f.SetOutput(p.Err)
	f.SortFlags = false
	f.StringVar(&u.config, "config", "", "File of a ServerConfiguration of config.mortise.dev/v1alpha1. Flags that are given win over it.")
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "Directory of all state.")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:6443", "HOST:PORT of the API. Port 0 selects a free port.")
	f.StringVar(&o.Join, "join", "",
		"URL of a server of the cluster that this one joins, with --store etcd. A server that has joined needs neither --join nor --token.")
	f.StringVar(&o.Token, "token", "", "Token for --join, by mortise token create --role server.")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "File to write the administrator's kubeconfig to. Default: DATA-DIR/kubeconfig.")
	var does []string
	for _, e := range p.Engines {
		u.engines, does = append(u.engines, e.Name), append(does, e.Name+" "+e.Usage)
	}
	f.StringVar(&o.Store, "store", u.engines[0], "Storage engine: "+strings.Join(does, ", ")+".")
	config.Allow(f.Lookup("store"), u.engines...)
	f.StringVar(&o.Node, "node", "auto",
		"Node of this machine: cri (real containers), simulated (pods without containers), none, or auto (cri if possible, else simulated).")
	f.IntVar(&o.Nodes, "nodes", 1, "Number of simulated nodes.")
	f.StringVar(&o.CRISocket, "cri-socket", "", "Socket of the container runtime. Default: containerd's.")
	f.StringVar(&o.PodCIDR, "pod-cidr", "10.244.0.0/16",
		"Address range of pods. For dual stack, an IPv4 and an IPv6 range, separated by a comma.")
	f.StringVar(&o.ServiceCIDR, "service-cidr", "10.96.0.0/16",
		"Address range of services. For dual stack, an IPv4 and an IPv6 range, separated by a comma, the primary family first.")
	f.StringVar(&u.controllers, "controllers", "*",
		"List of controllers to run: '*' runs all, NAME runs this one, -NAME disables it. none runs the API server alone.")
	f.StringSliceVar(&u.gates, "feature-gates", nil,
		"Kubernetes feature gates, as GATE=true|false. There are two: CBORServingAndStorage and StorageVersionAPI (both false by default).")
	f.StringSliceVar(&u.runtimeConfig, "runtime-config", nil,
		"APIs to enable or disable, as KEY=true|false. Keys: api/all, api/ga, api/beta, api/alpha, GROUP/VERSION, GROUP/VERSION/RESOURCE.")
	o.APIServer.Explain.Enabled = true
	o.APIServer.Authentication.BootstrapTokens = true // no tokens exist before `mortise token create`
	p.AddFlags(f, &o.APIServer)
	f.StringVar(&u.level, "log-level", "warn", "Lowest level to log: debug, info, warn or error.")
	u.aliases.add(f)
	u.help.add(f)
	f.Usage = func() {}
	return u
}

// read parses the command line and the configuration file. If ok is false the command ends with code.
func (u *upFlags) read(p Program, args []string) (applied *config.Applied, code int, ok bool) {
	f := u.set
	if code, done := parseFlags(p, f, args, &u.help, func() int { return u.printHelp(p) }); done {
		return nil, code, false
	}
	u.aliases.listen = f.Changed("listen")
	if u.config == "" {
		return nil, 0, true
	}
	file, err := config.Read(u.config, f)
	if err == nil {
		applied, err = file.Apply(f)
	}
	if err != nil {
		return nil, fail(p, err), false
	}
	return applied, 0, true
}

// parseUp parses the flags of `up`. If ok is false the command ends with code.
func parseUp(p Program, args []string) (o UpOptions, code int, ok bool) {
	o.Started = processStart()
	u := newUpFlags("up", p, &o)
	applied, code, ok := u.read(p, args)
	if !ok {
		return o, code, false
	}
	if err := u.finish(p, &o); err != nil {
		return o, refuse(p, "up", applied.Explain(err)), false
	}
	o.applied = applied
	return o, 0, true
}

// finish validates the flags and derives other settings from them.
func (u *upFlags) finish(p Program, o *UpOptions) error {
	if !slices.Contains(u.engines, o.Store) {
		return fmt.Errorf("--store %q: want %s", o.Store, strings.Join(u.engines, " or "))
	}
	if !slices.Contains([]string{"auto", "cri", "simulated", "none"}, o.Node) {
		return fmt.Errorf("--node %q: want auto, cri, simulated or none", o.Node)
	}
	if u.set.Changed("nodes") && (o.Node == "cri" || o.Node == "none" || o.Nodes < 1) {
		return errors.New("--nodes takes a number above 0, with simulated nodes only")
	}
	if (o.Join == "") != (o.Token == "") {
		return errors.New("--join and --token: want both, or neither")
	}
	if o.Join != "" && o.Store != "etcd" {
		return fmt.Errorf("--join: want --store etcd, which servers can share, not %s", o.Store)
	}
	var err error
	if o.Listen, err = u.aliases.apply(u.set, o.Listen); err != nil {
		return err
	}
	if o.Logger, err = newLogger(p, u.level); err != nil {
		return err
	}
	if !u.set.Changed("console") {
		o.APIServer.Serving.Console.Enabled = onLoopback(o.Listen)
	}
	for c := range strings.SplitSeq(u.controllers, ",") {
		if c = strings.TrimSpace(c); c != "" {
			o.Controllers = append(o.Controllers, c)
		}
	}
	if len(o.Controllers) == 0 {
		return errors.New("--controllers is empty: want '*', none, or names")
	}
	for _, pair := range u.runtimeConfig {
		key, value, _ := strings.Cut(pair, "=")
		if o.RuntimeConfig == nil {
			o.RuntimeConfig = map[string]string{}
		}
		o.RuntimeConfig[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	for _, pair := range u.gates {
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("--feature-gates %s=%s: want true or false", name, value)
		}
		if o.FeatureGates == nil {
			o.FeatureGates = map[string]bool{}
		}
		o.FeatureGates[strings.TrimSpace(name)] = on
	}
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if o.Kubeconfig == "" {
		o.Kubeconfig = filepath.Join(o.DataDir, "kubeconfig")
	}
	return nil
}

// onLoopback reports whether only this machine reaches HOST:PORT.
func onLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// newLogger makes the logger of a server or a node.
func newLogger(p Program, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(p.Err, &slog.HandlerOptions{Level: l})), nil
}

// defaultDataDir returns /var/lib/mortise for root, and the user's data directory otherwise (XDG Base Directory).
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
