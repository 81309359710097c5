// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// month is how long before their end certificates are worth a note.
const month = 30 * 24 * time.Hour

// checkServer asks the server whether it is ready, and which of its parts are not.
func checkServer(ctx context.Context, e *examination) ([]Finding, error) {
	result := e.client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").Do(ctx)
	status := 0
	text, err := result.StatusCode(&status).Raw()
	if status == 0 || status == http.StatusUnauthorized {
		return nil, fmt.Errorf("reach the API server at %s: %w", e.config.Host, err)
	}
	if err == nil {
		return nil, nil
	}
	var out []Finding
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			out = append(out, Finding{State: Wrong, What: "not ready: " + name,
				Do: "mortise kubectl get --raw /readyz/" + name + "; the log of the server says why"})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("ask the API server at %s whether it is ready: %w", e.config.Host, err)
	}
	return out, nil
}

// checkCertificates reads the certificates of the client configuration.
func checkCertificates(_ context.Context, e *examination) ([]Finding, error) {
	if err := rest.LoadTLSFiles(e.config); err != nil {
		return nil, err
	}
	var out []Finding
	for _, c := range []struct {
		what, do string
		text     []byte
	}{
		{"the kubeconfig's client certificate", "mortise up writes the kubeconfig anew at each start", e.config.CertData},
		{"the cluster's certificate authority", "replace it: docs/serving-certificates.md", e.config.CAData},
	} {
		for rest := c.text; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", c.what, err)
			}
			switch left := cert.NotAfter.Sub(e.clock.Now()); {
			case left < 0:
				out = append(out, Finding{State: Wrong, What: c.what + " is expired since " + cert.NotAfter.Format(time.DateOnly), Do: c.do})
			case left < month:
				out = append(out, Finding{State: Note, What: c.what + " expires on " + cert.NotAfter.Format(time.DateOnly), Do: c.do})
			}
		}
	}
	return out, nil
}

// checkAPIServices finds groups of the API that other servers should serve, and do not.
func checkAPIServices(ctx context.Context, e *examination) ([]Finding, error) {
	text, err := e.client.Discovery().RESTClient().Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list apiregistrationv1.APIServiceList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the list of API services: %w", err)
	}
	var out []Finding
	for _, s := range list.Items {
		for _, c := range s.Status.Conditions {
			if c.Type == apiregistrationv1.Available && c.Status != apiregistrationv1.ConditionTrue {
				out = append(out, Finding{State: Wrong, What: s.Name + " is not available: " + c.Message,
					Do: "mortise extensions shows its calls; mortise kubectl delete apiservice " + s.Name + " if nothing serves it any more"})
			}
		}
	}
	return out, nil
}

// hook is what the kinds of webhooks have in common.
type hook struct {
	configuration, name string
	service             *admissionv1.ServiceReference
	refuses             bool // what it cannot be asked about is refused
}

// checkWebhooks finds webhooks whose Service does not exist: with the failure policy Fail, they refuse every write that they match.
func checkWebhooks(ctx context.Context, e *examination) ([]Finding, error) {
	mutating, err1 := e.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	validating, err2 := e.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	refuses := func(p *admissionv1.FailurePolicyType) bool { return p == nil || *p == admissionv1.Fail }
	var hooks []hook
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			hooks = append(hooks, hook{"mutatingwebhookconfiguration " + c.Name, w.Name, w.ClientConfig.Service, refuses(w.FailurePolicy)})
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			hooks = append(hooks, hook{"validatingwebhookconfiguration " + c.Name, w.Name, w.ClientConfig.Service, refuses(w.FailurePolicy)})
		}
	}
	var out []Finding
	for _, h := range hooks {
		if h.service == nil {
			continue
		}
		_, err := e.client.CoreV1().Services(h.service.Namespace).Get(ctx, h.service.Name, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return out, err
		}
		f := Finding{State: Note, What: fmt.Sprintf("webhook %s: its Service %s/%s does not exist", h.name, h.service.Namespace, h.service.Name),
			Do: "mortise kubectl delete " + h.configuration + " if its extension is gone"}
		if h.refuses {
			f.State, f.What = Wrong, f.What+", so that writes that it matches are refused"
		}
		out = append(out, f)
	}
	return out, nil
}
