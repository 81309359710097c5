// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package imagelocality is the ImageLocality plug-in: better a node that has the pod's images, the more the bigger they are
// and the more nodes have them (so that one early node does not draw everything).
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
	least           = 23 * megabyte   // less is as good as nothing
	mostOfOne       = 1000 * megabyte // more of one container counts as this
)

// New makes the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &plugin{handle: h}, nil
}

type plugin struct{ handle fwk.Handle }

func (*plugin) Name() string { return Name }

// NodeLocal promises that scores may be kept: which nodes have an image is part of the NodeInfo, and a change of the number
// of nodes or of images begins a new epoch of the snapshot.
func (*plugin) NodeLocal() {}

// SignPod signs the images.
func (*plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	images, n := imagesOf(pod)
	slices.Sort(images)
	return []fwk.SignFragment{{Key: fwk.ImageNamesSignerName, Value: []any{images, n}}}, nil
}

// Score adds up the images that the node has.
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

// ScoreExtensions is nil: the score is in range already.
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

// canonical adds the tag latest where there is none.
func canonical(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}
