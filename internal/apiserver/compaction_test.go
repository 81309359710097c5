// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// TestHistoryIsForgotten lets a paginated list wait until its revision was compacted: the error has a token that
// continues with the newest state.
func TestHistoryIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.New(memory.Open(memory.Options{}))
		s, err := New(Options{Store: st, Kinds: []*resource.Descriptor{configMaps()}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		defer func() {
			stop()
			<-done
			_ = st.Close()
		}()
		synctest.Wait() // the compaction has begun: it knows the revision before the writes
		maps := schema.GroupResource{Resource: "configmaps"}
		write := func(name string) {
			if _, err := s.Backend().Create(ctx, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}},
				false); err != nil {
				t.Fatal(err)
			}
		}
		write("a")
		write("b")
		c := kubernetes.NewForConfigOrDie(s.Config(&user.DefaultInfo{Name: "u",
			Groups: []string{user.SystemPrivilegedGroup}})).CoreV1().ConfigMaps("ns")
		page, err := c.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || page.Continue == "" {
			t.Fatal(page, err)
		}
		write("c")
		time.Sleep(compactInterval + time.Second) // records the newest revision
		if l, err := c.List(ctx, metav1.ListOptions{Limit: 1, Continue: page.Continue}); err != nil || l.Items[0].Name != "b" {
			t.Fatalf("within the interval: %v, %v", l, err)
		}
		write("d")
		time.Sleep(compactInterval)
		_, err = c.List(ctx, metav1.ListOptions{Limit: 1, Continue: page.Continue})
		if !apierrors.IsResourceExpired(err) {
			t.Fatalf("after two intervals: %v", err)
		}
		fresh := err.(apierrors.APIStatus).Status().Continue
		l, err := c.List(ctx, metav1.ListOptions{Continue: fresh})
		if err != nil || len(l.Items) != 3 || l.Items[0].Name != "b" || l.Items[2].Name != "d" {
			t.Errorf("going on with the token that came with the error: %v, %v", l, err)
		}
		if st.Compacted() >= st.Revision() {
			t.Errorf("everything was forgotten: %d of %d", st.Compacted(), st.Revision())
		}
	})
}
