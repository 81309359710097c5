// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// short returns a directory whose name leaves room for the names of sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// results runs a bench, and returns the results that are not ok, by check: RESULT: WHAT | KUBELET.
func results(t *testing.T, p Protocol, o Options) map[string]string {
	t.Helper()
	r, err := Run(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	out, failed := map[string]string{}, false
	for _, c := range r.Checks {
		t.Logf("%-50s %-5s %10v  %s | %s", c.Name, c.Result, c.Took, c.What, c.Kubelet)
		if failed = failed || c.Result == Fail; c.Result != OK {
			out[c.Name] = fmt.Sprintf("%s: %s | %s", c.Result, c.What, c.Kubelet)
		}
	}
	if r.Failed() != failed {
		t.Errorf("the report has failed: %v", r.Failed())
	}
	return out
}

// expect compares results with what they should contain.
func expect(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if w, ok := want[name]; !ok || !strings.Contains(got[name], w) {
			t.Errorf("%s: %s, want %q", name, got[name], w)
		}
	}
	for name, w := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is ok, want %q", name, w)
		}
	}
}

// A device plug-in that does all that kubelet wants passes all checks.
func TestDevicePlugin(t *testing.T) {
	p := newDevicePlugin("a", "b", "c")
	p.answer = given(&pluginapi.ContainerAllocateResponse{
		Envs: map[string]string{"X": "1"}, Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}},
	})
	p.preferred = func(q *pluginapi.ContainerPreferredAllocationRequest) []string {
		return q.GetAvailableDeviceIDs()[:q.GetAllocationSize()]
	}
	dir := short(t)
	p.run(t, dir)
	expect(t, results(t, Devices, Options{Dir: dir}), map[string]string{
		"reports a changed health":      "skip",
		"comes back after it is killed": "skip: the bench has not started", "serves after it hung in a call": "skip",
	})
}

// What a device plug-in does wrong is named, with kubelet's words.
func TestBrokenDevicePlugins(t *testing.T) {
	nothing := given(&pluginapi.ContainerAllocateResponse{})
	for name, one := range map[string]struct {
		change func(p *devicePlugin)
		want   map[string]string // of the checks that are not skipped
	}{
		"no answer for the container": {
			func(p *devicePlugin) {
				p.answer = func([]string) (*pluginapi.AllocateResponse, error) { return &pluginapi.AllocateResponse{}, nil }
			},
			map[string]string{"allocates a device": "UnexpectedAdmissionError: Allocate failed due to no containers return in allocation response"},
		},
		"device nodes that are not there": {
			func(p *devicePlugin) {
				p.answer = given(&pluginapi.ContainerAllocateResponse{
					Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/not-there", ContainerPath: "/dev/x", Permissions: "rw"}},
				})
			},
			map[string]string{"gives what a runtime takes": "fail: a device is not there"},
		},
		"a CDI device that is not there": {
			func(p *devicePlugin) {
				p.answer = given(&pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: "example.com/dev=a"}}})
			},
			map[string]string{"gives what a runtime takes": "unresolvable CDI devices example.com/dev=a"},
		},
		"two devices with one ID": {
			func(p *devicePlugin) { p.devices, p.answer = append(p.devices, p.devices[0]), nothing },
			map[string]string{
				"gives what a runtime takes":            "warn: nothing",
				"lists its devices to a second watcher": `fail: two devices have the ID "a"`,
			},
		},
		"it prefers what is not free": {
			func(p *devicePlugin) {
				p.answer = nothing
				p.preferred = func(*pluginapi.ContainerPreferredAllocationRequest) []string { return []string{"z"} }
			},
			map[string]string{
				"gives what a runtime takes":       "warn: nothing",
				"prefers devices that it may give": `fail: it prefers "z", which is not available`,
			},
		},
		"it does not watch for kubelet": {
			func(p *devicePlugin) { p.once, p.answer = true, nothing },
			map[string]string{
				"gives what a runtime takes":        "warn: nothing",
				"comes back after kubelet restarts": "fail: no registration at the new",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newDevicePlugin("a", "b")
			one.change(p)
			dir := short(t)
			p.run(t, dir)
			wait := time.Duration(0)
			if p.once {
				wait = 10 * time.Second
			}
			got := results(t, Devices, Options{Dir: dir, Wait: wait})
			maps.DeleteFunc(got, func(_, text string) bool { return strings.HasPrefix(text, "skip") })
			expect(t, got, one.want)
		})
	}
}

// A program that ends again and again is not waited for without end.
func TestProgramThatEnds(t *testing.T) {
	got := results(t, Devices, Options{Dir: short(t), Command: []string{"/bin/false"}, Wait: 2 * time.Second})
	if text := got["registers"]; !strings.Contains(text, "the program ended") {
		t.Error(text)
	}
}

// A CSI driver publishes a volume; one that leaves it is told so.
func TestCSIDriver(t *testing.T) {
	for _, leave := range []bool{false, true} {
		dir := short(t)
		d := &csiDriver{nodeID: "node", leave: leave}
		d.run(t, dir)
		want := map[string]string{"comes back after it is killed": "skip", "serves after it hung in a call": "skip"}
		if leave {
			want["publishes a volume"] = "fail: NodeUnpublishVolume leaves"
		}
		expect(t, results(t, Volumes, Options{Dir: dir, Volume: Volume{ID: "v"}}), want)
	}
	dir := short(t)
	(&csiDriver{}).run(t, dir)
	if text := results(t, Volumes, Options{Dir: dir})["knows its node"]; !strings.Contains(text, "fail: NodeGetInfo has no node ID") {
		t.Error(text)
	}
}

// A driver that is not there is not registered; without an API server there is no bench of drivers.
func TestNoDriver(t *testing.T) {
	o := Options{Dir: short(t), Wait: time.Millisecond}
	if _, err := Run(t.Context(), Claims, o); err == nil {
		t.Error("a driver without an API server")
	}
	o.Client = fake.NewClientset()
	if text := results(t, Claims, o)["registers"]; !strings.Contains(text, "fail: no registration in") {
		t.Error(text)
	}
}

const providerConfig = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["registry.example.com"]
  defaultCacheDuration: 1m
`

// A credential provider is asked as kubelet asks it, and its failures are kubelet's.
func TestCredentialProvider(t *testing.T) {
	const answer = `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry",` +
		`"auth":{"registry.example.com":{"username":"u","password":"p"}}}`
	for script, want := range map[string]map[string]string{
		"grep -q CredentialProviderRequest || exit 1\necho '" + answer + "'\n": {},
		"echo '" + answer + "'\n": {"fails for what is no request": "warn: provider answers"},
		"echo no login >&2\nexit 3\n": {
			"answers": "fail: Warning FailedCredentialProvider Credential provider provider failed for image registry.example.com/x with exit code 3",
			"is asked once for several pulls at a time": "skip", "is asked again as its answer says": "skip",
			"is not asked for other images": "skip", "fails for what is no request": "skip", "is given up when it does not answer": "skip",
			"is passed over when half of its answer arrives": "skip",
		},
	} {
		dir := short(t)
		if err := os.WriteFile(filepath.Join(dir, "provider"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(config, []byte(providerConfig), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, results(t, Credentials, Options{Dir: dir, Provider: Provider{
			Config: config, BinDir: dir, Image: "registry.example.com/x:1",
		}}), want)
	}
}
