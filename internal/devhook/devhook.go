// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package devhook points registered webhooks at a process on a developer's machine, and back.
//
// [Session.Run] redirects the webhooks of configurations to a URL, each with its path, makes the API server trust its
// certificate, and restores everything when its context ends. An annotation of the object itself holds the previous
// settings (record.go), so that they survive the process: [Session.Restore] restores them at any time, from anywhere. Run
// creates a configuration that does not exist, and deletes it at the end. It changes and restores only the addresses and
// CAs of webhooks: other changes made meanwhile stay.
//
// Run watches the configurations (follow.go). When another client, most often the operator that owns a configuration,
// writes an address or a CA, Run prints the change and its field manager and redirects the webhook again; what the client
// wrote is what Run restores in the end.
//
// Trust comes in one of three ways (trust.go): the certificate that the process shows is trusted as it is; or one is made and
// written for the process to use; or calls go through this process, which prints them (calls.go).
package devhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

// Annotation remembers what was before, on an object that is pointed elsewhere.
const Annotation = "extension.mortise.dev/webhook-dev"

// manager is the field manager of what is written.
const manager = "mortise-webhook-dev"

// Kinds are the resources of configurations, by kind.
func Kinds() map[string]schema.GroupVersionResource {
	return map[string]schema.GroupVersionResource{
		"MutatingWebhookConfiguration":   {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
		"ValidatingWebhookConfiguration": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
		"CustomResourceDefinition":       {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	}
}

// Configuration names one, and is it as a file has it.
type Configuration struct {
	Resource schema.GroupVersionResource
	Name     string
	Object   *unstructured.Unstructured // nil: it is in the cluster
}

func (c *Configuration) String() string { return c.Resource.Resource + "/" + c.Name }

// Session is one use of the cluster.
type Session struct {
	Client dynamic.Interface
	Out    io.Writer // receives a line for each change, from several goroutines, one at a time
	Now    func() time.Time

	saying sync.Mutex
}

// say prints lines.
func (s *Session) say(format string, args ...any) {
	s.saying.Lock()
	defer s.saying.Unlock()
	fmt.Fprintf(s.Out, format, args...)
}

// Target is where webhooks are pointed.
type Target struct {
	URL    *url.URL // whose path comes before the webhook's own
	Bundle []byte   // the CA to trust, in PEM
}

// pointed is a configuration that this session has pointed at its target.
type pointed struct {
	configuration *Configuration
	target        Target
	uid           types.UID
	record        *record                     // as the session wrote it last
	managedFields []metav1.ManagedFieldsEntry // of the object that the session wrote last
}

func (p *pointed) String() string { return p.configuration.String() }

// changes are the differences between obj and what the session wrote.
func (p *pointed) changes(obj *unstructured.Unstructured) []change {
	changes := p.record.changes(obj)
	if _, ok := obj.GetAnnotations()[Annotation]; !ok {
		changes = append(changes, change{what: "annotation removed"})
	}
	return changes
}

// callTimeout bounds one call of the API server.
const callTimeout = 30 * time.Second

var (
	// errGone: a configuration, or what was redirected of it, is not there any more.
	errGone = errors.New("nothing is redirected any more")
	// errTaken: another session has redirected a configuration.
	errTaken = errors.New("another `mortise webhook dev` has redirected it")
)

// Run points the configurations at the target until ctx ends, again when another client changes them. It is an error if one cannot be
// pointed there, or back, and if one goes away.
func (s *Session) Run(ctx context.Context, cs []Configuration, t Target) (err error) {
	var ps []*pointed
	defer func() {
		var errs []error
		for _, p := range ps {
			errs = append(errs, s.restoreOf(context.WithoutCancel(ctx), p.configuration, p))
		}
		err = errors.Join(append([]error{err}, errs...)...)
	}()
	for i := range cs {
		p := &pointed{configuration: &cs[i], target: t}
		ps = append(ps, p)
		if _, err := s.point(ctx, p); err != nil {
			return err
		}
	}
	s.say("This lasts until the program ends. If it is killed, `mortise webhook dev --restore` restores the previous settings.\n")
	return s.followAll(ctx, ps)
}

// point points a configuration at its target. It returns whether it had to.
func (s *Session) point(ctx context.Context, p *pointed) (wrote bool, err error) {
	c := p.configuration
	client := s.Client.Resource(c.Resource)
	first := p.record == nil
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		obj, err := client.Get(ctx, c.Name, metav1.GetOptions{})
		created := false
		if apierrors.IsNotFound(err) && first && c.Object != nil {
			obj, err, created = c.Object.DeepCopy(), nil, true
		}
		if apierrors.IsNotFound(err) && !first || err == nil && !first && obj.GetUID() != p.uid {
			return fmt.Errorf("it was deleted: %w", errGone)
		}
		if err != nil {
			return err
		}
		held, err := noted(obj)
		if err != nil && first {
			return err
		}
		var changes []change
		if !first {
			if held != nil && held.Target != p.target.URL.String() {
				return errTaken
			}
			if changes = p.changes(obj); len(changes) == 0 {
				return nil
			}
			if !p.record.survives(obj) {
				return fmt.Errorf("%s: %w", describe(changes, obj, p.managedFields), errGone)
			}
			held = p.record
		}
		mine := created || held != nil && held.Created && len(held.changes(obj)) == 0 // no other client has written the webhooks
		next, lines, err := aim(obj, p.target, held)
		if err != nil {
			return err
		}
		next.Created = mine
		if err := next.note(obj); err != nil {
			return err
		}
		var written *unstructured.Unstructured
		if created {
			written, err = client.Create(ctx, obj, metav1.CreateOptions{FieldManager: manager})
		} else {
			written, err = client.Update(ctx, obj, metav1.UpdateOptions{FieldManager: manager})
		}
		if err != nil {
			return err
		}
		p.uid, p.record, wrote = written.GetUID(), next, true
		p.managedFields = written.GetManagedFields()
		switch {
		case !first:
			s.say("%s: %s; redirected again.\n", c, describe(changes, obj, p.managedFields))
		case created:
			s.say("%s created:\n%s", c, strings.Join(lines, ""))
		default:
			s.say("%s redirected:\n%s", c, strings.Join(lines, ""))
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("point %s at %s: %w", c, p.target.URL, err)
	}
	return wrote, nil
}

// Restore puts configurations back that are pointed elsewhere; all that there are if none is named.
func (s *Session) Restore(ctx context.Context, cs []Configuration) error {
	var errs []error
	for i := range cs {
		errs = append(errs, s.restoreOf(ctx, &cs[i], nil))
	}
	return errors.Join(errs...)
}

// Pointed are the configurations of the cluster that are pointed elsewhere.
func (s *Session) Pointed(ctx context.Context) ([]Configuration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var out []Configuration
	for _, gvr := range Kinds() {
		list, err := s.Client.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		for i := range list.Items {
			if _, ok := list.Items[i].GetAnnotations()[Annotation]; ok {
				out = append(out, Configuration{Resource: gvr, Name: list.Items[i].GetName()})
			}
		}
	}
	slices.SortFunc(out, func(a, b Configuration) int { return strings.Compare(a.String(), b.String()) })
	return out, nil
}

// restoreOf restores a configuration by its own record, or by that of the session that pointed it, if there is one.
func (s *Session) restoreOf(ctx context.Context, c *Configuration, p *pointed) error {
	client := s.Client.Resource(c.Resource)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		obj, err := client.Get(ctx, c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r, err := noted(obj)
		var managedFields []metav1.ManagedFieldsEntry
		if p != nil {
			managedFields = p.managedFields
			switch {
			case p.uid != "" && obj.GetUID() != p.uid:
				return nil // another object, which is not redirected
			case err == nil && r != nil && r.Target != p.target.URL.String():
				s.say("%s is redirected by another session and stays as it is.\n", c)
				return nil
			case err != nil || r == nil:
				r, err = p.record, nil // the annotation was lost
			}
		}
		if r == nil || err != nil {
			return err
		}
		changes := r.changes(obj)
		if r.Created && len(changes) == 0 {
			uid := obj.GetUID()
			preconditions := &metav1.Preconditions{UID: &uid}
			if err := client.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: preconditions}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			s.say("%s deleted.\n", c)
			return nil
		}
		r.restore(obj)
		if _, err := client.Update(ctx, obj, metav1.UpdateOptions{FieldManager: manager}); err != nil {
			return err
		}
		if len(changes) > 0 {
			s.say("%s restored, but for what has changed meanwhile: %s.\n", c, describe(changes, obj, managedFields))
		} else {
			s.say("%s restored.\n", c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("restore %s: %w", c, err)
	}
	return nil
}
