// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// kept is a running server with its store, which reports changes.
type kept struct {
	*apiserver.Server
	store *store.Store
}

func newKept(t *testing.T) *kept {
	t.Helper()
	s := store.New(memory.Open(memory.Options{}))
	srv, err := apiserver.New(apiserver.Options{Store: s, Kinds: kinds.All(kinds.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &kept{srv, s}
}

// until waits until a kind's objects satisfy a condition.
func (k *kept) until(t *testing.T, prefix string, ok func() bool) {
	t.Helper()
	w, err := k.store.Watch(t.Context(), "/registry/"+prefix, k.store.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for !ok() {
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The status of a flow schema shows whether its priority level exists, also after the level is created.
func TestFlowSchemaDangles(t *testing.T) {
	k := newKept(t)
	schemas := schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}
	levels := schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}
	makeObject(t, k, schemas, &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "fs"}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "late"}, MatchingPrecedence: 500,
	}})
	says := func(status flowcontrolv1.ConditionStatus, message string) func() bool {
		return func() bool {
			obj, err := k.Backend().Get(t.Context(), schemas, "", "fs")
			if err != nil {
				t.Fatal(err)
			}
			c := obj.(*flowcontrolv1.FlowSchema).Status.Conditions
			return len(c) == 1 && c[0].Status == status && c[0].Message == message
		}
	}
	k.until(t, "flowschemas/", says(flowcontrolv1.ConditionTrue,
		`This FlowSchema references the PriorityLevelConfiguration object named "late" but there is no such object`))
	shares := int32(1)
	makeObject(t, k, levels, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares,
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}},
		}})
	k.until(t, "flowschemas/", says(flowcontrolv1.ConditionFalse,
		`This FlowSchema references the PriorityLevelConfiguration object named "late" and it exists`))
}

// The registration of another API server shows which part of its service is missing.
func TestRegistrationWithoutService(t *testing.T) {
	k := newKept(t)
	registrations := schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
	port := int32(443)
	makeObject(t, k, registrations, &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.remote.io"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "remote.io", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "svc", Port: &port},
		}})
	says := func(reason string) func() bool {
		return func() bool {
			obj, err := k.Backend().Get(t.Context(), registrations, "", "v1.remote.io")
			if err != nil {
				t.Fatal(err)
			}
			c := obj.(*apiregistrationv1.APIService).Status.Conditions
			return len(c) == 1 && c[0].Status == apiregistrationv1.ConditionFalse && c[0].Reason == reason
		}
	}
	k.until(t, "apiregistration.k8s.io/", says("ServiceNotFound"))
	makeObject(t, k, schema.GroupResource{Resource: "services"},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "svc"}, Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 80}},
		}})
	k.until(t, "apiregistration.k8s.io/", says("ServicePortError"))
	if _, err := k.Backend().Update(t.Context(), schema.GroupResource{Resource: "services"}, "default", "svc", false,
		func(obj resource.Object) error {
			obj.(*corev1.Service).Spec.Ports[0].Port = 443
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	k.until(t, "apiregistration.k8s.io/", says("EndpointsNotFound"))
}

// The versions of a definition are registered as long as they are served.
func TestDefinitionsAreRegistered(t *testing.T) {
	k := newKept(t)
	registrations := schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
	registered := func() bool {
		obj, err := k.Backend().Get(t.Context(), registrations, "", "v1.example.com")
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if err != nil {
			return false
		}
		a := obj.(*apiregistrationv1.APIService)
		return a.Labels["kube-aggregator.kubernetes.io/automanaged"] == "true" && a.Spec.GroupPriorityMinimum == 1000 &&
			a.Status.Conditions[0].Reason == "Local"
	}
	makeObject(t, k, schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, definition("example.com"))
	k.until(t, "apiregistration.k8s.io/", registered)
	if err := k.Backend().Delete(t.Context(), registrations, "", "v1.example.com", nil); err != nil {
		t.Fatal(err)
	}
	k.until(t, "apiregistration.k8s.io/", registered)
	if err := k.Backend().Delete(t.Context(), schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "",
		"things.example.com", nil); err != nil {
		t.Fatal(err)
	}
	k.until(t, "apiregistration.k8s.io/", func() bool { return !registered() })
}

// definition returns a definition of Thing in a group.
func definition(group string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing", ListKind: "ThingList", Singular: "thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

func makeObject(t *testing.T, k *kept, r schema.GroupResource, obj resource.Object) {
	t.Helper()
	if _, err := k.Backend().Create(t.Context(), r, obj, false); err != nil {
		t.Fatal(err)
	}
}
