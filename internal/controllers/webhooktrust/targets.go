// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhooktrust

import (
	"encoding/base64"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// target is a part of a configuration that names a service and its CA.
type target struct {
	service types.NamespacedName
	place   map[string]any // the part of the configuration that has the caBundle
}

// targetsOf returns the targets of a configuration. A webhook that is called by URL is not a target.
func targetsOf(obj *unstructured.Unstructured) []target {
	var places []map[string]any
	switch obj.GetKind() {
	case "APIService":
		if spec, ok := obj.Object["spec"].(map[string]any); ok {
			places = append(places, spec)
		}
	case "CustomResourceDefinition":
		if config, ok, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "conversion", "webhook", "clientConfig"); ok {
			if m, ok := config.(map[string]any); ok {
				places = append(places, m)
			}
		}
	default:
		webhooks, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "webhooks")
		list, _ := webhooks.([]any)
		for _, w := range list {
			m, _ := w.(map[string]any)
			if config, ok := m["clientConfig"].(map[string]any); ok {
				places = append(places, config)
			}
		}
	}
	var out []target
	for _, p := range places {
		s, _ := p["service"].(map[string]any)
		name, _ := s["name"].(string)
		namespace, _ := s["namespace"].(string)
		if name != "" && namespace != "" {
			out = append(out, target{types.NamespacedName{Namespace: namespace, Name: name}, p})
		}
	}
	return out
}

// secret returns the key of the Secret with the target's certificate. name is the configuration's annotation, which may be empty.
func (t *target) secret(name string) types.NamespacedName {
	if name == "" {
		name = t.service.Name + "-tls"
	}
	return types.NamespacedName{Namespace: t.service.Namespace, Name: name}
}

// hosts returns the DNS names of the service.
func (t *target) hosts() []string {
	base := t.service.Name + "." + t.service.Namespace
	return []string{base + ".svc", base + ".svc.cluster.local", base, t.service.Name}
}

// trust sets the target's CA bundle, and reports whether it changed.
func (t *target) trust(bundle []byte) bool {
	want := base64.StdEncoding.EncodeToString(bundle)
	if t.place["caBundle"] == want {
		return false
	}
	t.place["caBundle"] = want
	delete(t.place, "insecureSkipTLSVerify") // of an APIService: it excludes caBundle
	return true
}

// sharers records which configurations need which hosts in which Secret.
type sharers struct {
	mu sync.Mutex
	by map[source]map[types.NamespacedName][]string
}

func (s *sharers) set(src source, wants map[types.NamespacedName][]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wants == nil {
		delete(s.by, src)
		return
	}
	if s.by == nil {
		s.by = map[source]map[types.NamespacedName][]string{}
	}
	s.by[src] = wants
}

func (s *sharers) has(src source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[src] != nil
}

// of returns the configurations that share a Secret.
func (s *sharers) of(key types.NamespacedName) []source {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []source
	for src, wants := range s.by {
		if wants[key] != nil {
			out = append(out, src)
		}
	}
	return out
}

// hosts returns all hosts of a Secret's certificate, sorted.
func (s *sharers) hosts(key types.NamespacedName) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, wants := range s.by {
		out = append(out, wants[key]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
