// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/resource"
)

// The plug-ins that tell of what they call themselves.
const (
	initializers       = "Initializers"
	mutatingPolicies   = "MutatingAdmissionPolicy"
	mutatingWebhooks   = "MutatingAdmissionWebhook"
	validatingPolicies = "ValidatingAdmissionPolicy"
	validatingWebhooks = "ValidatingAdmissionWebhook"
)

// hooks reports whether a plug-in is one of those.
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

		initializers: none, mutatingPolicies: none, mutatingWebhooks: none, validatingPolicies: none, validatingWebhooks: none,
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
	kind        *resource.Descriptor
	subresource string
	last        []byte // the object when it was last compared; nil: no trace is recorded
	form        form
}

// Given records the object with which mutating admission begins.
func (t *Trace) Given(d *resource.Descriptor, subresource string, obj resource.Object) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noted()
	if obj != nil && t.name == "" {
		t.name = obj.GetName()
	}
	if obj != nil && (t.recorder.foreign || t.recorder.watched[d.Resource] && (subresource == "" || subresource == "binding")) {
		p := &t.oddly().plugins
		p.kind, p.subresource = d, subresource
		p.last, p.form = t.look(p, obj)
	} else if t.odd != nil {
		t.odd.plugins.last = nil
	}
}

// noted says that the steps told of so far are accounted for.
func (t *Trace) noted() { t.seen = [2]int32{t.changes, t.denials} }

// look is an object as bytes that can be compared, and read later.
func (t *Trace) look(p *watching, obj resource.Object) ([]byte, form) {
	if t.secret {
		return t.marks(0).redactObject(t.info, obj)
	}
	if s := p.kind.Subresource(p.subresource); !free(obj) && (p.subresource == "" || s != nil && s.Strategy != nil) {
		if b, err := p.kind.Codec.Encode(obj); err == nil {
			return b, stored
		}
	}
	if binding, ok := obj.(*corev1.Binding); ok { // of every pod there is one
		if b, err := binding.Marshal(); err == nil {
			return b, bound
		}
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return nil, nothing
	}
	return b, inJSON
}

// Mutated records the result of a mutating plug-in, and its duration.
func (t *Trace) Mutated(name string, took time.Duration, obj resource.Object, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.denials == t.seen[1] {
			t.deny(trace.Mutate, name, took, err)
		}
		t.noted()
		return
	}
	if t.odd == nil || t.odd.plugins.last == nil || obj == nil {
		t.noted()
		return
	}
	p := &t.odd.plugins
	if t.changes != t.seen[0] { // a hook that tells of itself
		p.last, p.form = t.look(p, obj)
		t.noted()
		return
	}
	if resources, ok := t.recorder.changes[name]; ok && !slices.Contains(resources, p.kind.Resource) {
		return
	}
	now, form := t.look(p, obj)
	if bytes.Equal(now, p.last) {
		return
	}
	s := step{Step: Step{Phase: trace.Mutate, Kind: trace.Plugin, Name: name, Result: trace.Changed, Took: took, Before: p.last, After: now},
		form: form}
	if form != p.form {
		s.form, s.Before, s.After = nothing, nil, nil
	}
	t.add(s)
	p.last, p.form = now, form
	t.noted()
}

// Validated records the result of a validating plug-in. at is its position among all.
func (t *Trace) Validated(at int, name string, took time.Duration, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.ran = max(t.ran, int32(at+1))
	} else if t.denials == t.seen[1] {
		t.deny(trace.Validate, name, took, err)
	}
	t.noted()
}

func (t *Trace) deny(phase, name string, took time.Duration, err error) {
	s := step{Step: Step{Phase: phase, Kind: trace.Plugin, Name: name, Result: trace.Denied, Reason: err.Error(), Took: took}}
	if t.secret && hooks(name) {
		s.Reason = withheld
	}
	t.add(s)
}
