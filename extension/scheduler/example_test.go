// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/extension/scheduler"
)

// approval keeps pods out of the queue until they have a label.
type approval struct {
	Label string `json:"label"`
}

// newApproval is the plug-in's factory. The arguments are those of the profile's pluginConfig, as JSON.
func newApproval(_ context.Context, args runtime.Object, _ framework.Handle) (framework.Plugin, error) {
	p := &approval{Label: "approved"}
	if raw, ok := args.(*runtime.Unknown); ok {
		if err := json.Unmarshal(raw.Raw, p); err != nil {
			return nil, fmt.Errorf("read arguments: %w", err)
		}
	}
	return p, nil
}

// Name implements [framework.Plugin].
func (*approval) Name() string { return "Approval" }

// PreEnqueue implements [framework.PreEnqueuePlugin].
func (p *approval) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if _, has := pod.Labels[p.Label]; !has {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "the pod waits for the label "+p.Label)
	}
	return nil
}

// A factory makes a plug-in of kube-scheduler's framework. ExampleExtensions_scheduler of package embed runs one in a cluster.
func Example() {
	factory := scheduler.Factory(newApproval)
	plugin, err := factory(context.Background(), &runtime.Unknown{Raw: []byte(`{"label": "signed"}`)}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	gate := plugin.(framework.PreEnqueuePlugin)
	pod := &corev1.Pod{}
	fmt.Println(gate.PreEnqueue(context.Background(), pod).Message())
	metav1.SetMetaDataLabel(&pod.ObjectMeta, "signed", "yes")
	fmt.Println(gate.PreEnqueue(context.Background(), pod).IsSuccess())
	// Output:
	// the pod waits for the label signed
	// true
}
