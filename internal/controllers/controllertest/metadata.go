// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// share makes a metadata client list and patch the clientset's objects.
func (a *api) share(c *metadatafake.FakeMetadataClient) {
	c.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		gvr := action.GetResource()
		out := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.counter)}} // the fake client expects this type
		for gvk := range scheme.Scheme.AllKnownTypes() {
			if guess, _ := meta.UnsafeGuessKindToResource(gvk); guess != gvr || strings.HasSuffix(gvk.Kind, "List") {
				continue
			}
			list, err := a.tracker.List(gvr, gvk, action.GetNamespace())
			if err != nil {
				return true, nil, err
			}
			err = meta.EachListItem(list, func(o runtime.Object) error {
				m, err := meta.Accessor(o)
				if err == nil {
					out.Items = append(out.Items, runtime.RawExtension{Object: meta.AsPartialObjectMetadata(m)})
				}
				return err
			})
			return true, out, err
		}
		return false, nil, nil
	})
	c.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchActionImpl)
		if !ok {
			return false, nil, fmt.Errorf("patch of type %T", action)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		obj, err := a.patch(patch)
		if err != nil {
			return true, nil, err
		}
		m, err := meta.Accessor(obj)
		if err != nil {
			return true, nil, err
		}
		return true, meta.AsPartialObjectMetadata(m), nil
	})
}

// serve returns discovery's answer for lines of group and version, resource, kind and verbs.
func serve(text string) ([]*metav1.APIResourceList, error) {
	var lists []*metav1.APIResourceList
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		words := strings.Fields(line)
		if len(words) != 4 {
			return nil, fmt.Errorf("serve: %q is not group and version, resource, kind, verbs", line)
		}
		at := slices.IndexFunc(lists, func(l *metav1.APIResourceList) bool { return l.GroupVersion == words[0] })
		if at < 0 {
			at = len(lists)
			lists = append(lists, &metav1.APIResourceList{GroupVersion: words[0]})
		}
		lists[at].APIResources = append(lists[at].APIResources,
			metav1.APIResource{Name: words[1], Kind: words[2], Namespaced: true, Verbs: strings.Split(words[3], ",")})
	}
	return lists, nil
}
