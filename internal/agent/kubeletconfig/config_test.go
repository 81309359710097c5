// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// The example of Kubernetes' documentation of kubelet's configuration file, with the drop-in beside it.
const documented = head + `address: "192.168.0.8"
port: 20250
serializeImagePulls: false
evictionHard:
    memory.available:  "100Mi"
    nodefs.available:  "10%"
    nodefs.inodesFree: "5%"
    imagefs.available: "15%"
    imagefs.inodesFree: "5%"
`

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDocumentedExampleLoads(t *testing.T) {
	dir := t.TempDir()
	c, skipped, err := Load(write(t, dir, "kubelet.yaml", documented), "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Address != "192.168.0.8" || c.Port != 20250 || *c.SerializeImagePulls || len(c.EvictionHard) != 5 || len(skipped) != 0 {
		t.Errorf("configuration: %+v", c)
	}
	if c.MaxPods != 110 || c.SyncFrequency.Duration != time.Minute || c.NodeStatusReportFrequency.Duration != 5*time.Minute ||
		*c.ContainerLogMaxFiles != 5 {
		t.Errorf("defaults: %+v", c)
	}
	if list := Unheeded(c); len(list) != 0 {
		t.Errorf("said to be without effect: %q", list)
	}
}

func TestDropInsAreMergedInOrder(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "kubelet.yaml",
		head+"maxPods: 50\nstaticPodPath: manifests\nclusterDNS: [10.0.0.1, 10.0.0.2]\nevictionHard: {memory.available: 100Mi, nodefs.available: 10%}\nmaxParallelImagePulls: 3\n")
	drop := filepath.Join(dir, "conf.d")
	write(t, drop, "20-more.conf", head+"maxPods: 70\nevictionHard: {memory.available: 200Mi, nodefs.available: null}\n")
	write(t, drop, "10-less.conf", head+"maxPods: 60\npodsPerCore: 4\nclusterDNS: [10.0.0.3]\n")
	readme := write(t, drop, "README", "no configuration at all")
	c, skipped, err := Load(file, drop)
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxPods != 70 || c.PodsPerCore != 4 || c.StaticPodPath != filepath.Join(dir, "manifests") {
		t.Errorf("configuration: maxPods %d, podsPerCore %d, staticPodPath %q", c.MaxPods, c.PodsPerCore, c.StaticPodPath)
	}
	if diff := cmp.Diff(map[string]string{"memory.available": "200Mi"}, c.EvictionHard); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, c.ClusterDNS); diff != "" {
		t.Error(diff)
	}
	if *c.SerializeImagePulls {
		t.Error("images are pulled one by one")
	}
	if diff := cmp.Diff([]string{readme}, skipped); diff != "" {
		t.Error(diff)
	}

	// The defaults of the file are there before drop-ins are, as kubelet has it.
	write(t, drop, "30-parallel.conf", head+"maxParallelImagePulls: 5\n")
	if _, _, err := Load("", drop); err == nil || !strings.Contains(err.Error(), "maxParallelImagePulls cannot be larger than 1") {
		t.Errorf("a drop-in over serializeImagePulls that is true by default: %v", err)
	}
}

func TestImageCredentialPolicies(t *testing.T) {
	for _, text := range []string{"NeverVerify", "NeverVerifyPreloadedImages", "AlwaysVerify",
		"NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [busybox, example.org/*]"} {
		if _, err := Parse([]byte(head + "imagePullCredentialsVerificationPolicy: " + text + "\n")); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown field":        {"maxpods: 3", `unknown field "maxpods"`},
		"unknown nested field": {"authentication: {anonymus: {enabled: true}}", `unknown field "authentication.anonymus"`},
		"field twice":          {"maxPods: 3\nmaxPods: 4", `key "maxPods" already set in map`},
		"wrong type":           {"maxPods: many", "maxPods"},
		"two documents":        {"maxPods: 3\n---\nmaxPods: 4", "want one document, found more"},
		"port":                 {"port: 70000", "invalid configuration: port (--port) 70000 must be between 1 and 65535, inclusive"},
		"image thresholds": {"imageGCHighThresholdPercent: 50",
			"imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than"},
		"image ages": {"imageMaximumGCAge: 1m", "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"},
		"shutdown": {"shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s",
			"shutdownGracePeriodCriticalPods {20s} must be <= shutdownGracePeriod {10s}"},
		"short shutdown": {"shutdownGracePeriod: 10ms", "shutdownGracePeriod {10ms} must be either zero or otherwise >= 1 sec"},
		"shutdown twice": {"shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]",
			"Cannot specify both"},
		"enforcement":       {"enforceNodeAllocatable: [pods, cats]", `option "cats" specified for enforceNodeAllocatable`},
		"enforcement twice": {"enforceNodeAllocatable: [pods, pods]", `duplicated enforcements "pods"`},
		"enforcement of system": {"enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /system",
			"enforceNodeAllocatable is not supported: Mortise does not limit system daemons"},
		"hairpin": {"hairpinMode: round", `option "round" specified for hairpinMode`},
		"gate":    {"featureGates: {NoSuchGate: true}", "unrecognized feature gate: NoSuchGate"},
		"gate locked off": {"featureGates: {GitRepoVolumeDriver: true}",
			"cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"},
		"locked gate": {"featureGates: {NodeSwap: false}", "cannot set feature gate NodeSwap to false, feature is locked to true"},
		"signal":      {"evictionHard: {memory.free: 1Gi}", "unsupported eviction signal memory.free"},
		"percentage":  {"evictionHard: {memory.available: 120%}", "eviction percentage threshold memory.available must be <= 100%: 120%"},
		"soft without grace": {"evictionSoft: {memory.available: 1Gi}",
			"grace period must be specified for the soft eviction threshold memory.available"},
		"reserved resource":    {"systemReserved: {gpu: '1'}", `cannot reserve "gpu" resource`},
		"reserved amount":      {"kubeReserved: {memory: lots}", `failed to parse quantity "lots" for "memory" resource`},
		"reserved for classes": {"qosReserved: {memory: 10%}", "qosReserved is not supported: Mortise does not reserve memory for QoS classes"},
		"swap":                 {"memorySwap: {swapBehavior: Some}", "memorySwap.swapBehavior"},
		"image credentials": {"imagePullCredentialsVerificationPolicy: Perhaps",
			`option "Perhaps" specified for imagePullCredentialsVerificationPolicy`},
		"image allowlist alone": {"preloadedImagesVerificationAllowlist: [busybox]", "can't set `preloadedImagesVerificationAllowlist`"},
		"image allowlist":       {"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a*']", "invalid image pattern in `preloadedImagesVerificationAllowlist`: not a valid wildcard"},
		"another image service": {"imageServiceEndpoint: unix:///images.sock", "imageServiceEndpoint is not supported"},
		"run once":              {"runOnce: true", "Runonce mode has been deprecated"},
		"taint":                 {"registerWithTaints: [{key: 'a b', effect: NoSchedule}]", "invalid configuration: taint"},
		"tls version":           {"tlsMinVersion: VersionSSL3", `unknown tls version "VersionSSL3"`},
		"tls suite":             {"tlsCipherSuites: [ROT13]", "cipher suite ROT13 not supported or doesn't exist"},
		"half a certificate":    {"tlsCertFile: /a", "tlsCertFile and tlsPrivateKeyFile belong together"},
		"log interval": {"containerLogMonitorInterval: 1s",
			"containerLogMonitorInterval must be a positive time duration greater than or equal to 3s"},
		"log files":       {"containerLogMaxFiles: 1", "containerLogMaxFiles must be greater than 1"},
		"log directory":   {"podLogsDir: /var/log/../pods", "must be normalized"},
		"user namespaces": {"userNamespaces: {idsPerPod: 1000}", "userNamespaces.idsPerPod must not be less than 65536"},
		"back-off": {"crashLoopBackOff: {maxContainerRestartPeriod: 10m}",
			"CrashLoopBackOff.MaxContainerRestartPeriod (got: 600 seconds) must be set between 1s and 300s"},
		"address":             {"address: here", `address "here" is no IP address`},
		"range":               {"podCIDR: 10.0.0.0", `podCIDR "10.0.0.0" is no range of addresses`},
		"sysctl":              {"allowedUnsafeSysctls: ['kernel..msg*']", `"kernel..msg*" is no name of a sysctl`},
		"authorization":       {"authorization: {mode: AlwaysDeny}", "authorization.mode"},
		"lease":               {"nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds must be greater than 0"},
		"sysctls of all pods": {"defaultPodSysctls: {net.ipv4.tcp_syncookies: '1'}", "DefaultPodSysctls feature gate is required"},
		"quota period": {"cpuCFSQuotaPeriod: 2s",
			"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {2s} must be between 1ms and 1sec, inclusive"},
		"negative synchronizing": {"syncFrequency: -1s", "syncFrequency -1s must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(head + c.text + "\n"))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
	for name, text := range map[string]string{
		"no kind":      "maxPods: 3\n",
		"other kind":   "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\n",
		"other group":  "apiVersion: v1\nkind: Pod\n",
		"no YAML":      "{",
		"empty":        "",
		"many aliases": "a: &a [x,x]\nb: &b [*a,*a]\n",
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAllMistakesAreSaid(t *testing.T) {
	_, err := Parse([]byte(head + "port: 70000\nmaxPods: -1\nhairpinMode: round\n"))
	for _, want := range []string{"port (--port)", "maxPods (--max-pods)", "hairpinMode (--hairpin-mode)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestWhatIsWithoutEffectIsSaid(t *testing.T) {
	c, err := Parse([]byte(head + "rotateCertificates: true\noomScoreAdj: -500\nmaxPods: 3\nmemorySwap: {swapBehavior: LimitedSwap}\nfeatureGates: {MemoryQoS: false, ContextualLogging: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(Unheeded(c), "\n")
	for _, want := range []string{"rotateCertificates is without effect: ", "oomScoreAdj is without effect: ",
		"featureGates are without effect"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	if strings.Contains(got, "maxPods") {
		t.Errorf("maxPods has an effect: %s", got)
	}
}

// TestEveryFieldIsInTheTable holds fields.go to the type, and the documentation to fields.go.
func TestEveryFieldIsInTheTable(t *testing.T) {
	var got []string
	for _, f := range Fields() {
		got = append(got, f.Name)
	}
	if diff := cmp.Diff(componentconfig.Names(reflect.TypeFor[configv1beta1.KubeletConfiguration]()), got); diff != "" {
		t.Error(diff)
	}
	table := componentconfig.Table(Fields())
	text, err := os.ReadFile("../../../docs/kubelet-configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), table) {
		t.Errorf("docs/kubelet-configuration.md does not have the table:\n%s", table)
	}
}

func TestMissingFilesAreErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range [][2]string{{filepath.Join(dir, "none"), ""}, {"", filepath.Join(dir, "none")}, {write(t, dir, "empty", ""), ""}} {
		if _, _, err := Load(c[0], c[1]); err == nil {
			t.Errorf("%q: no error", c)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(documented))
	f.Add([]byte(head + "podCIDR: ','\nevictionSoft: {memory.available: 1%}\nevictionSoftGracePeriod: {memory.available: 1m}\n"))
	f.Add([]byte(head + "logging: {format: json}\nsystemReserved: {cpu: 100m}\nreservedSystemCPUs: 0-3\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		if err := Validate(c); err != nil {
			t.Errorf("a configuration that was taken is refused: %v", err)
		}
		Unheeded(c)
	})
}

// Flags win over the file and its drop-ins, and what they set is validated too.
func TestLoadUnderFlags(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "kubelet.yaml", head+"maxPods: 5\nport: 1\n")
	write(t, dir, "d/10.conf", head+"maxPods: 6\n")
	port := int32(10251)
	set := func(c *configv1beta1.KubeletConfiguration) { c.Port = port }
	c, _, err := LoadUnder(file, filepath.Join(dir, "d"), set)
	if err != nil || c.MaxPods != 6 || c.Port != 10251 {
		t.Errorf("%+v %v", c, err)
	}
	port = 70000
	if _, _, err := LoadUnder(file, "", set); err == nil {
		t.Error("a port that is none is accepted")
	}
}
