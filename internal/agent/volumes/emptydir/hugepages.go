// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package emptydir

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// huge mounts huge pages, unless they are mounted, and returns whether it has mounted them.
func (p plugin) huge(pod *corev1.Pod, dir string, medium corev1.StorageMedium) (bool, error) {
	page, err := pageSize(pod, medium)
	if err != nil {
		return false, err
	}
	mounted, err := p.host.Mounter.IsMountPoint(dir)
	if err != nil || mounted {
		return false, err
	}
	if err := p.host.Mounter.Huge(dir, page.Value()); err != nil {
		return false, fmt.Errorf("mount huge pages at %s: %w", dir, err)
	}
	return true, nil
}

// pageSize returns the size of an emptyDir's pages: the medium's, which the pod must request, or the only size that the pod requests.
func pageSize(pod *corev1.Pod, medium corev1.StorageMedium) (resource.Quantity, error) {
	named, asked := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
	wanted, err := resource.ParseQuantity("0")
	if asked {
		wanted, err = resource.ParseQuantity(named)
	}
	if err != nil {
		return wanted, fmt.Errorf("read page size of medium %s: %w", medium, err)
	}
	var lists []corev1.ResourceList
	if pod.Spec.Resources != nil {
		lists = append(lists, pod.Spec.Resources.Requests)
	}
	for _, c := range pod.Spec.Containers {
		lists = append(lists, c.Resources.Requests)
	}
	for _, c := range pod.Spec.InitContainers {
		lists = append(lists, c.Resources.Requests)
	}
	found := false
	for _, list := range lists {
		for name := range list {
			text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			if !ok {
				continue
			}
			size, err := resource.ParseQuantity(text)
			switch {
			case err != nil:
				return wanted, fmt.Errorf("read page size of %s: %w", name, err)
			case asked:
				found = found || size.Cmp(wanted) == 0
			case found && size.Cmp(wanted) != 0:
				return wanted, fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium) // upstream's words
			default:
				found, wanted = true, size
			}
		}
	}
	if !found {
		// upstream's words
		return wanted, fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	return wanted, nil
}
