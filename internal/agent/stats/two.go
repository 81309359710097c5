// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"
)

// two reads a cgroup of v2. For the root it takes memory usage that the cgroup does not have from the machine.
func (r Reader) two(path string) (*Group, error) {
	at := func(name string) string { return filepath.Join(r.cgroups(), path, name) }
	if !exists(at("cgroup.procs")) {
		return nil, fs.ErrNotExist
	}
	g := &Group{}
	times := table(at("cpu.stat"))
	g.CPU = CPU{
		Used: times["usage_usec"] * 1000, User: times["user_usec"] * 1000, System: times["system_usec"] * 1000,
		Shares:  shares(number(at("cpu.weight"))),
		Periods: times["nr_periods"], ThrottledPeriods: times["nr_throttled"], Throttled: times["throttled_usec"] * 1000,
		BurstPeriods: times["nr_bursts"], Burst: times["burst_usec"] * 1000,
	}
	if l := lines(at("cpu.max")); len(l) > 0 {
		quota, period, _ := strings.Cut(l[0], " ")
		g.CPU.Quota, g.CPU.Period = value(quota), value(period)
	}
	stat, events := table(at("memory.stat")), table(at("memory.events"))
	g.Memory = Memory{
		Used: number(at("memory.current")), Peak: number(at("memory.peak")),
		Cache: stat["file"], Resident: stat["anon"], Mapped: stat["file_mapped"], Kernel: stat["kernel"],
		ActiveFile: stat["active_file"], InactiveFile: stat["inactive_file"], Swap: number(at("memory.swap.current")),
		Limit: number(at("memory.max")), SoftLimit: number(at("memory.low")), SwapLimit: number(at("memory.swap.max")),
		Failures: events["max"], OutOfMemory: events["oom_kill"],
		Faults: stat["pgfault"], MajorFaults: stat["pgmajfault"], OwnFaults: stat["pgfault"], OwnMajorFaults: stat["pgmajfault"],
	}
	if !exists(at("memory.current")) {
		m := r.meminfo()
		g.Memory.Used, g.Memory.Swap = m["MemTotal"]-min(m["MemTotal"], m["MemFree"]), m["SwapTotal"]-min(m["SwapTotal"], m["SwapFree"])
	}
	g.Threads, g.Most = number(at("pids.current")), number(at("pids.max"))
	for _, l := range lines(at("io.stat")) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		d := Disk{}
		var ok bool
		if d.Major, d.Minor, ok = numbers(f[0]); !ok {
			continue
		}
		for _, pair := range f[1:] {
			name, text, _ := strings.Cut(pair, "=")
			if to := map[string]*uint64{"rbytes": &d.ReadBytes, "wbytes": &d.WriteBytes, "rios": &d.Reads, "wios": &d.Writes}[name]; to != nil {
				*to = value(text)
			}
		}
		g.Disks = append(g.Disks, d)
	}
	if exists(at("cpu.pressure")) {
		of := func(name string) Waiting { return waiting(lines(at(name))) }
		g.Pressure = &Pressure{CPU: of("cpu.pressure"), Memory: of("memory.pressure"), IO: of("io.pressure")}
	}
	return g, nil
}

// shares converts the weight of cgroups v2 (1 to 10000) into the shares of v1 (2 to 262144), inversely to the runtimes (runc since 1.3,
// crun since 1.23). Weights are coarser than shares.
func shares(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	l := (math.Sqrt(125*125+4*612*(math.Log10(float64(weight))+7.0/34)) - 125) / 2
	return uint64(math.Round(math.Exp2(l)))
}

// waiting parses lines of pressure stall information: some avg10=0.00 avg60=0.00 avg300=0.00 total=12, in microseconds.
func waiting(list []string) Waiting {
	var w Waiting
	for _, l := range list {
		what, rest, _ := strings.Cut(l, " ")
		to := map[string]*Stall{"some": &w.Some, "full": &w.Full}[what]
		if to == nil {
			continue
		}
		for pair := range strings.FieldsSeq(rest) {
			name, text, _ := strings.Cut(pair, "=")
			if name == "total" {
				to.Total = value(text) * 1000
			} else if avg := map[string]*float64{"avg10": &to.Avg10, "avg60": &to.Avg60, "avg300": &to.Avg300}[name]; avg != nil {
				if n, err := strconv.ParseFloat(text, 64); err == nil {
					*avg = n
				}
			}
		}
	}
	return w
}
