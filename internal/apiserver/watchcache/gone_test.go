// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// heldCodec blocks decoding until it is released.
type heldCodec struct {
	codec
	release chan struct{}
}

func (c heldCodec) Decode(data []byte) (resource.Object, error) {
	<-c.release
	return c.codec.Decode(data)
}

// heldKind returns a kind whose decoding blocks until release is closed.
func heldKind() (k *Kind, release chan struct{}) {
	release = make(chan struct{})
	return NewKind(&resource.Descriptor{
		Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Prefix: "configmaps", Storage: "v1", Codec: heldCodec{release: release},
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.ConfigMap{} }}},
	}, nil, NewViews(1<<20), nil), release
}

// TestFormsAreMadeOnce checks that concurrent readers of a record get one object.
func TestFormsAreMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, release := heldKind()
		r := &store.Record{Key: k.Key("ns", "a"), Revision: 5, Value: []byte(`{"metadata":{"name":"a"}}`)}
		var got [4]*CachedObject
		var readers sync.WaitGroup
		for i := range got {
			readers.Go(func() {
				f, err := k.Cached(r)
				if err != nil {
					t.Error(err)
				}
				got[i] = f
			})
		}
		synctest.Wait() // each reader has found that the record is not decoded yet
		close(release)
		readers.Wait()
		for i, f := range got {
			if f != got[0] {
				t.Errorf("reader %d has an object of its own", i)
			}
		}
	})
}

// TestGoneIsOneObject checks that concurrent watchers of a deletion get the same object.
func TestGoneIsOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, release := heldKind()
		key := k.Key("ns", "a")
		before := &store.Record{Key: key, Revision: 5, Value: []byte(`{"metadata":{"name":"a"}}`)}
		deleted := &Event{Event: store.Event{Revision: 7, Previous: before}}
		var told [4]*CachedObject
		var watchers sync.WaitGroup
		for i := range told {
			watchers.Go(func() {
				f, err := deleted.Gone(k)
				if err != nil {
					t.Error(err)
				}
				told[i] = f
			})
		}
		synctest.Wait() // each watcher has found that the object does not exist yet
		close(release)
		watchers.Wait()
		for i, f := range told {
			if f != told[0] {
				t.Errorf("watcher %d is told of an object of its own", i)
			}
			if f.Hub.GetName() != "a" || f.Hub.GetResourceVersion() != "7" {
				t.Errorf("watcher %d is told of %s at %s", i, f.Hub.GetName(), f.Hub.GetResourceVersion())
			}
		}
	})
}
