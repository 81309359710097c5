// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/resource"
)

// The plug-ins that tell of what they call themselves.
const (
	mutatingPolicies   = "MutatingAdmissionPolicy"
	mutatingWebhooks   = "MutatingAdmissionWebhook"
	validatingPolicies = "ValidatingAdmissionPolicy"
	validatingWebhooks = "ValidatingAdmissionWebhook"
)

// hooks says whether a plug-in is one of those.
func hooks(name string) bool {
	switch name {
	case mutatingPolicies, mutatingWebhooks, validatingPolicies, validatingWebhooks:
		return true
	}
	return false
}

// mutates are the resources whose objects the built-in plug-ins change; others need no look at what they were before. A plug-in
// that is not in the table may change any.
func mutates() map[string][]string {
	pods, none := []string{"pods"}, []string{}
	return map[string][]string{
		"PodGroupProtection": {"podgroups"}, "NodeDeclaredFeatureValidator": none,
		"AlwaysPullImages": pods, "DefaultTolerationSeconds": pods, "ExtendedResourceToleration": pods, "LimitRanger": pods,
		"PodNodeSelector": pods, "PodTolerationRestriction": pods, "PodTopologyLabels": pods, "Priority": pods, "RuntimeClass": pods,
		"ServiceAccount": pods, "TaintNodesByCondition": {"nodes"}, "DefaultIngressClass": {"ingresses"},
		"DefaultStorageClass": {"persistentvolumeclaims"}, "StorageObjectInUseProtection": {"persistentvolumeclaims", "persistentvolumes"},

		mutatingPolicies: none, mutatingWebhooks: none, validatingPolicies: none, validatingWebhooks: none,
		"AlwaysAdmit": none, "AlwaysDeny": none, "CertificateApproval": none, "CertificateSigning": none,
		"CertificateSubjectRestriction": none, "ClusterTrustBundleAttest": none, "DenyServiceExternalIPs": none, "EventRateLimit": none,
		"ImagePolicyWebhook": none, "LimitPodHardAntiAffinityTopology": none, "NamespaceAutoProvision": none, "NamespaceExists": none,
		"NamespaceLifecycle": none, "NodeRestriction": none, "OwnerReferencesPermissionEnforcement": none,
		"PersistentVolumeClaimResize": none, "PodResizeValidator": none, "PodSecurity": none, "ResourceQuota": none,
	}
}

// Foreign are those of the plug-ins of which it is not known what they change: with one of them, every object is looked at before
// and after, which is slower.
func Foreign(names []string) []string {
	known := mutates()
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := known[n]; return ok })
}

// concerns are the resources that some of the plug-ins change.
func concerns(names []string) map[string]bool {
	known, watched := mutates(), map[string]bool{}
	for _, n := range names {
		for _, r := range known[n] {
			watched[r] = true
		}
	}
	return watched
}

// watching is how a trace sees what plug-ins change.
type watching struct {
	kind             *resource.Descriptor
	subresource      string
	last             []byte // the object as it was when it was looked at last; nil: nobody looks
	form             form
	changes, denials int // of steps that were told of
	seen             [2]int
	table            map[string][]string
	ran              int // how many of the plug-ins validated
}

// Given says what mutating admission begins with.
func (t *Trace) Given(d *resource.Descriptor, subresource string, obj resource.Object) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.plugins
	p.kind, p.subresource, p.last = d, subresource, nil
	p.seen = [2]int{p.changes, p.denials}
	if obj != nil && t.name == "" {
		t.name = obj.GetName()
	}
	if obj != nil && (t.recorder.foreign || t.recorder.watched[d.Resource] && (subresource == "" || subresource == "binding")) {
		p.last, p.form = t.look(obj)
	}
}

// look is an object as bytes that can be compared, and read later.
func (t *Trace) look(obj resource.Object) ([]byte, form) {
	p := &t.plugins
	if t.secret {
		return t.recorder.redactObject(t.info, obj)
	}
	if s := p.kind.Subresource(p.subresource); !free(obj) && (p.subresource == "" || s != nil && s.Strategy != nil) {
		if b, err := p.kind.Codec.Encode(obj); err == nil {
			return b, stored
		}
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return nil, nothing
	}
	return b, inJSON
}

// Mutated says that a plug-in has had the object, and what it took and answered.
func (t *Trace) Mutated(name string, took time.Duration, obj resource.Object, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.plugins
	told := [2]int{p.changes, p.denials}
	if err != nil {
		if told[1] == p.seen[1] {
			t.deny(trace.Mutate, name, took, err)
		}
		p.seen = [2]int{p.changes, p.denials}
		return
	}
	if p.last == nil || obj == nil {
		p.seen = told
		return
	}
	if told[0] != p.seen[0] { // a hook that tells of itself
		p.last, p.form = t.look(obj)
		p.seen = told
		return
	}
	if p.table == nil {
		p.table = mutates()
	}
	if resources, ok := p.table[name]; ok && !slices.Contains(resources, p.kind.Resource) {
		return
	}
	now, form := t.look(obj)
	if bytes.Equal(now, p.last) {
		return
	}
	s := step{Step: Step{Phase: trace.Mutate, Kind: trace.Plugin, Name: name, Result: trace.Changed, Took: took, Before: p.last, After: now}, form: form}
	if form != p.form {
		s.form, s.Before, s.After = nothing, nil, nil
	}
	t.add(s)
	p.last, p.form = now, form
	p.seen = [2]int{p.changes, p.denials}
}

// Validated says what a plug-in has to say to the object. at is its place among all.
func (t *Trace) Validated(at int, name string, took time.Duration, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.plugins
	if err == nil {
		p.ran = max(p.ran, at+1)
	} else if p.denials == p.seen[1] {
		t.deny(trace.Validate, name, took, err)
	}
	p.seen = [2]int{p.changes, p.denials}
}

func (t *Trace) deny(phase, name string, took time.Duration, err error) {
	s := step{Step: Step{Phase: phase, Kind: trace.Plugin, Name: name, Result: trace.Denied, Reason: err.Error(), Took: took}}
	if t.secret && hooks(name) {
		s.Reason = withheld
	}
	t.add(s)
}
