// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dnsservice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestServiceIsFollowed makes, replaces and deletes the Service kube-dns while a node follows it.
func TestServiceIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		ctx, cancel := context.WithCancel(t.Context())
		f := informers.NewSharedInformerFactory(c, 0)
		s, err := FollowService(ctx, c, f, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		f.Start(ctx.Done())
		var log []string
		ended := make(chan error, 1)
		go func() {
			ended <- s.Run(ctx, func(ctx context.Context, addresses []netip.Addr) error {
				log = append(log, fmt.Sprint("answers at ", addresses))
				<-ctx.Done()
				log = append(log, "ends")
				return nil
			}, func() { log = append(log, "missing") })
		}()
		services := c.CoreV1().Services(metav1.NamespaceSystem)
		expect := func(addresses []string, lines ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(log, lines) || !slices.Equal(s.Addresses(), addresses) {
				t.Errorf("it %q, pods ask %q; want %q, %q", log, s.Addresses(), lines, addresses)
			}
			log = nil
		}
		expect(nil, "missing")

		ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
		if found, made, err := Ensure(ctx, c, ranges); err != nil || !made || !found.Ours {
			t.Fatal(found, made, err)
		}
		expect([]string{"10.96.0.10"}, "answers at [10.96.0.10]")

		// A change that means nothing to the node.
		svc, err := services.Get(ctx, serviceName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		svc.Annotations = map[string]string{"a": "b"}
		if svc, err = services.Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect([]string{"10.96.0.10"})

		// Somebody else's DNS takes its place.
		delete(svc.Labels, proxyLabel)
		if _, err = services.Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect([]string{"10.96.0.10"}, "ends")
		if found, made, err := Ensure(ctx, c, ranges); err != nil || made || found.Ours {
			t.Error("of somebody else's Service:", found, made, err)
		}
		if err := services.Delete(ctx, serviceName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(nil, "missing")
		other := wanted(nil)
		other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.96.7.7", []string{"10.96.7.7"}
		if _, err := services.Create(ctx, other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect([]string{"10.96.7.7"}, "answers at [10.96.7.7]")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		expect([]string{"10.96.7.7"}, "ends")
		f.Shutdown()
	})
}

// TestServiceThereAtStart is known before the informers have synced; a server that does not answer is logged, and a DNS that cannot work
// is an error.
func TestServiceThereAtStart(t *testing.T) {
	svc := wanted([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/108")})
	c := fake.NewClientset(svc)
	s, err := FollowService(t.Context(), c, informers.NewSharedInformerFactory(c, 0), slog.New(slog.DiscardHandler))
	if err != nil || !slices.Equal(s.Addresses(), []string{"10.96.0.10", "fd00::a"}) || !s.Found().Ours {
		t.Errorf("%+v, %v", s.Found(), err)
	}
	broken := errors.New("broken on purpose")
	if err := s.Run(t.Context(), func(context.Context, []netip.Addr) error { return broken }, nil); !errors.Is(err, broken) {
		t.Errorf("Run answers %v", err)
	}
	c.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("services"), serviceName, nil)
	})
	var log bytes.Buffer
	s, err = FollowService(t.Context(), c, informers.NewSharedInformerFactory(c, 0), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || len(s.Addresses()) > 0 || !strings.Contains(log.String(), "forbidden") {
		t.Errorf("of a Service that may not be read: %+v, %v, logged %s", s.Found(), err, &log)
	}
}

func TestSmallRange(t *testing.T) {
	if a := nth(netip.MustParsePrefix("10.96.0.0/29"), 10); a.IsValid() {
		t.Errorf("a range of eight has the address %s", a)
	}
}
