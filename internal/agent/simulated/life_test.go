// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestLifeOfCommand(t *testing.T) {
	lasts := func(d time.Duration, code int32) life { return life{ends: true, runFor: d, exitCode: code} }
	for _, c := range []struct {
		command, args string // words are separated by "|"
		want          life
		unknown       bool
	}{
		{command: "sleep|300", want: lasts(5*time.Minute, 0)},
		{command: "/bin/sleep|1m|30", want: lasts(90*time.Second, 0)},
		{command: "sleep", args: "0.5", want: lasts(500*time.Millisecond, 0)},
		{command: "sleep|2h", want: lasts(2*time.Hour, 0)},
		{command: "sleep|1d", want: lasts(24*time.Hour, 0)},
		{command: "sleep|infinity", want: life{}},
		{command: "sleep|1e300", want: life{}},
		{command: "/bin/true", want: lasts(0, 0)},
		{command: "false", want: lasts(0, 1)},
		{command: "sh|-c|sleep 10; exit 3", want: lasts(10*time.Second, 3)},
		{command: "/bin/sh|-c", args: "sleep 1 && sleep 2\nsleep 3", want: lasts(6*time.Second, 0)},
		{command: "bash|-c|false && sleep 100", want: lasts(0, 1)},
		{command: "sh|-c|false; sleep 5", want: lasts(5*time.Second, 0)},
		{command: "sh|-c|exit 1; sleep 100", want: lasts(0, 1)},
		{command: "sh|-c|sleep inf; exit 1", want: life{}},
		{command: "sh|-c|sleep 5;", want: lasts(5*time.Second, 0)},
		{command: "sh|-c|", want: lasts(0, 0)},
		{args: "sleep|300", unknown: true},
		{command: "nginx", unknown: true},
		{command: "exit|1", unknown: true},
		{command: "sleep", unknown: true},
		{command: "sleep|-1", unknown: true},
		{command: "sleep|NaN", unknown: true},
		{command: "sleep|soon", unknown: true},
		{command: "sh|-c|sleep $N", unknown: true},
		{command: "sh|-c|sleep 1 & sleep 2", unknown: true},
		{command: "sh|-c|sleep 1 || sleep 2", unknown: true},
		{command: "sh|-c|exit 256", unknown: true},
		{command: "sh|-c|exit 1 2", unknown: true},
		{command: "sh|-x|sleep 1", unknown: true},
		{command: "sh", unknown: true},
		{unknown: true},
	} {
		words := func(s string) []string {
			if s == "" {
				return nil
			}
			return strings.Split(s, "|")
		}
		got, ok := lifeOfCommand(&corev1.Container{Command: words(c.command), Args: words(c.args)})
		if ok == c.unknown || ok && got != c.want {
			t.Errorf("command %q, args %q: %+v, %t; want %+v, %t", c.command, c.args, got, ok, c.want, !c.unknown)
		}
	}
}

// TestLifeOf covers what decides before the command, and what decides without one.
func TestLifeOf(t *testing.T) {
	never, always := corev1.RestartPolicyNever, corev1.RestartPolicyAlways
	job := []metav1.OwnerReference{{Kind: "Job", Controller: new(true)}}
	minute := time.Minute
	sleep := []string{"sleep", "30"}
	for _, c := range []struct {
		name        string
		policy      corev1.RestartPolicy
		owners      []metav1.OwnerReference
		annotations map[string]string
		command     []string
		completes   *time.Duration
		want        life
	}{
		{name: "a pod", policy: never, want: life{runFor: time.Second}},
		{name: "a job", policy: never, owners: job, want: life{ends: true, runFor: time.Second}},
		{name: "a job where jobs take a minute", policy: never, owners: job, completes: &minute, want: life{ends: true, runFor: minute}},
		{name: "a job that sleeps", policy: never, owners: job, command: sleep, completes: &minute,
			want: life{ends: true, runFor: 30 * time.Second}},
		{name: "a pod that sleeps and is restarted", policy: always, command: sleep, want: life{ends: true, runFor: 30 * time.Second}},
		{
			name: "annotations", policy: never, owners: job, command: sleep,
			annotations: map[string]string{AnnotationRunFor: "2s", AnnotationExitCode: "4"},
			want:        life{ends: true, runFor: 2 * time.Second, exitCode: 4},
		},
		{name: "annotations that cannot be read", policy: never, annotations: map[string]string{AnnotationRunFor: "soon"},
			want: life{runFor: time.Second}},
		{name: "annotations of a pod that is always restarted", policy: always, annotations: map[string]string{AnnotationRunFor: "2s"},
			want: life{runFor: time.Second}},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: c.owners, Annotations: c.annotations},
			Spec:       corev1.PodSpec{RestartPolicy: c.policy, Containers: []corev1.Container{{Name: "c", Command: c.command}}},
		}
		if got := lifeOf(pod, &pod.Spec.Containers[0], Phases{Completes: c.completes}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestPodSleeps runs a pod whose init containers and container sleep, one after another, and pods that fail.
func TestPodSleeps(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c kubernetes.Interface, _ *fleet) {
		is := func(name, want string) {
			t.Helper()
			if got := sum(read(t, c, name)); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		create(t, c, pod("sleeps", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.InitContainers = []corev1.Container{
				{Name: "a", Image: "i", Command: []string{"sleep", "5"}}, {Name: "b", Image: "i", Command: []string{"sleep", "5"}},
			}
			p.Spec.Containers[0].Command = []string{"sleep", "10"}
		}))
		pass(4 * time.Second)
		is("sleeps", "Pending a:running:0:false b:PodInitializing:0:false c:PodInitializing:0:false")
		pass(5 * time.Second)
		is("sleeps", "Pending a:exit 0:0:true b:running:0:false c:PodInitializing:0:false")
		pass(5 * time.Second)
		is("sleeps", "Running a:exit 0:0:true b:exit 0:0:true c:running:0:true")
		pass(10 * time.Second)
		is("sleeps", "Succeeded a:exit 0:0:true b:exit 0:0:true c:exit 0:0:false")

		create(t, c, pod("unprepared", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.InitContainers = []corev1.Container{{Name: "a", Image: "i", Command: []string{"sh", "-c", "sleep 1; exit 2"}}}
		}))
		pass(3 * time.Second)
		is("unprepared", "Failed a:exit 2:0:false c:PodInitializing:0:false")

		create(t, c, pod("naps", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sleep", "10"} }))
		pass(12 * time.Second)
		is("naps", "Running c:running:1:true")
	})
}
