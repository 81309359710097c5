// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumetest checks volume plug-ins. [Run] is the conformance suite of all plug-ins: it checks the promises of volumes.Plugin, on a
// real disk, with simulated mounts. [New] makes a manager of plug-ins for their own tests.
package volumetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

// Case is one volume of the plug-in, and what the suite expects of it.
type Case struct {
	Source corev1.VolumeSource
	// PersistentVolume is the volume of the claim, if Source is a claim.
	PersistentVolume *corev1.PersistentVolume
	// ReadOnly: no container may write to the volume, whatever its mount says.
	ReadOnly bool
	Measure  volumes.Measure
	// Foreign: the files belong to the host, to a server or to the container runtime, not to the pod.
	Foreign bool
	// Unmounted: the runtime mounts the volume, which has no path.
	Unmounted bool
	// Fails is a part of the error of a volume that cannot be set up; empty: it can.
	Fails string
}

// Run checks a plug-in by volumes of each kind that it supports.
func Run(t *testing.T, factory volumes.Factory, cases map[string]Case) {
	if len(cases) == 0 {
		t.Fatal("a suite without volumes checks nothing")
	}
	for name, c := range cases {
		s := &suite{Case: c, factory: factory}
		if c.Fails != "" {
			t.Run(name+"/Fails", s.fails)
			continue
		}
		for _, promise := range []struct {
			name  string
			check func(*suite, *testing.T)
		}{
			{"Supported", (*suite).supported}, {"LevelDriven", (*suite).levelDriven}, {"RestartableSetUp", (*suite).restartableSetUp},
			{"RestartableTearDown", (*suite).restartableTearDown}, {"Complete", (*suite).complete}, {"Contained", (*suite).contained},
			{"ReadOnly", (*suite).readOnly}, {"Grouped", (*suite).grouped}, {"Measured", (*suite).measured},
			{"ManyPods", (*suite).manyPods},
		} {
			t.Run(name+"/"+promise.name, func(t *testing.T) { promise.check(s, t) })
		}
	}
}

type suite struct {
	Case
	factory volumes.Factory
}

// machine is what survives the death of an agent: the disk and the kernel's mounts.
type machine struct {
	root   string
	kernel *kernel
}

func newMachine(t *testing.T) *machine {
	return &machine{root: t.TempDir(), kernel: &kernel{mounted: Kernel{}}}
}

// agent starts an agent on a machine, which knows only what it finds there.
func (s *suite) agent(m *machine) *volumes.Manager {
	return volumes.NewManager(&volumes.Host{
		Root: m.root, Sources: &Sources{PV: s.PersistentVolume}, Mounter: m.kernel, Clock: clocktesting.NewFakeClock(Epoch),
	}, []volumes.Factory{s.factory})
}

func (s *suite) pod() *corev1.Pod { return Pod(*s.Source.DeepCopy()) }

func (s *suite) setUp(t *testing.T, m *volumes.Manager) {
	t.Helper()
	if err := m.SetUp(t.Context(), s.pod(), []string{"10.0.0.2"}); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) path(t *testing.T, m *volumes.Manager) string {
	t.Helper()
	pod := s.pod()
	path, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The plug-in supports its own volumes, and no others.
func (s *suite) supported(t *testing.T) {
	plugin := s.factory(&volumes.Host{})
	if !regexp.MustCompile(`^[a-z.]+/[a-z-]+$`).MatchString(plugin.Name()) {
		t.Errorf("its name is %q", plugin.Name())
	}
	pod := s.pod()
	if !plugin.CanSupport(&volumes.Spec{Pod: pod, Volume: &pod.Spec.Volumes[0], PersistentVolume: s.PersistentVolume}) {
		t.Error("it does not support its own volume")
	}
	for name, other := range map[string]*volumes.Spec{
		"none":   {Pod: pod, Volume: &corev1.Volume{Name: "v"}},
		"iscsi":  {Pod: pod, Volume: &corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}}},
		"a disk": {Pod: pod, Volume: &corev1.Volume{Name: "v"}, PersistentVolume: &corev1.PersistentVolume{}},
	} {
		if plugin.CanSupport(other) {
			t.Errorf("it supports a volume of another type: %s", name)
		}
	}
}

// The error of a volume that cannot be set up has the reason, and the volume leaves no mount and nothing that cannot be removed.
func (s *suite) fails(t *testing.T) {
	m := newMachine(t)
	err := s.agent(m).SetUp(t.Context(), s.pod(), nil)
	if err == nil || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "v" : `) || !strings.Contains(err.Error(), s.Fails) {
		t.Errorf("error %v, want %s", err, s.Fails)
	}
	if len(m.kernel.mounted) > 0 {
		t.Errorf("mounted: %v", m.kernel.mounted)
	}
	s.tearDown(t, m)
}

// A second SetUp changes nothing, and files that containers wrote stay, unless only the node writes there.
func (s *suite) levelDriven(t *testing.T) {
	m := newMachine(t)
	s.setUp(t, s.agent(m))
	before, mounts := m.state(t), m.kernel.mounts
	agent := s.agent(m)
	s.setUp(t, agent)
	if diff := cmp.Diff(before, m.state(t)); diff != "" || m.kernel.mounts != mounts {
		t.Errorf("the same again mounted %d times, and changed (-before +after)\n%s", m.kernel.mounts-mounts, diff)
	}
	if s.Foreign || s.Unmounted {
		return
	}
	dir := s.path(t, agent)
	if err := os.WriteFile(filepath.Join(dir, "written"), []byte("by a container"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.setUp(t, s.agent(m))
	if _, err := os.Stat(filepath.Join(dir, "written")); err != nil && !s.ReadOnly {
		t.Errorf("the node changes what containers write: %v", err)
	}
}

// After an agent was killed after any step of SetUp, the next one completes or removes its work.
func (s *suite) restartableSetUp(t *testing.T) {
	whole := newMachine(t)
	s.setUp(t, s.agent(whole))
	want := whole.state(t)
	for steps := 0; ; steps++ {
		m := newMachine(t)
		died := m.kernel.diesAfter(t, steps, func() error { return s.agent(m).SetUp(t.Context(), s.pod(), []string{"10.0.0.2"}) })
		if !died {
			t.Logf("%d steps", steps)
			if steps == 0 && !s.Foreign && !s.Unmounted {
				t.Error("SetUp has no steps")
			}
			return
		}
		s.setUp(t, s.agent(m))
		if diff := cmp.Diff(want, m.state(t)); diff != "" {
			t.Errorf("killed after %d steps, and set up again (-want +got)\n%s", steps, diff)
		}
		s.tearDown(t, m)

		m = newMachine(t)
		m.kernel.diesAfter(t, steps, func() error { return s.agent(m).SetUp(t.Context(), s.pod(), []string{"10.0.0.2"}) })
		s.tearDown(t, m)
	}
}

// After an agent was killed after any step of TearDown, the next one completes it.
func (s *suite) restartableTearDown(t *testing.T) {
	for steps := 0; ; steps++ {
		m := newMachine(t)
		s.setUp(t, s.agent(m))
		died := m.kernel.diesAfter(t, steps, func() error { return s.agent(m).TearDown(t.Context(), "u") })
		s.tearDown(t, m)
		if !died {
			t.Logf("%d steps", steps)
			return
		}
	}
}

// tearDown tears the volume down with a new agent, and checks that nothing is left.
func (s *suite) tearDown(t *testing.T, m *machine) {
	t.Helper()
	for range 2 {
		if err := s.agent(m).TearDown(t.Context(), "u"); err != nil {
			t.Fatal(err)
		}
		if left := m.state(t); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
	}
}

// The plug-in itself leaves nothing of its volume, before the manager removes the pod's directory.
func (s *suite) complete(t *testing.T) {
	m := newMachine(t)
	agent := s.agent(m)
	s.setUp(t, agent)
	pod := s.pod()
	spec := &volumes.Spec{Pod: pod, Volume: &pod.Spec.Volumes[0], PersistentVolume: s.PersistentVolume}
	plugin := s.factory(agent.Host)
	dir := agent.VolumeDir("u", plugin.Name(), spec.Name())
	for range 2 {
		if err := plugin.TearDown(t.Context(), volumes.Reconstructed{PodUID: "u", Name: spec.Name(), Dir: dir}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the volume is left: %v", err)
		}
		if _, err := os.Lstat(agent.PluginDir("u", plugin.Name(), spec.Name())); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what the plug-in remembers is left: %v", err)
		}
		if len(m.kernel.mounted) > 0 {
			t.Errorf("mounted: %v", m.kernel.mounted)
		}
	}
	s.tearDown(t, m)
}

// Containers replace all contents of the volume by links that lead out. The node follows none of them.
func (s *suite) contained(t *testing.T) {
	if s.Foreign || s.Unmounted {
		return // the node neither writes nor removes anything there
	}
	outside, check := disktest.HostDir(t)
	m := newMachine(t)
	agent := s.agent(m)
	s.setUp(t, agent)
	dir := s.path(t, agent)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"new"}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, target := range []string{outside, filepath.Join(outside, "precious"), "..", "."} {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if err := errors.Join(safepath.RemoveAll(path), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(outside, filepath.Join(dir, "made")); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		s.setUp(t, agent)
		check()
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "last")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)); err != nil {
		t.Fatal(err)
	}
	s.tearDown(t, m)
	check()
}

// Containers may write if the case allows it. They may never write to volumes that the node rewrites.
func (s *suite) readOnly(t *testing.T) {
	m := newMachine(t)
	agent := s.agent(m)
	s.setUp(t, agent)
	pod := s.pod()
	spec := &volumes.Spec{Pod: pod, Volume: &pod.Spec.Volumes[0], PersistentVolume: s.PersistentVolume}
	readOnly := s.factory(agent.Host).Attributes(spec).ReadOnly || spec.ReadOnly()
	if readOnly != s.ReadOnly {
		t.Errorf("read-only for all containers: %v, want %v", readOnly, s.ReadOnly)
	}
	if s.Foreign || s.Unmounted || readOnly {
		return
	}
	dir := s.path(t, agent)
	before := disktest.Read(t, dir)
	for name := range before {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("by a container"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.setUp(t, agent)
		if disktest.Read(t, dir)[name] == before[name] {
			t.Errorf("the node rewrites %s, which containers may write", name)
		}
	}
}

// The volume's files belong to the pod's group.
func (s *suite) grouped(t *testing.T) {
	if s.Foreign || s.Unmounted {
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: giving files away needs root")
	}
	m := newMachine(t)
	agent, pod := s.agent(m), s.pod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	if err := agent.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	dir := s.path(t, agent)
	var files []string
	if !s.ReadOnly {
		files = append(files, ".")
	}
	for name := range disktest.Read(t, dir) {
		files = append(files, name)
	}
	for _, name := range files {
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &stat); err != nil || stat.Gid != 1234 || stat.Mode&0o440 != 0o440 {
			t.Errorf("%s is group %d's, mode %o, %v", name, stat.Gid, stat.Mode, err)
		}
	}
}

func (s *suite) measured(t *testing.T) {
	m := newMachine(t)
	agent := s.agent(m)
	s.setUp(t, agent)
	pod := s.pod()
	path, how, err := agent.Measure(t.Context(), pod, &pod.Spec.Volumes[0])
	if err != nil || how != s.Measure {
		t.Errorf("measured by %v, want %v, %v", how, s.Measure, err)
	}
	if _, err := os.Stat(path); err != nil && how != volumes.NotMeasured {
		t.Errorf("what is measured is not there: %v", err)
	}
}

// The volumes of different pods do not interfere.
func (s *suite) manyPods(t *testing.T) {
	m := newMachine(t)
	agent := s.agent(m)
	var pods sync.WaitGroup
	for i := range 8 {
		pods.Go(func() {
			pod := s.pod()
			pod.UID = types.UID(fmt.Sprint("u", i))
			if err := agent.SetUp(t.Context(), pod, nil); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if err := agent.TearDown(t.Context(), pod.UID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	pods.Wait()
	for i := range 8 {
		_, err := os.Stat(agent.PodDir(types.UID(fmt.Sprint("u", i))))
		if there := err == nil; there != (i%2 == 1) {
			t.Errorf("pod %d: %v", i, err)
		}
	}
}

// stamp matches what differs between two writes of a volume's files.
var stamp = regexp.MustCompile(`\.\.[0-9]{4}(_[0-9]{2}){5}\.[0-9]+`)

// state returns what is on the disk below pods, and what is mounted: modes, owners, contents, links.
func (m *machine) state(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	top := filepath.Join(m.root, "pods")
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if path == top && (err == nil || errors.Is(err, fs.ErrNotExist)) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%v %d", info.Mode(), info.Sys().(*unixStat).Gid)
		switch {
		case info.Mode().IsRegular():
			contents, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(contents)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " → " + to
		}
		out[stamp.ReplaceAllString(strings.TrimPrefix(path, top), "STAMP")] = stamp.ReplaceAllString(text, "STAMP")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, what := range m.kernel.mounted {
		out["mount "+strings.TrimPrefix(strings.TrimPrefix(dir, top), m.root)] = what
	}
	return out
}
