// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package pluginbench drives a plug-in of the node without a node: it is kubelet's side of one protocol in a directory, with no pods and no
// containers, and reports what conforms.
//
//	pluginbench.go  Run, the settings, the order of the checks
//	report.go       the report
//	process.go      the plug-in's program: started, killed, started again
//	registry.go     registration in plugins_registry, with a refusal of the first attempt
//	devices.go      device plug-ins: deviceplugin/v1beta1, at the node's own device manager
//	probes.go       calls of a device plug-in that the device manager does not make
//	hang.go         programs that hang or die in a call: slow and broken answers
//	gifts.go        what a container would get: paths, device nodes, CDI devices
//	claims.go       DRA drivers: dra/v1 and v1beta1, at the node's own DRA manager
//	volumes.go      CSI drivers: csi/v1
//	mounts.go       a volume of a CSI driver, staged and published
//	credentials.go  image credential providers, at the node's own
//	faults.go       a provider that does not answer, and one that answers by half
//
// A bench runs its checks one after the other. A check whose requirement has failed is skipped. The plug-in's program, if the bench has
// it, is started again when it ends, as a DaemonSet would.
package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
)

// Protocol is what a plug-in speaks.
type Protocol string

// The protocols.
const (
	Devices     Protocol = "device-plugin"
	Claims      Protocol = "dra"
	Volumes     Protocol = "csi"
	Credentials Protocol = "credential-provider"
)

// The defaults of Options.
const (
	DefaultWait = time.Minute // the public library of DRA drivers publishes slices that were deleted again after 30 s
	DefaultSlow = time.Second
	// mostRestarts is how often the program is started again while the bench waits for it once.
	mostRestarts = 10
)

// Options are the settings of a bench.
type Options struct {
	Dir     string   // kubelet's root directory; it is there
	Command []string // the plug-in's program with its arguments; nil: it runs already, and is never restarted
	Env     []string // of the program, beside the bench's own
	Usual   bool     // the program finds Dir at /var/lib/kubelet, in a mount namespace of its own; needs root
	Output  io.Writer
	Name    string        // of the resource, the driver or the provider; empty: the first that comes
	Node    string        // the node's name
	Wait    time.Duration // how long the plug-in may take for what it should do by itself; 0: DefaultWait
	Slow    time.Duration // calls that take longer are warned of; 0: DefaultSlow
	Change  []string      // a command that makes a device unhealthy, or well again; nil: the check is skipped

	Client kubernetes.Interface // of an API server that the plug-in reaches too; for DRA drivers, and for service account tokens

	CDIDirs  []string // directories of CDI specifications; nil: /etc/cdi and /var/run/cdi
	Volume   Volume
	Provider Provider
}

// Run drives the plug-in, and returns what it has found. An error means that the bench itself could not run.
func Run(ctx context.Context, p Protocol, o Options) (*Report, error) {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.Slow == 0 {
		o.Slow = DefaultSlow
	}
	if o.CDIDirs == nil {
		o.CDIDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	b := &bench{
		Options: o, ledger: extension.NewLedger(clock.RealClock{}), said: &warnings{}, changed: make(chan struct{}, 1),
		report: &Report{Protocol: p, Name: o.Name},
	}
	makers := map[Protocol]func(*bench) ([]step, func(), error){
		Devices: deviceSteps, Claims: claimSteps, Volumes: volumeSteps, Credentials: credentialSteps,
	}
	maker, known := makers[p]
	if !known {
		return nil, fmt.Errorf("unknown protocol %q", p)
	}
	steps, stop, err := maker(b)
	if err != nil {
		return nil, err
	}
	defer stop()
	defer b.end()
	return b.report, b.run(ctx, steps)
}

// bench is one run.
type bench struct {
	Options
	ledger  *extension.Ledger
	said    *warnings
	changed chan struct{} // has a value when what a check waits for may hold
	report  *Report
	process *process // nil: none runs
	kept    string   // a file that keeps /var/lib/kubelet; empty: there is none
}

// step is one check.
type step struct {
	name  string
	needs bool // the checks after it are skipped unless it succeeds
	run   func(ctx context.Context) finding
}

// run runs the checks. A failed one that others need ends the run.
func (b *bench) run(ctx context.Context, steps []step) error {
	broken := ""
	for _, s := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if broken != "" {
			b.report.add(s.name, skip("%q has failed", broken), 0)
			continue
		}
		b.said.reset()
		begun := time.Now()
		f := s.run(ctx)
		took := time.Since(begun)
		if f.took != 0 {
			took = f.took
		}
		if f.result == Fail && f.kubelet == "" {
			f.kubelet = b.said.text()
		}
		b.report.add(s.name, f, took)
		if f.result == Fail && s.needs {
			broken = s.name
		}
	}
	b.report.calls(b.ledger.Snapshot())
	return nil
}

// notify signals that what a check waits for may hold.
func (b *bench) notify() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

var errLate = errors.New("it did not happen in time")

// until waits until a condition holds. It starts the plug-in's program again when it ends, and returns how often.
func (b *bench) until(ctx context.Context, holds func() bool) (restarts int, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.Wait)
	defer cancel()
	for !holds() {
		select {
		case <-b.changed:
		case <-b.process.exited():
			if restarts++; restarts > mostRestarts {
				return restarts, fmt.Errorf("the program ends again and again: %w", b.process.why)
			}
			pause := time.NewTimer(min(100*time.Millisecond<<restarts, 5*time.Second))
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
			if err := b.launch(); err != nil {
				return restarts, err
			}
		case <-ctx.Done():
			if restarts > 0 {
				return restarts, fmt.Errorf("%w (%v); the program ended %d times", errLate, b.Wait, restarts)
			}
			return restarts, fmt.Errorf("%w (%v)", errLate, b.Wait)
		}
	}
	return restarts, nil
}

// slow warns of what took long; otherwise f stays.
func (b *bench) slow(f finding, took time.Duration) finding {
	f.took = took
	if f.result == OK && took > b.Slow {
		f.result, f.what = Warn, fmt.Sprintf("%s; slow: a pod's start waits for it", f.what)
	}
	return f
}

// warnings are what the node's rooms log while a check runs: what kubelet would have said.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

// logger returns a logger that keeps warnings and errors.
func (w *warnings) logger() *slog.Logger { return slog.New(keeper{w}) }

func (w *warnings) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = nil
}

func (w *warnings) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == 0 {
		return ""
	}
	return w.lines[len(w.lines)-1]
}

// keeper is the handler of warnings.
type keeper struct{ to *warnings }

// Enabled implements [slog.Handler].
func (keeper) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements [slog.Handler]. Of a record with an error, that counts: it is in kubelet's words.
func (k keeper) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text = a.Value.String()
		}
		return true
	})
	k.to.mu.Lock()
	defer k.to.mu.Unlock()
	k.to.lines = append(k.to.lines, text)
	return nil
}

// WithAttrs implements [slog.Handler].
func (k keeper) WithAttrs([]slog.Attr) slog.Handler { return k }

// WithGroup implements [slog.Handler].
func (k keeper) WithGroup(string) slog.Handler { return k }
