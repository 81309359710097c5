// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/scheduler"
)

// approval is a scheduler plug-in of a third party: pods wait until they have a label.
type approval struct{}

func newApproval(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return approval{}, nil
}

// Name is what a profile calls the plug-in.
func (approval) Name() string { return "Approval" }

// PreEnqueue keeps pods without the label out of the queue.
func (approval) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if pod.Labels["approved"] == "" {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "the pod is not approved")
	}
	return nil
}

// A scheduler plug-in is added by one line, and runs in the profiles that enable it.
func ExampleExtensions_scheduler() {
	t := &example{} // in a test: its *testing.T
	defer t.end()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "scheduler.yaml")
	err = os.WriteFile(config, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {preEnqueue: {enabled: [{name: Approval}]}}
`), 0o600)
	if err != nil {
		panic(err)
	}
	s := &embed.Server{
		APIServer:  options.APIServer{Scheduler: options.Scheduler{ConfigFile: config}},
		Extensions: embed.Extensions{SchedulerPlugins: map[string]scheduler.Factory{"Approval": newApproval}}, // the one line
	}
	if err := s.Start(t.Context()); err != nil {
		panic(err)
	}
	defer s.Stop()

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	s.Settle(t) // the namespace has its service account
	if _, err := s.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		panic(err)
	}
	s.Settle(t)
	s.WaitFor(t, pod, func() bool { return true }) // pod is as it is now
	fmt.Printf("the node is %q\n", pod.Spec.NodeName)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, "approved", "yes")
	if _, err := s.Client().CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		panic(err)
	}
	s.WaitFor(t, pod, func() bool { return pod.Spec.NodeName != "" })
	fmt.Println("scheduled")
	// Output:
	// the node is ""
	// scheduled
}
