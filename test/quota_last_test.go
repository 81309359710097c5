// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed/options"
)

// TestQuotaIsChargedLast: when a webhook is asked, the quota has not been charged for the object, and when the webhook refuses, nobody
// has written the quota. No controller counts here: what is in the quota's status is what admission has charged.
func TestQuotaIsChargedLast(t *testing.T) {
	_, h, _ := careful(t, options.Webhooks{})
	ns := h.namespace(t, "charged-last")
	quotas := h.client.CoreV1().ResourceQuotas(ns)
	hard := corev1.ResourceList{"count/configmaps": resource.MustParse("5")}
	quota, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}
	if quota, err = quotas.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	uncharged := func(when string) {
		t.Helper()
		now, err := quotas.Get(t.Context(), "limits", metav1.GetOptions{})
		if err != nil {
			t.Error(err)
		} else if used(now, "count/configmaps") != 0 || now.ResourceVersion != quota.ResourceVersion {
			t.Errorf("%s %d is charged, at revision %s after %s", when, used(now, "count/configmaps"), now.ResourceVersion, quota.ResourceVersion)
		}
	}
	h.on("ask", func(r *admissionv1.AdmissionReview) any {
		uncharged("while a webhook is asked")
		if r.Request.Name == "refused" {
			return deny("no")(r)
		}
		return allow(r)
	})
	h.validate(t, "v", h.validating("ask", ns))
	if st := refused(t, h, ns, "refused"); st.Message != `admission webhook "ask.example.com" denied the request: no` {
		t.Errorf("refused with %q", st.Message)
	}
	uncharged("after a webhook has refused")
	create(t, h, ns, configMap("allowed"))
	now, err := quotas.Get(t.Context(), "limits", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := used(now, "count/configmaps"); n != 1 {
		t.Errorf("%d are charged for one", n)
	}
}
