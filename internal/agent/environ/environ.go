// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package environ makes a container's environment: services, envFrom, env with the downward API, and $(NAME) in values, commands and
// arguments.
//
// It reads ConfigMaps and Secrets through two functions and does no I/O of its own.
package environ

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Var is one variable.
type Var struct{ Name, Value string }

// Input has the inputs of an environment.
type Input struct {
	Pod       *corev1.Pod
	Container *corev1.Container

	PodIPs, HostIPs []string
	// Allocatable replaces limits that the container does not have.
	Allocatable corev1.ResourceList
	// Services are all services of the pod's namespace and of "default".
	Services []*corev1.Service

	ConfigMap func(name string) (*corev1.ConfigMap, error)
	Secret    func(name string) (*corev1.Secret, error)
}

// Make makes the environment, in the order of definition; later variables take precedence.
func Make(in Input) ([]Var, error) {
	set := newSet()
	for _, from := range in.Container.EnvFrom {
		if err := in.from(set, from); err != nil {
			return nil, err
		}
	}
	services := newSet()
	for _, v := range ServiceVars(in.Pod, in.Services) {
		services.put(v.Name, v.Value)
	}
	lookup := func(name string) (string, bool) {
		if value, ok := set.get(name); ok {
			return value, true
		}
		return services.get(name)
	}
	for _, e := range in.Container.Env {
		value := e.Value
		switch {
		case value != "":
			value = Expand(value, lookup)
		case e.ValueFrom != nil:
			resolved, ok, err := in.resolve(e.ValueFrom)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			value = resolved
		}
		set.put(e.Name, value)
	}
	for _, v := range services.all() {
		if _, ok := set.get(v.Name); !ok {
			set.put(v.Name, v.Value)
		}
	}
	return set.all(), nil
}

func (in Input) from(set *set, from corev1.EnvFromSource) error {
	switch {
	case from.ConfigMapRef != nil:
		optional := from.ConfigMapRef.Optional != nil && *from.ConfigMapRef.Optional
		cm, err := in.ConfigMap(from.ConfigMapRef.Name)
		if apierrors.IsNotFound(err) && optional {
			return nil
		}
		if err != nil {
			return err
		}
		for _, key := range sortedKeys(cm.Data) {
			set.put(from.Prefix+key, cm.Data[key])
		}
	case from.SecretRef != nil:
		optional := from.SecretRef.Optional != nil && *from.SecretRef.Optional
		secret, err := in.Secret(from.SecretRef.Name)
		if apierrors.IsNotFound(err) && optional {
			return nil
		}
		if err != nil {
			return err
		}
		for _, key := range sortedKeys(secret.Data) {
			set.put(from.Prefix+key, string(secret.Data[key]))
		}
	}
	return nil
}

// resolve determines the value of a reference; false: the reference is optional and missing.
func (in Input) resolve(from *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		value, err := Field(in.Pod, from.FieldRef.FieldPath, in.PodIPs, in.HostIPs)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := Resource(in.Pod, in.Container, from.ResourceFieldRef, in.Allocatable)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		optional := ref.Optional != nil && *ref.Optional
		cm, err := in.ConfigMap(ref.Name)
		if apierrors.IsNotFound(err) && optional {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		if value, ok := cm.Data[ref.Key]; ok {
			return value, true, nil
		}
		if optional {
			return "", false, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		optional := ref.Optional != nil && *ref.Optional
		secret, err := in.Secret(ref.Name)
		if apierrors.IsNotFound(err) && optional {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		if value, ok := secret.Data[ref.Key]; ok {
			return string(value), true, nil
		}
		if optional {
			return "", false, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
	}
	return "", false, fmt.Errorf("environment variable has a source that this node does not know")
}

// Expand replaces $(NAME) by the variable's value. $$ is a dollar sign; unknown names stay as they are.
// known stays as it is written.
func Expand(text string, lookup func(string) (string, bool)) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch text[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(text[i+2:], ')')
			if end < 0 {
				out.WriteString("$(")
				i++
				continue
			}
			name := text[i+2 : i+2+end]
			if value, ok := lookup(name); ok {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			out.WriteByte('$')
			out.WriteByte(text[i+1])
			i++
		}
	}
	return out.String()
}

// ExpandAll expands the variables in each word.
func ExpandAll(words []string, vars []Var) []string {
	lookup := func(name string) (string, bool) {
		for i := len(vars) - 1; i >= 0; i-- {
			if vars[i].Name == name {
				return vars[i].Value, true
			}
		}
		return "", false
	}
	var out []string
	for _, w := range words {
		out = append(out, Expand(w, lookup))
	}
	return out
}

// set is a map that keeps the order of first insertion.
type set struct {
	index map[string]int
	vars  []Var
}

func newSet() *set { return &set{index: map[string]int{}} }

func (s *set) put(name, value string) {
	if i, ok := s.index[name]; ok {
		s.vars[i].Value = value
		return
	}
	s.index[name] = len(s.vars)
	s.vars = append(s.vars, Var{name, value})
}

func (s *set) get(name string) (string, bool) {
	if i, ok := s.index[name]; ok {
		return s.vars[i].Value, true
	}
	return "", false
}

func (s *set) all() []Var { return s.vars }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
