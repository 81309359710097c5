// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/dump"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// StaticPods parses the manifest of a pod, or of a list of pods, that the node runs without the API server. source is the file's or URL's
// name. StaticPods names, marks, defaults and validates the pods as the kubelet does, so that their UIDs equal the kubelet's.
func StaticPods(data []byte, source string, file bool, node string) ([]*corev1.Pod, error) {
	text, err := utilyaml.ToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme()).UniversalDecoder(), text)
	if err != nil {
		return nil, fmt.Errorf("couldn't parse as pod(%w), please check config file", err) // upstream's words
	}
	var pods []*core.Pod
	switch o := obj.(type) {
	case *core.Pod:
		pods = append(pods, o)
	case *core.PodList:
		if file {
			return nil, fmt.Errorf("invalid pod: a file holds one pod, not a list of %d", len(o.Items))
		}
		for i := range o.Items {
			pods = append(pods, &o.Items[i])
		}
	default:
		return nil, fmt.Errorf("invalid pod: it is a %T", obj)
	}
	var out []*corev1.Pod
	for _, pod := range pods {
		if err := staticPod(pod, source, file, node); err != nil {
			return nil, err
		}
		made := &corev1.Pod{}
		if err := scheme().Convert(pod, made, nil); err != nil {
			return nil, fmt.Errorf("convert pod %s: %w", pod.Name, err)
		}
		out = append(out, made)
	}
	return out, nil
}

// staticPod makes the pod a static pod of the node.
func staticPod(pod *core.Pod, source string, file bool, node string) error {
	if pod.Name == "" {
		return errors.New("invalid pod: name is needed for the pod") // upstream's words
	}
	if pod.UID == "" {
		h := fnv.New128a()
		fmt.Fprintf(h, "%v", dump.ForHash(pod))
		if file {
			fmt.Fprintf(h, "host:%s", node)
			fmt.Fprintf(h, "file:%s", source)
		} else {
			fmt.Fprintf(h, "url:%s", source)
		}
		pod.UID = types.UID(hex.EncodeToString(h.Sum(nil)))
	}
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["kubernetes.io/config.hash"] = string(pod.UID)
	pod.Status.Phase = core.PodPending
	if file && !tolerates(pod) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, core.Toleration{Operator: core.TolerationOpExists, Effect: core.TaintEffectNoExecute})
	}
	o := podOptions(nil)
	o.ResourceIsPod = true
	if errs := validation.ValidatePodCreate(pod, o); len(errs) > 0 {
		return fmt.Errorf("invalid pod: %v", errs)
	}
	if what := needsServer(pod); what != "" {
		return fmt.Errorf("static pods may not reference %s", what) // upstream's words
	}
	return nil
}

func tolerates(pod *core.Pod) bool {
	for _, t := range pod.Spec.Tolerations {
		if t.Key == "" && t.Operator == core.TolerationOpExists && t.Effect == core.TaintEffectNoExecute {
			return true
		}
	}
	return false
}

// needsServer returns the part of the pod that needs the API server, which a static pod cannot use.
func needsServer(pod *core.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	secrets, configMaps := len(pod.Spec.ImagePullSecrets) > 0, false
	look := func(list []core.Container) {
		for _, c := range list {
			for _, from := range c.EnvFrom {
				secrets, configMaps = secrets || from.SecretRef != nil, configMaps || from.ConfigMapRef != nil
			}
			for _, e := range c.Env {
				if e.ValueFrom != nil {
					secrets, configMaps = secrets || e.ValueFrom.SecretKeyRef != nil, configMaps || e.ValueFrom.ConfigMapKeyRef != nil
				}
			}
		}
	}
	look(pod.Spec.InitContainers)
	look(pod.Spec.Containers)
	switch {
	case secrets:
		return "secrets"
	case configMaps:
		return "configmaps"
	case len(pod.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			return "configmaps (via configmap volumes)"
		case v.Secret != nil:
			return "secrets (via secret volumes)"
		case v.CSI != nil:
			return "csidrivers (via CSI volumes)"
		case v.Glusterfs != nil:
			return "endpoints (via glusterFS volumes)"
		case v.PersistentVolumeClaim != nil:
			return "persistentvolumeclaims"
		case v.Ephemeral != nil:
			return "persistentvolumeclaims (via ephemeral volumes)"
		case v.AzureFile != nil:
			return "secrets (via azureFile volumes)"
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				switch {
				case s.ConfigMap != nil:
					return "configmaps (via projected volumes)"
				case s.Secret != nil:
					return "secrets (via projected volumes)"
				case s.ServiceAccountToken != nil:
					return "serviceaccounts (via projected volumes)"
				case s.ClusterTrustBundle != nil:
					return "clustertrustbundles"
				case s.PodCertificate != nil:
					return "podcertificates"
				}
			}
		}
	}
	return ""
}
