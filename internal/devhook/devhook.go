// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package devhook points registered webhooks at a process on a developer's machine, and back.
//
// [Session.Run] redirects the webhooks of configurations to a URL, each with its path, makes the API server trust its
// certificate, and restores everything when its context ends. An annotation of the object itself holds the previous
// settings, so that they survive the process: [Session.Restore] restores them at any time, from anywhere. Run creates a
// configuration that does not exist, and deletes it at the end. It changes and restores only the addresses and CAs of
// webhooks: other changes made meanwhile stay.
//
// Trust comes in one of three ways (trust.go): the certificate that the process shows is trusted as it is; or one is made and
// written for the process to use; or calls go through this process, which prints them (calls.go).
package devhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	Out    io.Writer // receives a line for each change
}

// record is the annotation's value.
type record struct {
	Created bool     `json:"created,omitempty"` // the object was not there before
	Before  []before `json:"before,omitempty"`
}

// before is the address of a webhook before the redirect, and the CA that it had.
type before struct {
	Webhook string         `json:"webhook,omitempty"` // its name; empty: the conversion webhook
	Nth     int            `json:"nth,omitempty"`     // of that name
	Config  map[string]any `json:"clientConfig"`
}

// clientConfig is one clientConfig of an object, and the webhook that has it.
type clientConfig struct {
	webhook string
	nth     int
	owner   map[string]any // has it under the key "clientConfig"
}

func (p *clientConfig) config() map[string]any {
	m, _ := p.owner["clientConfig"].(map[string]any)
	return m
}

// clientConfigsOf returns the clientConfigs of an object.
func clientConfigsOf(obj *unstructured.Unstructured) []clientConfig {
	if obj.GetKind() == "CustomResourceDefinition" {
		w, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "conversion", "webhook")
		if m, ok := w.(map[string]any); ok {
			return []clientConfig{{owner: m}}
		}
		return nil
	}
	webhooks, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "webhooks")
	list, _ := webhooks.([]any)
	var out []clientConfig
	seen := map[string]int{}
	for _, w := range list {
		m, ok := w.(map[string]any)
		if !ok {
			continue
		}
		name, _ := m["name"].(string)
		out = append(out, clientConfig{name, seen[name], m})
		seen[name]++
	}
	return out
}

// Target is where webhooks are pointed.
type Target struct {
	URL    *url.URL // whose path comes before the webhook's own
	Bundle []byte   // the CA to trust, in PEM
}

// Run points the configurations at the target until ctx ends. It is an error if one cannot be pointed there, or back.
func (s *Session) Run(ctx context.Context, cs []Configuration, t Target) (err error) {
	done := 0
	defer func() {
		err = errors.Join(err, s.Restore(context.WithoutCancel(ctx), cs[:done]))
	}()
	for i := range cs {
		if err := s.point(ctx, &cs[i], t); err != nil {
			return err
		}
		done++
	}
	fmt.Fprintln(s.Out, "This lasts until the program ends. If it is killed, `mortise webhook dev --restore` restores the previous settings.")
	<-ctx.Done()
	return nil
}

func (s *Session) point(ctx context.Context, c *Configuration, t Target) error {
	client := s.Client.Resource(c.Resource)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := client.Get(ctx, c.Name, metav1.GetOptions{})
		created := false
		if apierrors.IsNotFound(err) && c.Object != nil {
			obj, err, created = c.Object.DeepCopy(), nil, true
		}
		if err != nil {
			return err
		}
		lines, err := aim(obj, t, created)
		if err != nil {
			return err
		}
		if created {
			_, err = client.Create(ctx, obj, metav1.CreateOptions{FieldManager: manager})
		} else {
			_, err = client.Update(ctx, obj, metav1.UpdateOptions{FieldManager: manager})
		}
		if err == nil {
			fmt.Fprint(s.Out, c.String(), map[bool]string{true: " created:", false: " redirected:"}[created], "\n", strings.Join(lines, ""))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("point %s at %s: %w", c, t.URL, err)
	}
	return nil
}

// aim points obj at the target and notes in it what was before; what was noted already stays.
func aim(obj *unstructured.Unstructured, t Target, created bool) (lines []string, err error) {
	noted, err := noted(obj)
	if err != nil {
		return nil, err
	}
	clientConfigs := clientConfigsOf(obj)
	if len(clientConfigs) == 0 {
		return nil, errors.New("it has no webhook")
	}
	r := record{Created: created}
	if noted != nil {
		r.Created = noted.Created
	}
	for i := range clientConfigs {
		p := &clientConfigs[i]
		was := p.config()
		if noted != nil {
			if b := noted.find(p); b != nil {
				was = b.Config
			}
		}
		r.Before = append(r.Before, before{p.webhook, p.nth, was})
		to := t.URL.JoinPath(pathOf(was)).String()
		lines = append(lines, fmt.Sprintf("  %s → %s\n", strings.TrimSpace(p.webhook+" "+address(was)), to))
		p.owner["clientConfig"] = map[string]any{"url": to, "caBundle": t.encoded()}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode annotation: %w", err)
	}
	a := obj.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[Annotation] = string(b)
	obj.SetAnnotations(a)
	return lines, nil
}

func noted(obj *unstructured.Unstructured) (*record, error) {
	text, ok := obj.GetAnnotations()[Annotation]
	if !ok {
		return nil, nil
	}
	r := &record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("read annotation %s: %w", Annotation, err)
	}
	return r, nil
}

func (r *record) find(p *clientConfig) *before {
	i := slices.IndexFunc(r.Before, func(b before) bool { return b.Webhook == p.webhook && b.Nth == p.nth })
	if i < 0 {
		return nil
	}
	return &r.Before[i]
}

// pathOf is the path at which a webhook is called.
func pathOf(config map[string]any) string {
	if s, ok := config["service"].(map[string]any); ok {
		path, _ := s["path"].(string)
		return path
	}
	text, _ := config["url"].(string)
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Path
}

// address is where a webhook is called, in words.
func address(config map[string]any) string {
	if s, ok := config["service"].(map[string]any); ok {
		return fmt.Sprintf("(service %v/%v%s)", s["namespace"], s["name"], pathOf(config))
	}
	return fmt.Sprintf("(%v)", config["url"])
}

// Restore puts configurations back that are pointed elsewhere; all that there are if none is named.
func (s *Session) Restore(ctx context.Context, cs []Configuration) error {
	var errs []error
	for i := range cs {
		if err := s.restore(ctx, &cs[i]); err != nil {
			errs = append(errs, fmt.Errorf("restore %s: %w", &cs[i], err))
		}
	}
	return errors.Join(errs...)
}

// Pointed are the configurations of the cluster that are pointed elsewhere.
func (s *Session) Pointed(ctx context.Context) ([]Configuration, error) {
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

func (s *Session) restore(ctx context.Context, c *Configuration) error {
	client := s.Client.Resource(c.Resource)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := client.Get(ctx, c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r, err := noted(obj)
		if r == nil || err != nil {
			return err
		}
		if r.Created {
			uid := obj.GetUID()
			if err := client.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil &&
				!apierrors.IsNotFound(err) {
				return err
			}
			fmt.Fprintf(s.Out, "%s deleted.\n", c)
			return nil
		}
		clientConfigs := clientConfigsOf(obj)
		for i := range clientConfigs {
			if b := r.find(&clientConfigs[i]); b != nil {
				clientConfigs[i].owner["clientConfig"] = b.Config
			}
		}
		a := obj.GetAnnotations()
		delete(a, Annotation)
		obj.SetAnnotations(a)
		if _, err := client.Update(ctx, obj, metav1.UpdateOptions{FieldManager: manager}); err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "%s restored.\n", c)
		return nil
	})
}
