// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// A runtime reports neither number nor name for an image without USER, and runs it as root: runAsNonRoot refuses it.
func TestImageWithoutUserRunsAsRoot(t *testing.T) {
	c, r := newFake(t, nil)
	r.User(images.Busybox, nil, "")
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true)}, Containers: []corev1.Container{{Name: "c"}},
	}})
	pod := c.await("refused", "refused", waitingFor("CreateContainerConfigError"))
	want := fmt.Sprintf(`container has runAsNonRoot and image will run as root (pod: "refused_default(%s)", container: c)`, pod.UID)
	if got := pod.Status.ContainerStatuses[0].State.Waiting.Message; got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	if n := r.Calls("CreateContainer"); n != 0 {
		t.Errorf("%d containers were created", n)
	}
	// The user that the pod names is what counts then.
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "named"}, Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(7))},
		Containers:      []corev1.Container{{Name: "c"}},
	}})
	c.await("named", "running", running(0))
	if _, config := r.Made("named", "c"); config.Linux.SecurityContext.RunAsUser.GetValue() != 7 {
		t.Errorf("runs as %v", config.Linux.SecurityContext.RunAsUser)
	}
}
