// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package controllertest runs controllers in tests: on golden scenarios, with a fake API and fake time.
//
// A scenario is a txtar file whose sections are steps, in order:
//
//	-- apply --        YAML documents, created or (by name) updated; status counts too
//	-- report --       YAML documents of existing objects: their status becomes that of the document
//	-- delete --       lines "resource namespace/name"
//	-- serve --        lines "group/version resource kind verb,verb": the resources that discovery returns
//	-- ready SELECTOR --    pods that match become Running and Ready
//	-- phase PHASE SELECTOR --  pods that match get the phase
//	-- status SELECTOR --   pods that match get the status that the section holds as YAML
//	-- advance DURATION --  time passes
//	-- expect --       the writes since the last expect: objects with the fields that changed, events
//	-- show RESOURCE NAMESPACE/NAME --  the fields of an object
//
// After each step other than expect and show, the controllers run until nothing more happens. With -update, the test rewrites the expect
// and show sections. Time is that of testing/synctest and begins on 2000-01-01.
package controllertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/golden"
)

// Run runs every scenario that matches pattern, each with its own incarnations of the controllers.
func Run(t *testing.T, pattern string, options controllers.Options, all ...controllers.Controller) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios at %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			archive := txtar.Parse(data)
			synctest.Test(t, func(t *testing.T) { play(t, archive, options, all, nil) })
			if now := txtar.Format(archive); golden.Update() && !bytes.Equal(now, data) {
				if err := os.WriteFile(file, now, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Play plays the steps of a scenario with controllers. It returns what they wrote before each expect section, in place of comparing it.
// What a step deletes need not be there.
func Play(t *testing.T, scenario *txtar.Archive, all ...controllers.Controller) (wrote []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		play(t, scenario, controllers.Options{}, all, func(_ *txtar.File, text string) { wrote = append(wrote, text) })
	})
	return wrote
}

// Configured sets settings of a controller, each FLAG=VALUE.
func Configured(t *testing.T, c controllers.Controller, settings ...string) controllers.Controller {
	t.Helper()
	values := map[string]string{}
	for _, s := range settings {
		flag, value, _ := strings.Cut(s, "=")
		values[flag] = value
	}
	if err := controllers.Configure([]controllers.Controller{c}, values); err != nil {
		t.Fatal(err)
	}
	return c
}

type scene struct {
	t      *testing.T
	client *fake.Clientset
	api    *api
	said   *transcript
	take   func(f *txtar.File, text string) // takes what was written before an expect section; nil: it is compared
}

func play(t *testing.T, archive *txtar.Archive, options controllers.Options, all []controllers.Controller,
	take func(*txtar.File, string)) {
	options.Clock = clock.RealClock{} // synctest fakes it
	if testing.Verbose() {
		options.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	said := &transcript{}
	client := fake.NewClientset()
	if take != nil {
		//lint:ignore SA1019 it keeps no managed fields, which cost more than the controllers
		client = fake.NewSimpleClientset()
	}
	s := &scene{t: t, client: client, said: said, api: newAPI(client, options.Clock, said.add), take: take}
	definitions := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(definitions); err != nil {
		t.Fatal(err)
	}
	objects := metadatafake.NewSimpleMetadataClient(definitions)
	s.api.share(objects)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- controllers.RunWith(ctx, all, &controllers.Deps{
			Client: client, Discovery: client.Discovery(), Metadata: objects, Dynamic: dynamicfake.NewSimpleDynamicClient(definitions),
		}, options)
	}()
	synctest.Wait()
	for i := range archive.Files {
		s.step(&archive.Files[i])
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Timers that client-go has left run out.
	time.Sleep(time.Minute)
}

// step plays one section.
func (s *scene) step(f *txtar.File) {
	s.t.Helper()
	words := strings.Fields(f.Name)
	switch words[0] {
	case "apply":
		for _, doc := range strings.Split(string(f.Data), "\n---\n") {
			s.check(s.apply(doc))
			settle()
		}
	case "report":
		for _, doc := range strings.Split(string(f.Data), "\n---\n") {
			s.check(s.report(doc))
			settle()
		}
	case "serve":
		lists, err := serve(string(f.Data))
		s.check(err)
		s.client.Lock()
		s.client.Resources = lists
		s.client.Unlock()
	case "delete":
		for _, line := range strings.Split(strings.TrimSpace(string(f.Data)), "\n") {
			resource, name, _ := strings.Cut(line, " ")
			namespace, name := split(name)
			if err := s.api.remove(s.resource(resource), namespace, name); s.take == nil || !apierrors.IsNotFound(err) {
				s.check(err) // in Play, the controllers may have removed it
			}
		}
	case "ready":
		s.check(s.pods(words[1], func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		}))
	case "phase":
		s.check(s.pods(words[2], func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodPhase(words[1])
			pod.Status.Conditions = nil
		}))
	case "status":
		var status corev1.PodStatus
		s.check(yaml.UnmarshalStrict(f.Data, &status))
		s.check(s.pods(words[1], func(pod *corev1.Pod) { pod.Status = *status.DeepCopy() }))
	case "advance":
		d, err := time.ParseDuration(words[1])
		s.check(err)
		time.Sleep(d)
	case "expect":
		if s.take != nil {
			s.take(f, s.said.take())
			return
		}
		s.compare(f, s.said.take())
		return
	case "show":
		namespace, name := split(words[2])
		obj, err := s.client.Tracker().Get(s.resource(words[1]), namespace, name)
		s.check(err)
		s.compare(f, strings.Join(difference(nil, obj), "\n")+"\n")
		return
	default:
		s.t.Fatalf("unknown step %q", f.Name)
	}
	settle()
}

// settle lets the controllers run until nothing more happens.
func settle() {
	synctest.Wait()
	// The recorder queues events, and some work waits for milliseconds.
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

func (s *scene) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) compare(f *txtar.File, got string) {
	s.t.Helper()
	if golden.Update() {
		f.Data = []byte(got)
	} else if diff := cmp.Diff(string(f.Data), got); diff != "" {
		s.t.Errorf("step %s (-want +got):\n%s", f.Name, diff)
	}
}

func split(name string) (string, string) {
	namespace, rest, ok := strings.Cut(name, "/")
	if !ok {
		return "", name
	}
	return namespace, rest
}

// resource finds a resource of the clientset by its plural name.
func (s *scene) resource(plural string) schema.GroupVersionResource {
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if gvr, _ := meta.UnsafeGuessKindToResource(gvk); gvr.Resource == plural && gvk.Version == "v1" && !strings.HasSuffix(gvk.Kind, "List") &&
			gvk.Group != "events.k8s.io" {
			return gvr
		}
	}
	s.t.Fatalf("unknown resource %q", plural)
	return schema.GroupVersionResource{}
}

// decode returns the object of a YAML document, with its metadata and its resource.
func decode(doc string) (runtime.Object, metav1.Object, schema.GroupVersionResource, error) {
	obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
	if err != nil {
		return nil, nil, schema.GroupVersionResource{}, fmt.Errorf("decode step: %w", err)
	}
	o, err := meta.Accessor(obj)
	gvr, _ := meta.UnsafeGuessKindToResource(*gvk)
	return obj, o, gvr, err
}

// apply creates or updates the object of a YAML document, without an entry in the transcript.
func (s *scene) apply(doc string) error {
	obj, o, gvr, err := decode(doc)
	if err != nil {
		return err
	}
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	defer s.mute()()
	old, err := s.client.Tracker().Get(gvr, o.GetNamespace(), o.GetName())
	if apierrors.IsNotFound(err) {
		_, err = s.api.create(gvr, o.GetNamespace(), obj)
		return err
	} else if err != nil {
		return err
	}
	if before, err := meta.Accessor(old); err == nil && len(o.GetAnnotations()) == 0 {
		o.SetAnnotations(before.GetAnnotations())
	}
	_, err = s.api.update(gvr, o.GetNamespace(), "", obj, false)
	return err
}

// report writes the status of a YAML document to the object of its name, without an entry in the transcript.
func (s *scene) report(doc string) error {
	obj, o, gvr, err := decode(doc)
	if err != nil {
		return err
	}
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	defer s.mute()()
	old, err := s.client.Tracker().Get(gvr, o.GetNamespace(), o.GetName())
	if err != nil {
		return err
	}
	changed := old.DeepCopyObject()
	keep(changed, obj, "Status")
	_, err = s.api.update(gvr, o.GetNamespace(), "status", changed, false)
	return err
}

func (s *scene) mute() func() {
	wrote := s.api.wrote
	s.api.wrote = func(string, runtime.Object, runtime.Object) {}
	return func() { s.api.wrote = wrote }
}

func (s *scene) pods(selector string, change func(*corev1.Pod)) error {
	want, err := labels.Parse(selector)
	if err != nil {
		return err
	}
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	list, err := s.client.Tracker().List(gvr, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		return err
	}
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	defer s.mute()()
	var errs []error
	for _, pod := range list.(*corev1.PodList).Items {
		if !want.Matches(labels.Set(pod.Labels)) || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded ||
			pod.Status.Phase == corev1.PodFailed {
			continue
		}
		changed := pod.DeepCopy()
		change(changed)
		_, err := s.api.update(gvr, pod.Namespace, "status", changed, false)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
