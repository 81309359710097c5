// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package environ

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field returns the downward API's value of a field of the pod.
func Field(pod *corev1.Pod, path string, podIPs, hostIPs []string) (string, error) {
	if base, key, ok := subscript(path); ok {
		switch base {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(hostIPs), nil
	case "status.hostIPs":
		return strings.Join(hostIPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func first(list []string) string {
	if len(list) > 0 {
		return list[0]
	}
	return ""
}

// subscript splits path['key'].
func subscript(path string) (base, key string, ok bool) {
	base, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return base, strings.TrimSuffix(rest, "']"), true
}

// formatMap formats a map for the downward API: one line for each key, sorted, with quoted values.
func formatMap(m map[string]string) string {
	var out strings.Builder
	for i, key := range sortedKeys(m) {
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "%v=%q", key, m[key])
	}
	return out.String()
}

// Resource returns the downward API's value of a container's request or limit, in units of the divisor, rounded up. An unset limit is the
// node's allocatable.
func Resource(pod *corev1.Pod, container *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string,
	error) {
	if ref.ContainerName != "" {
		container = nil
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				if list[i].Name == ref.ContainerName {
					container = &list[i]
				}
			}
		}
		if container == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	resourceName := corev1.ResourceName(name)
	var quantity resource.Quantity
	switch kind {
	case "limits":
		quantity = container.Resources.Limits[resourceName]
		if quantity.IsZero() {
			quantity = allocatable[resourceName]
		}
	case "requests":
		quantity = container.Resources.Requests[resourceName]
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if resourceName == corev1.ResourceCPU {
		return strconv.FormatInt(int64(math.Ceil(float64(quantity.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(quantity.Value())/float64(divisor.Value()))), 10), nil
}
