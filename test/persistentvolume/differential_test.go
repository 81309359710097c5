// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"context"
	"flag"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/nfs"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/volumebinder"
)

var (
	scenarios = flag.Uint64("scenarios", 300, "how many random scenarios")
	first     = flag.Uint64("seed", 1, "the seed of the first")
)

// reference describes kube-controller-manager's controller, with its settings by default.
func reference() controllers.Controller {
	core := corev1.SchemeGroupVersion
	inputs := []schema.GroupVersionResource{
		core.WithResource("persistentvolumes"), core.WithResource("persistentvolumeclaims"), core.WithResource("pods"),
		core.WithResource("nodes"), storagev1.SchemeGroupVersion.WithResource("storageclasses"),
	}
	return controllers.Controller{
		Name: "persistentvolume-binder-controller", Inputs: inputs, Outputs: inputs,
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			config := func(minimum int) volume.VolumeConfig {
				return volume.VolumeConfig{
					RecyclerMinimumTimeout: minimum, RecyclerTimeoutIncrement: 30, RecyclerPodTemplate: volume.NewPersistentVolumeRecyclerPodTemplate(),
				}
			}
			core := d.Informers.Core().V1()
			c, err := persistentvolume.NewController(context.Background(), persistentvolume.ControllerParameters{
				KubeClient: d.Client, SyncPeriod: 15 * time.Second, EnableDynamicProvisioning: true,
				VolumePlugins:  append(hostpath.ProbeVolumePlugins(config(60)), nfs.ProbeVolumePlugins(config(300))...),
				VolumeInformer: core.PersistentVolumes(), ClaimInformer: core.PersistentVolumeClaims(), PodInformer: core.Pods(),
				NodeInformer: core.Nodes(), ClassInformer: d.Informers.Storage().V1().StorageClasses(),
			})
			return controllers.RunnerFunc(func(ctx context.Context) error { c.Run(ctx); return nil }), err
		},
	}
}

// TestDifferential: on the same steps, both controllers make the same writes, step by step, and record the same events.
func TestDifferential(t *testing.T) {
	quiet := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(quiet)
	for _, name := range []string{"logtostderr=false", "stderrthreshold=FATAL"} {
		name, value, _ := strings.Cut(name, "=")
		if err := quiet.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	klog.SetOutput(io.Discard)
	utilruntime.ErrorHandlers = nil // they wait
	t.Run("all", func(t *testing.T) {
		for seed := *first; seed < *first+*scenarios; seed++ {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				compare(t, seed)
			})
		}
	})
}

func compare(t *testing.T, seed uint64) {
	archive := newScenario(seed)
	want, wantEvents := outcome(controllertest.Play(t, archive, reference()))
	got, gotEvents := outcome(controllertest.Play(t, archive, volumebinder.Controller()))
	for i := range want {
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Fatalf("seed %d, step %d (-kube-controller-manager +Mortise):\n%s\n%s", seed, i, diff, text(archive, i))
		}
	}
	if diff := cmp.Diff(wantEvents, gotEvents); diff != "" {
		t.Fatalf("seed %d, events (-kube-controller-manager +Mortise):\n%s\n%s", seed, diff, text(archive, len(want)))
	}
}

// outcome returns the writes of each step, by object, in the objects' order, and the events of the whole: kube-controller-manager repeats
// those.
func outcome(steps []string) (writes [][]string, events []string) {
	for _, step := range steps {
		var blocks []string
		for line := range strings.Lines(step) {
			line = strings.TrimSuffix(line, "\n")
			switch {
			case strings.HasPrefix(line, "event "):
				events = append(events, ordered(line))
			case strings.HasPrefix(line, "  spec.claimRef.resourceVersion: "): // versions count events, too
			case strings.HasPrefix(line, "  "):
				blocks[len(blocks)-1] += "\n" + line
			default:
				blocks = append(blocks, line)
			}
		}
		slices.Sort(blocks)
		writes = append(writes, blocks)
	}
	slices.Sort(events)
	return writes, slices.Compact(events)
}

// waiting finds the names of pods in an event. kube-controller-manager has them in any order.
var waiting = regexp.MustCompile(`(?:waiting for pods|used by pods:) (\S+,\S+)`)

// ordered puts the names of pods in an event in order.
func ordered(event string) string {
	at := waiting.FindStringSubmatchIndex(event)
	if at == nil {
		return event
	}
	names := strings.Split(event[at[2]:at[3]], ",")
	slices.Sort(names)
	return event[:at[2]] + strings.Join(names, ",") + event[at[3]:]
}

// text returns the steps up to one.
func text(archive *txtar.Archive, step int) string {
	var b strings.Builder
	for _, f := range archive.Files {
		if f.Name == "expect" {
			if step--; step < 0 {
				break
			}
		} else if !strings.HasPrefix(f.Name, "advance") {
			b.WriteString("-- " + f.Name + " --\n" + string(f.Data) + "\n")
		}
	}
	return b.String()
}
