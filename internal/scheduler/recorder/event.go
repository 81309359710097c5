// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// happening is what an event says. It holds nothing of the objects but their references.
type happening struct {
	from                       *source
	regarding, related         *corev1.ObjectReference // related may be nil
	annotations                map[string]string
	at                         int64 // in nanoseconds; of a series, the first event's
	kind, reason, action, note string
}

// key is what the events of a series have in common, as a hash: two that differ never have the same.
type key [16]byte

// key leaves out time, note and annotations.
func (h *happening) key() key {
	var room [640]byte
	b := room[:0]
	for _, s := range [...]string{h.kind, h.action, h.reason, h.from.controller, h.from.instance} {
		b = appendString(b, s)
	}
	b = appendReference(b, h.regarding)
	if h.related == nil {
		b = appendReference(b, &corev1.ObjectReference{})
	} else {
		b = appendReference(b, h.related)
	}
	sum := sha256.Sum256(b)
	return key(sum[:16])
}

func appendReference(b []byte, r *corev1.ObjectReference) []byte {
	for _, s := range [...]string{r.Kind, r.Namespace, r.Name, string(r.UID), r.APIVersion, r.ResourceVersion, r.FieldPath} {
		b = appendString(b, s)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// name is that of the event which stands for the write. Where the object's name may be none of an event, it is a UUID made of key and time.
func (w *write) name() string {
	var room [256]byte
	name := string(strconv.AppendInt(append(append(room[:0], w.regarding.Name...), '.'), w.at, 16))
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	u := sha256.Sum256(binary.BigEndian.AppendUint64(w.key[:], uint64(w.at)))
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // version 8, which is whatever its maker likes
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// event is the write as an Event. Of a series it has the second event's note, as nothing is kept of the first one's: it matters where the
// server does not have the event any more.
func (w *write) event() *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: w.name(), Namespace: cmp.Or(w.regarding.Namespace, metav1.NamespaceDefault),
			Annotations: w.annotations},
		EventTime:           metav1.MicroTime{Time: time.Unix(0, w.at)},
		Series:              w.toSeries(),
		ReportingController: w.from.controller,
		ReportingInstance:   w.from.instance,
		Action:              w.action,
		Reason:              w.reason,
		Regarding:           *w.regarding,
		Related:             w.related,
		Note:                w.note,
		Type:                w.kind,
	}
}

// toSeries is nil for a single event.
func (w *write) toSeries() *eventsv1.EventSeries {
	if w.count == 0 {
		return nil
	}
	return &eventsv1.EventSeries{Count: w.count, LastObservedTime: metav1.MicroTime{Time: time.Unix(0, w.seen)}}
}

// patch is what a series changes of its event.
func (w *write) patch() []byte {
	b, err := json.Marshal(struct {
		Series *eventsv1.EventSeries `json:"series"`
	}{w.toSeries()})
	if err != nil {
		panic(err) // a number and a time
	}
	return b
}
