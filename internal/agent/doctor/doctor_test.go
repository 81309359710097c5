// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// states are those of findings, with what each says.
func states(found []Finding) []string {
	var out []string
	for _, f := range found {
		out = append(out, string(f.State)+" "+f.What)
	}
	return out
}

// says wants findings, each given by its beginning.
func says(t *testing.T, found []Finding, want ...string) {
	t.Helper()
	got := states(found)
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("found %q, want %q", got, want)
	}
	for _, f := range found {
		if f.State == Wrong && f.Do == "" {
			t.Errorf("%q is wrong, and nobody says what to do", f.What)
		}
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRuntimeSays(t *testing.T) {
	r := &runtime{}
	err := r.read(`{"stateDir": "/s/io.containerd.grpc.v1.cri", "cni": {"binDir": "/bin", "confDir": "/conf"},
		"containerd": {"defaultRuntimeName": "runc", "runtimes": {"crun": {"options": {}}, "runc": {"options": {"SystemdCgroup": true}}}}}`)
	if err != nil || r.stateDir != "/s" || r.confDir != "/conf" || !slices.Equal(r.binDirs, []string{"/bin"}) || r.driver != "systemd" {
		t.Errorf("read %+v, %v", r, err)
	}
	r = &runtime{}
	if err := r.read(`{}`); err != nil || r.driver != "" || r.stateDir != "" {
		t.Errorf("read %+v, %v", r, err)
	}
	if err := r.read(`[`); err == nil {
		t.Error("a configuration that is no JSON was read")
	}
	for info, want := range map[string]string{
		`{"runtimeSpec": {"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": "/var/run/netns/cni-1"}]}}}`: "/var/run/netns/cni-1",
		`{"netNamespaceClosed": true, "runtimeSpec": null}`:                                                                  "",
	} {
		if got, err := namespacePath(info); err != nil || got != want {
			t.Errorf("%s: %q, %v", info, got, err)
		}
	}
	for _, info := range []string{``, `{}`} {
		if _, err := namespacePath(info); err == nil {
			t.Errorf("%q tells of a namespace", info)
		}
	}
	says(t, conditions([]*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
	}), "ok RuntimeReady", "wrong NetworkReady is false: NetworkPluginNotReady: cni plugin not initialized")
}

func TestRuntimesThatIgnoreCDI(t *testing.T) {
	for version, want := range map[string]bool{"v1.6.36": true, "1.7.0": false, "v2.1.4-rc1": false, "unknown": false} {
		if got := (&runtime{name: "containerd", version: version}).ignoresCDI(); got != want {
			t.Errorf("containerd %s ignores CDI devices: %v", version, got)
		}
	}
	if (&runtime{name: "cri-o", version: "1.6.0"}).ignoresCDI() {
		t.Error("CRI-O ignores CDI devices")
	}
}

func TestRuntimeThatIsNotThere(t *testing.T) {
	e := &examination{Options: Options{Socket: filepath.Join(t.TempDir(), "none.sock")}}
	says(t, checkRuntime(t.Context(), e), "wrong find runtime's socket")
	e.network = &network{name: "n"}
	for _, check := range []func(context.Context, *examination) []Finding{checkAttachments, checkRules, checkNamespaces, checkMounts,
		checkPodCgroups} {
		for _, f := range check(t.Context(), e) {
			if f.State != Note || !strings.Contains(f.What, errNoRuntime.Error()) {
				t.Errorf("without a runtime: %+v", f)
			}
		}
	}
}

func TestCgroupsAreJudged(t *testing.T) {
	all := []string{"cpu", "memory", "pids"}
	for name, c := range map[string]struct {
		facts cgroupFacts
		want  []string
	}{
		"v2":       {cgroupFacts{true, all, true, "systemd", "systemd"}, []string{"ok cgroups v2", "ok runtime and node"}},
		"v1":       {cgroupFacts{false, all, false, "cgroupfs", "cgroupfs"}, []string{"note cgroups v1", "ok runtime and node"}},
		"not said": {cgroupFacts{true, all, false, "", "cgroupfs"}, []string{"ok cgroups v2", "note the runtime does not report"}},
		"disagree": {cgroupFacts{true, all, true, "systemd", "cgroupfs"},
			[]string{"ok cgroups v2", "wrong the runtime's cgroup driver is systemd, the node's cgroupfs"}},
		"no systemd": {cgroupFacts{true, all, false, "systemd", "systemd"},
			[]string{"ok cgroups v2", "ok runtime", "wrong the cgroup driver is systemd"}},
		"no memory": {cgroupFacts{true, []string{"cpu", "pids"}, false, "cgroupfs", "cgroupfs"},
			[]string{"ok cgroups v2", "wrong no cgroup controller memory", "ok runtime"}},
		"nothing yet": {cgroupFacts{}, []string{"note cgroups v1", "wrong no cgroup controller cpu", "wrong no cgroup controller memory",
			"wrong no cgroup controller pids", "note the runtime"}},
	} {
		t.Run(name, func(t *testing.T) { says(t, c.facts.judge(), c.want...) })
	}
	text := "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t5\t1\nmemory\t0\t5\t0\n"
	if got := enabledControllers(text); !slices.Equal(got, []string{"cpu"}) {
		t.Errorf("enabled are %q", got)
	}
}

func TestKernelIsJudged(t *testing.T) {
	all := []string{"ipc", "mnt", "net", "pid", "user", "uts"}
	says(t, judgeKernel("nodev\ttmpfs\nnodev\toverlay\n", all), "ok ")
	says(t, judgeKernel("\text4\n", all[:4]), "wrong the kernel has no uts", "note the kernel has no user", "wrong the kernel has no tmpfs",
		"note the kernel has no overlayfs")
	s := setting{"net.ipv4.ip_forward", 1, Wrong, "nothing is reached"}
	if f := s.judge("1\n", nil); f != nil {
		t.Errorf("found %+v", f)
	}
	says(t, []Finding{*s.judge("0\n", nil), *s.judge("", fs.ErrNotExist)}, "wrong net.ipv4.ip_forward is 0: nothing is reached",
		"wrong net.ipv4.ip_forward does not exist")
}

const saved = `# Generated by iptables-save
*filter
-A FORWARD -m comment --comment "name: \"mortise\" id: \"other-table\"" -j ACCEPT
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:CNI-1a2b - [0:0]
-A POSTROUTING -s 10.244.0.5/32 -m comment --comment "name: \"mortise\" id: \"dead\"" -j CNI-1a2b
-A CNI-1a2b -d 10.244.0.0/16 -m comment --comment "name: \"mortise\" id: \"dead\"" -j ACCEPT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"mortise\" id: \"live\"" -m multiport --dports 18080 -j CNI-DN-3c
-A POSTROUTING -m comment --comment "" -j MASQUERADE
-A POSTROUTING -m comment --comment "somebody's id: \"x\"" -j MASQUERADE
-A POSTROUTING -m comment --comment "Services, by Mortise" -j MORTISE-POSTROUTING
-A MORTISE-SERVICES-07 -d 10.96.0.7/32 -p tcp -m comment --comment "ns/web/tcp/http" -m tcp --dport 80 -j MORTISE-SVC-ABCDEFGHIJKLMNOP
COMMIT
`

func TestRulesOfPlugins(t *testing.T) {
	comment := `name: "mortise" id: "dead"`
	want := []rule{
		{"filter", "FORWARD", []string{"-m", "comment", "--comment", `name: "mortise" id: "other-table"`, "-j", "ACCEPT"}, "", "other-table"},
		{"nat", "POSTROUTING", []string{"-s", "10.244.0.5/32", "-m", "comment", "--comment", comment, "-j", "CNI-1a2b"}, "CNI-1a2b", "dead"},
		{"nat", "CNI-1a2b", []string{"-d", "10.244.0.0/16", "-m", "comment", "--comment", comment, "-j", "ACCEPT"}, "", "dead"},
		{"nat", "CNI-HOSTPORT-DNAT", []string{"-p", "tcp", "-m", "comment", "--comment", `dnat name: "mortise" id: "live"`, "-m", "multiport",
			"--dports", "18080", "-j", "CNI-DN-3c"}, "CNI-DN-3c", "live"},
	}
	if diff := cmp.Diff(want, rulesOf(saved), cmp.AllowUnexported(rule{})); diff != "" {
		t.Error(diff)
	}
	if got := split(`a "" "b \"c\" d"  e`); !slices.Equal(got, []string{"a", "", `b "c" d`, "e"}) {
		t.Errorf("split %q", got)
	}
}

func TestMountsOfUnknownPods(t *testing.T) {
	const text = `1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 0:1 / /data/pods/known/volumes/v rw - tmpfs tmpfs rw
3 1 0:2 / /data/pods/gone/volumes/a\040b rw - tmpfs tmpfs rw
4 3 0:3 / /data/pods/gone/volumes/a\040b/c rw - tmpfs tmpfs rw
5 1 0:4 / /data/pods-of-others/x rw - tmpfs tmpfs rw
short
`
	want := map[string][]string{"gone": {"/data/pods/gone/volumes/a b", "/data/pods/gone/volumes/a b/c"}}
	if diff := cmp.Diff(want, leftMounts(text, "/data/pods", map[string]bool{"known": true})); diff != "" {
		t.Error(diff)
	}
}

func TestCgroupsOfUnknownPods(t *testing.T) {
	const a, b, c, d = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222", "33333333-3333-3333-3333-333333333333",
		"44444444-4444-4444-4444-444444444444"
	for name, want := range map[string]string{
		"pod" + a: a, "kubepods-besteffort-pod" + strings.ReplaceAll(b, "-", "_") + ".slice": b, "besteffort": "", "pod1": "", "podium": "",
	} {
		if got := podOf(name); got != want {
			t.Errorf("%s is of %q", name, got)
		}
	}
	root := t.TempDir()
	known := write(t, filepath.Join(root, "cpu/kubepods/pod"+a+"/cgroup.procs"), "")
	left := filepath.Dir(write(t, filepath.Join(root, "cpu/kubepods/besteffort/pod"+b+"/cgroup.procs"), ""))
	write(t, filepath.Join(left, "container/cgroup.procs"), "")
	write(t, filepath.Join(root, "cpu/kubepods/pod"+c+"/container/cgroup.procs"), "12\n")
	write(t, filepath.Join(root, "memory/kubepods/pod"+d+"/cgroup.procs"), "")
	young := filepath.Join(root, "memory/kubepods/pod"+d)
	got := leftCgroups(podCgroups(root, "/"), map[string]bool{a: true}, func(path string) bool { return path != young })
	if diff := cmp.Diff(map[string][]string{b: {left}}, got); diff != "" {
		t.Errorf("%s (known: %s)", diff, known)
	}
}

func TestAge(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "f"), "")
	for older, want := range map[time.Duration]bool{time.Hour: false, -1: true} {
		e := &examination{Options: Options{Older: older, Clock: clock.RealClock{}}}
		if got := e.oldFile(path); got != want {
			t.Errorf("older than %v: %t", older, got)
		}
		if e.oldFile(path + ".none") {
			t.Error("a file that is gone is old")
		}
	}
}

func TestFixing(t *testing.T) {
	dir := t.TempDir()
	// Only what is wrong and knows how is mended, and what cannot be says so.
	var done []string
	as := func(name string, err error) func(context.Context) error {
		return func(context.Context) error { done = append(done, name); return err }
	}
	found := []Finding{
		{State: OK, What: "a", fix: as("a", nil)}, {State: Wrong, What: "b", Do: "--fix", fix: as("b", nil)},
		{State: Wrong, What: "c", Do: "--fix", fix: as("c", errors.New("busy"))}, {State: Wrong, What: "d", Do: "by hand"},
	}
	mend(t.Context(), found)
	if !slices.Equal(done, []string{"b", "c"}) {
		t.Errorf("mended %q", done)
	}
	says(t, found, "ok a", "fixed b", "wrong c; could not fix it: busy", "wrong d")
	// A whole examination where there is nothing at all names every check, in the table's order.
	var names []string
	for _, f := range Examine(t.Context(), Options{DataDir: dir, Socket: filepath.Join(dir, "none.sock")}) {
		if !slices.Contains(names, f.Check) {
			names = append(names, f.Check)
		}
	}
	var want []string
	for _, c := range checks() {
		want = append(want, c.name)
	}
	if !slices.Equal(names, want) {
		t.Errorf("checked %q, want %q", names, want)
	}
}
