// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package imagelocality is the ImageLocality plug-in: it prefers nodes that have the pod's images. An image counts more the bigger it is
// and the more nodes have it (so that one early node does not attract every pod).
package imagelocality

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "ImageLocality"

const (
	megabyte  int64 = 1024 * 1024
	least           = 23 * megabyte   // smaller sums score 0
	mostOfOne       = 1000 * megabyte // the most that one container counts
)

// New returns the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &plugin{handle: h}, nil
}

type plugin struct{ handle fwk.Handle }

func (*plugin) Name() string { return Name }

// NodeLocal promises that scores may be cached: the node's images are part of the NodeInfo, and a change of the number of nodes or of
// images begins a new epoch of the snapshot.
func (*plugin) NodeLocal() {}

// SignPod signs the images.
func (*plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	images, n := imagesOf(pod)
	slices.Sort(images)
	return []fwk.SignFragment{{Key: fwk.ImageNamesSignerName, Value: []any{images, n}}}, nil
}

// Score adds up the pod's images on the node.
func (p *plugin) Score(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	states := node.GetImageStates()
	if len(states) == 0 {
		return 0, nil
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	images, n := imagesOf(pod)
	var sum int64
	for _, image := range images {
		if s, ok := states[image]; ok {
			sum += int64(float64(s.Size) * (float64(s.NumNodes) / float64(len(nodes))))
		}
	}
	most := mostOfOne * int64(n)
	return fwk.MaxNodeScore * (min(max(sum, least), most) - least) / (most - least), nil
}

// ScoreExtensions returns nil: the score is in range already.
func (*plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

func imagesOf(pod *corev1.Pod) (images []string, n int) {
	for _, c := range pod.Spec.InitContainers {
		images = append(images, canonical(c.Image))
	}
	for _, c := range pod.Spec.Containers {
		images = append(images, canonical(c.Image))
	}
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			images = append(images, canonical(v.Image.Reference))
		}
	}
	return images, len(images)
}

// canonical adds the tag latest to a name without a tag.
func canonical(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}
