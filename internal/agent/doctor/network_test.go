// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
)

// plugged is a network of the version, whose plug-ins are shell scripts that write down how they are called.
func plugged(t *testing.T, version string, scripts map[string]string) (n *network, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "calls")
	for kind, script := range scripts {
		write(t, filepath.Join(dir, "bin", kind), fmt.Sprintf(
			"#!/bin/sh\nin=$(cat)\necho %s $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME \"$in\" >> %s\n%s\n", kind, log, script))
	}
	conf := write(t, filepath.Join(dir, "net.d/10-n.conflist"), fmt.Sprintf(`{"name": "n", "cniVersion": %q, "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local", "dataDir": %q}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`,
		version, filepath.Join(dir, "leases")))
	write(t, filepath.Join(dir, "net.d/20-other.conflist"), "{}")
	n, err := configured(filepath.Dir(conf))
	if err != nil {
		t.Fatal(err)
	}
	n.binDirs = []string{filepath.Join(dir, "none"), filepath.Join(dir, "bin")}
	return n, log
}

const versions = `[ $CNI_COMMAND = VERSION ] && echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}'`

func TestConfigurations(t *testing.T) {
	n, err := parse([]byte(`{"name": "one", "cniVersion": "1.0.0", "type": "ptp"}`))
	if err != nil || n.name != "one" || len(n.plugins) != 1 || n.plugins[0].kind != "ptp" {
		t.Errorf("read %+v, %v", n, err)
	}
	for _, text := range []string{``, `{}`, `{"name": "n", "plugins": []}`, `{"name": "n", "plugins": [{"type": "../sh"}]}`,
		`{"name": "n", "plugins": ["bridge"]}`} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	if _, err := configured(t.TempDir()); err == nil {
		t.Error("an empty directory has a configuration")
	}
	for version, want := range map[string]bool{"1.1.0": true, "1.2.0": true, "1.10.0": true, "1.0.0": false, "0.4.0": false, "": false,
		"one": false} {
		if got := atLeast(version, "1.1.0"); got != want {
			t.Errorf("%q is at least 1.1.0: %t", version, got)
		}
	}
}

func TestPluginsAreAsked(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		scripts map[string]string
		want    []string
	}{
		"before STATUS": {"0.4.0", map[string]string{"bridge": versions, "portmap": versions},
			[]string{"ok plug-in bridge speaks CNI 0.4.0", "ok plug-in portmap speaks"}},
		"able": {"1.1.0", map[string]string{"bridge": versions, "portmap": versions + "\ntrue"},
			[]string{"wrong CNI plug-in bridge, STATUS: exit status 1", "ok plug-in portmap can add pods"}},
		"not able": {"1.1.0", map[string]string{"bridge": versions +
			` || { echo '{"code": 50, "msg": "no daemon", "details": "ask it"}'; exit 1; }`, "portmap": versions + "\ntrue"},
			[]string{"wrong CNI plug-in bridge, STATUS: no daemon: ask it", "ok plug-in portmap"}},
		"missing": {"1.0.0", map[string]string{"bridge": versions}, []string{"ok plug-in bridge", `wrong CNI plug-in "portmap" is not in `}},
		"too old": {"2.0.0", map[string]string{"bridge": versions, "portmap": versions},
			[]string{"wrong CNI plug-in bridge does not speak CNI 2.0.0, but 0.4.0, 1.0.0, 1.1.0", "wrong CNI plug-in portmap"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := plugged(t, c.version, c.scripts)
			says(t, n.ask(t.Context()), c.want...)
		})
	}
}

func TestAttachments(t *testing.T) {
	n, log := plugged(t, "1.1.0", map[string]string{"bridge": "true", "portmap": "true"})
	dir := filepath.Dir(log)
	lease := func(ip, id string) string { return write(t, filepath.Join(dir, "leases/n", ip), id+"\r\neth0") }
	live, dead := lease("10.1.0.2", "live"), lease("10.1.0.3", "dead")
	lease("fd00::3", "dead")
	write(t, filepath.Join(dir, "leases/n/last_reserved_ip.0"), "10.1.0.3")
	write(t, filepath.Join(dir, "leases/n/lock"), "")
	results := filepath.Join(dir, "results")
	write(t, filepath.Join(results, "n-dead-eth0"),
		`{"kind": "cniCacheV1", "containerId": "dead", "networkName": "n", "ifName": "eth0", "netns": "/none",
		"cniArgs": [["K8S_POD_NAME", "p"], ["A", "b"]], "capabilityArgs": {"portMappings": [{"hostPort": 1}], "bandwidth": {}}, "result": {"cniVersion": "1.1.0"}}`)
	other := write(t, filepath.Join(results, "m-dead-eth0"),
		`{"kind": "cniCacheV1", "containerId": "dead", "networkName": "m", "ifName": "eth0"}`)

	all, err := n.attachments(results)
	if err != nil || len(all) != 2 || all[1].container != "live" {
		t.Fatalf("attachments %+v, %v", all, err)
	}
	a := all[0]
	if a.container != "dead" || a.netns != "/none" || a.args != "K8S_POD_NAME=p;A=b" ||
		!slices.Equal(a.addresses, []string{"10.1.0.3", "fd00::3"}) || len(a.files) != 3 {
		t.Errorf("attachment %+v", a)
	}

	e := &examination{Options: Options{Older: -1, Clock: clock.RealClock{}}, network: n,
		runtime: &runtime{sandboxes: map[string]bool{"live": true, "new": true}}}
	found := checkAttachments(t.Context(), e)
	says(t, found, "wrong network n holds 10.1.0.3, fd00::3, eth0 for sandbox dead, which no longer exists",
		"wrong network n may hold addresses")
	if _, err := os.Stat(log); err == nil {
		t.Fatal("a plug-in was called to look")
	}
	if err := n.del(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	mend(t.Context(), found[1:])
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	var read []map[string]any
	for call := range strings.Lines(string(said)) {
		before, text, _ := strings.Cut(call, "{")
		order = append(order, strings.TrimSpace(before))
		var in map[string]any
		if err := json.Unmarshal([]byte("{"+text), &in); err != nil {
			t.Fatal(err)
		}
		read = append(read, in)
	}
	if want := []string{"portmap DEL dead eth0", "bridge DEL dead eth0", "bridge GC", "portmap GC"}; !slices.Equal(order, want) {
		t.Fatalf("called %q, want %q", order, want)
	}
	want := map[string]any{
		"name": "n", "cniVersion": "1.1.0", "type": "portmap", "capabilities": map[string]any{"portMappings": true},
		"prevResult":    map[string]any{"cniVersion": "1.1.0"},
		"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 1.0}}},
	}
	if diff := cmp.Diff(want, read[0]); diff != "" {
		t.Error(diff)
	}
	valid := map[string]bool{}
	list, _ := read[2]["cni.dev/valid-attachments"].([]any)
	for _, v := range list {
		valid[fmt.Sprint(v)] = true
	}
	if !valid["map[containerID:live ifname:eth0]"] || !valid["map[containerID:new ifname:eth0]"] || len(valid) != 2 {
		t.Errorf("GC was told of %v", list)
	}
	for path, want := range map[string]bool{live: true, dead: false, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	says(t, checkAttachments(t.Context(), &examination{Options: Options{Older: -1, Clock: clock.RealClock{}}, network: n,
		runtime: &runtime{sandboxes: map[string]bool{"live": true}}}), "ok each of 1 attachments")
}

// TestHostileResults: what is no result of a usual size is not read, and the attachments beside it are found.
func TestHostileResults(t *testing.T) {
	n, log := plugged(t, "1.1.0", nil)
	results := filepath.Join(filepath.Dir(log), "results")
	kept := func(container, result string) string {
		return fmt.Sprintf(`{"kind": "cniCacheV1", "containerId": %q, "networkName": "n", "ifName": "eth0", "result": {"cniVersion": %q}}`,
			container, result)
	}
	write(t, filepath.Join(results, "n-good-eth0"), kept("good", "1.1.0"))
	write(t, filepath.Join(results, "n-large-eth0"), kept("large", strings.Repeat("x", maxAttachment)))
	write(t, filepath.Join(results, "n-deep-eth0"), strings.Repeat("[", 1<<20))
	if err := syscall.Mkfifo(filepath.Join(results, "n-fifo-eth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(results, "n-zero-eth0")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(log), "leases/n/10.1.0.2"), strings.Repeat("x", maxAttachment+1))
	all, err := n.attachments(results)
	if err != nil || len(all) != 1 || all[0].container != "good" {
		t.Errorf("%d attachments, %v", len(all), err)
	}
}

// TestPluginThatHangs: what a plug-in leaves running, with its output open, is not waited for, and of what it says a bounded part is kept.
func TestPluginThatHangs(t *testing.T) {
	n, _ := plugged(t, "1.1.0", map[string]string{"bridge": "sleep 300 & echo $! > ${0%/*}/left", "portmap": "head -c 3000000 /dev/zero"})
	began := time.Now()
	_, err := n.call(t.Context(), n.plugins[0], verb{command: "STATUS"})
	if err != nil || time.Since(began) > time.Minute {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	text, err := os.ReadFile(filepath.Join(n.binDirs[1], "left"))
	if err != nil {
		t.Fatal(err)
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(left, syscall.SIGKILL)
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := n.call(t.Context(), n.plugins[1], verb{command: "STATUS"}); err == nil ||
		!strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("after 3 MB: %v", err)
	}
}
