// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed/options"
)

// Privileged containers are allowed as the flag says; without it, in a cluster, and not by a bare API server.
func TestAllowPrivileged(t *testing.T) {
	for _, c := range []struct {
		controllers, flag string
		allowed           bool
	}{
		{"none", "", false}, {"none", "--allow-privileged", true}, {"none", "--allow-privileged=false", false},
		{"namespace", "", true}, {"namespace", "--allow-privileged=false", false},
	} {
		t.Run(c.controllers+c.flag, func(t *testing.T) {
			var o options.APIServer
			f := pflag.NewFlagSet("up", pflag.ContinueOnError)
			o.AddFlags(f)
			if err := f.Parse(strings.Fields(c.flag)); err != nil {
				t.Fatal(err)
			}
			o.Admission.Disable = []string{"ServiceAccount"}
			s := &Server{Node: NodeNone, Controllers: []string{c.controllers}, APIServer: o}
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}()
			yes := true
			_, err := s.Client().CoreV1().Pods("default").Create(t.Context(),
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}},
				}}, metav1.CreateOptions{})
			if c.allowed != (err == nil) || err != nil && !strings.Contains(err.Error(),
				"spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy") {
				t.Errorf("allowed %v: %v", c.allowed, err)
			}
		})
	}
}
