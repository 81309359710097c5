// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/internal/bootstraptoken"
	"github.com/mortise-dev/mortise/internal/serverjoin"
)

const tokenUsage = `Usage:
  mortise token create [TOKEN] [--ttl 24h] [--usages signing,authentication] [--groups GROUP]... [--description TEXT] [--print-join-command]
  mortise token create --role server [TOKEN] [--ttl 1h] [--description TEXT] [--print-join-command]
  mortise token list [-o json]
  mortise token delete ID|TOKEN...

Manages the bootstrap tokens with which nodes join the cluster, see docs/nodes.md, and servers: see docs/high-availability.md. The cluster is that of --kubeconfig, of $KUBECONFIG,
or of ` + "`mortise up`" + ` on this machine.
`

// signedWithin is the time limit until a new token is usable.
const signedWithin = 15 * time.Second

// tokens is one run of `mortise token`.
type tokens struct {
	Program
	config     *rest.Config
	client     kubernetes.Interface
	entry      bootstraptoken.Entry
	ttl        time.Duration
	join       bool
	dns        bool
	output     string
	kubeconfig string
	server     string
	role       string // what joins: node or server
}

// runToken creates, lists and deletes bootstrap tokens.
func runToken(ctx context.Context, p Program, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.Err, tokenUsage)
		return 2
	}
	if slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		fmt.Fprint(p.Out, tokenUsage)
		return 0
	}
	t := &tokens{Program: p}
	f := pflag.NewFlagSet("token "+args[0], pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	f.StringVar(&t.kubeconfig, "kubeconfig", "", "File of an administrator's kubeconfig.")
	run, wants := t.create, "at most one token"
	fits := func(n int) bool { return n <= 1 }
	switch args[0] {
	case "create":
		f.DurationVar(&t.ttl, "ttl", 24*time.Hour, "Validity of the token. 0 means that it does not expire.")
		f.StringSliceVar(&t.entry.Usages, "usages", bootstraptoken.Usages(), "Usages of the token: signing, authentication.")
		f.StringSliceVar(&t.entry.Groups, "groups", []string{bootstraptoken.DefaultGroup},
			"Extra groups of the token's user, in addition to system:bootstrappers.")
		f.StringVar(&t.entry.Description, "description", "", "Description for people.")
		f.BoolVar(&t.join, "print-join-command", false, "Print the command that joins a node, or a server, instead of the token.")
		f.BoolVar(&t.dns, "cluster-dns", true, "Create the Service kube-system/kube-dns for the DNS of Mortise's nodes, if it does not exist.")
		f.StringVar(&t.role, "role", "node", "What joins with the token: node or server. The holder of a server's token can be any user of the cluster.")
		f.StringVar(&t.server, "server", "",
			"URL of the API server for what joins. Default: the kubeconfig's; if that is a loopback address, the advertised one.")
	case "list":
		f.StringVarP(&t.output, "output", "o", "", "Output format: json. Default: a table.")
		run, wants, fits = t.list, "no arguments", func(n int) bool { return n == 0 }
	case "delete":
		run, wants, fits = t.remove, "IDs or tokens", func(n int) bool { return n > 0 }
	default:
		fmt.Fprintf(p.Err, "mortise token: %q: want create, list or delete\n", args[0])
		return 2
	}
	f.Usage = func() { fmt.Fprint(f.Output(), tokenUsage+"\nFlags:\n"+f.FlagUsages()) }
	if code, done := parse(p, f, "token "+args[0], args[1:]); done {
		return code
	}
	wrong := func(err error) int {
		fmt.Fprintf(p.Err, "mortise token %s: %v\n", args[0], err)
		return 2
	}
	if !fits(f.NArg()) {
		return wrong(fmt.Errorf("want %s, got %d arguments", wants, f.NArg()))
	}
	if args[0] == "create" && t.role == "server" {
		if f.Changed("groups") || f.Changed("usages") {
			return wrong(errors.New("--role server: the token has groups and usages of its own"))
		}
		t.entry.Groups = []string{serverjoin.Group}
		if !f.Changed("ttl") {
			t.ttl = time.Hour
		}
	}
	if args[0] == "create" && !slices.Contains(t.entry.Usages, bootstraptoken.Authentication) && !f.Changed("groups") {
		t.entry.Groups = nil
	}
	if err := t.check(f.Args()); err != nil {
		return wrong(err)
	}
	if err := t.connect(); err != nil {
		return fail(p, err)
	}
	if err := run(ctx, f.Args()); err != nil {
		return fail(p, err)
	}
	return 0
}

func (t *tokens) check(args []string) error {
	for _, a := range args {
		if _, err := bootstraptoken.IDOf(a); err != nil {
			return err
		}
	}
	switch {
	case t.ttl < 0:
		return fmt.Errorf("--ttl %s: want a time that is not negative", t.ttl)
	case t.role != "" && t.role != "node" && t.role != "server":
		return fmt.Errorf("--role %q: want node or server", t.role)
	case t.output != "" && t.output != "json":
		return fmt.Errorf("--output %q: want json", t.output)
	}
	return t.entry.Check()
}

// connect connects to the cluster.
func (t *tokens) connect() (err error) {
	if t.config, err = clientConfig(t.kubeconfig, defaultDataDir()); err != nil {
		return err
	}
	if err := rest.LoadTLSFiles(t.config); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if t.client, err = kubernetes.NewForConfig(t.config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return nil
}

// clientConfig reads a kubeconfig: the named file; else those of $KUBECONFIG; else that of the server on this machine, if there is one;
// else kubectl's usual one.
func clientConfig(kubeconfig, dataDir string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	if own := filepath.Join(dataDir, "kubeconfig"); kubeconfig == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		if _, err := os.Stat(own); err == nil {
			rules.ExplicitPath = own
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return config, nil
}

func (t *tokens) create(ctx context.Context, args []string) (err error) {
	if len(args) == 1 {
		t.entry.Token, err = bootstraptoken.Parse(args[0])
	} else {
		t.entry.Token, err = bootstraptoken.Generate()
	}
	if err != nil {
		return err
	}
	if t.ttl > 0 {
		t.entry.Expires = time.Now().Add(t.ttl)
	}
	authorities, err := cert.ParseCertsPEM(t.config.CAData)
	if err != nil {
		return fmt.Errorf("read the cluster's authority in the kubeconfig: %w", err)
	}
	at := t.reachable(ctx)
	if err := bootstraptoken.Prepare(ctx, t.client, at, t.config.CAData); err != nil {
		return err
	}
	if t.role == "server" {
		if len(authorities) != 1 {
			return fmt.Errorf("the kubeconfig has %d authorities: want the cluster's own", len(authorities))
		}
		if err := serverjoin.Prepare(ctx, t.client); err != nil {
			return err
		}
	}
	if t.dns {
		if err := t.ensureDNS(ctx); err != nil {
			return err
		}
	}
	if err := bootstraptoken.Create(ctx, t.client, t.entry); err != nil {
		return err
	}
	if slices.Contains(t.entry.Usages, bootstraptoken.Signing) {
		signed, cancel := context.WithTimeout(ctx, signedWithin)
		defer cancel()
		if err := bootstraptoken.AwaitSignature(signed, t.client, t.entry.ID); err != nil {
			fmt.Fprintf(t.Err,
				"mortise: the token exists, but the controller has not signed %s with it: nodes need --ca-file\n", bootstraptoken.InfoName)
		}
	}
	if t.role == "server" {
		token := serverjoin.Token{Hash: bootstraptoken.Hash(authorities[0]), Token: t.entry.Token}
		if t.join {
			fmt.Fprintf(t.Out, "mortise up --store etcd --etcd-servers ... --join %s --token %s\n", at, token)
		} else {
			fmt.Fprintln(t.Out, token)
		}
		return nil
	}
	if !t.join {
		fmt.Fprintln(t.Out, t.entry)
		return nil
	}
	line := []string{"mortise", "node", "--join", at, "--token", t.entry.String()}
	for _, c := range authorities {
		line = append(line, "--ca-cert-hash", bootstraptoken.Hash(c))
	}
	fmt.Fprintln(t.Out, strings.Join(line, " "))
	return nil
}

// ensureDNS creates the Service of the cluster DNS, which nodes are not allowed to create.
func (t *tokens) ensureDNS(ctx context.Context) error {
	address, made, err := t.EnsureDNS(ctx, t.client)
	if made && err == nil {
		fmt.Fprintf(t.Err, "mortise: created the Service kube-system/kube-dns at %s: nodes of Mortise serve the cluster DNS there\n", address)
	}
	return err
}

// reachable returns the URL for nodes. The URL in a kubeconfig of this machine may be useless to others: the endpoints of the Service
// kubernetes have the address at which others reach the server. reachable uses that if the server responds there.
// endpoints of the Service kubernetes where they reach it, which is believed if it answers there.
func (t *tokens) reachable(ctx context.Context) string {
	if t.server != "" {
		return t.server
	}
	own, err := url.Parse(t.config.Host)
	if err != nil {
		return t.config.Host
	}
	if ip := net.ParseIP(own.Hostname()); own.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return t.config.Host
	}
	all, err := t.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return t.config.Host
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(t.config.CAData)
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 2 * time.Second}, Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				for _, port := range s.Ports {
					if ip := net.ParseIP(a); port.Port == nil || ip == nil || ip.IsLoopback() || forPodsOnly(ip) {
						continue
					}
					at := net.JoinHostPort(a, fmt.Sprint(*port.Port))
					if c, err := dialer.DialContext(ctx, "tcp", at); err == nil {
						_ = c.Close()
						return "https://" + at
					}
				}
			}
		}
	}
	return t.config.Host
}

// forPodsOnly reports whether an address is the one at which a server that listens on loopback serves the pods of this machine: other
// machines cannot reach it.
func forPodsOnly(ip net.IP) bool {
	device, err := net.InterfaceByName("mortise-api")
	if err != nil {
		return false
	}
	addresses, err := device.Addrs()
	return err == nil && slices.ContainsFunc(addresses, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

func (t *tokens) list(ctx context.Context, _ []string) error {
	all, skipped, err := bootstraptoken.List(ctx, t.client)
	if err != nil {
		return err
	}
	for _, err := range skipped {
		fmt.Fprintf(t.Err, "mortise: %v\n", err)
	}
	if t.output == "json" {
		type row struct {
			Token       string     `json:"token"`
			Description string     `json:"description,omitempty"`
			Expires     *time.Time `json:"expires,omitempty"`
			Usages      []string   `json:"usages,omitempty"`
			Groups      []string   `json:"groups,omitempty"`
		}
		rows := []row{}
		for _, e := range all {
			r := row{Token: e.String(), Description: e.Description, Usages: e.Usages, Groups: e.Groups}
			if !e.Expires.IsZero() {
				r.Expires = &e.Expires
			}
			rows = append(rows, r)
		}
		enc := json.NewEncoder(t.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(rows)
	}
	w := tabwriter.NewWriter(t.Out, 10, 4, 3, ' ', 0)
	fmt.Fprintln(w, "TOKEN\tTTL\tEXPIRES\tUSAGES\tDESCRIPTION\tEXTRA GROUPS")
	none := func(text, otherwise string) string {
		if text == "" {
			return otherwise
		}
		return text
	}
	for _, e := range all {
		left, end := "<forever>", "<never>"
		if !e.Expires.IsZero() {
			left, end = "<expired>", e.Expires.Format(time.RFC3339)
			if d := time.Until(e.Expires); d > 0 {
				left = duration.ShortHumanDuration(d)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e, left, end, none(strings.Join(e.Usages, ","), "<none>"), none(e.Description, "<none>"),
			none(strings.Join(e.Groups, ","), "<none>"))
	}
	return w.Flush()
}

func (t *tokens) remove(ctx context.Context, args []string) error {
	for _, a := range args {
		id, err := bootstraptoken.IDOf(a)
		if err != nil {
			return err
		}
		if err := bootstraptoken.Delete(ctx, t.client, id); err != nil {
			return err
		}
		fmt.Fprintf(t.Out, "bootstrap token %q deleted\n", id)
	}
	return nil
}
