// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// called returns the webhooks that the creation of a pod calls, mutating ones first.
func (s *setting) called(t *testing.T, server *hookServer) string {
	t.Helper()
	before := len(server.paths())
	if got, _, _ := strings.Cut(s.outcome(t, server, creation()), "\n"); got != "allowed" {
		t.Error(got)
	}
	return strings.Join(server.paths()[before:], " ")
}

// listed returns the webhooks in the ledger with their configurations.
func (s *setting) listed() (out []string) {
	for _, e := range s.host.Ledger.Snapshot() {
		out = append(out, fmt.Sprintf("%s %s %s", e.Point, e.Name, e.Where))
	}
	return out
}

// TestConfigurationsAreFollowed checks that webhooks are called in the order of their configurations' names and of
// their lists, from the first request on, and according to the stored configurations.
func TestConfigurationsAreFollowed(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	s := newSetting(t, Protection{})
	s.store(true, "b", webhookOf(server, "b2"), webhookOf(server, "b1"))
	s.store(true, "a", webhookOf(server, "a"))
	s.store(false, "v", webhookOf(server, "v"))
	if got := s.called(t, server); got != "" {
		t.Errorf("before they are loaded: %s", got)
	}
	for _, p := range []admit.Follower{s.mutating, s.validating} {
		if err := p.Load(t.Context(), s.objects); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.called(t, server); got != "a b2 b1 v" {
		t.Errorf("loaded: %s", got)
	}
	s.store(true, "a", webhookOf(server, "a2"))
	s.committed(t, "a")
	delete(s.objects.objects, "validatingwebhookconfigurations//v")
	s.committed(t, "v")
	if got := s.called(t, server); got != "a2 b2 b1" {
		t.Errorf("one changed, one deleted: %s", got)
	}
	want := []string{
		"mutating-webhook a/a2.example.com mutatingwebhookconfigurations/a",
		"mutating-webhook b/b1.example.com mutatingwebhookconfigurations/b",
		"mutating-webhook b/b2.example.com mutatingwebhookconfigurations/b",
	}
	if d := cmp.Diff(want, s.listed()); d != "" {
		t.Errorf("the ledger (-want +got):\n%s", d)
	}
	for _, name := range []string{"a", "b"} {
		delete(s.objects.objects, "mutatingwebhookconfigurations//"+name)
		s.committed(t, name)
	}
	if got := s.called(t, server); got != "" || len(s.listed()) > 0 {
		t.Errorf("all deleted: %s, %v", got, s.listed())
	}
}

// TestNames checks the names by which the plug-ins are enabled and disabled, and the resources that they follow.
func TestNames(t *testing.T) {
	for p, want := range map[admit.Follower]string{
		NewMutating(Options{}):   "MutatingAdmissionWebhook mutatingwebhookconfigurations.admissionregistration.k8s.io",
		NewValidating(Options{}): "ValidatingAdmissionWebhook validatingwebhookconfigurations.admissionregistration.k8s.io",
	} {
		if got := p.Name() + " " + p.Follows()[0].String(); got != want || p.Follows()[1] != endpointSlices {
			t.Errorf("%s follows %v, want %s", got, p.Follows()[1], want)
		}
	}
}

// TestConfigurationsThatCannotBeRead checks that the previous configuration stays in force.
func TestConfigurationsThatCannotBeRead(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	for _, mutating := range []bool{true, false} {
		s := newSetting(t, Protection{})
		var p admit.Follower = s.validating
		if mutating {
			p = s.mutating
		}
		key := s.store(mutating, "c", webhookOf(server, "w"))
		s.committed(t, "c")
		s.objects.broken = errors.New("disk full")
		if err := p.Load(t.Context(), s.objects); !errors.Is(err, s.objects.broken) {
			t.Errorf("load: %v", err)
		}
		s.objects.broken, s.objects.objects[key] = nil, &corev1.ConfigMap{}
		for what, err := range map[string]error{
			"load": p.Load(t.Context(), s.objects), "apply": p.Apply(t.Context(), s.change(p.Follows()[0], "", "c")),
		} {
			if err == nil || !strings.Contains(err.Error(), "it is a *v1.ConfigMap") {
				t.Errorf("%s: %v", what, err)
			}
		}
		delete(s.objects.objects, key)
		if got := s.called(t, server); got != "w" {
			t.Errorf("called afterwards: %q", got)
		}
	}
}

// TestSameName checks that several webhooks of a configuration may have one name, and that each is called again
// independently.
func TestSameName(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	server.other = map[string]string{"patch": patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`)}
	s := newSetting(t, Protection{})
	once, again, patch := webhookOf(server, "once"), webhookOf(server, "again"), webhookOf(server, "patch")
	once.Name = again.Name
	again.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	s.register(t, true, once, again, patch)
	if got := s.called(t, server); got != "once again patch again" {
		t.Errorf("called %s", got)
	}
}

// TestWhoIsNotAsked checks that no webhook is called for reviews of users, and only webhooks from files for
// configurations of webhooks and policies.
func TestWhoIsNotAsked(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	for path, want := range map[string]struct{ file, api bool }{
		"/pods/ns/p":                                                      {true, true},
		"example.com/tokenreviews//":                                      {true, true},
		"authentication.k8s.io/others//":                                  {true, true},
		"authentication.k8s.io/tokenreviews//":                            {false, false},
		"authentication.k8s.io/selfsubjectreviews//":                      {false, false},
		"authorization.k8s.io/subjectaccessreviews//":                     {false, false},
		"admissionregistration.k8s.io/validatingwebhookconfigurations//c": {true, false},
		"admissionregistration.k8s.io/validatingadmissionpolicies//c":     {true, false},
	} {
		for _, c := range []struct{ file, api bool }{{true, false}, {false, true}, {true, true}} {
			s := newSetting(t, Protection{})
			var asked []string
			for _, mutating := range []bool{true, false} {
				h, own := webhookOf(server, "api"), webhookOf(server, "file")
				h.Rules[0].Resources, own.Rules[0].Resources = []string{"*/*"}, []string{"*/*"}
				if c.file {
					s.fromFile(t, mutating, own)
				}
				if c.file && want.file {
					asked = append(asked, "file")
				}
				if c.api {
					s.store(mutating, "c", h)
				}
				if c.api && want.api {
					asked = append(asked, "api")
				}
			}
			s.committed(t, "c")
			before := len(server.paths())
			if got := s.outcome(t, server, requestFor("CREATE", path, &corev1.ConfigMap{}, nil)); !strings.HasPrefix(got, "allowed") {
				t.Errorf("%s: %s", path, got)
			}
			got := server.paths()[before:]
			slices.Sort(got) // validating webhooks are called concurrently
			if slices.Sort(asked); !slices.Equal(got, asked) {
				t.Errorf("%s, webhooks from %+v: asked %q, want %q", path, c, got, asked)
			}
		}
	}
}

// fromFile registers one webhook in a file.
func (s *setting) fromFile(t *testing.T, mutating bool, hooks ...admissionregistrationv1.MutatingWebhook) {
	t.Helper()
	dir := t.TempDir()
	s.write(t, dir, mutating, "own", hooks...)
	p := &s.validating.generic
	if mutating {
		p = &s.mutating.generic
	}
	p.options.Manifests = dir
	if err := p.Load(t.Context(), s.objects); err != nil {
		t.Fatal(err)
	}
}

// write writes a configuration to a file of a directory.
func (s *setting) write(t *testing.T, dir string, mutating bool, name string, hooks ...admissionregistrationv1.MutatingWebhook) {
	t.Helper()
	key := s.store(mutating, name+".static.k8s.io", hooks...)
	obj := s.objects.objects[key]
	delete(s.objects.objects, key)
	kind := "ValidatingWebhookConfiguration"
	if mutating {
		kind = "MutatingWebhookConfiguration"
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	b, err := json.Marshal(obj)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".new"), b, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name+".json"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// told is a log that passes its lines to the test.
type told struct {
	slog.Handler
	lines chan string
}

func (told) Enabled(context.Context, slog.Level) bool { return true }

func (l told) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	l.lines <- line
	return nil
}

func newTold() told { return told{slog.DiscardHandler, make(chan string, 100)} }

// TestFilesAreFollowed checks that webhooks from files are called first, that changes of the files take effect, and
// that invalid files change nothing.
func TestFilesAreFollowed(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	for _, mutating := range []bool{true, false} {
		log := newTold()
		s := newSetting(t, Protection{}, func(s *setting) { s.host.Log = slog.New(log) })
		var p interface {
			admit.Follower
			admit.Runner
		} = s.validating
		options := &s.validating.options
		resource := "validatingwebhookconfigurations"
		if mutating {
			p, options, resource = s.mutating, &s.mutating.options, "mutatingwebhookconfigurations"
		}
		options.Manifests = t.TempDir()
		s.write(t, options.Manifests, mutating, "z", webhookOf(server, "z"))
		s.store(mutating, "a", webhookOf(server, "a"))
		if err := p.Load(t.Context(), s.objects); err != nil {
			t.Fatal(err)
		}
		if got := s.called(t, server); got != "z a" && mutating || len(strings.Fields(got)) != 2 {
			t.Errorf("from a file and from the API: %s", got)
		}
		for i, want := range []string{" a/a.example.com " + resource + "/a", " z.static.k8s.io/z.example.com file z.static.k8s.io"} {
			if got := s.listed(); !strings.HasSuffix(got[i], want) {
				t.Errorf("the ledger has %q", got)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		s.write(t, options.Manifests, mutating, "y", webhookOf(server, "y"))
		for line := range log.lines {
			if strings.HasPrefix(line, "Reloaded admission manifests dir=") {
				break
			}
		}
		if got := strings.Fields(s.called(t, server)); len(got) != 3 || !slices.Contains(got, "y") {
			t.Errorf("after a file was added: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if changed, err := p.(interface{ readManifests() (bool, error) }).readManifests(); changed || err != nil {
			t.Errorf("read again, with nothing new: %v, %v", changed, err)
		}
		if err := os.WriteFile(filepath.Join(options.Manifests, "x.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if changed, err := p.(interface{ readManifests() (bool, error) }).readManifests(); changed || err == nil {
			t.Errorf("read again, with a file that is wrong: %v, %v", changed, err)
		}
		if err := p.Load(t.Context(), s.objects); err == nil {
			t.Error("loaded a file that is wrong")
		}
		if got := strings.Fields(s.called(t, server)); len(got) != 3 {
			t.Errorf("after a file that is wrong: %s", got)
		}
	}
}

// TestRunWithoutFiles checks that Run without a directory does not end early.
func TestRunWithoutFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetting(t, Protection{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.mutating.Run(ctx) }()
		if synctest.Wait(); len(done) > 0 {
			t.Errorf("ended by itself: %v", <-done)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// oneEndpoint is a cluster whose services all have one endpoint.
type oneEndpoint struct{}

func (oneEndpoint) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	return &url.URL{Scheme: "https", Host: "127.0.0.1:1"}, nil
}

// proxied configures the proxy DIR/cluster.sock for services, and DIR/controlplane.sock for URLs. Neither has a
// listener.
func proxied(t *testing.T, dir string) func(*setting) {
	t.Helper()
	file := filepath.Join(dir, "egress.yaml")
	text := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"
	for _, name := range []string{"cluster", "controlplane"} {
		at := filepath.Join(dir, name+".sock")
		text += fmt.Sprintf("- name: %s\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}\n", name, at)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(s *setting) {
		var err error
		if s.host.Egress, err = egress.Load(file, s.host.Ledger); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJoin checks that invalid credentials end the start, and that webhooks are called through the cluster's proxies:
// one for services, another for URLs.
func TestJoin(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, p := range []admit.Hosted{NewMutating(Options{Kubeconfig: missing}), NewValidating(Options{Kubeconfig: missing})} {
		if err := p.Join(&admit.Host{Ledger: newSetting(t, Protection{}).host.Ledger}); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
	dir := t.TempDir()
	server := newHookServer(t)
	s := newSetting(t, Protection{}, proxied(t, dir), func(s *setting) { s.host.Services = oneEndpoint{} })
	for name, h := range map[string]admissionregistrationv1.MutatingWebhook{"controlplane": webhookOf(server, "w"),
		"cluster": behind(server)} {
		s.register(t, false, h)
		if got := s.outcome(t, server, creation()); !strings.Contains(got, filepath.Join(dir, name+".sock")) {
			t.Errorf("not by way of %s: %s", name, got)
		}
	}
}
