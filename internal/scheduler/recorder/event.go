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

// happening is the content of an event. It refers to the objects by reference only.
type happening struct {
	from                       *source
	regarding, related         *corev1.ObjectReference // related may be nil
	annotations                map[string]string
	at                         int64 // in nanoseconds; for a series, the first event's
	kind, reason, action, note string
}

// key is a hash of the fields that the events of a series share.
type key [16]byte

// key hashes all fields but time, note and annotations.
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

// name returns the name of the event that the write is about. If the object's name is not valid in an event's name, it is a UUID of key and
// time.
func (w *write) name() string {
	var room [256]byte
	name := string(strconv.AppendInt(append(append(room[:0], w.regarding.Name...), '.'), w.at, 16))
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	u := sha256.Sum256(binary.BigEndian.AppendUint64(w.key[:], uint64(w.at)))
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // version 8, a custom UUID
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// event converts the write to an Event. For a series it has the second event's note, as the recorder does not keep the first one's: this
// matters only if the server has lost the event.
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

// toSeries returns nil for a single event.
func (w *write) toSeries() *eventsv1.EventSeries {
	if w.count == 0 {
		return nil
	}
	return &eventsv1.EventSeries{Count: w.count, LastObservedTime: metav1.MicroTime{Time: time.Unix(0, w.seen)}}
}

// patch returns the patch of a series to its event.
func (w *write) patch() []byte {
	b, err := json.Marshal(struct {
		Series *eventsv1.EventSeries `json:"series"`
	}{w.toSeries()})
	if err != nil {
		panic(err) // a number and a time always encode
	}
	return b
}
