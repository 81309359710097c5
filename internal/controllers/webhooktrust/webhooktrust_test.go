// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhooktrust_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/webhooktrust"
)

// state is a Secret and the bundle of a configuration, as they are at one moment.
type state struct {
	data   map[string][]byte
	bundle []byte
}

// until waits, by watches, until Secret and configuration are as they should be.
func until(t *testing.T, client kubernetes.Interface, what string, is func(s state) bool) state {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	secrets, err := client.CoreV1().Secrets("hooks").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer secrets.Stop()
	configs, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer configs.Stop()
	var now state
	for !is(now) {
		select {
		case e := <-secrets.ResultChan():
			if s, ok := e.Object.(*corev1.Secret); ok && s.Name == "hook-tls" {
				now.data = s.Data
			}
		case e := <-configs.ResultChan():
			if c, ok := e.Object.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
				now.bundle = c.Webhooks[0].ClientConfig.CABundle
			}
		case <-ctx.Done():
			t.Fatalf("%s: it is not so: keys %d, bundle %s", what, len(now.data), now.bundle)
		}
	}
	return now
}

func count(bundle []byte) int { return bytes.Count(bundle, []byte("BEGIN CERTIFICATE")) }

// TestManagedTrust lives through a rotation on a cluster with a clock of its own: at each step the configuration trusts what the Secret
// shows.
func TestManagedTrust(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	client := cluster.Client()
	c := clocktesting.NewFakeClock(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- controllers.Run(ctx, []controllers.Controller{webhooktrust.Controller()}, cluster.Config(), controllers.Options{Clock: c})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hooks"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	configs := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hook",
		Annotations: map[string]string{webhooktrust.Annotation: webhooktrust.Managed}}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "hook.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{
			Service: &admissionregistrationv1.ServiceReference{Namespace: "hooks", Name: "hook"}},
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}}}
	if _, err := configs.Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	trusts := func(s state) bool { return len(s.data["ca.crt"]) > 0 && bytes.Equal(s.data["ca.crt"], s.bundle) }
	first := until(t, client, "a certificate is made", trusts)
	if count(first.bundle) != 1 || len(first.data["tls.crt"]) == 0 || len(first.data["tls.key"]) == 0 {
		t.Errorf("the secret has %d keys, the bundle is %s", len(first.data), first.bundle)
	}
	c.Step(60 * day)
	second := until(t, client, "the next authority is trusted", func(s state) bool { return trusts(s) && count(s.bundle) == 2 })
	if !bytes.Equal(second.data["tls.crt"], first.data["tls.crt"]) || len(second.data["next.crt"]) == 0 {
		t.Error("another certificate is shown as soon as it is trusted")
	}
	c.Step(day)
	third := until(t, client, "the next certificate is shown",
		func(s state) bool { return trusts(s) && bytes.Equal(s.data["tls.crt"], second.data["next.crt"]) })
	if count(third.bundle) != 2 || len(third.data["next.crt"]) != 0 {
		t.Error("the old authority is not trusted any more as soon as another certificate is shown")
	}
	c.Step(day)
	fourth := until(t, client, "the old authority is dropped", func(s state) bool { return trusts(s) && count(s.bundle) == 1 })
	if !bytes.Equal(fourth.data["tls.crt"], third.data["tls.crt"]) || bytes.Contains(fourth.bundle, first.bundle) {
		t.Error("the wrong authority is dropped")
	}
	// A Secret that is deleted is made anew; a forged bundle is put right.
	if err := client.CoreV1().Secrets("hooks").Delete(t.Context(), "hook-tls", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fifth := until(t, client, "a deleted secret comes back", func(s state) bool { return trusts(s) && !bytes.Equal(s.bundle, fourth.bundle) })
	if _, err := configs.Patch(t.Context(), "hook", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, client, "the bundle comes back", func(s state) bool { return bytes.Equal(s.bundle, fifth.bundle) })
	// Without the annotation all stays, and a Secret of others is never touched.
	if _, err := client.CoreV1().Secrets("hooks").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Data: map[string][]byte{"tls.crt": []byte("mine")}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := configs.Patch(t.Context(), "hook", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+webhooktrust.SecretAnnotation+`":"mine"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	events, err := client.CoreV1().Events("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "reason=SecretNotManaged"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	select {
	case <-events.ResultChan():
	case <-time.After(30 * time.Second):
		t.Error("nobody said that the secret is another's")
	}
	mine, err := client.CoreV1().Secrets("hooks").Get(t.Context(), "mine", metav1.GetOptions{})
	if err != nil || string(mine.Data["tls.crt"]) != "mine" || len(mine.Data) != 1 {
		t.Errorf("another's secret is now %v, %v", mine.Data, err)
	}
	until(t, client, "what was there stays", func(s state) bool { return bytes.Equal(s.bundle, fifth.bundle) })
}
