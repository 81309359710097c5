// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func binaries(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestInstall(t *testing.T) {
	bin := binaries(t, plugins...)
	dir := filepath.Join(t.TempDir(), "net.d")
	o := Options{Dir: dir, BinDirs: []string{"/nowhere", bin}, PodCIDRs: []string{"10.1.2.3/24"}}
	path, ours, err := Install(o)
	if err != nil || !ours || path != filepath.Join(dir, FileName) {
		t.Fatalf("%s, %v, %v", path, ours, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `"subnet": "10.1.2.0/24"`) {
		t.Errorf("%v: %s", err, text)
	}
	o.PodCIDRs = []string{"10.9.0.0/24", "fd00::/64"}
	if _, _, err := Install(o); err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "10.9.0.0/24") || !strings.Contains(string(text), "::/0") {
		t.Errorf("not changed with the range: %v: %s", err, text)
	}
	if !strings.Contains(string(text), `"ipMasq": false`) {
		t.Errorf("it masquerades, which nobody asked for: %s", text)
	}
	o.Masquerade = true
	if _, _, err := Install(o); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(path); err != nil || !strings.Contains(string(text), `"ipMasq": true`) {
		t.Errorf("not changed with who masquerades: %v: %s", err, text)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
	// It goes again, and only it; once more is no error.
	if err := os.WriteFile(filepath.Join(dir, "20-other.conflist"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != "20-other.conflist" {
		t.Errorf("left by the removal: %v, %v", entries, err)
	}
}

func TestInstallLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "99-theirs.conf")
	if err := os.WriteFile(other, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	path, ours, err := Install(Options{Dir: dir, PodCIDRs: []string{"10.0.0.0/24"}})
	if err != nil || ours || path != other {
		t.Errorf("%s, %v, %v", path, ours, err)
	}
}

func TestInstallNamesWhatIsMissing(t *testing.T) {
	_, _, err := Install(Options{Dir: t.TempDir(), BinDirs: []string{binaries(t, "bridge", "host-local", "loopback")},
		PodCIDRs: []string{"10.0.0.0/24"}})
	if err == nil || !strings.Contains(err.Error(), `"portmap"`) {
		t.Errorf("error %v", err)
	}
}

// TestBandwidth: pods are held to what their annotations say where the plug-in for it is there; a node without it has a network all the
// same.
func TestBandwidth(t *testing.T) {
	for _, has := range []bool{false, true} {
		names := plugins
		if has {
			names = append(slices.Clone(plugins), "bandwidth")
		}
		path, _, err := Install(Options{Dir: t.TempDir(), BinDirs: []string{binaries(t, names...)}, PodCIDRs: []string{"10.0.0.0/24"}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Plugins []struct {
				Type         string
				Capabilities map[string]bool
			}
		}
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		last := list.Plugins[len(list.Plugins)-1]
		if (last.Type == "bandwidth" && last.Capabilities["bandwidth"]) != has {
			t.Errorf("with the plug-in %v: %s", has, text)
		}
	}
}

func FuzzConflist(f *testing.F) {
	f.Add("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, cidr string) {
		if text, err := Conflist(Options{PodCIDRs: []string{cidr}}); err == nil && !strings.Contains(string(text), "subnet") {
			t.Errorf("no subnet in %s", text)
		}
	})
}

// Leases are removed once no pod has an address of the network.
func TestRemoveLeases(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, network)
	if err := os.Mkdir(own, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "last_reserved_ip.0", "10.244.0.2", "fd00::2"} {
		if err := os.WriteFile(filepath.Join(own, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, held := range []string{"10.244.0.2", "fd00::2", ""} {
		if err := removeLeases(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(own); (err == nil) != (held != "") {
			t.Errorf("while %q is held: %v", held, err)
		}
		if err := os.RemoveAll(filepath.Join(own, held)); held != "" && err != nil {
			t.Fatal(err)
		}
	}
	if err := removeLeases(dir); err != nil {
		t.Errorf("without leases: %v", err)
	}
}
