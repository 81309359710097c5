// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	maths "k8s.io/apiserver/pkg/quota/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/quota"
	"github.com/mortise-dev/mortise/resource"
)

const (
	// patience bounds how long a batch may take.
	patience = 10 * time.Second
	// attempts bound how often a batch is checked again because others wrote a quota meanwhile.
	attempts = 16
)

// work is one request that waits for its check, or one charge to release.
type work struct {
	attributes *admit.Attributes
	evaluator  quota.Evaluator
	cluster    cluster

	usage, before  corev1.ResourceList // of the new object and of the old one
	err, beforeErr error

	charged []charge // charges that have been written
	refund  []charge

	settled bool
	result  error
	done    chan struct{} // closed when there is a result
	lead    chan struct{} // closed when this goroutine must check the batch
}

// charge is what was added to a quota's used.
type charge struct {
	name  string
	uid   types.UID
	epoch int
	what  corev1.ResourceList
}

func (w *work) measure(ctx context.Context) {
	w.usage, w.err = w.evaluator.Usage(ctx, w.attributes.Object)
	if w.attributes.Old != nil {
		w.before, w.beforeErr = w.evaluator.Usage(ctx, w.attributes.Old)
	}
}

// paid reports whether the quota of that UID has been charged.
func (w *work) paid(uid types.UID) bool {
	return slices.ContainsFunc(w.charged, func(c charge) bool { return c.uid == uid })
}

func (w *work) settle(err error) { w.settled, w.result = true, err }

// run waits until w is checked, either by the goroutine that currently checks the namespace's requests or by this one,
// which then takes all waiting work with it. Afterwards it hands over to the first work that arrived meanwhile.
func (p *plugin) run(ctx context.Context, b resource.Backend, s *space, w *work) error {
	w.done, w.lead = make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.queue = append(s.queue, w)
	if s.busy {
		s.mu.Unlock()
		select {
		case <-w.done:
			return w.result
		case <-w.lead:
		case <-ctx.Done():
			if s.withdraw(w) {
				return apierrors.NewInternalError(errors.New("resource quota evaluation timed out")) // upstream's words
			}
			select { // another goroutine checks it, or it becomes the checker
			case <-w.done:
				return w.result
			case <-w.lead:
			}
		}
		s.mu.Lock()
	}
	s.busy = true
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()

	// The batch contains many requests: it must not end with this one's context, nor be recorded as part of this one.
	shared, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p.process(shared, b, s, batch)
	for _, one := range batch {
		close(one.done)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy = len(s.queue) > 0; s.busy {
		close(s.queue[0].lead)
	}
	return w.result
}

// withdraw removes a request that is not being checked yet, and reports whether it could.
func (s *space) withdraw(w *work) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.lead:
		return false
	default:
	}
	i := slices.Index(s.queue, w)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	return i >= 0
}

// process gives each work of the batch its result. Only one goroutine per namespace runs it at a time.
func (p *plugin) process(ctx context.Context, b resource.Backend, s *space, batch []*work) {
	namespace := batch[0].attributes.Namespace
	for _, w := range batch {
		if w.refund != nil {
			w.settle(s.giveBack(ctx, b, namespace, w.refund))
		}
	}
	all, newest := p.index.In(namespace), false
	for attempt := 1; ; attempt++ {
		rs := s.read(all)
		shares, refused := p.share(ctx, rs, batch)
		if len(refused) > 0 && !newest {
			// A client's watch may be ahead of the index: the client may already have seen a quota with room.
			newest = true
			p.synced(ctx, quotas)
			if stored := p.index.In(namespace); !slices.EqualFunc(stored, all, sameVersion) {
				all = stored
				continue
			}
		}
		for w, err := range refused {
			w.settle(err)
		}
		stale, failed := s.charge(ctx, b, rs, batch, shares)
		if failed == nil && len(stale) > 0 && attempt == attempts {
			failed = apierrors.NewConflict(quotas, stale[0], errors.New(
				"the object has been modified; please apply your changes to the latest version and try again"))
		}
		for _, w := range batch {
			if !w.settled && (failed != nil || len(stale) == 0) {
				w.settle(failed)
			}
		}
		if failed != nil || len(stale) == 0 {
			break
		}
		newest = true
		p.synced(ctx, quotas)
		all = p.index.In(namespace)
	}
	for _, w := range batch {
		if w.result != nil && len(w.charged) > 0 {
			w.result = errors.Join(w.result, s.giveBack(ctx, b, namespace, w.charged))
			w.charged = nil
		}
	}
}

// share checks all work of the batch that has no result yet, one after the other. It returns the charges of each, and
// the reason for each rejection.
func (p *plugin) share(ctx context.Context, rs []*running, batch []*work) (shares map[*work]map[int]corev1.ResourceList,
	refused map[*work]error) {
	c := checker{p.limited}
	shares, refused = map[*work]map[int]corev1.ResourceList{}, map[*work]error{}
	for _, w := range batch {
		if w.settled {
			continue
		}
		deltas, err := c.check(ctx, rs, w)
		if err != nil {
			refused[w] = err
			continue
		}
		if w.attributes.DryRun || len(deltas) == 0 {
			w.settle(nil)
			continue
		}
		for i, d := range deltas {
			rs[i].used, rs[i].dirty = maths.Add(rs[i].used, d), true
		}
		shares[w] = deltas
	}
	return shares, refused
}

func sameVersion(a, b *corev1.ResourceQuota) bool {
	return a.ResourceVersion == b.ResourceVersion
}

// errStale means that a quota changed after it was read.
var errStale = errors.New("the quota has changed")

// charge writes the changed quotas. stale are those that others changed meanwhile; failed is the error that ended the
// writes.
func (s *space) charge(ctx context.Context, b resource.Backend, rs []*running, batch []*work,
	shares map[*work]map[int]corev1.ResourceList) (stale []string, failed error) {
	for i, r := range rs {
		if !r.dirty {
			continue
		}
		_, err := update(ctx, b, r.Namespace, r.Name, func(q *corev1.ResourceQuota) error {
			if q.ResourceVersion != r.ResourceVersion || q.UID != r.UID {
				return errStale
			}
			q.Status.Used = r.used
			return nil
		})
		switch {
		case errors.Is(err, errStale), apierrors.IsNotFound(err):
			stale = append(stale, r.Name)
			continue
		case err != nil:
			return stale, fmt.Errorf("charge quota %s: %w", r.Name, err)
		}
		account := s.accounts[r.UID]
		account.used = r.used
		for _, w := range batch {
			if d, ok := shares[w][i]; ok {
				w.charged = append(w.charged, charge{r.Name, r.UID, account.epoch, d})
			}
		}
	}
	return stale, nil
}

// giveBack releases charges, except those to quotas that the controller has recalculated.
func (s *space) giveBack(ctx context.Context, b resource.Backend, namespace string, charges []charge) error {
	var errs []error
	for _, c := range charges {
		account := s.accounts[c.uid]
		if account == nil {
			continue
		}
		stored, err := update(ctx, b, namespace, c.name, func(q *corev1.ResourceQuota) error {
			if q.UID != c.uid || account.epoch != c.epoch || !maths.Equals(q.Status.Used, account.used) {
				return errStale
			}
			q.Status.Used = maths.Mask(maths.SubtractWithNonNegativeResult(q.Status.Used, c.what), maths.ResourceNames(q.Status.Used))
			return nil
		})
		switch {
		case errors.Is(err, errStale), apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("release usage of quota %s: %w", c.name, err))
		default:
			account.used = stored.Status.Used
		}
	}
	return errors.Join(errs...)
}

// read prepares the current quotas for new charges. A quota whose used differs from the last value written here was
// recalculated by the controller: earlier charges may or may not be in that count, and cannot be released.
func (s *space) read(all []*corev1.ResourceQuota) []*running {
	rs := make([]*running, len(all))
	for i, q := range all {
		account := s.accounts[q.UID]
		if account == nil {
			account = &accountOf{used: q.Status.Used}
			s.accounts[q.UID] = account
		}
		rs[i] = &running{ResourceQuota: q, used: q.Status.Used}
		if !equality.Semantic.DeepEqual(account.used, q.Status.Used) {
			account.used = q.Status.Used
			account.epoch++
		}
	}
	if len(s.accounts) > 2*len(all)+8 {
		for uid := range s.accounts {
			if !slices.ContainsFunc(all, func(q *corev1.ResourceQuota) bool { return q.UID == uid }) {
				delete(s.accounts, uid)
			}
		}
	}
	return rs
}

// update changes a quota's status as the server itself.
func update(ctx context.Context, b resource.Backend, namespace, name string,
	change func(*corev1.ResourceQuota) error) (*corev1.ResourceQuota, error) {
	f := func(obj resource.Object) error {
		q, ok := obj.(*corev1.ResourceQuota)
		if !ok {
			return fmt.Errorf("quota is a %T", obj)
		}
		return change(q)
	}
	var obj resource.Object
	var err error
	if w, ok := b.(resource.ServerWriter); ok {
		obj, err = w.UpdateAsServer(ctx, quotas, namespace, name, "status", false, f)
	} else {
		obj, err = b.Update(ctx, quotas, namespace, name, false, f)
	}
	if err != nil {
		return nil, err
	}
	q, ok := obj.(*corev1.ResourceQuota)
	if !ok {
		return nil, fmt.Errorf("quota is a %T", obj)
	}
	return q, nil
}
