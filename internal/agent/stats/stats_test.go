// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write makes files of a tree.
func write(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// blocks names a device.
func blocks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink("../../devices/pci0/virtio1/block/vda", filepath.Join(dir, "253:0")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestGroup reads the same use of a cgroup as both versions of the kernel's interface tell it.
func TestGroup(t *testing.T) {
	one := write(t, t.TempDir(), map[string]string{
		"cpuacct/kubepods/podx/cpuacct.usage":              "5000000000\n",
		"cpuacct/kubepods/podx/cpuacct.stat":               "user 300\nsystem 100\n",
		"cpu/kubepods/podx/cpu.stat":                       "nr_periods 50\nnr_throttled 3\nthrottled_time 700000\nnr_bursts 2\nburst_time 9000\n",
		"cpu/kubepods/podx/cpu.shares":                     "1024\n",
		"cpu/kubepods/podx/cpu.cfs_quota_us":               "20000\n",
		"cpu/kubepods/podx/cpu.cfs_period_us":              "100000\n",
		"memory/kubepods/podx/memory.usage_in_bytes":       "1000\n",
		"memory/kubepods/podx/memory.max_usage_in_bytes":   "2000\n",
		"memory/kubepods/podx/memory.failcnt":              "4\n",
		"memory/kubepods/podx/memory.limit_in_bytes":       "4096\n",
		"memory/kubepods/podx/memory.memsw.limit_in_bytes": "5096\n",
		"memory/kubepods/podx/memory.soft_limit_in_bytes":  "9223372036854771712\n",
		"memory/kubepods/podx/memory.kmem.usage_in_bytes":  "55\n",
		"memory/kubepods/podx/memory.oom_control":          "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory/kubepods/podx/memory.stat": "cache 1\nrss 2\ntotal_cache 300\ntotal_rss 500\ntotal_mapped_file 30\ntotal_swap 7\ntotal_inactive_file 250\ntotal_active_file 40\n" +
			"pgfault 11\npgmajfault 2\ntotal_pgfault 11\ntotal_pgmajfault 2\n",
		"memory/kubepods/podx/cgroup.procs":                             "12\n13\n",
		"memory/kubepods/podx/abc/cgroup.procs":                         "",
		"pids/kubepods/podx/pids.current":                               "6\n",
		"pids/kubepods/podx/pids.max":                                   "max\n",
		"blkio/kubepods/podx/blkio.throttle.io_service_bytes_recursive": "253:0 Read 4096\n253:0 Write 8192\n253:0 Sync 1\n253:0 Total 12288\nTotal 12288\n",
		"blkio/kubepods/podx/blkio.throttle.io_serviced_recursive":      "253:0 Read 1\n253:0 Write 2\nTotal 3\n",
	})
	two := write(t, t.TempDir(), map[string]string{
		"cgroup.controllers":                "cpu memory pids io\n",
		"kubepods/podx/cpu.stat":            "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 1000000\nnr_periods 50\nnr_throttled 3\nthrottled_usec 700\nnr_bursts 2\nburst_usec 9\n",
		"kubepods/podx/cpu.weight":          "100\n",
		"kubepods/podx/cpu.max":             "20000 100000\n",
		"kubepods/podx/memory.current":      "1000\n",
		"kubepods/podx/memory.peak":         "2000\n",
		"kubepods/podx/memory.max":          "4096\n",
		"kubepods/podx/memory.low":          "0\n",
		"kubepods/podx/memory.swap.current": "7\n",
		"kubepods/podx/memory.swap.max":     "1000\n",
		"kubepods/podx/memory.events":       "low 0\nhigh 9\nmax 4\noom 1\noom_kill 1\n",
		"kubepods/podx/memory.stat":         "anon 500\nfile 300\nkernel 55\nfile_mapped 30\ninactive_file 250\nactive_file 40\npgfault 11\npgmajfault 2\n",
		"kubepods/podx/cgroup.procs":        "12\n13\n",
		"kubepods/podx/abc/cgroup.procs":    "",
		"kubepods/podx/pids.current":        "6\n",
		"kubepods/podx/pids.max":            "max\n",
		"kubepods/podx/io.stat":             "253:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:0 \n",
		"kubepods/podx/cpu.pressure":        "some avg10=1.50 avg60=0.20 avg300=0.03 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
		"kubepods/podx/memory.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"kubepods/podx/io.pressure":         "some avg10=0.00 avg60=0.00 avg300=0.00 total=8\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	})
	want := Group{
		CPU: CPU{Used: 5e9, User: 3e9, System: 1e9, Shares: 1024, Quota: 20000, Period: 100000, Periods: 50, ThrottledPeriods: 3,
			Throttled: 700_000, BurstPeriods: 2, Burst: 9000},
		Memory: Memory{Used: 1000, Peak: 2000, WorkingSet: 750, Cache: 300, Resident: 500, Mapped: 30, Kernel: 55, ActiveFile: 40,
			InactiveFile: 250, Swap: 7,
			Limit: 4096, SwapLimit: 1000, Failures: 4, OutOfMemory: 1, Faults: 11, MajorFaults: 2, OwnFaults: 11, OwnMajorFaults: 2},
		Disks:   []Disk{{Device: "/dev/vda", Major: 253, Reads: 1, ReadBytes: 4096, Writes: 2, WriteBytes: 8192}},
		Threads: 6,
	}
	for name, c := range map[string]struct {
		root     string
		pressure *Pressure
	}{
		"v1": {one, nil},
		"v2": {two, &Pressure{CPU: Waiting{Some: Stall{12_000, 1.5, 0.2, 0.03}, Full: Stall{Total: 3000}},
			IO: Waiting{Some: Stall{Total: 8000}}}},
	} {
		r := Reader{Cgroups: c.root, Blocks: blocks(t)}
		got, err := r.Group("/kubepods/podx")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := want
		want.Pressure = c.pressure
		if d := cmp.Diff(&want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if got := r.Processes("/kubepods/podx"); !slices.Equal(got, []int{12, 13}) {
			t.Errorf("%s: processes %v", name, got)
		}
		if got := r.Below("/kubepods/podx"); !slices.Equal(got, []string{"abc"}) {
			t.Errorf("%s: below it are %v", name, got)
		}
		if _, err := r.Group("/kubepods/pody"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a cgroup that is not there: %v", name, err)
		}
	}
}

// TestRoot: the root of cgroups v2 does not tell how much memory is used; the machine does.
func TestRoot(t *testing.T) {
	r := Reader{
		Cgroups: write(t, t.TempDir(), map[string]string{"cgroup.controllers": "cpu memory\n", "cgroup.procs": "1\n",
			"cpu.stat": "usage_usec 1\n", "memory.stat": "anon 5\ninactive_file 1024\n"}),
		Proc: write(t, t.TempDir(), map[string]string{"meminfo": "MemTotal:       100 kB\nMemFree:         60 kB\nSwapTotal:  10 kB\nSwapFree:  8 kB\nHugePages_Total:  3\n"}),
	}
	g, err := r.Group("/")
	if err != nil {
		t.Fatal(err)
	}
	if m := g.Memory; m.Used != 40<<10 || m.WorkingSet != 39<<10 || m.Swap != 2<<10 || m.Resident != 5 {
		t.Errorf("memory %+v", m)
	}
}

// TestShares: shares that were turned into a weight come back, as near as a weight can say.
func TestShares(t *testing.T) {
	for weight, want := range map[uint64]uint64{0: 0, 1: 2, 100: 1024, 10000: 262144} {
		if got := shares(weight); math.Abs(float64(got)-float64(want)) > float64(want)/50 {
			t.Errorf("weight %d is %d shares, want %d", weight, got, want)
		}
	}
}

func TestNetwork(t *testing.T) {
	proc := write(t, t.TempDir(), map[string]string{"7/net/dev": `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:    1234      12    3    4    0     0          0         0     5678      56    7    8    0     0       0          0
vethab:       1       1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
  odd0:       1
`})
	got, err := Reader{Proc: proc}.Network(7)
	if err != nil {
		t.Fatal(err)
	}
	want := []Interface{{Name: "eth0", ReceivedBytes: 1234, ReceivedPackets: 12, ReceiveErrors: 3, ReceiveDrops: 4, SentBytes: 5678,
		SentPackets: 56, SendErrors: 7, SendDrops: 8}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := (Reader{Proc: proc}).Network(8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that is gone: %v", err)
	}
}

// TestOpen counts what this process has open.
func TestOpen(t *testing.T) {
	before, sockets := Reader{}.Open(os.Getpid())
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if after, same := (Reader{}).Open(os.Getpid()); after != before+1 || same != sockets || before == 0 {
		t.Errorf("%d files, then %d; %d sockets, then %d", before, after, sockets, same)
	}
	if !(Reader{}).SameNetwork(os.Getpid(), os.Getpid()) || (Reader{}).SameNetwork(os.Getpid(), 0) {
		t.Error("a process has its own network, and no other has that of none")
	}
}

func TestFiles(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"a/f": "hello", "g": ""})
	if err := os.Link(filepath.Join(dir, "a/f"), filepath.Join(dir, "a/again")); err != nil {
		t.Fatal(err)
	}
	if _, files := Taken(dir); files != 4 { // two directories, and two files, one of two names
		t.Errorf("%d files", files)
	}
	if bytes, files := Taken(filepath.Join(dir, "none")); bytes != 0 || files != 0 {
		t.Errorf("%d bytes and %d files of nothing", bytes, files)
	}
	f, err := Reader{}.FileSystem(dir)
	if err != nil || f.Bytes == 0 || f.Used > f.Bytes || f.Free > f.Bytes {
		t.Errorf("file system %+v, %v", f, err)
	}
	if _, err := (Reader{}).FileSystem(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("file system of nothing: %v", err)
	}
	list := []string{"22 1 253:1 / / rw shared:1 - ext4 /dev/vda1 rw", "40 22 0:50 / /mem rw - tmpfs tmpfs rw", "broken"}
	for device, want := range map[string]string{"253:1": "/dev/vda1", "0:50": "tmpfs", "9:9": ""} {
		if got := mounted(list, device); got != want {
			t.Errorf("%s is %q, want %q", device, got, want)
		}
	}
}

func TestMachine(t *testing.T) {
	proc := write(t, t.TempDir(), map[string]string{
		"meminfo":                   "MemTotal: 2048 kB\nSwapTotal: 4 kB\n",
		"sys/kernel/random/boot_id": "b-1\n",
		"cpuinfo": "processor\t: 0\nphysical id\t: 0\ncore id\t\t: 0\n\nprocessor\t: 1\nphysical id\t: 0\ncore id\t\t: 0\n\n" +
			"processor\t: 2\nphysical id\t: 1\ncore id\t\t: 0\n\nprocessor\t: 3\nphysical id\t: 1\ncore id\t\t: 0\n",
	})
	m := Reader{Proc: proc}.Machine()
	if m.CPUs != 4 || m.Cores != 2 || m.Sockets != 2 || m.Memory != 2<<20 || m.Swap != 4<<10 || m.BootID != "b-1" || m.Kernel == "" {
		t.Errorf("machine %+v", m)
	}
}

// FuzzTexts reads what no kernel says: names and devices are those of lines, and no more than there are lines.
func FuzzTexts(f *testing.F) {
	f.Add("  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
	f.Add("253:0 Read 4096\n253:0 Write 1\nTotal 2\n")
	f.Add("some avg10=1.50 avg60=0.20 avg300=0.03 total=12\n")
	f.Add("22 1 253:1 / / rw shared:1 - ext4 /dev/vda1 rw")
	f.Fuzz(func(t *testing.T, text string) {
		all := strings.Split(text, "\n")
		if got := interfaces(text); len(got) > len(all) {
			t.Errorf("%d interfaces of %d lines", len(got), len(all))
		}
		if got := oneDisks(all, all); len(got) > len(all) {
			t.Errorf("%d disks of %d lines", len(got), len(all))
		}
		waiting(all)
		if name := mounted(all, "253:1"); !strings.Contains(text, name) {
			t.Errorf("the device is %q", name)
		}
	})
}
