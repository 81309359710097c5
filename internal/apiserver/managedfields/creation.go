// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"cmp"
	"encoding/binary"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/mortise-dev/mortise/internal/apiserver/overlay"
	"github.com/mortise-dev/mortise/resource"
)

// creation caches the field sets of new objects of one version of a built-in kind. Most new objects are like one that
// was created before, so their field set is cached already.
type creation struct {
	number uint64 // identifies this creation among all
	like   likeness
	empty  resource.Object // new objects are compared with it
	apply  *overlay.Plan   // nil: configurations are merged by their field sets each time
}

// creations numbers the values of type creation.
var creations atomic.Uint64

// create records manager as the owner of all fields of obj, which is new.
func (m *Manager) create(f *managedfields.FieldManager, c *converter, obj resource.Object, manager string) error {
	n, err := m.creation(c)
	if err != nil {
		return err
	}
	if n == nil || len(obj.GetManagedFields()) > 0 || !utf8.ValidString(manager) {
		before, err := c.live(nil)
		if err != nil {
			return err
		}
		_, err = f.Update(before, obj, manager)
		return err
	}
	gv := schema.GroupVersion{Group: c.d.Group, Version: c.v.Name}
	var written runtime.Object = obj
	if c.v.FromHub != nil {
		if written, err = c.to(obj, gv); err != nil {
			return err
		}
	}
	room := likenesses.Get().(*[]byte)
	defer likenesses.Put(room)
	key, judged := n.like(binary.AppendUvarint((*room)[:0], n.number), reflect.ValueOf(written).Elem())
	*room = key[:0]
	if judged {
		if fields := m.alike.get(key); fields != "" {
			obj.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: cmp.Or(manager, "unknown"), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: gv.String(),
				Time: &metav1.Time{Time: time.Now().UTC()}, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
			}})
			return nil
		}
	}
	if _, err = f.Update(n.empty, obj, manager); err != nil || !judged {
		return err
	}
	if e := obj.GetManagedFields(); len(e) == 1 && e[0].FieldsV1 != nil {
		m.alike.put(key, e[0].FieldsV1.GetRawString())
	}
	return nil
}

// creation returns the cache for new objects; nil: the field set of each object must be computed.
func (m *Manager) creation(c *converter) (*creation, error) {
	k := m.kind(c.d)
	k.mu.RLock()
	n, ok := k.creations[c.v.Name]
	types := k.converters[c.v.Name]
	k.mu.RUnlock()
	if ok {
		return n, nil
	}
	if t, ok := types.(trusting); ok && !c.v.Deferred {
		var err error
		if n, err = newCreation(t, c); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.creations[c.v.Name] = n
	return n, nil
}

func newCreation(t trusting, c *converter) (*creation, error) {
	empty, err := c.live(nil)
	if err != nil {
		return nil, err
	}
	gvk := c.d.GroupVersionKind(c.v.Name)
	as, err := c.to(empty, gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	of := reflect.ValueOf(as).Elem()
	bare := reflect.New(of.Type())
	bare.Interface().(runtime.Object).GetObjectKind().SetGroupVersionKind(gvk)
	if !reflect.DeepEqual(as, bare.Interface()) { // with defaults, an explicit value is not the same as none
		return nil, nil
	}
	shape, err := t.shape(gvk)
	if err != nil {
		return nil, err
	}
	a := &alikeness{schema: shape.Schema, made: map[likenessOf]*likeness{}}
	n := &creation{number: creations.Add(1), like: a.of(of.Type(), &shape.TypeRef), empty: empty}
	if c.v.ToHub == nil && c.v.FromHub == nil {
		n.apply = overlay.Applied(of.Type(), shape.Schema, shape.TypeRef)
	}
	return n, nil
}

// likenesses pools buffers for likenesses.
var likenesses = sync.Pool{New: func() any { return new([]byte) }}

// alike caches field sets by the likeness of their objects: the latest ones, up to a size.
type alike struct {
	mu          sync.RWMutex
	young, aged map[string]string
	bytes       int // of young
}

const (
	alikeBytes = 1 << 20 // of each half
	alikeEach  = 16 << 10
)

func (a *alike) get(key []byte) string {
	a.mu.RLock()
	fields, ok := a.young[string(key)]
	if !ok {
		fields = a.aged[string(key)]
	}
	a.mu.RUnlock()
	if !ok && fields != "" {
		a.put(key, fields)
	}
	return fields
}

func (a *alike) put(key []byte, fields string) {
	size := len(key) + len(fields)
	if size > alikeEach {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.young[string(key)]; ok {
		return
	}
	if a.bytes+size > alikeBytes || a.young == nil {
		a.young, a.aged, a.bytes = map[string]string{}, a.young, 0
	}
	a.young[string(key)] = fields
	a.bytes += size
}
