// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package environ

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestExpand(t *testing.T) {
	known := func(name string) (string, bool) { return "<" + name + ">", name == "A" || name == "B" }
	for text, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "<A>", "x$(A)y$(B)z": "x<A>y<B>z", "$$(A)": "$(A)", "$(C)": "$(C)", "$": "$", "a$": "a$",
		"$(A": "$(A", "$A": "$A", "$$$(A)": "$<A>", "$()": "$()", "$(A)$$": "<A>$",
	} {
		if got := Expand(text, known); got != want {
			t.Errorf("Expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("a$(A)$$(B)$(")
	f.Fuzz(func(t *testing.T, text string) {
		got := Expand(text, func(string) (string, bool) { return "", false })
		if !strings.Contains(text, "$") && got != text {
			t.Errorf("Expand(%q) = %q", text, got)
		}
	})
}

func input(t *testing.T, container string) Input {
	t.Helper()
	in := Input{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"a": "1", "b": "2"}},
			Spec: corev1.PodSpec{NodeName: "n"}},
		Container: &corev1.Container{}, PodIPs: []string{"10.0.0.1", "fd00::1"}, HostIPs: []string{"192.168.0.1"},
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
		ConfigMap: func(name string) (*corev1.ConfigMap, error) {
			if name != "cm" {
				return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
			}
			return &corev1.ConfigMap{Data: map[string]string{"x": "1", "y": "2"}}, nil
		},
		Secret: func(name string) (*corev1.Secret, error) {
			return &corev1.Secret{Data: map[string][]byte{"k": []byte("v")}}, nil
		},
	}
	if err := yaml.UnmarshalStrict([]byte(container), in.Container); err != nil {
		t.Fatal(err)
	}
	return in
}

func TestMake(t *testing.T) {
	for container, want := range map[string]string{
		"env: [{name: A, value: x}, {name: B, value: $(A)y}, {name: A, value: z}]":                                                                     "A=z B=xy",
		"{envFrom: [{prefix: P_, configMapRef: {name: cm}}], env: [{name: P_x, value: own}]}":                                                          "P_x=own P_y=2",
		"envFrom: [{configMapRef: {name: gone, optional: true}}, {secretRef: {name: s}}]":                                                              "k=v",
		"envFrom: [{configMapRef: {name: gone}}]":                                                                                                      `error configmap "gone" not found`,
		"env: [{name: A, valueFrom: {configMapKeyRef: {name: cm, key: x}}}]":                                                                           "A=1",
		"env: [{name: A, valueFrom: {configMapKeyRef: {name: cm, key: gone}}}]":                                                                        "error couldn't find key gone in ConfigMap ns/cm",
		"env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: gone}}}]":                                                                            "error couldn't find key gone in Secret ns/s",
		"env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: gone, optional: true}}}]":                                                            "",
		"env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}, {name: B, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['b']\"}}}]": "A=10.0.0.1,fd00::1 B=2",
		"env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]":                                                                        "A=a=\"1\"\nb=\"2\"",
		"{resources: {requests: {cpu: 250m}, limits: {memory: 64Mi}}, env: [{name: A, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}, {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]}": "A=1 B=64 C=4",
	} {
		vars, err := Make(input(t, container))
		var words []string
		for _, v := range vars {
			words = append(words, v.Name+"="+v.Value)
		}
		got := strings.Join(words, " ")
		if err != nil {
			got = "error " + err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", container, got, want)
		}
	}
}

func TestServiceVars(t *testing.T) {
	service := func(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
	}
	services := []*corev1.Service{
		service("ns", "my-db", "10.96.0.9", corev1.ServicePort{Name: "sql-x", Port: 5432, Protocol: corev1.ProtocolTCP}),
		service("ns", "headless", "None", corev1.ServicePort{Port: 1}),
		service("other", "far", "10.96.0.7", corev1.ServicePort{Port: 1}),
		service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}),
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	want := []Var{
		{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"KUBERNETES_SERVICE_PORT", "443"}, {"KUBERNETES_SERVICE_PORT_HTTPS", "443"},
		{"KUBERNETES_PORT", "tcp://10.96.0.1:443"}, {"KUBERNETES_PORT_443_TCP", "tcp://10.96.0.1:443"},
		{"KUBERNETES_PORT_443_TCP_PROTO", "tcp"}, {"KUBERNETES_PORT_443_TCP_PORT", "443"}, {"KUBERNETES_PORT_443_TCP_ADDR", "10.96.0.1"},
		{"MY_DB_SERVICE_HOST", "10.96.0.9"}, {"MY_DB_SERVICE_PORT", "5432"}, {"MY_DB_SERVICE_PORT_SQL_X", "5432"},
		{"MY_DB_PORT", "tcp://10.96.0.9:5432"}, {"MY_DB_PORT_5432_TCP", "tcp://10.96.0.9:5432"},
		{"MY_DB_PORT_5432_TCP_PROTO", "tcp"}, {"MY_DB_PORT_5432_TCP_PORT", "5432"}, {"MY_DB_PORT_5432_TCP_ADDR", "10.96.0.9"},
	}
	if diff := cmp.Diff(want, ServiceVars(pod, services)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	pod.Spec.EnableServiceLinks = new(false)
	if diff := cmp.Diff(want[:8], ServiceVars(pod, services)); diff != "" {
		t.Errorf("without links (-want +got)\n%s", diff)
	}
}
