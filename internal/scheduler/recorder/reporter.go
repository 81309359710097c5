// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/klog/v2"
)

// Reporter records events under one name.
type Reporter struct {
	*source
	logger klog.Logger // logs what cannot become an event
}

// source identifies the reporter.
type source struct {
	recorder             *Recorder
	controller, instance string
}

var (
	_ events.EventRecorderLogger    = (*Reporter)(nil)
	_ events.AnnotatedEventRecorder = (*Reporter)(nil)
)

// WithLogger returns the reporter with another logger for what cannot become an event.
func (r *Reporter) WithLogger(logger klog.Logger) events.EventRecorderLogger {
	return &Reporter{r.source, logger}
}

// Eventf records an event. It returns before the event is written. It waits only if twice as many events as the bound are pending, until
// there is room or the recorder ends.
func (r *Reporter) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.record(regarding, related, happening{kind: kind, reason: reason, action: action, note: fmt.Sprintf(note, args...)})
}

// AnnotatedEventf is Eventf with annotations for the event.
func (r *Reporter) AnnotatedEventf(regarding, related runtime.Object, annotations map[string]string, kind, reason, action, note string,
	args ...any) {
	r.record(regarding, related, happening{
		annotations: maps.Clone(annotations), kind: kind, reason: reason, action: action, note: fmt.Sprintf(note, args...),
	})
}

// Event is Eventf with a formatted note.
func (r *Reporter) Event(regarding, related runtime.Object, kind, reason, action, note string) {
	r.record(regarding, related, happening{kind: kind, reason: reason, action: action, note: note})
}

// record adds the reporter and the objects' references.
func (r *Reporter) record(regarding, related runtime.Object, h happening) {
	now := r.recorder.clock.Now().UnixNano()
	about, err := refer(regarding)
	if err != nil {
		r.logger.Error(err, "Could not construct reference, will not report event", // upstream's words
			"object", regarding, "eventType", h.kind, "reason", h.reason, "message", h.note)
		return
	}
	h.from, h.regarding = r.source, about
	if related != nil {
		if h.related, err = refer(related); err != nil {
			r.logger.V(9).Info("Could not construct reference", "object", related, "err", err) // upstream's words
		}
	}
	if !util.ValidateEventType(h.kind) {
		r.logger.Error(nil, "Unsupported event type", "eventType", h.kind) // upstream's words
		return
	}
	r.recorder.record(h, now)
}

// refer returns a new reference, which the caller owns.
func refer(to runtime.Object) (*corev1.ObjectReference, error) {
	ref, err := reference.GetReference(scheme.Scheme, to)
	if ref != nil && ref == to {
		own := *ref
		ref = &own
	}
	return ref, err
}
