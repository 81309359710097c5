// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// entity is a cgroup with its metadata: the machine's root, a group of pods, a pod, its sandbox, or a container.
type entity struct {
	labels    []string // in the order of entityLabels
	started   time.Time
	group     *stats.Group
	network   []stats.Interface
	disks     []taken
	container *stats.Container // nil: none
}

// taken is the usage of a file system. If the file system belongs to the machine, used is that of the whole file system.
type taken struct {
	fs   *stats.FileSystem
	used uint64
}

// entityLabels are the labels that cAdvisor's metrics have in a kubelet: a container's name in its pod, the path of its cgroup, its image,
// its ID, and its pod.
var entityLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// point is one value of a metric, with its further labels.
type point struct {
	value  float64
	labels []string
}

// figure is one of cAdvisor's metrics, as a kubelet serves it.
type figure struct {
	name   string
	help   string
	kind   prometheus.ValueType
	labels []string
	of     func(e *entity) []point
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// counted makes a metric of each cgroup.
func counted(name, help string, kind prometheus.ValueType, of func(g *stats.Group) float64) figure {
	return figure{name, help, kind, nil, func(e *entity) []point { return []point{{of(e.group), nil}} }}
}

// bounded makes a metric of cgroups with a CPU limit.
func bounded(name, help string, of func(c *stats.CPU) float64) figure {
	return figure{name, help, counter, nil, func(e *entity) []point {
		if e.group.CPU.Quota == 0 {
			return nil
		}
		return []point{{of(&e.group.CPU), nil}}
	}}
}

// carried makes a metric of each network interface.
func carried(name, help string, of func(i *stats.Interface) uint64) figure {
	return figure{name, help, counter, []string{"interface"}, func(e *entity) (out []point) {
		for i := range e.network {
			out = append(out, point{float64(of(&e.network[i])), []string{e.network[i].Name}})
		}
		return out
	}}
}

// onDisk makes a metric of each disk.
func onDisk(name, help string, of func(d *stats.Disk) uint64) figure {
	return figure{name, help, counter, []string{"device"}, func(e *entity) (out []point) {
		seen := map[string]bool{} // two disks may have no name
		for i := range e.group.Disks {
			if d := &e.group.Disks[i]; !seen[d.Device] {
				seen[d.Device] = true
				out = append(out, point{float64(of(d)), []string{d.Device}})
			}
		}
		return out
	}}
}

// ofFiles makes a metric of each file system.
func ofFiles(name, help string, of func(t taken) uint64) figure {
	return figure{name, help, gauge, []string{"device"}, func(e *entity) (out []point) {
		for _, t := range e.disks {
			out = append(out, point{float64(of(t)), []string{t.fs.Device}})
		}
		return out
	}}
}

// ofProcesses makes a metric of each container.
func ofProcesses(name, help string, of func(c *stats.Container) uint64) figure {
	return figure{name, help, gauge, nil, func(e *entity) []point {
		if e.container == nil {
			return nil
		}
		return []point{{float64(of(e.container)), nil}}
	}}
}

// pressing makes a metric of each cgroup with pressure stall information.
func pressing(name, help string, of func(p *stats.Pressure) stats.Stall) figure {
	return figure{name, help, counter, nil, func(e *entity) []point {
		if e.group.Pressure == nil {
			return nil
		}
		return []point{{seconds(of(e.group.Pressure).Total), nil}}
	}}
}

func seconds(nanoseconds uint64) float64 { return float64(nanoseconds) / 1e9 }

// cadvisorFigures are all metrics. Names, units and labels are cAdvisor's (github.com/google/cadvisor, docs/storage/prometheus.md).
var cadvisorFigures = []figure{
	{"container_cpu_usage_seconds_total", "Processor time used, in core seconds", counter, []string{"cpu"}, func(e *entity) []point {
		return []point{{seconds(e.group.CPU.Used), []string{"total"}}}
	}},
	counted("container_cpu_user_seconds_total", "Processor time used by programs themselves, in core seconds", counter,
		func(g *stats.Group) float64 { return seconds(g.CPU.User) }),
	counted("container_cpu_system_seconds_total", "Processor time used by the kernel for them, in core seconds", counter,
		func(g *stats.Group) float64 { return seconds(g.CPU.System) }),
	bounded("container_cpu_cfs_periods_total", "Periods in which there was something to do",
		func(c *stats.CPU) float64 { return float64(c.Periods) }),
	bounded("container_cpu_cfs_throttled_periods_total", "Periods in which the bound was met",
		func(c *stats.CPU) float64 { return float64(c.ThrottledPeriods) }),
	bounded("container_cpu_cfs_throttled_seconds_total", "Time for which processes were held back, in seconds",
		func(c *stats.CPU) float64 { return seconds(c.Throttled) }),
	bounded("container_cpu_cfs_burst_periods_total", "Periods in which what was saved was used",
		func(c *stats.CPU) float64 { return float64(c.BurstPeriods) }),
	bounded("container_cpu_cfs_burst_seconds_total", "Processor time beyond the bound that had been saved, in seconds",
		func(c *stats.CPU) float64 { return seconds(c.Burst) }),

	counted("container_memory_usage_bytes",
		"Memory in use, including cached files", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Used) }),
	counted("container_memory_max_usage_bytes",
		"Maximum memory in use", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Peak) }),
	counted("container_memory_working_set_bytes",
		"Memory in use without inactive files", gauge, func(g *stats.Group) float64 { return float64(g.Memory.WorkingSet) }),
	counted("container_memory_cache", "Cached files in bytes", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Cache) }),
	counted("container_memory_rss", "Anonymous memory in bytes", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Resident) }),
	counted("container_memory_mapped_file", "Mapped files in bytes", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Mapped) }),
	counted("container_memory_kernel_usage",
		"Kernel memory in bytes", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Kernel) }),
	counted("container_memory_total_active_file_bytes",
		"Active cached files", gauge, func(g *stats.Group) float64 { return float64(g.Memory.ActiveFile) }),
	counted("container_memory_total_inactive_file_bytes",
		"Inactive cached files", gauge, func(g *stats.Group) float64 { return float64(g.Memory.InactiveFile) }),
	counted("container_memory_swap", "Swapped-out memory in bytes", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Swap) }),
	counted("container_memory_failcnt",
		"Number of times the memory limit was hit", counter, func(g *stats.Group) float64 { return float64(g.Memory.Failures) }),
	{"container_memory_failures_total", "Pages that were not there when they were touched", counter, []string{"failure_type", "scope"},
		func(e *entity) []point {
			m := &e.group.Memory
			return []point{
				{float64(m.OwnFaults), []string{"pgfault", "container"}}, {float64(m.OwnMajorFaults), []string{"pgmajfault", "container"}},
				{float64(m.Faults), []string{"pgfault", "hierarchy"}}, {float64(m.MajorFaults), []string{"pgmajfault", "hierarchy"}},
			}
		}},
	counted("container_oom_events_total",
		"Processes killed for lack of memory", counter, func(g *stats.Group) float64 { return float64(g.Memory.OutOfMemory) }),

	ofFiles("container_fs_usage_bytes", "What is taken of the file system, in bytes", func(t taken) uint64 { return t.used }),
	ofFiles("container_fs_limit_bytes", "The size of the file system, in bytes", func(t taken) uint64 { return t.fs.Bytes }),
	ofFiles("container_fs_inodes_total", "Files that the file system can have", func(t taken) uint64 { return t.fs.Files }),
	ofFiles("container_fs_inodes_free", "Files that the file system can still have", func(t taken) uint64 { return t.fs.FilesFree }),
	onDisk("container_fs_reads_bytes_total", "Bytes read", func(d *stats.Disk) uint64 { return d.ReadBytes }),
	onDisk("container_fs_reads_total", "Reads", func(d *stats.Disk) uint64 { return d.Reads }),
	onDisk("container_fs_writes_bytes_total", "Bytes written", func(d *stats.Disk) uint64 { return d.WriteBytes }),
	onDisk("container_fs_writes_total", "Writes", func(d *stats.Disk) uint64 { return d.Writes }),
	{"container_blkio_device_usage_total", "Bytes read from devices, and written to them", counter,
		[]string{"device", "major", "minor", "operation"}, func(e *entity) (out []point) {
			for _, d := range e.group.Disks {
				major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
				out = append(out, point{float64(d.ReadBytes), []string{d.Device, major, minor, "Read"}},
					point{float64(d.WriteBytes), []string{d.Device, major, minor, "Write"}})
			}
			return out
		}},

	carried("container_network_receive_bytes_total", "Bytes received", func(i *stats.Interface) uint64 { return i.ReceivedBytes }),
	carried("container_network_receive_packets_total", "Packets received", func(i *stats.Interface) uint64 { return i.ReceivedPackets }),
	carried("container_network_receive_packets_dropped_total", "Packets dropped that were received",
		func(i *stats.Interface) uint64 { return i.ReceiveDrops }),
	carried("container_network_receive_errors_total", "Errors of receiving", func(i *stats.Interface) uint64 { return i.ReceiveErrors }),
	carried("container_network_transmit_bytes_total", "Bytes sent", func(i *stats.Interface) uint64 { return i.SentBytes }),
	carried("container_network_transmit_packets_total", "Packets sent", func(i *stats.Interface) uint64 { return i.SentPackets }),
	carried("container_network_transmit_packets_dropped_total", "Packets dropped that were to be sent",
		func(i *stats.Interface) uint64 { return i.SendDrops }),
	carried("container_network_transmit_errors_total", "Errors of sending", func(i *stats.Interface) uint64 { return i.SendErrors }),

	ofProcesses("container_processes", "Processes", func(c *stats.Container) uint64 { return c.Processes }),
	ofProcesses("container_file_descriptors", "Files that they have open", func(c *stats.Container) uint64 { return c.Files }),
	ofProcesses("container_sockets", "Sockets among them", func(c *stats.Container) uint64 { return c.Sockets }),
	counted("container_threads", "Threads", gauge, func(g *stats.Group) float64 { return float64(g.Threads) }),
	counted("container_threads_max",
		"Maximum number of threads; 0 means no limit", gauge, func(g *stats.Group) float64 { return float64(g.Most) }),

	pressing("container_pressure_cpu_waiting_seconds_total", "Time in which some waited for a processor",
		func(p *stats.Pressure) stats.Stall { return p.CPU.Some }),
	pressing("container_pressure_cpu_stalled_seconds_total", "Time in which all waited for a processor",
		func(p *stats.Pressure) stats.Stall { return p.CPU.Full }),
	pressing("container_pressure_memory_waiting_seconds_total", "Time in which some waited for memory",
		func(p *stats.Pressure) stats.Stall { return p.Memory.Some }),
	pressing("container_pressure_memory_stalled_seconds_total", "Time in which all waited for memory",
		func(p *stats.Pressure) stats.Stall { return p.Memory.Full }),
	pressing("container_pressure_io_waiting_seconds_total", "Time in which some waited for a disk",
		func(p *stats.Pressure) stats.Stall { return p.IO.Some }),
	pressing("container_pressure_io_stalled_seconds_total", "Time in which all waited for a disk",
		func(p *stats.Pressure) stats.Stall { return p.IO.Full }),

	{"container_start_time_seconds", "When it was started, in seconds since 1970", gauge, nil, func(e *entity) []point {
		if e.started.IsZero() {
			return nil
		}
		return []point{{float64(e.started.Unix()), nil}}
	}},
	counted("container_spec_cpu_period", "The period of its bound of processor time, in microseconds", gauge,
		func(g *stats.Group) float64 { return float64(g.CPU.Period) }),
	{"container_spec_cpu_quota", "Its bound of processor time in a period, in microseconds", gauge, nil, func(e *entity) []point {
		if e.group.CPU.Quota == 0 {
			return nil
		}
		return []point{{float64(e.group.CPU.Quota), nil}}
	}},
	counted("container_spec_cpu_shares", "Its share of processors where there are too few", gauge,
		func(g *stats.Group) float64 { return float64(g.CPU.Shares) }),
	counted("container_spec_memory_limit_bytes",
		"Memory limit; 0 means none", gauge, func(g *stats.Group) float64 { return float64(g.Memory.Limit) }),
	counted("container_spec_memory_reservation_limit_bytes",
		"Memory soft limit; 0 means none", gauge, func(g *stats.Group) float64 { return float64(g.Memory.SoftLimit) }),
	counted("container_spec_memory_swap_limit_bytes",
		"Swap limit; 0 means none", gauge, func(g *stats.Group) float64 { return float64(g.Memory.SwapLimit) }),
}

// cadvisorMetrics serves the kernel's accounting of the node's cgroups, and the facts of the machine, under cAdvisor's names.
func (s *Server) cadvisorMetrics() http.Handler {
	r := prometheus.NewRegistry()
	c := &cadvisorCollector{s: s, machine: sync.OnceValue(stats.Reader{}.Machine)}
	for _, f := range cadvisorFigures {
		c.figures = append(c.figures, prometheus.NewDesc(f.name, f.help, append(entityLabels[:len(entityLabels):len(entityLabels)], f.labels...),
			nil))
	}
	c.seen = prometheus.NewDesc("container_last_seen", "Time of the last measurement, in seconds since 1970", entityLabels, nil)
	c.failed = prometheus.NewDesc("container_scrape_error", "1 if the figures could not be read, otherwise 0", nil, nil)
	c.version = prometheus.NewDesc("cadvisor_version_info",
		"Versions of kernel and operating system; always 1",
		[]string{"cadvisorRevision", "cadvisorVersion", "dockerVersion", "kernelVersion", "osVersion"}, nil)
	machine := []string{"boot_id", "machine_id", "system_uuid"}
	c.cores = prometheus.NewDesc("machine_cpu_cores", "Logical processors", machine, nil)
	c.physical = prometheus.NewDesc("machine_cpu_physical_cores", "Cores", machine, nil)
	c.sockets = prometheus.NewDesc("machine_cpu_sockets", "Sockets of processors", machine, nil)
	c.memory = prometheus.NewDesc("machine_memory_bytes", "Memory", machine, nil)
	c.swap = prometheus.NewDesc("machine_swap_bytes", "Swap space in bytes", machine, nil)
	r.MustRegister(c)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// cadvisorCollector measures anew for each scrape.
type cadvisorCollector struct {
	s                                      *Server
	machine                                func() stats.Machine // does not change
	figures                                []*prometheus.Desc   // of cadvisorFigures
	seen, failed, version                  *prometheus.Desc
	cores, physical, sockets, memory, swap *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *cadvisorCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range append(c.figures[:len(c.figures):len(c.figures)], c.seen, c.failed, c.version, c.cores, c.physical, c.sockets, c.memory,
		c.swap) {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *cadvisorCollector) Collect(ch chan<- prometheus.Metric) {
	// The collector's interface has no context; a runtime that does not respond must not hang the scrape.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	failed := 0.0
	all, err := c.s.node.Stats(ctx, stats.Options{Cgroups: true, Files: true, Processes: true})
	if err != nil {
		failed, all = 1, &stats.Usage{}
	}
	var booted time.Time
	if c.s.o.Host != nil {
		if u, err := c.s.o.Host(); err == nil {
			booted = u.Booted
		}
		m := c.machine()
		ids := []string{m.BootID, m.MachineID, m.SystemUUID}
		for d, v := range map[*prometheus.Desc]uint64{c.cores: m.CPUs, c.physical: m.Cores, c.sockets: m.Sockets, c.memory: m.Memory,
			c.swap: m.Swap} {
			ch <- prometheus.MustNewConstMetric(d, gauge, float64(v), ids...)
		}
		ch <- prometheus.MustNewConstMetric(c.version, gauge, 1, "", "", "", m.Kernel, m.System)
	}
	ch <- prometheus.MustNewConstMetric(c.failed, gauge, failed)
	for _, e := range entities(all, booted) {
		for i, f := range cadvisorFigures {
			for _, p := range f.of(&e) {
				ch <- prometheus.NewMetricWithTimestamp(all.Time, prometheus.MustNewConstMetric(c.figures[i], f.kind, p.value,
					append(e.labels[:len(e.labels):len(e.labels)], p.labels...)...))
			}
		}
		ch <- prometheus.NewMetricWithTimestamp(all.Time, prometheus.MustNewConstMetric(c.seen, gauge, float64(all.Time.Unix()), e.labels...))
	}
}

// entities returns all cgroups that the kernel accounts for.
func entities(all *stats.Usage, booted time.Time) []entity {
	var out []entity
	for i, c := range all.Node {
		e := entity{labels: []string{"", c.Path, "", "", "", ""}, group: c.Group, started: booted}
		if i == 0 {
			e.network = all.Network
			for _, fs := range []*stats.FileSystem{all.NodeFS, all.ImageFS} {
				if fs != nil && (len(e.disks) == 0 || e.disks[0].fs.Device != fs.Device) {
					e.disks = append(e.disks, taken{fs, fs.Used})
				}
			}
		}
		out = append(out, e)
	}
	for _, p := range all.Pods {
		if p.Group != nil {
			out = append(out, entity{labels: []string{"", p.Path, "", "", p.Target.Namespace, p.Target.Pod}, group: p.Group, started: p.Started})
		}
		if p.Sandbox.Group != nil {
			out = append(out, entity{labels: []string{"", p.Sandbox.Path, "", p.SandboxID, p.Target.Namespace, p.Target.Pod}, group: p.Sandbox.Group,
				started: p.Started, network: p.Network})
		}
	}
	for i := range all.Containers {
		c := &all.Containers[i]
		if c.Group == nil {
			continue
		}
		e := entity{labels: []string{c.Target.Container, c.Path, c.Image, c.ID, c.Target.Namespace, c.Target.Pod}, group: c.Group,
			started: c.Started, container: c}
		if all.ImageFS != nil {
			e.disks = []taken{{all.ImageFS, c.FilesystemBytes}}
		}
		out = append(out, e)
	}
	return out
}
