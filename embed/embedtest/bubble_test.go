// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestBubble has a CronJob run for half an hour of the bubble's clock.
func TestBubble(t *testing.T) {
	first := embedtest.New(t)
	began := time.Now()
	embedtest.Bubble(t, first, func(t *testing.T, cluster *embed.Server) {
		client := cluster.Client()
		pod := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		job := batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}}
		cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "often"}, Spec: batchv1.CronJobSpec{
			Schedule: "*/10 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: job},
		}}
		if _, err := client.BatchV1().CronJobs("default").Create(t.Context(), cron, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		embedtest.Advance(t, 30*time.Minute)
		list, err := client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 3 {
			t.Errorf("%d jobs: want 3", len(list.Items))
		}
		for i := range list.Items {
			if list.Items[i].Status.Succeeded != 1 && time.Since(list.Items[i].CreationTimestamp.Time) > time.Minute {
				t.Errorf("job %s has not succeeded", list.Items[i].Name)
			}
		}
	})
	t.Logf("half an hour took %v", time.Since(began))
}

// elect runs for a Lease until ctx ends, and keeps the Lease when it ends, as a process that is killed does.
func elect(ctx context.Context, t *testing.T, cluster *embed.Server, name string, won func(string)) {
	t.Helper()
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "lock"},
		Client: cluster.Client().CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: name}}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { won(name) }, OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go e.Run(ctx)
}

// TestLeaseInBubble: a candidate takes over a Lease once its holder has been dead for the Lease's duration, and not before.
func TestLeaseInBubble(t *testing.T) {
	embedtest.Bubble(t, bare(t), func(t *testing.T, cluster *embed.Server) {
		var leader atomic.Value // a string
		leader.Store("")
		won := func(name string) { leader.Store(name) }
		dies, kill := context.WithCancel(t.Context())
		elect(dies, t, cluster, "a", won)
		embedtest.Settle(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		elect(ctx, t, cluster, "b", won)
		embedtest.Advance(t, time.Hour)
		if leads := leader.Load(); leads != "a" {
			t.Errorf("%q leads after an hour: want a", leads)
		}
		kill()
		embedtest.Advance(t, 10*time.Second)
		if leads := leader.Load(); leads != "a" {
			t.Errorf("%q leads before the Lease has ended", leads)
		}
		embedtest.Advance(t, 15*time.Second) // b looks every 2 to 4.4 s: it saw the last renewal that late, and finds it old that late
		if leads := leader.Load(); leads != "b" {
			t.Errorf("%q leads after the Lease has ended: want b", leads)
		}
	})
}

// TestCredentialsInBubble: a token and a certificate expire by the bubble's clock, and the request of the certificate is deleted an hour
// after its approval.
func TestCredentialsInBubble(t *testing.T) {
	embedtest.Bubble(t, embedtest.New(t), func(t *testing.T, cluster *embed.Server) {
		client := cluster.Client()
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
		cluster.WaitFor(t, account, func() bool { return true }) // controllers start with the fork's first request
		token, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		valid := func() bool {
			review, err := client.AuthenticationV1().TokenReviews().Create(t.Context(),
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return review.Status.Authenticated
		}
		csr := request(t, cluster)
		embedtest.Settle(t)
		csr, err = client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), csr.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(csr.Status.Certificate)
		if block == nil {
			t.Fatalf("no certificate: %+v", csr.Status)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		embedtest.Advance(t, 9*time.Minute)
		if !valid() || certificate.NotAfter.Before(time.Now()) {
			t.Errorf("after 9 of 10 minutes the token is valid: %v; the certificate ends %v", valid(), certificate.NotAfter)
		}
		embedtest.Advance(t, 3*time.Minute) // API servers allow for clocks that differ by a minute
		if valid() || certificate.NotAfter.After(time.Now()) {
			t.Errorf("after 12 of 10 minutes the token is valid: %v; the certificate ends %v", valid(), certificate.NotAfter)
		}
		embedtest.Advance(t, 2*time.Hour)
		_, err = client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), csr.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("two hours later the request is there: %v", err)
		}
	})
}

// request makes and approves a request of a certificate for ten minutes.
func request(t *testing.T, cluster *embed.Server) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "alice"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := cluster.Client().CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName, ExpirationSeconds: ptr.To[int32](600),
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	if csr, err = requests.UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return csr
}

// TestAutoscalerInBubble: an autoscaler removes idle pods once the window of its scale-down is over, and not before.
func TestAutoscalerInBubble(t *testing.T) {
	embedtest.Bubble(t, embedtest.New(t), func(t *testing.T, cluster *embed.Server) {
		client := cluster.Client()
		labels := map[string]string{"app": "web"}
		web := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](4), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}},
				}},
			},
		}
		if _, err := client.AppsV1().Deployments("default").Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.WaitFor(t, web, func() bool { return web.Status.ReadyReplicas == 4 })
		_, err := client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
				MinReplicas:    ptr.To[int32](1), MaxReplicas: 5,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
					Name:   corev1.ResourceCPU,
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)},
				}}},
				Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
					ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](1800)},
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		replicas := func() int32 {
			now, err := client.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return *now.Spec.Replicas
		}
		embedtest.Advance(t, 25*time.Minute)
		if n := replicas(); n != 4 {
			t.Errorf("%d replicas within the window: want 4", n)
		}
		embedtest.Advance(t, 15*time.Minute)
		if n := replicas(); n != 1 {
			t.Errorf("%d replicas after the window: want 1", n)
		}
	})
}
