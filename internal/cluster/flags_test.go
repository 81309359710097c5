// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/config"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/zpages"
)

// TestControllerFlags parses flags of controllers, and completes the settings that come of them.
func TestControllerFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"": "",
		"--node-monitor-grace-period=20s --node-eviction-rate=0 --terminated-pod-gc-threshold=-1": "",
		"--node-monitor-grace-period=0s":                     "--node-monitor-grace-period must be above 0",
		"--legacy-service-account-token-clean-up-period=-1s": "--legacy-service-account-token-clean-up-period must be above 0",
		"--secondary-node-eviction-rate=-1":                  "--secondary-node-eviction-rate must be from 0 to a million",
		"--node-eviction-rate=NaN":                           "--node-eviction-rate must be from 0 to a million",
		"--unhealthy-zone-threshold=1.5":                     "--unhealthy-zone-threshold must be from 0 to 1",
		"--mirroring-max-endpoints-per-subset=0":             "mirroring-max-endpoints-per-subset must not be less than 1, but got 0",
		"--max-endpoints-per-slice=0":                        "max-endpoints-per-slice must not be less than 1, but got 0",
		"--max-endpoints-per-slice=1001":                     "max-endpoints-per-slice must not be more than 1000, but got 1001",
		"--horizontal-pod-autoscaler-sync-period=0s":         "--horizontal-pod-autoscaler-sync-period must be above 0",
		"--horizontal-pod-autoscaler-tolerance=NaN":          "--horizontal-pod-autoscaler-tolerance must be from 0 to a million",
		"--resource-quota-sync-period=0s":                    "--resource-quota-sync-period must be above 0",
		"--cluster-signing-duration=0s":                      "--cluster-signing-duration must be above 0",
		"--concurrent-job-syncs=0":                           "concurrent-job-syncs must not be less than 1, but got 0",
		"--concurrent-service-endpoint-syncs=51":             "concurrent-service-endpoint-syncs must not be more than 50, but got 51",
		"--mirroring-concurrent-service-endpoint-syncs=51":   "mirroring-concurrent-service-endpoint-syncs must not be more than 50, but got 51",
		"--mirroring-max-endpoints-per-subset=1001":          "mirroring-max-endpoints-per-subset must not be more than 1000, but got 1001",
		"--node-cidr-mask-size=8":                            "a node's part of pod CIDR 10.244.0.0/16 cannot be a /8",
		"--node-monitor-period=1":                            `invalid argument "1" for "--node-monitor-period" flag: time: missing unit in duration "1"`,
	} {
		var s Settings
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		AddFlags(f, &s.APIServer, nil)
		err := f.Parse(strings.Fields(flags))
		if err == nil {
			_, err = s.complete()
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", flags, got, want)
		}
	}
}

// TestControllerSettings sets what controllers declare, a third party's too.
func TestControllerSettings(t *testing.T) {
	size := 1
	own := controllers.Controller{Name: "own", Settings: []controllers.Setting{
		{Flag: "own-size", Usage: "A size.", Value: controllers.Value(&size)},
	}}
	settings := func(values map[string]string) Settings {
		s := Settings{Extensions: Extensions{Controllers: []controllers.Controller{own}}}
		s.APIServer.Controllers.Settings = values
		return s
	}
	if _, err := settings(map[string]string{"own-size": "7", "concurrent-job-syncs": "3"}).complete(); err != nil || size != 7 {
		t.Errorf("the setting is %d, error %v", size, err)
	}
	for flag, want := range map[string]string{
		"other-size": "--other-size: no controller has this setting", "own-size": `--own-size: strconv.ParseInt: parsing "x"`,
	} {
		if _, err := settings(map[string]string{flag: "x"}).complete(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the error of an invalid setting is %v, want %s", err, want)
		}
	}
}

// TestControllerFields compares what controllers declare with the configuration file: each has a field, and the right default.
func TestControllerFields(t *testing.T) {
	var o options.APIServer
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(f, &o, nil)
	c, err := config.Effective(f)
	if err != nil {
		t.Fatal(err)
	}
	loops := c.Controllers
	if len(loops.ConcurrentSyncs) != 21 || loops.ConcurrentSyncs["resourceclaim-controller"] != 50 ||
		*loops.NodeLifecycle.NodeEvictionRate != 0.1 || *loops.PodAutoscaler.Tolerance != 0.1 ||
		*loops.PodGC.TerminatedPodGCThreshold != 12500 || loops.Signing.Duration.Hours() != 8760 || loops.NodeIPAM.NodeCIDRMaskSize != nil {
		t.Errorf("defaults are %+v", loops)
	}
	if o.Controllers.Settings != nil {
		t.Errorf("settings are made that nobody asked for: %v", o.Controllers.Settings)
	}
}

// TestFlagsInEffect: each setting has a flag and a field in what /flagz and /configz show, and starting by these gives the same settings.
func TestFlagsInEffect(t *testing.T) {
	s := Settings{
		Listen: "127.0.0.1:7443", Controllers: []string{"*", "-job-controller"}, RuntimeConfig: map[string]string{"api/beta": "true"}, Nodes: 3,
		FeatureGates: map[string]bool{cborGate: true}, PodCIDR: "10.9.1.0/16",
	}
	s.APIServer.Explain = options.Explain{Enabled: true, Memory: 32}
	s.APIServer.Controllers.Settings = map[string]string{"concurrent-job-syncs": "7", "node-cidr-mask-size": "26"}
	s.APIServer.Authentication.Anonymous = new(true)
	s.APIServer.Network.MasqueradeAll = true
	complete, err := s.complete()
	if err != nil {
		t.Fatal(err)
	}
	plan := &node.Plan{Options: complete.nodeOptions(nil)}
	f := complete.flags(plan)
	for _, setting := range config.Settings(f) {
		if f.Lookup(setting.Flag) == nil {
			t.Errorf("--%s is not shown", setting.Flag)
		}
	}
	c, err := effective(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := config.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"listen: 127.0.0.1:7443", "engine: memory", "podCIDR: 10.9.0.0/16", "job-controller: 7", "nodeCIDRMaskSize: 26", "memoryMiB: 32",
		"masqueradeAll: true", "CBORServingAndStorage: true", "api/beta: true", "level: error", "anonymous:\n    enabled: true", "count: 3",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the configuration in effect lacks %s:\n%s", want, text)
		}
	}
	for _, absent := range []string{"allowPrivileged", "leaderElect:", "nodeCIDRMaskSizeIPv4", "maxRequestBytesInflight"} {
		if strings.Contains(string(text), absent) {
			t.Errorf("the configuration in effect has %s, which nobody set", absent)
		}
	}
	if _, err := config.Parse(text, f); err != nil {
		t.Errorf("the configuration in effect is refused: %v\n%s", err, text)
	}
	shown := zpages.Flags(f)
	if shown["concurrent-job-syncs"] != "7" || shown["concurrent-gc-syncs"] != "20" || shown["controllers"] != "*,-job-controller" ||
		shown["anonymous-auth"] != "true" {
		t.Errorf("the flags are %v", shown)
	}
	if s.APIServer.Explain.Memory != 32 || complete.APIServer.Explain.Memory != 32 {
		t.Error("showing the settings changes them")
	}
}
