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

// The plug-ins that record their steps themselves.
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

// mutates returns the resources whose objects the built-in plug-ins change; the objects of others need not be compared. A plug-in that is
// not in the table may change any.
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

// Foreign returns the plug-ins whose changes are unknown. With such a plug-in every object is compared before and
// after, which is slower.
func Foreign(names []string) []string {
	known := mutates()
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := known[n]; return ok })
}

// concerns returns the resources that the given plug-ins change.
func concerns(names []string) map[string]bool {
	known, watched := mutates(), map[string]bool{}
	for _, n := range names {
		for _, r := range known[n] {
			watched[r] = true
		}
	}
	return watched
}

// watching is the state with which a trace detects changes by plug-ins.
type watching struct {
	kind        *resource.Descriptor
	subresource string
	last        []byte // the object at the last comparison; nil: no trace is recorded
	form        form
	room        *[]byte // of the recorder's, for all encodings of the write; nil: not needed yet
}

// Given records the object before mutating admission.
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
	if obj != nil && !t.ended && (t.recorder.foreign || t.recorder.watched[d.Resource] && (subresource == "" || subresource == "binding")) {
		p := &t.oddly().plugins
		p.kind, p.subresource = d, subresource
		p.last, p.form = t.look(p, obj)
	} else if t.odd != nil {
		t.odd.plugins.last = nil
	}
}

// noted marks the steps that were recorded so far as seen.
func (t *Trace) noted() { t.seen = [2]int32{t.changes, t.denials} }

// look encodes an object for comparison and for later decoding.
func (t *Trace) look(p *watching, obj resource.Object) ([]byte, form) {
	if t.secret {
		return t.marks(0).redactObject(t.info, obj)
	}
	if s := p.kind.Subresource(p.subresource); !free(obj) && (p.subresource == "" || s != nil && s.Strategy != nil) {
		if b, err := t.encoded(p, obj); err == nil {
			return b, stored
		}
	}
	if binding, ok := obj.(*corev1.Binding); ok { // every pod has one
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

// encoded returns the object as its kind stores it, in memory that is used again after [Trace.Finish].
func (t *Trace) encoded(p *watching, obj resource.Object) ([]byte, error) {
	codec, ok := p.kind.Codec.(resource.Appender)
	if !ok {
		return p.kind.Codec.Encode(obj)
	}
	if p.room == nil {
		p.room = t.recorder.buffer()
	}
	b, err := codec.AppendEncode(*p.room, obj)
	if err != nil {
		return nil, err
	}
	from := len(*p.room)
	*p.room = b
	return b[from:len(b):len(b)], nil
}

// forget gives the memory of the last encoding, which is the same as the one before, to the next one.
func (p *watching) forget(last []byte) {
	if p.room != nil && p.form == stored {
		*p.room = (*p.room)[:len(*p.room)-len(last)]
	}
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
	if t.odd == nil || t.odd.plugins.last == nil || obj == nil || t.ended {
		t.noted()
		return
	}
	p := &t.odd.plugins
	if t.changes != t.seen[0] { // a webhook, which records its own step
		p.last, p.form = t.look(p, obj)
		t.noted()
		return
	}
	if resources, ok := t.recorder.changes[name]; ok && !slices.Contains(resources, p.kind.Resource) {
		return
	}
	now, form := t.look(p, obj)
	if bytes.Equal(now, p.last) {
		if form == p.form {
			p.forget(now)
		}
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
