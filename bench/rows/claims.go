// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// The arguments that make the program the first process of a node's namespaces, and the one that measures in them.
const (
	claimsChild    = "claims"
	claimsMeasurer = "claims-measurer"
)

// claimTurns is how many pods of each kind start, by turns.
const claimTurns = 30

// claimsMeasured is how long pods took from their creation until they were ready: without a volume, with the volume of a claim that is
// bound, and with that of a claim which is created a moment before, so that the volume is provisioned meanwhile.
type claimsMeasured struct{ Without, Bound, Fresh []time.Duration }

// localClaims are pods with local volumes of the node's own driver.
func localClaims(ctx context.Context, b *bench, add adder) error {
	var m claimsMeasured
	if err := onRealNode(ctx, b, claimsChild, &m); err != nil {
		return err
	}
	add(fmt.Sprintf("a pod without a volume: create → Ready, %d by turns with those below", claimTurns),
		report.Value{Name: "p50", Unit: "ms", Number: load.Quantile(slices.Clone(m.Without), 50)},
		report.Value{Name: "p99", Unit: "ms", Number: load.Quantile(slices.Clone(m.Without), 99)})
	for _, line := range []struct {
		what string
		took []time.Duration
	}{
		{"  with a local volume that exists", m.Bound},
		{"  with a new claim, whose local volume is provisioned first", m.Fresh},
	} {
		later := make([]time.Duration, len(line.took))
		for i := range later {
			later[i] = line.took[i] - m.Without[i]
		}
		add(line.what,
			report.Value{Name: "later than its neighbour, p50", Unit: "ms", Number: load.Quantile(later, 50), Bound: report.AtMost(40)},
			report.Value{Name: "p50", Unit: "ms", Number: load.Quantile(line.took, 50)},
			report.Value{Name: "p99", Unit: "ms", Number: load.Quantile(line.took, 99)})
	}
	return nil
}

// beClaims is the process that measures.
func beClaims(ctx context.Context, in io.Reader, out io.Writer) error {
	return withRealNode(ctx, in, out, func(ctx context.Context, n *podsNode) (any, error) { return n.measureClaims(ctx) })
}

func (n *podsNode) measureClaims(ctx context.Context) (*claimsMeasured, error) {
	if err := n.awaitClass(ctx); err != nil {
		return nil, err
	}
	m := &claimsMeasured{}
	// The first pods make the bridge, the kernel's rules, and the volume that exists.
	if err := n.claim(ctx, "there"); err != nil {
		return nil, err
	}
	for name, claim := range map[string]string{"first": "", "second": "there"} {
		if _, err := n.one(ctx, name, claim); err != nil {
			return nil, err
		}
	}
	for i := range claimTurns {
		fresh := fmt.Sprintf("fresh-%d", i)
		if err := n.claim(ctx, fresh); err != nil {
			return nil, err
		}
		turns := []struct {
			name, claim string
			took        *[]time.Duration
		}{{"without", "", &m.Without}, {"bound", "there", &m.Bound}, {"fresh", fresh, &m.Fresh}}
		for k := range turns { // in each of the six orders
			turn := turns[(i+k*(1+i%2))%len(turns)]
			took, err := n.one(ctx, fmt.Sprintf("%s-%d", turn.name, i), turn.claim)
			if err != nil {
				return nil, err
			}
			*turn.took = append(*turn.took, took)
		}
	}
	return m, nil
}

// awaitClass waits until the cluster has the driver's StorageClass.
func (n *podsNode) awaitClass(ctx context.Context) error {
	w, err := n.client.StorageV1().StorageClasses().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch storage classes: %w", err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Added {
			return nil
		}
	}
	return errors.New("there was no storage class in time")
}

func (n *podsNode) claim(ctx context.Context, name string) error {
	_, err := n.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: apiresource.MustParse("1Mi"),
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim: %w", err)
	}
	return nil
}

// one starts a pod, says how long that took, and ends it.
func (n *podsNode) one(ctx context.Context, name, claim string) (time.Duration, error) {
	pod := longPod(name)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1)) // its shell may not heed signals yet
	if claim != "" {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	pods := n.client.CoreV1().Pods("default")
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("create pod: %w", err)
	}
	if err := n.until(name+" ready", 1, func(_ watch.Event, pod *corev1.Pod) bool { return pod.Name == name && podReady(pod) }); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, fmt.Errorf("delete pod: %w", err)
	}
	return took, n.until(name+" gone", 1, func(e watch.Event, pod *corev1.Pod) bool { return pod.Name == name && e.Type == watch.Deleted })
}
