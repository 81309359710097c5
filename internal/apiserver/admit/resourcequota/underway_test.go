// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/quota"
)

// TestAttempts checks that a quota that others change each time is checked 16 times, and that the request is then
// rejected as a conflict.
func TestAttempts(t *testing.T) {
	for _, c := range []struct{ changes, used, attempts int }{{15, 1, 16}, {16, 0, 16}} {
		p, b := setup(t, "", newQuota("q", amounts("configmaps", "5"), amounts("configmaps", "0")))
		attempts := 0
		b.meddle = func() {
			if attempts++; attempts <= c.changes {
				b.write(t, "q", func(q *corev1.ResourceQuota) { q.Labels = map[string]string{"n": fmt.Sprint(attempts)} })
			}
		}
		err := p.Validate(t.Context(), b, configMap("m"))
		if (err == nil) != (c.used == 1) || err != nil && !apierrors.IsConflict(err) {
			t.Errorf("%d changes: %v", c.changes, err)
		}
		if used := b.used("q", "configmaps"); used != int64(c.used) || attempts != c.attempts {
			t.Errorf("%d changes: used %d after %d attempts, want %d after %d", c.changes, used, attempts, c.used, c.attempts)
		}
	}
}

// TestIndexBehind checks that a write that fits does not wait for the index. A write that would be rejected waits once,
// because a client may have seen a quota with room.
func TestIndexBehind(t *testing.T) {
	p, b := setup(t, "", newQuota("q", amounts("configmaps", "1"), amounts("configmaps", "0")))
	for i, want := range []int{0, 1} {
		err := p.Validate(t.Context(), b, configMap(fmt.Sprint(i)))
		if (err == nil) != (i == 0) || b.syncs != want {
			t.Errorf("request %d: %v after waiting %d times, want %d", i, err, b.syncs, want)
		}
	}
	b.behind = true
	b.write(t, "q", func(q *corev1.ResourceQuota) { q.Status.Used = amounts("configmaps", "0") })
	if err := p.Validate(t.Context(), b, configMap("m")); err != nil || b.used("q", "configmaps") != 1 {
		t.Errorf("there is room: %v, used %d", err, b.used("q", "configmaps"))
	}
}

// TestDryRunInBatch checks that a dry run that fits is admitted even if another request's charge cannot be written.
func TestDryRunInBatch(t *testing.T) {
	p, b := setup(t, "", newQuota("q", amounts("configmaps", "5"), amounts("configmaps", "0")))
	b.broken = errors.New("disk full")
	var batch []*work
	for _, dry := range []bool{true, false} {
		a := configMap("m")
		a.DryRun = dry
		w := &work{attributes: a, evaluator: quota.For(a.Descriptor.GroupResource(), nil)}
		w.measure(t.Context())
		batch = append(batch, w)
	}
	p.process(t.Context(), b, p.space("team"), batch)
	if err := batch[0].result; err != nil {
		t.Errorf("the dry run: %v", err)
	}
	if err := batch[1].result; err == nil || err.Error() != "charge quota q: disk full" {
		t.Errorf("the write: %v", err)
	}
}

// TestGivenBackTwice checks that two charges are released one after the other, but not from a recount made in between.
func TestGivenBackTwice(t *testing.T) {
	for _, c := range []struct {
		counted bool
		want    int64
	}{{false, 0}, {true, 4}} {
		p, b := setup(t, "", newQuota("q", amounts("configmaps", "9"), amounts("configmaps", "0")))
		both := []*admit.Attributes{configMap("a"), configMap("b")}
		for _, a := range both {
			if err := p.Validate(t.Context(), b, a); err != nil {
				t.Fatal(err)
			}
		}
		if c.counted {
			b.write(t, "q", func(q *corev1.ResourceQuota) { q.Status.Used = amounts("configmaps", "4") })
		}
		for _, a := range both {
			a.End(apierrors.NewAlreadyExists(quotas, a.Name))
		}
		if used := b.used("q", "configmaps"); used != c.want {
			t.Errorf("counted in between: %t: used %d, want %d", c.counted, used, c.want)
		}
	}
}

// TestGivenBackAfterLeaving checks that the charge of a client that left is released even if it must wait for other
// checks.
func TestGivenBackAfterLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := setup(t, "", newQuota("q", amounts("configmaps", "9"), amounts("configmaps", "0")))
		ctx, leave := context.WithCancel(t.Context())
		a := configMap("a")
		if err := p.Validate(ctx, b, a); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		b.meddle = sync.OnceFunc(func() { <-release })
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Validate(t.Context(), b, configMap("b")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		wg.Go(func() { a.End(ctx.Err()) })
		synctest.Wait()
		close(release)
		wg.Wait()
		if used := b.used("q", "configmaps"); used != 1 {
			t.Errorf("used %d, want 1", used)
		}
	})
}

// TestNotGivenBack checks that a charge that cannot be released is only logged.
func TestNotGivenBack(t *testing.T) {
	for _, broken := range []error{nil, errors.New("disk full"), apierrors.NewNotFound(quotas, "q")} {
		p, b := setup(t, "", newQuota("q", amounts("configmaps", "9"), amounts("configmaps", "0")))
		var log bytes.Buffer
		if err := p.Join(&admit.Host{Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
			t.Fatal(err)
		}
		a := configMap("a")
		if err := p.Validate(t.Context(), b, a); err != nil {
			t.Fatal(err)
		}
		b.broken = broken
		a.End(apierrors.NewAlreadyExists(quotas, "a"))
		want := ""
		if broken != nil && !apierrors.IsNotFound(broken) {
			want = `error="release usage of quota q: disk full"`
		}
		if got := log.String(); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: logged %q, want %q", broken, got, want)
		}
	}
}

// TestMemory checks that the state of deleted quotas and namespaces is dropped.
func TestMemory(t *testing.T) {
	p, b := setup(t, "", newQuota("q", amounts("configmaps", "1000"), amounts("configmaps", "0")))
	for i := range 100 {
		b.mu.Lock()
		b.quotas["q"] = newQuota("q", amounts("configmaps", "1000"), amounts("configmaps", "0"))
		b.quotas["q"].UID = types.UID(fmt.Sprint(i))
		b.mu.Unlock()
		if err := b.tell(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		a := configMap(fmt.Sprint(i))
		if err := p.Validate(t.Context(), b, a); err != nil {
			t.Fatal(err)
		}
		a.End(apierrors.NewAlreadyExists(quotas, a.Name))
		if used := b.used("q", "configmaps"); used != 0 {
			t.Fatalf("quota %d: the charge was not given back", i)
		}
	}
	if n := len(p.space("team").accounts); n > 10 {
		t.Errorf("%d accounts for one quota", n)
	}
	delete(b.quotas, "q")
	if err := b.tell(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	p.spaces.Range(func(namespace, _ any) bool {
		t.Errorf("%s is remembered", namespace)
		return true
	})
}

// TestEndsWhileChecked checks that a request that ends while it is being checked waits for its result, and that one
// that ends while it checks others completes their checks.
func TestEndsWhileChecked(t *testing.T) {
	for _, leaves := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			p, b := setup(t, "", newQuota("q", amounts("configmaps", "2"), amounts("configmaps", "0")))
			writes, release := make(chan struct{}), make(chan struct{})
			b.meddle = func() { writes <- struct{}{}; <-release }
			results := make([]error, 3)
			ctxs := []context.Context{t.Context(), t.Context(), t.Context()}
			ctx, cancel := context.WithCancel(t.Context())
			ctxs[leaves] = ctx
			var wg sync.WaitGroup
			for i, ctx := range ctxs {
				wg.Go(func() { results[i] = p.Validate(ctx, b, configMap(fmt.Sprint(i))) })
				if i == 0 {
					<-writes
				}
				synctest.Wait()
			}
			release <- struct{}{}
			<-writes // the second request, which checks the third one too
			cancel()
			synctest.Wait()
			close(release)
			wg.Wait()
			if results[0] != nil || results[1] != nil || !apierrors.IsForbidden(results[2]) {
				t.Errorf("%d leaves: got %v, want two that are let in and one that is forbidden", leaves, results)
			}
		})
	}
}

// TestWithdraw checks that a request can leave the queue unless it is being checked or is the next checker.
func TestWithdraw(t *testing.T) {
	s := newSpace()
	first, second := &work{lead: make(chan struct{})}, &work{lead: make(chan struct{})}
	s.queue = []*work{first, second}
	if !s.withdraw(first) || len(s.queue) != 1 || s.queue[0] != second {
		t.Errorf("the first of two: the queue is %v", s.queue)
	}
	if s.withdraw(first) || len(s.queue) != 1 {
		t.Errorf("one that is not in the queue: the queue is %v", s.queue)
	}
	close(second.lead)
	if s.withdraw(second) || len(s.queue) != 1 {
		t.Errorf("one that is to check: the queue is %v", s.queue)
	}
}

// TestEndsWhileCounted checks that a request is rejected if it ends while its namespace is being counted.
func TestEndsWhileCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota("q", amounts("configmaps", "1"), nil)
		q.Status = corev1.ResourceQuotaStatus{}
		p, b := setup(t, "", q)
		if err := p.Validate(t.Context(), b, status(q, true)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), shutFor/2)
		defer cancel()
		if err := p.Validate(ctx, b, configMap("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// TestCountAgain checks that a second count has as much time as the first one, whenever that ended.
func TestCountAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpace()
		s.shut()
		time.Sleep(shutFor / 2)
		s.open()
		s.shut()
		began := time.Now()
		end, err := s.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		end()
		if waited := time.Since(began); waited != shutFor {
			t.Errorf("waited %s, want %s", waited, shutFor)
		}
	})
}

// TestCountGivesUp checks that a count does not wait forever for a write that does not end.
func TestCountGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpace()
		if _, err := s.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.drain(t.Context())
		if waited := time.Since(began); waited != patience {
			t.Errorf("waited %s, want %s", waited, patience)
		}
	})
}

// TestEndedPod checks that a pod whose deletion grace period has long passed is not counted, according to the plug-in's
// clock.
func TestEndedPod(t *testing.T) {
	gone, grace := metav1.NewTime(time.Unix(1000, 0)), int64(30)
	for at, want := range map[int64]string{1029: "cpu=2", 1031: "cpu=1"} {
		p, b := setup(t, "", newQuota("q", amounts("cpu", "2"), amounts("cpu", "1")))
		p.now = func() time.Time { return time.Unix(at, 0) }
		pod := podOf("p", "1")
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &gone, &grace
		if err := p.Validate(t.Context(), b, request("", "pods", pod)); err != nil {
			t.Fatal(err)
		}
		if used := b.usedText("q"); used != want {
			t.Errorf("at %d: used %s, want %s", at, used, want)
		}
	}
}
