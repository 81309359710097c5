// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// signer plays the API server of requests, and who answers them.
type signer struct {
	requests []*certificatesv1.PodCertificateRequest
	refuses  error
	blind    bool  // sees none of them
	blinded  error // why it cannot look
	told     []string
}

func (s *signer) RequestCertificate(_ context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest,
	error) {
	if s.refuses != nil {
		return nil, s.refuses
	}
	made := r.DeepCopy()
	made.Name = fmt.Sprintf("req-%d", len(s.requests)+1)
	s.requests = append(s.requests, made)
	return made, nil
}

func (s *signer) CertificateRequest(_ context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error) {
	if s.blinded != nil {
		return nil, s.blinded
	}
	for _, r := range s.requests {
		if r.Namespace == namespace && r.Name == name && !s.blind {
			return r, nil
		}
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequest"), name)
}

// answer decides on the newest request.
func (s *signer) answer(condition, word string, refresh, ends time.Time) {
	r := s.requests[len(s.requests)-1]
	r.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Why", Message: "since " + word}}
	if condition == certificatesv1.PodCertificateRequestConditionTypeIssued {
		r.Status.CertificateChain = "a comment\n" + block(word) + "and\n" + block("middle")
		r.Status.BeginRefreshAt, r.Status.NotAfter = new(metav1.NewTime(refresh)), new(metav1.NewTime(ends))
	}
}

// certified is a pod with one source, and what is done with it.
type certified struct {
	*testing.T
	*volumes.Manager
	*signer
	pod  *corev1.Pod
	step func(time.Duration)
	dir  string
}

func newCertified(t *testing.T, source corev1.PodCertificateProjection) *certified {
	m, s, _, clock := newManager(t)
	c := &certified{t, m, s.signer, projecting(corev1.VolumeProjection{PodCertificate: &source}), clock.Step,
		filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v")}
	m.Jitter = func() time.Duration { return time.Minute }
	m.Warn = func(_ *corev1.Pod, reason, message string) { c.told = append(c.told, reason+": "+message) }
	return c
}

// setUp is tried, and fails with the text.
func (c *certified) setUp(want string) {
	c.Helper()
	text := ""
	if err := c.SetUp(c.Context(), c.pod, nil); err != nil {
		text = err.Error()
	}
	if want != "" {
		want = `MountVolume.SetUp failed for volume "v" : ` + want
	}
	if text != want {
		c.Errorf("error %s, want %s", text, want)
	}
}

// holds looks for the word's certificate in the volume, and whether its key is the one of the n-th request.
func (c *certified) holds(word string, n int) {
	c.Helper()
	files := disktest.Read(c, c.dir)
	if files["sub/bundle.pem"] != files["key.pem"]+files["chain.pem"] || files["chain.pem"] != block(word)+block("middle") {
		c.Errorf("files: %v, want the certificate %s", files, word)
	}
	key, rest := pem.Decode([]byte(files["key.pem"]))
	if key == nil || key.Type != "PRIVATE KEY" || len(rest) > 0 {
		c.Fatalf("key %q", files["key.pem"])
	}
	private, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	if err != nil {
		c.Fatal(err)
	}
	if got, want := reflect.TypeOf(private).String(), "ed25519.PrivateKey"; got != want {
		c.Errorf("key is a %s, want %s", got, want)
	}
	proof, err := x509.ParseCertificateRequest(c.requests[n-1].Spec.StubPKCS10Request)
	if err != nil {
		c.Fatal(err)
	}
	public := private.(interface{ Public() crypto.PublicKey }).Public()
	if err := proof.CheckSignature(); err != nil || !reflect.DeepEqual(proof.PublicKey, public) {
		c.Errorf("the proof is of another key: %v", err)
	}
}

func (c *certified) looksAt(after time.Duration) {
	c.Helper()
	if got := c.NextRenewal("u"); !got.Equal(volumetest.Epoch.Add(after)) {
		c.Errorf("looked at after %v, want %v", got.Sub(volumetest.Epoch), after)
	}
}

func (c *certified) tells(want ...string) {
	c.Helper()
	if diff := cmp.Diff(want, c.told); diff != "" {
		c.Errorf("told (-want +got)\n%s", diff)
	}
}

var everyFile = corev1.PodCertificateProjection{
	SignerName: "a.example/s", KeyType: "ED25519", MaxExpirationSeconds: new(int32(7200)),
	UserAnnotations:      map[string]string{"a.example/k": "v"},
	CredentialBundlePath: "sub/bundle.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem",
}

const issuedType = certificatesv1.PodCertificateRequestConditionTypeIssued

// A certificate is asked for, waited for, renewed when it is time, and the old one is there until then.
func TestPodCertificate(t *testing.T) {
	c := newCertified(t, everyFile)
	c.setUp("credential bundle is not issued yet")
	c.setUp("credential bundle is not issued yet")
	if len(c.requests) != 1 {
		t.Fatalf("%d requests", len(c.requests))
	}
	spec := c.requests[0].Spec
	spec.StubPKCS10Request = nil
	want := certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "req-1", GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "a.example/s", PodName: "p", PodUID: "u", ServiceAccountName: "robot", MaxExpirationSeconds: new(int32(7200)),
			UnverifiedUserAnnotations: map[string]string{"a.example/k": "v"},
		},
	}
	if diff := cmp.Diff(want, certificatesv1.PodCertificateRequest{ObjectMeta: c.requests[0].ObjectMeta, Spec: spec}); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
	if _, err := os.Stat(c.dir + "/key.pem"); err == nil {
		t.Error("a key is there before its certificate")
	}
	if !c.NextRenewal("u").IsZero() {
		t.Error("a first request is waited for by the clock")
	}

	c.answer(issuedType, "one", volumetest.Epoch.Add(time.Hour), volumetest.Epoch.Add(2*time.Hour))
	c.setUp("")
	c.holds("one", 1)
	c.looksAt(61 * time.Minute)
	c.step(60 * time.Minute)
	c.setUp("")
	if len(c.requests) != 1 {
		t.Error("renewed too soon")
	}
	c.step(time.Minute)
	c.setUp("")
	c.holds("one", 1)
	if len(c.requests) != 2 {
		t.Fatalf("%d requests", len(c.requests))
	}
	c.looksAt(71 * time.Minute) // it is overdue then
	c.answer(issuedType, "two", volumetest.Epoch.Add(3*time.Hour), volumetest.Epoch.Add(4*time.Hour))
	c.setUp("")
	c.holds("two", 2)
	c.looksAt(181 * time.Minute)
	c.tells()
	if err := c.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if !c.NextRenewal("u").IsZero() {
		t.Error("the key is remembered")
	}
}

func TestPodCertificateThatIsRefused(t *testing.T) {
	for condition, want := range map[string]string{
		certificatesv1.PodCertificateRequestConditionTypeDenied: "denied",
		certificatesv1.PodCertificateRequestConditionTypeFailed: "failed",
	} {
		for _, renewal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, renewal %v", condition, renewal), func(t *testing.T) {
				c := newCertified(t, everyFile)
				n := 1
				c.setUp("credential bundle is not issued yet")
				if renewal {
					c.answer(issuedType, "one", volumetest.Epoch, volumetest.Epoch.Add(2*time.Hour))
					c.setUp("")
					c.step(2 * time.Minute)
					c.setUp("")
					n = 2
				}
				c.answer(condition, "so", time.Time{}, time.Time{})
				text := fmt.Sprintf(`PodCertificateRequest was permanently %s: reason="Why" message="since so"`, want)
				c.setUp(text)
				c.step(time.Hour)
				c.setUp(text)
				if len(c.requests) != n {
					t.Error("a refusal is not for good")
				}
				if renewal {
					c.holds("one", 1)
				}
				verb := map[string]string{"denied": "was denied", "failed": "failed"}[want]
				c.tells(fmt.Sprintf(`%s: PodCertificateRequest n/req-%d %s, reason="Why", message="since so"`, condition, n, verb))
			})
		}
	}
}

// A request that is not seen for long is made again.
func TestPodCertificateRequestThatIsDeleted(t *testing.T) {
	c := newCertified(t, everyFile)
	c.blind = true
	c.setUp("credential bundle is not issued yet")
	c.step(11*time.Minute - time.Second)
	c.setUp("credential bundle is not issued yet")
	if len(c.requests) != 1 {
		t.Error("given up too soon")
	}
	c.step(time.Second)
	c.setUp("credential bundle is not issued yet")
	if len(c.requests) != 2 {
		t.Errorf("%d requests", len(c.requests))
	}
}

// A renewal that cannot be asked for is tried again each minute; people are told when it takes long, and when it is too late, once.
func TestPodCertificateThatIsNotRenewed(t *testing.T) {
	c := newCertified(t, everyFile)
	c.refuses = errors.New("not today")
	c.setUp("credential bundle is not issued yet: not today")
	c.refuses = nil
	c.setUp("credential bundle is not issued yet")
	c.answer(issuedType, "one", volumetest.Epoch, volumetest.Epoch.Add(time.Hour))
	c.setUp("")
	c.step(time.Minute)
	c.refuses = errors.New("not today")
	c.setUp("")
	c.holds("one", 1)
	c.looksAt(2 * time.Minute)
	c.refuses = nil
	c.step(59 * time.Second)
	c.setUp("")
	if len(c.requests) != 1 {
		t.Error("asked again too soon")
	}
	c.step(time.Second)
	c.setUp("")
	if len(c.requests) != 2 {
		t.Errorf("%d requests", len(c.requests))
	}
	c.looksAt(11 * time.Minute)
	c.step(9 * time.Minute)
	c.setUp("")
	c.tells("CertificateOverdueForRefresh: PodCertificate refresh overdue")
	c.looksAt(13 * time.Minute) // the request may be lost
	c.step(time.Hour)
	c.setUp("")
	c.setUp("")
	c.holds("one", 1)
	c.tells("CertificateOverdueForRefresh: PodCertificate refresh overdue", "CertificateExpired: PodCertificate expired")
}

func TestKeyTypes(t *testing.T) {
	for _, kind := range []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		key, err := generate(kind)
		if err != nil {
			t.Fatal(err)
		}
		size := ""
		switch k := key.Public().(type) {
		case *rsa.PublicKey:
			size = fmt.Sprintf("RSA%d", k.Size()*8)
		case *ecdsa.PublicKey:
			size = fmt.Sprintf("ECDSAP%d", k.Curve.Params().BitSize)
		case ed25519.PublicKey:
			size = "ED25519"
		}
		if size != kind {
			t.Errorf("%s is %s", kind, size)
		}
	}
	c := newCertified(t, corev1.PodCertificateProjection{KeyType: "ROT13"})
	c.setUp(`credential bundle is not issued yet: while generating keypair: unknown key type "ROT13"`)
}

// Where requests cannot be looked at, the error is said until there is a certificate. None is taken that does not say when it ends.
func TestPodCertificateWithoutAnswer(t *testing.T) {
	c := newCertified(t, everyFile)
	c.setUp("credential bundle is not issued yet")
	c.blinded = errors.New("no list yet")
	c.setUp(`credential bundle is not issued yet: while getting PodCertificateRequest "n/req-1": no list yet`)
	c.blinded = nil
	for _, condition := range []string{"Approved", issuedType} {
		c.answer(condition, "one", time.Time{}, volumetest.Epoch.Add(time.Hour))
		status := &c.requests[0].Status
		for _, begin := range []*metav1.Time{nil, new(metav1.NewTime(volumetest.Epoch))} {
			if status.BeginRefreshAt = begin; begin != nil {
				status.NotAfter = nil
			}
			want := "credential bundle is not issued yet"
			if condition == issuedType {
				want += `: PodCertificateRequest "n/req-1" is issued and does not say until when`
			}
			c.setUp(want)
		}
	}
	c.answer(issuedType, "one", volumetest.Epoch.Add(time.Minute), volumetest.Epoch.Add(time.Hour))
	c.setUp("")
	c.step(2 * time.Minute)
	c.setUp("")
	c.blinded = errors.New("no list yet")
	c.setUp("")
	c.holds("one", 1)
	if len(c.requests) != 2 {
		t.Errorf("%d requests", len(c.requests))
	}
}

// Each pod has its own certificates. When one is gone, the others' stay.
func TestPodCertificatesOfPods(t *testing.T) {
	c := newCertified(t, everyFile)
	other := c.pod.DeepCopy()
	other.UID, other.Name = "w", "q"
	pods := []*corev1.Pod{c.pod, other}
	for i, pod := range pods {
		if err := c.SetUp(c.Context(), pod, nil); err == nil {
			t.Fatal("a certificate is there that nobody issued")
		}
		c.answer(issuedType, pod.Name, volumetest.Epoch.Add(time.Hour), volumetest.Epoch.Add(2*time.Hour))
		if err := c.SetUp(c.Context(), pod, nil); err != nil || len(c.requests) != i+1 {
			t.Fatal(len(c.requests), err)
		}
	}
	if err := c.TearDown(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	c.setUp("")
	c.holds("p", 1)
	c.looksAt(61 * time.Minute)
	if err := c.SetUp(c.Context(), other, nil); err == nil || len(c.requests) != 3 {
		t.Errorf("a pod that is gone left its key: %d requests, %v", len(c.requests), err)
	}
}

// A source names one file or two; there are no others.
func TestFilesOfPodCertificates(t *testing.T) {
	for _, want := range [][]string{{"bundle"}, {"chain", "key"}} {
		source := corev1.PodCertificateProjection{KeyType: "ED25519"}
		if len(want) == 1 {
			source.CredentialBundlePath = "bundle"
		} else {
			source.KeyPath, source.CertificateChainPath = "x/../key", "chain"
		}
		c := newCertified(t, source)
		c.setUp("credential bundle is not issued yet")
		c.answer(issuedType, "one", volumetest.Epoch.Add(time.Hour), volumetest.Epoch.Add(2*time.Hour))
		c.setUp("")
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(disktest.Read(t, c.dir)))); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// Without settings, renewals are spread over five minutes, and nobody is told.
func TestPodCertificateWithoutSettings(t *testing.T) {
	spread := map[time.Duration]bool{}
	for range 20 {
		c := newCertified(t, everyFile)
		c.Jitter, c.Warn = nil, nil
		c.setUp("credential bundle is not issued yet")
		c.answer(issuedType, "one", volumetest.Epoch.Add(time.Hour), volumetest.Epoch.Add(2*time.Hour))
		c.setUp("")
		after := c.NextRenewal("u").Sub(volumetest.Epoch.Add(time.Hour))
		if after < 0 || after >= 5*time.Minute {
			t.Errorf("renewed %v after the time", after)
		}
		spread[after] = true
		c.step(3 * time.Hour)
		c.setUp("")
	}
	if len(spread) < 10 {
		t.Errorf("renewals come at once: %v", spread)
	}
}
