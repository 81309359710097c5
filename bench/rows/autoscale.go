// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	meteredChild = "be-metered" // argument that has the binary be a server of metrics.k8s.io
	autoscalers  = 1000
	scaledPods   = 10 // of each
	scaledSteps  = 20 // steps of load that are timed, each of another autoscaler
	autoscaleFor = 30 // seconds of rest: two evaluations of each autoscaler
	usualMillis  = 60 // of CPU that a pod uses, at its autoscaler's target
)

// beMetered serves the usage of pods of StatefulSets, which are named NAME-0, NAME-1 …, until its input ends.
func beMetered(in io.Reader, out io.Writer) error {
	return serveAggregated(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		app := strings.TrimPrefix(r.URL.Query().Get("labelSelector"), "app=")
		switch {
		case strings.TrimSuffix(r.URL.Path, "/") == "/apis/metrics.k8s.io/v1beta1":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1","resources":[{"name":"pods","singularName":"","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]}]}`)
		case strings.HasSuffix(r.URL.Path, "/pods"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[`)
			at := time.Now().UTC().Format(time.RFC3339)
			for i := range scaledPods {
				if i > 0 {
					_, _ = io.WriteString(w, ",")
				}
				_, _ = fmt.Fprintf(w, `{"metadata":{"name":"%s-%d","namespace":"default","creationTimestamp":%[3]q,"labels":{"app":%[1]q}},`+
					`"timestamp":%[3]q,"window":"15s","containers":[{"name":"c","usage":{"cpu":"%[4]dm","memory":"16Mi"}}]}`, app, i, at, usualMillis-1)
			}
			_, _ = io.WriteString(w, "]}\n")
		default:
			http.NotFound(w, r)
		}
	}), in, out)
}

func scaledSet(name string) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":%[1]q},"spec":{"replicas":%[2]d,"serviceName":"s",`+
		`"podManagementPolicy":"Parallel",`+
		`"selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q},"annotations":{"simulated.mortise.dev/cpu-usage":"%[3]dm"}},"spec":{"terminationGracePeriodSeconds":0,`+
		`"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"100m"}}}]}}}}`, name, scaledPods, usualMillis)
}

func autoscaler(name string) string {
	return fmt.Sprintf(`{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":%[1]q},"spec":{"minReplicas":1,"maxReplicas":30,`+
		`"scaleTargetRef":{"apiVersion":"apps/v1","kind":"StatefulSet","name":%[1]q},"metrics":[{"type":"Resource","resource":{"name":"cpu",`+
		`"target":{"type":"Utilization","averageUtilization":%[2]d}}}]}}`, name, usualMillis)
}

func scaledName(i int) string { return fmt.Sprintf("web-%04d", i) }

// autoscaling is 1,000 autoscalers over 10,000 simulated pods. At first a process of its own serves metrics.k8s.io, then the server itself
// does, and the load of some steps up. The row shows the time that the server takes to measure its nodes, which is processor time on a
// quiet machine, apart from that of the autoscalers.
func autoscaling(ctx context.Context, b *bench, add adder) (err error) {
	address, stop, err := startAggregated(ctx, meteredChild)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	s, err := load.Start(ctx, b.binary, "--node", "simulated", "--nodes", "100",
		"--horizontal-pod-autoscaler-cpu-initialization-period", "0s")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	r := &scaled{Server: s}
	if r.client, err = s.Client(4); err != nil {
		return err
	}
	defer r.client.CloseIdleConnections()
	if err := register(ctx, r.client, s.Config.Host, address, "metrics.k8s.io", "v1beta1"); err != nil {
		return err
	}
	return r.measure(ctx, add)
}

// scaled is a server with the autoscalers.
type scaled struct {
	*load.Server
	client *http.Client
}

func (r *scaled) measure(ctx context.Context, add adder) error {
	sets := r.Config.Host + "/apis/apps/v1/namespaces/default/statefulsets"
	rv, err := newest(ctx, r.client, sets)
	if err != nil {
		return err
	}
	if _, _, err := timed(ctx, r.Server, func(ctx context.Context) error {
		return load.Many(ctx, &r.Target, 2, autoscalers, func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", sets, jsonContent, scaledSet(scaledName(i)))
		})
	}, func(ctx context.Context) error {
		ready := map[string]bool{}
		return watchRollouts(ctx, r.client, sets+"?watch=1&resourceVersion="+rv, func(o *rollout) bool {
			if o.Object.Status.AvailableReplicas == scaledPods {
				ready[o.Object.Metadata.Name] = true
			}
			return len(ready) == autoscalers
		})
	}); err != nil {
		return fmt.Errorf("run pods: %w", err)
	}
	if err := r.idle(ctx, 30); err != nil { // what came of the pods settles
		return err
	}
	without, err := r.rest(ctx)
	if err != nil {
		return err
	}
	before, err := r.least(ctx)
	if err != nil {
		return err
	}
	hpas := r.Config.Host + "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
	if err := r.create(ctx, hpas); err != nil {
		return err
	}
	if err := r.idle(ctx, 15); err != nil { // each is evaluated again
		return err
	}
	after, err := r.least(ctx)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("memory per autoscaler, of %s", report.Number(autoscalers)), after.Per(before, autoscalers, report.AtMost(20))...)
	with, err := r.rest(ctx)
	if err != nil {
		return err
	}
	add("the same, while another server answers for metrics.k8s.io",
		report.Value{Name: "of autoscalers and their requests to it", Unit: "ms/s", Number: with - without},
		report.Value{Name: "of all", Unit: "ms/s", Number: with})
	if err := r.unregister(ctx, hpas); err != nil {
		return err
	}
	measured, err := r.measuring(ctx)
	if err != nil {
		return err
	}
	if with, err = r.rest(ctx); err != nil {
		return err
	}
	later, err := r.measuring(ctx)
	if err != nil {
		return err
	}
	scrape := 1000 * (later - measured) / autoscaleFor
	add(fmt.Sprintf("CPU at rest with %s autoscalers over %s simulated pods", report.Number(autoscalers),
		report.Number(autoscalers*scaledPods)),
		report.Value{Name: "of the autoscalers", Unit: "ms/s", Number: with - without - scrape, Bound: report.AtMost(20)},
		report.Value{Name: "of the measurements of nodes", Unit: "ms/s", Number: scrape},
		report.Value{Name: "of all", Unit: "ms/s", Number: with})
	return r.steps(ctx, sets, add)
}

// unregister has the server itself serve metrics.k8s.io, and waits until each autoscaler has been evaluated with its figures.
func (r *scaled) unregister(ctx context.Context, hpas string) error {
	rv, err := newest(ctx, r.client, hpas)
	if err != nil {
		return err
	}
	_, _, err = timed(ctx, r.Server, func(ctx context.Context) error {
		return load.Expect(ctx, r.client, http.StatusOK, "DELETE",
			r.Config.Host+"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io", "", "")
	}, func(ctx context.Context) error {
		// The other server says that pods use a little less, so that each status changes.
		seen := map[string]bool{}
		return watchRollouts(ctx, r.client, hpas+"?watch=1&resourceVersion="+rv, func(o *rollout) bool {
			seen[o.Object.Metadata.Name] = true
			return len(seen) == autoscalers
		})
	})
	if err != nil {
		return fmt.Errorf("measure pods: %w", err)
	}
	return r.idle(ctx, 20)
}

// create makes the autoscalers, and waits until each has been evaluated.
func (r *scaled) create(ctx context.Context, hpas string) error {
	rv, err := newest(ctx, r.client, hpas)
	if err != nil {
		return err
	}
	_, _, err = timed(ctx, r.Server, func(ctx context.Context) error {
		return load.Many(ctx, &r.Target, 2, autoscalers, func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", hpas, jsonContent, autoscaler(scaledName(i)))
		})
	}, func(ctx context.Context) error {
		active := 0
		return watchLines(ctx, r.client, hpas+"?watch=1&resourceVersion="+rv, wholeObjects, func(line []byte) (bool, error) {
			if strings.Contains(string(line), `"reason":"ValidMetricFound"`) {
				active++
			}
			return active >= autoscalers, nil
		})
	})
	if err != nil {
		return fmt.Errorf("create autoscalers: %w", err)
	}
	return nil
}

// idle waits: a watch that the server itself ends is as long.
func (r *scaled) idle(ctx context.Context, seconds int) error {
	return load.Expect(ctx, r.client, http.StatusOK, "GET",
		fmt.Sprintf("%s/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=%d", r.Config.Host, seconds), "", "")
}

// least is the least memory of several looks: a look sees the questions that are under way.
func (r *scaled) least(ctx context.Context) (least load.Held, err error) {
	for i := range 5 {
		h, err := r.Collected(ctx)
		if err != nil {
			return h, err
		}
		if i == 0 || h.Live < least.Live {
			least.Live = h.Live
		}
		if i == 0 || h.Resident < least.Resident {
			least.Resident = h.Resident
		}
	}
	return least, nil
}

// rest is the CPU of the server while nothing happens, in thousandths of a core.
func (r *scaled) rest(ctx context.Context) (float64, error) {
	before, err := r.Cpu()
	if err != nil {
		return 0, err
	}
	if err := r.idle(ctx, autoscaleFor); err != nil {
		return 0, err
	}
	after, err := r.Cpu()
	return load.Ms(after-before) / autoscaleFor, err
}

// measuring is how long the server has measured nodes so far, in seconds.
func (r *scaled) measuring(ctx context.Context) (float64, error) {
	_, metrics, err := load.Say(ctx, r.client, "GET", r.Config.Host+"/metrics", "", "")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(metrics)) {
		var took float64
		if !strings.HasPrefix(line, "mortise_extension_call_duration_seconds_sum{") || !strings.Contains(line, `"built-in"`) {
			continue
		}
		if _, err := fmt.Sscanf(line[strings.LastIndexByte(line, ' '):], "%g", &took); err != nil {
			return 0, fmt.Errorf("read durations of measurements: %w", err)
		}
		return took, nil
	}
	return 0, errors.New("read durations of measurements: there are none")
}

// steps doubles the load of some pods, and times how long it takes until their sets have more replicas.
func (r *scaled) steps(ctx context.Context, sets string, add adder) error {
	rv, err := newest(ctx, r.client, sets)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	began := map[string]time.Time{}
	var took []time.Duration
	doubled := fmt.Sprintf(`{"metadata":{"annotations":{"simulated.mortise.dev/cpu-usage":"%dm"}}}`, 2*usualMillis)
	if _, _, err := timed(ctx, r.Server, func(ctx context.Context) error {
		for i := range scaledSteps {
			name := scaledName(1 + i*autoscalers/scaledSteps)
			mu.Lock()
			began[name] = time.Now()
			mu.Unlock()
			for pod := range scaledPods {
				if err := load.Expect(ctx, r.client, http.StatusOK, "PATCH", fmt.Sprintf("%s/api/v1/namespaces/default/pods/%s-%d", r.Config.Host, name,
					pod), "application/merge-patch+json", doubled); err != nil {
					return err
				}
			}
		}
		return nil
	}, func(ctx context.Context) error {
		return watchRollouts(ctx, r.client, sets+"?watch=1&resourceVersion="+rv, func(o *rollout) bool {
			mu.Lock()
			defer mu.Unlock()
			if at, ok := began[o.Object.Metadata.Name]; ok && o.Object.Spec.Replicas > scaledPods {
				took = append(took, time.Since(at))
				delete(began, o.Object.Metadata.Name)
			}
			return len(took) == scaledSteps
		})
	}); err != nil {
		return fmt.Errorf("step load: %w", err)
	}
	add("from a step of the load to the new replicas at the API", report.Value{Name: "median", Unit: "s", Number: load.Quantile(took, 50) / 1000, Bound: report.AtMost(2)},
		report.Value{Name: "longest", Unit: "s", Number: slices.Max(took).Seconds(), Bound: report.AtMost(2.5)})
	return nil
}
