// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/imagegc"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// imageCheck is how often images are looked at.
const imageCheck = 5 * time.Minute

// collector removes images that nobody uses.
type collector struct {
	mu    sync.Mutex
	table *imagegc.Table
}

// collectImages looks at images from time to time.
func (n *node) collectImages(ctx context.Context) error {
	ticker := n.Clock.NewTicker(imageCheck)
	defer ticker.Stop()
	for {
		if err := n.trimImages(ctx); err != nil && ctx.Err() == nil {
			n.Logger.Warn("collect images", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// trimImages removes images that are too old, and where the file system is too full as many as it takes.
func (n *node) trimImages(ctx context.Context) error {
	n.collector.mu.Lock()
	defer n.collector.mu.Unlock()
	if err := n.seeImages(ctx); err != nil {
		return err
	}
	k, now := n.Kubelet, n.Clock.Now()
	s := imagegc.Settings{High: int(*k.ImageGCHighThresholdPercent), Low: int(*k.ImageGCLowThresholdPercent), MinAge: k.ImageMinimumGCAge.Duration, MaxAge: k.ImageMaximumGCAge.Duration}
	n.removeImages(ctx, n.collector.table.Old(now, s))
	disk, ok := n.Measure(ctx)[evict.ImageFSAvailable]
	if !ok || s.High >= 100 {
		return nil
	}
	need := imagegc.Need(s, disk.Capacity, disk.Available)
	if need == 0 {
		return nil
	}
	images, bytes := n.collector.table.Free(now, need, s.MinAge)
	n.removeImages(ctx, images)
	if bytes < need {
		n.recorder.Eventf(n.reference(), corev1.EventTypeWarning, "FreeDiskSpaceFailed", "Failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free.", need, bytes)
	}
	return nil
}

// freeDisk removes everything that nobody uses: dead containers of pods that are over, and images.
func (n *node) freeDisk(ctx context.Context) {
	n.collector.mu.Lock()
	defer n.collector.mu.Unlock()
	if err := n.removeDead(ctx); err != nil && ctx.Err() == nil {
		n.Logger.Warn("remove dead containers", "err", err)
	}
	if err := n.seeImages(ctx); err != nil {
		if ctx.Err() == nil {
			n.Logger.Warn("collect images", "err", err)
		}
		return
	}
	images, _ := n.collector.table.Free(n.Clock.Now(), math.MaxInt64, 0)
	n.removeImages(ctx, images)
}

// seeImages takes note of the images that there are, and of who uses them.
func (n *node) seeImages(ctx context.Context) error {
	if n.collector.table == nil {
		n.collector.table = imagegc.New(n.Clock.Now())
	}
	// Containers first: one that is made meanwhile needs an image that was there before.
	containers, err := n.cri.Runtime.ListContainers(cri.Quiet(ctx), nil)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	listed := n.Clock.Now()
	list, err := n.cri.Images.ListImages(cri.Quiet(ctx), nil)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	if n.pulls != nil {
		var refs []string
		for _, i := range list {
			refs = append(refs, i.Id)
		}
		if err := n.pulls.Prune(refs, listed); err != nil {
			n.Logger.Warn("remove records of images that are gone", "err", err)
		}
	}
	used := map[string]bool{n.sandboxImage(ctx): true}
	for _, c := range containers {
		used[c.GetImage().GetImage()], used[c.GetImageRef()], used[c.GetImageId()] = true, true, true
	}
	n.mu.Lock()
	for _, w := range n.workers { // what a pod is about to be started from
		if w.counted && w.spec != nil && !w.gone {
			for _, c := range slices.Concat(w.spec.Spec.InitContainers, w.spec.Spec.Containers) {
				if name, err := withTag(c.Image); err == nil {
					used[name] = true
				}
			}
			for _, v := range w.spec.Spec.Volumes {
				if v.Image == nil {
					continue
				}
				if name, err := withTag(v.Image.Reference); err == nil {
					used[name] = true
				}
			}
		}
	}
	n.mu.Unlock()
	delete(used, "")
	var images []imagegc.Image
	for _, i := range list {
		names := slices.Concat([]string{i.Id}, i.RepoTags, i.RepoDigests)
		images = append(images, imagegc.Image{ID: i.Id, Bytes: int64(i.Size), Pinned: i.Pinned || slices.ContainsFunc(i.RepoTags, ours), InUse: slices.ContainsFunc(names, func(name string) bool { return used[name] })})
	}
	n.collector.table.See(n.Clock.Now(), images)
	return nil
}

// ours says whether the image came with Mortise: no registry has it, so it cannot be had again.
func ours(tag string) bool { return strings.HasPrefix(tag, "mortise.local/") }

var sandboxImage = regexp.MustCompile(`"sandboxImage":\s*"([^"]+)"`)

// sandboxImage is the image of sandboxes, as far as the runtime tells: older ones do not say that it is to stay.
func (n *node) sandboxImage(ctx context.Context) string {
	resp, err := n.cri.Runtime.Status(cri.Quiet(ctx), true)
	if err != nil {
		return ""
	}
	if m := sandboxImage.FindStringSubmatch(resp.GetInfo()["config"]); m != nil {
		return m[1]
	}
	return ""
}

func (n *node) removeImages(ctx context.Context, images []imagegc.Image) {
	for _, i := range images {
		if err := n.cri.Images.RemoveImage(cri.Quiet(ctx), &runtimeapi.ImageSpec{Image: i.ID}); err != nil && !cri.IsNotFound(err) {
			if ctx.Err() == nil {
				n.Logger.Warn("remove image", "image", i.ID, "err", err)
			}
			continue
		}
		n.Logger.Info("image removed", "image", i.ID, "bytes", i.Bytes)
	}
}

// removeDead removes the containers of pods that have ended and are still in the API server.
func (n *node) removeDead(ctx context.Context) error {
	over := map[string]bool{}
	n.mu.Lock()
	for uid, w := range n.workers {
		over[string(uid)] = w.status != nil && !w.counted && (w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed)
	}
	n.mu.Unlock()
	dead, err := n.cri.Runtime.ListContainers(cri.Quiet(ctx), &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range dead {
		if !over[c.Labels[podstate.LabelPodUID]] {
			continue
		}
		if err := n.cri.Runtime.RemoveContainer(cri.Quiet(ctx), c.Id); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Id, err)
		}
	}
	return nil
}
