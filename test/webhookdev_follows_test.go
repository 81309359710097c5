// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
)

// operated is a cluster with a webhook whose operator writes its configuration.
type operated struct {
	*hooks
	t       *testing.T
	cluster *embed.Server
	ns      string
	own     []admissionregistrationv1.ValidatingWebhook // as the operator wants them
}

// serve starts the cluster, once more at the same address if it has run.
func (o *operated) serve(dir string) {
	o.t.Helper()
	listen := "127.0.0.1:0"
	if o.cluster != nil {
		listen = strings.TrimPrefix(o.cluster.Config().Host, "https://")
		if err := o.cluster.Stop(); err != nil {
			o.t.Fatal(err)
		}
	}
	o.cluster = &embed.Server{Controllers: []string{"none"}, Node: embed.NodeNone, Listen: listen, DataDir: filepath.Join(dir, "data"),
		KubeconfigFile: filepath.Join(dir, "kubeconfig")}
	if err := o.cluster.Start(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

func (o *operated) has() *admissionregistrationv1.ValidatingWebhookConfiguration {
	o.t.Helper()
	c, err := o.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(o.t.Context(), "operated", metav1.GetOptions{})
	if err != nil {
		o.t.Fatal(err)
	}
	return c
}

// operate writes the webhooks as the operator wants them.
func (o *operated) operate(ctx context.Context) error {
	configs := o.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		c, err := configs.Get(ctx, "operated", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.Webhooks = o.own
		_, err = configs.Update(ctx, c, metav1.UpdateOptions{FieldManager: "operator"})
		return err
	})
}

func (o *operated) writes() {
	o.t.Helper()
	if err := o.operate(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

// called wants calls to reach the process.
func (o *operated) called(name string) {
	o.t.Helper()
	o.take()
	create(o.t, o.hooks, o.ns, configMap(name))
	if n := len(o.take()); n != 1 {
		o.t.Errorf("%s: asked %d times", name, n)
	}
}

// asWanted wants the configuration to be as the operator wrote it.
func (o *operated) asWanted(when string) {
	o.t.Helper()
	c := o.has()
	if diff := cmp.Diff(o.own, c.Webhooks); diff != "" || len(c.Annotations) != 0 {
		o.t.Errorf("%s: annotations %v, %s", when, c.Annotations, diff)
	}
}

// fails waits for the end and wants an error.
func (d *dev) fails(t *testing.T, want string) {
	t.Helper()
	for d.lines.Scan() { // nobody else reads what it says
	}
	if err := d.Wait(); err == nil || !strings.Contains(d.errs.String(), want) {
		t.Errorf("it ended with %v: %s, want %q", err, &d.errs, want)
	}
}

// TestWebhookDevFollows runs `mortise webhook dev` on a configuration whose operator writes it back, in between, while the command is
// killed, without end, and after a restart of the API server; then on one that goes.
func TestWebhookDevFollows(t *testing.T) {
	dir := t.TempDir()
	o := &operated{t: t}
	o.serve(dir)
	t.Cleanup(func() {
		if err := o.cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	o.hooks = startHooks(t, o.cluster.Client())
	o.ns = o.namespace(t, "operated")
	o.on("base/check", allow)
	service := func(path string) {
		o.own[0].ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: o.config("x").CABundle,
			Service: &admissionregistrationv1.ServiceReference{Namespace: "far", Name: "away", Path: &path, Port: ptr.To(int32(443))}}
	}
	o.own = []admissionregistrationv1.ValidatingWebhook{o.validating("operated", o.ns)}
	service("/check")
	o.validate(t, "operated", o.own...)
	o.own = o.has().Webhooks // with defaults
	kubeconfig, url := filepath.Join(dir, "kubeconfig"), o.URL+"/base"
	start := func() *dev {
		t.Helper()
		return startDev(t, kubeconfig, "--url", url, "validatingwebhookconfigurations/operated")
	}
	const again = `operated.example.com pointed at (service far/away/check) by "operator"; redirected again.`

	d := start()
	o.writes()
	d.until(t, again)
	o.called("once")
	o.writes()
	d.until(t, again)
	o.called("twice")
	d.end(t, syscall.SIGTERM)
	o.asWanted("after SIGTERM")

	// Killed, written while nobody looks: what was written is restored.
	start().end(t, syscall.SIGKILL)
	service("/later")
	o.writes()
	d = start()
	o.on("base/later", allow)
	o.called("killed")
	d.end(t, syscall.SIGINT)
	o.asWanted("after SIGINT")

	// The API server starts again, in between.
	service("/check")
	o.writes()
	d = start()
	o.serve(dir)
	d.until(t, "; trying again.")
	d.until(t, "validatingwebhookconfigurations/operated can be watched again.")
	o.writes()
	d.until(t, again)
	o.called("restarted")

	// An operator that writes back each time.
	ctx, stop := context.WithCancel(t.Context())
	w, err := o.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			c, ok := e.Object.(*admissionregistrationv1.ValidatingWebhookConfiguration)
			if ok && ctx.Err() == nil && c.Webhooks[0].ClientConfig.URL != nil {
				if err := o.operate(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		}
	}()
	if line := d.until(t, "times within a minute"); !strings.Contains(line, `by "operator". It stays so for `) {
		t.Errorf("it says %q", line)
	}
	stop()
	<-done
	d.end(t, syscall.SIGTERM)
	o.asWanted("after a fight")

	// The webhook goes, and then the configuration.
	d = start()
	all := o.own
	o.own = []admissionregistrationv1.ValidatingWebhook{*all[0].DeepCopy()}
	o.own[0].Name = "other.example.com"
	o.writes()
	d.fails(t, `operated.example.com removed by "operator": nothing is redirected any more`)
	o.asWanted("without the webhook")
	d = start()
	configs := o.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := configs.Delete(t.Context(), "operated", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d.fails(t, "validatingwebhookconfigurations/operated was deleted: nothing is redirected any more")
	if _, err := configs.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "operated"}}, metav1.CreateOptions{}); err != nil { // for the clean-up
		t.Fatal(err)
	}
	converted(t, o, kubeconfig)
}

// converted is the same for the conversion webhook of a CustomResourceDefinition.
func converted(t *testing.T, o *operated, kubeconfig string) {
	client, err := apiextensions.NewForConfig(o.cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	version := apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1", Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}
	by := &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{
			CABundle: o.config("x").CABundle,
			Service:  &apiextensionsv1.ServiceReference{Namespace: "far", Name: "away", Path: ptr.To("/convert"), Port: ptr.To(int32(443))}}}}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
			Names:      apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Conversion: by,
		}}
	if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	write := func(conversion *apiextensionsv1.CustomResourceConversion) {
		t.Helper()
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			c, err := crds.Get(t.Context(), crd.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			c.Spec.Conversion = conversion
			_, err = crds.Update(t.Context(), c, metav1.UpdateOptions{FieldManager: "operator"})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	d := startDev(t, kubeconfig, "--url", o.URL+"/base", "customresourcedefinitions/"+crd.Name)
	write(by)
	d.until(t, `the conversion webhook pointed at (service far/away/convert) by "operator"; redirected again.`)
	write(&apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter})
	d.fails(t, "the conversion webhook removed by ")
	c, err := crds.Get(t.Context(), crd.Name, metav1.GetOptions{})
	if err != nil || len(c.Annotations) != 0 || c.Spec.Conversion.Webhook != nil {
		t.Errorf("it is left with %v, %v, %v", c.Annotations, c.Spec.Conversion, err)
	}
}
