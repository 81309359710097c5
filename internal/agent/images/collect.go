// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/imagegc"
)

// imageCheck is the interval between checks of images.
const imageCheck = 5 * time.Minute

// Collect checks images periodically until ctx is done.
func (m *Manager) Collect(ctx context.Context) error {
	var failures backoff.Failures
	ticker := m.Clock.NewTicker(imageCheck)
	defer ticker.Stop()
	for {
		switch err := m.trimImages(ctx); {
		case err == nil:
			failures.Clear()
		case ctx.Err() == nil:
			failures.Log(m.Clock.Now(), m.Logger.Warn, "Could not collect images, retrying", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// trimImages removes images that are too old, and, if the file system is too full, as many as necessary.
func (m *Manager) trimImages(ctx context.Context) error {
	m.collecting.Lock()
	defer m.collecting.Unlock()
	if err := m.seeImages(ctx); err != nil {
		return err
	}
	k, now := m.Kubelet, m.Clock.Now()
	s := imagegc.Settings{
		High: int(*k.ImageGCHighThresholdPercent), Low: int(*k.ImageGCLowThresholdPercent),
		MinAge: k.ImageMinimumGCAge.Duration, MaxAge: k.ImageMaximumGCAge.Duration,
	}
	failed := m.removeImages(ctx, m.table.Old(now, s), forAge)
	disk, ok := m.Measure(ctx)[evict.ImageFSAvailable]
	if !ok || s.High >= 100 {
		return failed
	}
	need := imagegc.Need(s, disk.Capacity, disk.Available)
	if need == 0 {
		return failed
	}
	images, bytes := m.table.Free(now, need, s.MinAge)
	failed = errors.Join(failed, m.removeImages(ctx, images, forSpace))
	if bytes < need {
		m.Events.Eventf(m.Node, corev1.EventTypeWarning, "FreeDiskSpaceFailed", "Failed to garbage collect required amount of images. "+
			"Attempted to free %d bytes, but only found %d bytes eligible to free.", need, bytes)
	}
	return failed
}

// DeleteUnused removes all unused images.
func (m *Manager) DeleteUnused(ctx context.Context) error {
	m.collecting.Lock()
	defer m.collecting.Unlock()
	if err := m.seeImages(ctx); err != nil {
		return err
	}
	images, _ := m.table.Free(m.Clock.Now(), math.MaxInt64, 0)
	return m.removeImages(ctx, images, forSpace)
}

// seeImages records which images exist, and which are in use.
func (m *Manager) seeImages(ctx context.Context) error {
	if m.table == nil {
		m.table = imagegc.New(m.Clock.Now())
	}
	// Containers first: a container created meanwhile needs an image that existed before.
	containers, err := m.Runtime.Runtime.ListContainers(cri.Quiet(ctx), nil)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	listed := m.Clock.Now()
	list, err := m.Runtime.Images.ListImages(cri.Quiet(ctx), nil)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	if m.pulls != nil {
		var refs []string
		for _, i := range list {
			refs = append(refs, i.Id)
		}
		if err := m.pulls.Prune(refs, listed); err != nil {
			m.unpruned.Log(m.Clock.Now(), m.Logger.Warn, "Could not remove the records of removed images, retrying", "err", err)
		} else {
			m.unpruned.Clear()
		}
	}
	used := map[string]bool{m.sandboxImage(ctx): true}
	for _, c := range containers {
		used[c.GetImage().GetImage()], used[c.GetImageRef()], used[c.GetImageId()] = true, true, true
	}
	for _, pod := range m.Pods.AdmittedPods() { // pods that are about to start
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if name, err := withTag(c.Image); err == nil {
				used[name] = true
			}
		}
		for _, v := range pod.Spec.Volumes {
			if v.Image == nil {
				continue
			}
			if name, err := withTag(v.Image.Reference); err == nil {
				used[name] = true
			}
		}
	}
	delete(used, "")
	var images []imagegc.Image
	for _, i := range list {
		names := slices.Concat([]string{i.Id}, i.RepoTags, i.RepoDigests)
		images = append(images, imagegc.Image{
			ID: i.Id, Bytes: int64(i.Size), Pinned: i.Pinned || slices.ContainsFunc(i.RepoTags, ours),
			InUse: slices.ContainsFunc(names, func(name string) bool { return used[name] }),
		})
	}
	m.table.See(m.Clock.Now(), images)
	return nil
}

// ours reports whether the image came with Mortise: no registry has it, so it could not be pulled again.
func ours(tag string) bool { return strings.HasPrefix(tag, "mortise.local/") }

var sandboxImage = regexp.MustCompile(`"sandboxImage":\s*"([^"]+)"`)

// sandboxImage returns the image of sandboxes if the runtime reports it: older runtimes do not pin it.
func (m *Manager) sandboxImage(ctx context.Context) string {
	resp, err := m.Runtime.Runtime.Status(cri.Quiet(ctx), true)
	if err != nil {
		return ""
	}
	if found := sandboxImage.FindStringSubmatch(resp.GetInfo()["config"]); found != nil {
		return found[1]
	}
	return ""
}

// Why images are removed: values of a label of kubelet's metric.
const (
	forAge   = "age"
	forSpace = "space"
)

// removeImages removes all of the images that can be removed, for a reason.
func (m *Manager) removeImages(ctx context.Context, images []imagegc.Image, reason string) error {
	var failed []error
	for _, i := range images {
		if err := m.Runtime.Images.RemoveImage(cri.Quiet(ctx), &runtimeapi.ImageSpec{Image: i.ID}); err != nil && !cri.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("remove image %s: %w", i.ID, err))
			continue
		}
		m.Metrics.removed.WithLabelValues(reason).Inc()
		m.Logger.Info("Removed an image", "image", i.ID, "bytes", i.Bytes)
	}
	return errors.Join(failed...)
}

// List returns the largest images for the Node's status; nil if the runtime does not report them.
func (m *Manager) List(ctx context.Context) []corev1.ContainerImage {
	list, err := m.Runtime.Images.ListImages(cri.Quiet(ctx), nil)
	if err != nil {
		return nil
	}
	out := []corev1.ContainerImage{}
	for _, i := range list {
		names := slices.Concat(i.RepoDigests, i.RepoTags)
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), 5)], SizeBytes: int64(i.Size)})
	}
	slices.SortStableFunc(out, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), strings.Compare(a.Names[0], b.Names[0]))
	})
	if most := int(*m.Kubelet.NodeStatusMaxImages); most >= 0 {
		out = out[:min(len(out), most)]
	}
	return out
}
