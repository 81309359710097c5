// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/config"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/zpages"
)

// AddFlags binds the settings of an API server to flags. It also binds the settings that the built-in controllers and the controllers in
// more declare.
func AddFlags(f *pflag.FlagSet, o *options.APIServer, more []controllers.Controller) {
	o.AddFlags(f)
	for _, c := range append(builtin.Controllers(), more...) {
		for _, s := range c.AllSettings() {
			addFlag(f, s, keptValue{s.Value, s.Flag, &o.Controllers.Settings})
		}
	}
}

// addFlag binds a controller's setting to a flag whose usage names the field of the configuration file.
func addFlag(f *pflag.FlagSet, s controllers.Setting, value pflag.Value) {
	f.Var(value, s.Flag, s.Usage)
	if value.Type() == "bool" {
		f.Lookup(s.Flag).NoOptDefVal = "true" // --flag alone sets it
	}
	if s.Field != "" {
		config.Declare(f.Lookup(s.Flag), config.Setting{Flag: s.Flag, Field: s.Field, Optional: s.Optional})
	}
}

// keptValue is a flag value that also keeps its text once it is set: its controllers are created later.
type keptValue struct {
	pflag.Value
	flag string
	in   *map[string]string
}

// Set implements [pflag.Value].
func (v keptValue) Set(text string) error {
	if err := v.Value.Set(text); err != nil {
		return err
	}
	if *v.in == nil {
		*v.in = map[string]string{}
	}
	(*v.in)[v.flag] = v.Value.String()
	return nil
}

// flags returns the flags of "mortise up" with the settings in effect. Optional ones without a value are not marked as changed.
func (c *settings) flags(n *node.Plan) *pflag.FlagSet {
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	for name, value := range map[string]string{
		"data-dir": c.DataDir, "kubeconfig": c.KubeconfigFile, "listen": net.JoinHostPort(c.host, c.port), "store": c.Store,
		"log-level": level(c.Logger), "controllers": strings.Join(c.Controllers, ","),
		"node": string(n.Mode), "nodes": strconv.Itoa(n.Count), "cri-socket": n.CRISocket,
		"pod-cidr": ranges(c.podCIDRs), "service-cidr": ranges(c.serviceCIDRs),
	} {
		f.String(name, value, "")
	}
	f.StringSlice("feature-gates", []string{
		cborGate + "=" + strconv.FormatBool(c.cbor), storageVersionsGate + "=" + strconv.FormatBool(c.versions),
	}, "")
	var served []string
	for key, value := range c.RuntimeConfig {
		served = append(served, key+"="+value)
	}
	slices.Sort(served)
	f.StringSlice("runtime-config", served, "")
	options := c.APIServer // bind the flags to a copy
	masquerade := options.Network.GivenMasqueradeAll() != nil
	options.AddFlags(f)
	f.VisitAll(func(flag *pflag.Flag) {
		given, ok := flag.Value.(interface{ Given() bool })
		flag.Changed = ok && given.Given() || flag.Name == "masquerade-all" && masquerade
	})
	for _, controller := range c.controllers {
		for _, s := range controller.AllSettings() {
			addFlag(f, s, s.Value)
			_, f.Lookup(s.Flag).Changed = c.APIServer.Controllers.Settings[s.Flag]
		}
	}
	return f
}

// effective returns the configuration file that is equivalent to these flags.
func effective(f *pflag.FlagSet) (*v1alpha1.ServerConfiguration, error) {
	c, err := config.Effective(f)
	if err != nil {
		return nil, fmt.Errorf("read the settings in effect: %w", err)
	}
	c.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: v1alpha1.ServerConfigurationKind}
	return c, nil
}

// pages returns what /flagz and /configz show. A fork has the settings of the first cluster, which were valid: a request for
// a page formats them.
func (c *settings) pages(plan *node.Plan) (apiserver.Pages, error) {
	type texts struct {
		flags  map[string]string
		config *v1alpha1.ServerConfiguration
	}
	format := sync.OnceValues(func() (texts, error) {
		f := c.flags(plan)
		of, err := effective(f)
		return texts{zpages.Flags(f), of}, err
	})
	if c.origin == nil {
		if _, err := format(); err != nil {
			return apiserver.Pages{}, err
		}
	}
	return apiserver.Pages{
		Flags: func() map[string]string { of, _ := format(); return of.flags },
		Config: func() map[string]any {
			of, _ := format()
			return map[string]any{"mortise": of.config}
		},
	}, nil
}

// ranges formats address ranges as flags do.
func ranges(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// level returns the lowest level that is logged.
func level(log *slog.Logger) string {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if log.Enabled(context.Background(), l) {
			return strings.ToLower(l.String())
		}
	}
	return "error"
}
