// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhooktrust_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestTargets: everything that names a service and whom to trust can have it managed; what is called by a URL is left alone.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		name      string
		gvr       schema.GroupVersionResource
		text      string
		secrets   []string   // by place
		places    [][]string // of the clientConfig in one webhook, or from the top
		untouched []string   // a place without a bundle
	}{
		{
			name: "mutating webhooks",
			gvr:  schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
			text: `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: many, annotations: {extension.mortise.dev/trust: managed}}
webhooks:
- {name: a.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {service: {namespace: hooks, name: a}}}
- {name: b.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {service: {namespace: hooks, name: b}}}
- {name: c.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:9"}}
`,
			secrets: []string{"a-tls", "b-tls"}, places: [][]string{{"0", "clientConfig"}, {"1", "clientConfig"}},
			untouched: []string{"2", "clientConfig"},
		},
		{
			name: "a conversion webhook",
			gvr:  schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
			text: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.trust.example.com, annotations: {extension.mortise.dev/trust: managed}}
spec:
  group: trust.example.com
  scope: Namespaced
  names: {plural: things, kind: Thing}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {namespace: hooks, name: convert}}}}
`,
			secrets: []string{"convert-tls"}, places: [][]string{{"spec", "conversion", "webhook", "clientConfig"}},
		},
		{
			name: "a registration",
			gvr:  schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
			text: `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.far.example.com, annotations: {extension.mortise.dev/trust: managed}}
spec: {group: far.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: {namespace: hooks, name: far}}
`,
			secrets: []string{"far-tls"}, places: [][]string{{"spec"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"webhook-trust-controller"}})
			client := cluster.Client()
			d, err := dynamic.NewForConfig(cluster.Config())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hooks"}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			obj := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(c.text), &obj.Object); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Resource(c.gvr).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			w, err := d.Resource(c.gvr).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + obj.GetName()})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			trusted := func(o *unstructured.Unstructured) int {
				n := 0
				for _, p := range c.places {
					if bundle(o, p) != "" {
						n++
					}
				}
				return n
			}
			var now *unstructured.Unstructured
			for e := range w.ResultChan() {
				if o, ok := e.Object.(*unstructured.Unstructured); ok && trusted(o) == len(c.places) {
					now = o
					break
				}
			}
			if now == nil {
				t.Fatal("not all places have a bundle")
			}
			secrets, err := d.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace("hooks").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			authorities := map[string]string{}
			for _, s := range secrets.Items {
				authorities[s.GetName()], _, _ = unstructured.NestedString(s.Object, "data", "ca.crt")
			}
			for i, p := range c.places {
				if got := bundle(now, p); got != authorities[c.secrets[i]] {
					t.Errorf("%v trusts %.40s, the secret %s shows %.40s", p, got, c.secrets[i], authorities[c.secrets[i]])
				}
			}
			if c.untouched != nil && bundle(now, c.untouched) != "" {
				t.Errorf("%v has a bundle", c.untouched)
			}
		})
	}
}

// bundle is the caBundle at a place; a number leads into the webhooks.
func bundle(o *unstructured.Unstructured, place []string) string {
	at := o.Object
	if hooks, ok, _ := unstructured.NestedSlice(o.Object, "webhooks"); ok {
		at, _ = hooks[int(place[0][0]-'0')].(map[string]any)
		place = place[1:]
	}
	s, _, _ := unstructured.NestedString(at, append(append([]string{}, place...), "caBundle")...)
	return s
}
