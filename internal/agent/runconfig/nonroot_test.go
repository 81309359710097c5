// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestRunAsNonRoot compares what kubelet's verifyRunAsNonRoot answers, in its words.
func TestRunAsNonRoot(t *testing.T) {
	const (
		root    = `container has runAsNonRoot and image will run as root (pod: "p_ns(u)", container: c)`
		asked   = `container's runAsUser breaks non-root policy (pod: "p_ns(u)", container: c)`
		named   = `container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root (pod: "p_ns(u)", container: c)`
		invalid = `container has runAsNonRoot and image has an invalid user id (4294967296). (Must be 1-(2147483647)): ` +
			`must be between 0 and 2147483647, inclusive (pod: "p_ns(u)", container: c)`
	)
	id := func(n int64) *int64 { return &n }
	yes, no := new(true), new(false)
	for name, c := range map[string]struct {
		podNonRoot, nonRoot *bool
		podUser, user       *int64
		imageUser           *int64
		imageName           string
		want                string // the error
		uid                 *int64 // what the runtime is asked for
		username            string
	}{
		"not asked":                             {uid: id(0)},
		"not asked, image of a number":          {imageUser: id(7), uid: id(7)},
		"not asked, image of a name":            {imageName: "app", username: "app"},
		"image without user":                    {nonRoot: yes, want: root},
		"image without user, the pod's policy":  {podNonRoot: yes, want: root},
		"image of root":                         {nonRoot: yes, imageUser: id(0), want: root},
		"image of root, the pod's policy":       {podNonRoot: yes, imageUser: id(0), want: root},
		"image of a number":                     {nonRoot: yes, imageUser: id(7), uid: id(7)},
		"image of a number and a name":          {nonRoot: yes, imageUser: id(7), imageName: "root", uid: id(7)},
		"image of root and a name":              {nonRoot: yes, imageUser: id(0), imageName: "app", want: root},
		"image of a name":                       {nonRoot: yes, imageName: "app", want: named},
		"image of a number too large":           {nonRoot: yes, imageUser: id(1 << 32), want: invalid},
		"container asks for root":               {nonRoot: yes, user: id(0), imageUser: id(7), want: asked},
		"pod asks for root":                     {nonRoot: yes, podUser: id(0), imageUser: id(7), want: asked},
		"pod's policy, container asks for root": {podNonRoot: yes, user: id(0), podUser: id(7), want: asked},
		"container asks for another":            {podNonRoot: yes, user: id(7), podUser: id(0), uid: id(7)},
		"pod asks for another":                  {podNonRoot: yes, podUser: id(7), uid: id(7)},
		"container lifts the pod's policy":      {podNonRoot: yes, nonRoot: no, uid: id(0)},
		"container sets it against the pod's":   {podNonRoot: no, nonRoot: yes, want: root},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Name, pod.Namespace, pod.UID = "p", "ns", "u"
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: c.podNonRoot, RunAsUser: c.podUser}
			own := &corev1.Container{Name: "c", SecurityContext: &corev1.SecurityContext{RunAsNonRoot: c.nonRoot, RunAsUser: c.user}}
			got, err := node.Container(ContainerInput{Pod: pod, Container: own, ImageUser: c.imageUser, ImageName: c.imageName})
			if message := text(err); message != c.want {
				t.Fatalf("error %q, want %q", message, c.want)
			}
			if err != nil {
				return
			}
			security := got.Linux.SecurityContext
			if uid := security.RunAsUser; (uid == nil) != (c.uid == nil) || uid.GetValue() != deref(c.uid) || security.RunAsUsername != c.username {
				t.Errorf("runs as %v %q, want %v %q", uid, security.RunAsUsername, c.uid, c.username)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func deref(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
