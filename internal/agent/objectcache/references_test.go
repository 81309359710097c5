// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReferences checks that the node follows all Secrets and ConfigMaps that the authorizer lets it read for a pod.
func TestReferences(t *testing.T) {
	named := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	env := []corev1.EnvVar{{Name: "A", Value: "plain"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("env")}}}}
	signer := "example.com/signer"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		NodeName:         "n1",
		ImagePullSecrets: []corev1.LocalObjectReference{named("pull"), {}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Env: env, EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("from")}}},
		}}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("projected")}},
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: &signer}},
				{PodCertificate: &corev1.PodCertificateProjection{SignerName: signer}},
			},
		}}}},
	}}
	got := references(pod)
	want := []objectKey{
		{kindSecret, "ns", "pull"}, {kindConfigMap, "ns", "from"}, {kindSecret, "ns", "env"}, {kindConfigMap, "ns", "projected"},
	}
	want = append(want, bundleReference(pod.Spec.Volumes[0].Projected.Sources[1].ClusterTrustBundle)...)
	want = append(want, objectKey{kind: kindCertificateRequests, name: "n1"})
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
