// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// Manager sets up and tears down the volumes of all pods. Calls for different pods may be concurrent, calls for one pod may not.
type Manager struct {
	*Host
	plugins []Plugin
	tally   *tally
}

// NewManager makes a manager of the given plug-ins.
func NewManager(host *Host, factories []Factory) *Manager {
	m := &Manager{Host: host, tally: newTally()}
	for _, factory := range factories {
		m.plugins = append(m.plugins, factory(host))
	}
	return m
}

// SetUp sets up the pod's volumes, or updates them.
func (m *Manager) SetUp(ctx context.Context, pod *corev1.Pod, podIPs []string) error {
	for _, dir := range []string{"volumes", "plugins", "containers"} {
		if err := os.MkdirAll(filepath.Join(m.PodDir(pod.UID), dir), 0o750); err != nil {
			return fmt.Errorf("make pod directory: %w", err)
		}
	}
	var failed []error
	var hold error
	uses := used(pod)
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; !uses[v.Name] && (v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil) {
			continue // like kubelet, which leaves out all that no container has
		}
		err := m.setUp(ctx, pod, &pod.Spec.Volumes[i], podIPs)
		if waits := (*containermanager.Hold)(nil); errors.As(err, &waits) {
			hold = waits
		} else if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...) // the pod is tried again soon, whatever it waits for
	}
	return hold
}

// used returns the names of the volumes that containers of a pod have.
func used(pod *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	note := func(mounts []corev1.VolumeMount, devices []corev1.VolumeDevice) {
		for _, one := range mounts {
			out[one.Name] = true
		}
		for _, one := range devices {
			out[one.Name] = true
		}
	}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range all {
			note(c.VolumeMounts, c.VolumeDevices)
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		note(c.VolumeMounts, c.VolumeDevices)
	}
	return out
}

func (m *Manager) setUp(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, podIPs []string) error {
	name := v.Name
	spec, plugin, err := m.find(ctx, pod, v)
	if err == nil {
		name = cmp.Or(spec.Name(), name)
		spec.PodIPs = podIPs
		if used(pod)[v.Name] {
			m.tally.want(spec, plugin.Name())
		}
		err = plugin.SetUp(ctx, spec)
	}
	if err == nil {
		m.tally.mounted(spec)
		return nil
	}
	step := "MountVolume.SetUp failed"
	if at := (*StepError)(nil); errors.As(err, &at) {
		step = at.Step
	}
	if step == "" {
		return err
	}
	return fmt.Errorf("%s for volume %q : %w", step, name, err)
}

// find resolves a volume and finds its plug-in.
func (m *Manager) find(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (*Spec, Plugin, error) {
	spec := &Spec{Pod: pod, Volume: v}
	if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
		if err := m.resolve(ctx, spec); err != nil {
			return nil, nil, err
		}
	}
	for _, plugin := range m.plugins {
		if plugin.CanSupport(spec) {
			return spec, plugin, nil
		}
	}
	if spec.PersistentVolume != nil {
		return nil, nil, fmt.Errorf("persistent volume %s is of a kind that this node does not support", spec.Name())
	}
	return nil, nil, fmt.Errorf("volume %s is of a kind that this node does not support", v.Name)
}

// resolve replaces a claim by its persistent volume. The claim of an ephemeral volume is named for the pod and the volume.
func (m *Manager) resolve(ctx context.Context, spec *Spec) error {
	name := spec.Pod.Name + "-" + spec.Volume.Name
	if spec.Volume.PersistentVolumeClaim != nil {
		name = spec.Volume.PersistentVolumeClaim.ClaimName
	}
	claim, err := m.Sources.Claim(ctx, spec.Pod.Namespace, name)
	if err != nil {
		return fmt.Errorf("get claim %s: %w", name, err)
	}
	bound := claim.Status.Phase == corev1.ClaimBound
	if claim.Spec.VolumeName == "" || !bound && claim.Status.Phase != corev1.ClaimPending {
		return fmt.Errorf("claim %s is not bound", name)
	}
	pv, err := m.Sources.Volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return fmt.Errorf("get persistent volume %s: %w", claim.Spec.VolumeName, err)
	}
	// The scheduler binds the pod when claim and volume name each other; the claim's phase follows a moment later.
	if ref := pv.Spec.ClaimRef; !bound && (ref == nil || ref.UID != claim.UID || claim.UID == "") {
		return fmt.Errorf("claim %s is not bound", name)
	}
	spec.Claim, spec.PersistentVolume = claim, pv
	return nil
}

// Path returns the path of the volume on the node.
func (m *Manager) Path(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	spec, plugin, err := m.find(ctx, pod, v)
	if err != nil {
		return "", err
	}
	return path(plugin, spec)
}

func path(plugin Plugin, spec *Spec) (string, error) {
	if path := plugin.Path(spec); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("volume %s has no path", spec.Volume.Name)
}

// Measure returns the path of the volume, and how its usage is measured.
func (m *Manager) Measure(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, Measure, error) {
	spec, plugin, err := m.find(ctx, pod, v)
	if err != nil {
		return "", NotMeasured, err
	}
	return plugin.Path(spec), plugin.Attributes(spec).Measure, nil
}

// NextRenewal returns when the first of the pod's volumes must be set up again without an event; zero: never.
func (m *Manager) NextRenewal(pod types.UID) time.Time {
	var first time.Time
	for _, plugin := range m.plugins {
		if r, ok := plugin.(Renewer); ok {
			if next := r.NextRenewal(pod); first.IsZero() || !next.IsZero() && next.Before(first) {
				first = next
			}
		}
	}
	return first
}

// TearDown tears down the pod's volumes that are on the disk, and then removes the pod's directory. The directory never has data that do
// not belong to the node (hostPath). TearDown removes links that containers made, and does not follow them.
func (m *Manager) TearDown(ctx context.Context, pod types.UID) error {
	m.tally.unwant(pod)
	// Subpaths are bound there, and keep the volumes from being unmounted.
	if err := m.unmount(filepath.Join(m.PodDir(pod), "volume-subpaths")); err != nil {
		return err
	}
	found, err := m.reconstruct(pod)
	if err != nil {
		return err
	}
	var failed []error
	for _, plugin := range m.plugins {
		for _, volume := range found[escape(plugin.Name())] {
			if err := plugin.TearDown(ctx, volume); err != nil {
				failed = append(failed, fmt.Errorf("UnmountVolume.TearDown failed for volume %q: %w", volume.Name, err))
			}
		}
		failed = append(failed, m.tearDownDevices(ctx, pod, plugin))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	// A volume that no plug-in knows is from another release or another agent. Removing the contents of a remaining mount
	// would delete the data of others.
	dir := m.PodDir(pod)
	if err := m.unmount(dir); err != nil {
		return fmt.Errorf("unmount volumes of pod %s: %w", pod, err)
	}
	for _, plugin := range m.plugins {
		if r, ok := plugin.(Renewer); ok {
			r.ForgetPod(pod)
		}
	}
	m.tally.forget(pod)
	if err := safepath.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove directory of pod %s: %w", pod, err)
	}
	return nil
}

// tearDownDevices tears down the pod's block devices of a plug-in.
func (m *Manager) tearDownDevices(ctx context.Context, pod types.UID, plugin Plugin) error {
	mapper, ok := plugin.(BlockMapper)
	if !ok {
		return nil
	}
	found, err := m.reconstructDevices(pod, plugin.Name())
	failed := []error{err}
	for _, volume := range found {
		if err := mapper.TearDownDevice(ctx, volume); err != nil {
			failed = append(failed, fmt.Errorf("UnmapVolume.UnmapPodDevice failed for volume %q: %w", volume.Name, err))
		}
	}
	return errors.Join(failed...)
}

// Usage measures a volume of MeasureDriver.
func (m *Manager) Usage(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (Usage, error) {
	spec, plugin, err := m.find(ctx, pod, v)
	if err != nil {
		return Usage{}, err
	}
	measurer, ok := plugin.(UsageProvider)
	if !ok {
		return Usage{}, fmt.Errorf("plug-in %s does not measure volumes", plugin.Name())
	}
	return measurer.MeasureVolume(ctx, spec)
}

// Devices returns the block devices of a container for its volumeDevices.
func (m *Manager) Devices(ctx context.Context, pod *corev1.Pod, container *corev1.Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range container.VolumeDevices {
		at := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == d.Name })
		if at < 0 {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, container.Name) // upstream's words
		}
		spec, plugin, err := m.find(ctx, pod, &pod.Spec.Volumes[at])
		if err != nil {
			return nil, err
		}
		mapper, ok := plugin.(BlockMapper)
		if !ok || mapper.DevicePath(spec) == "" {
			return nil, fmt.Errorf("volume %q is no block device", d.Name)
		}
		made := &runtimeapi.Device{ContainerPath: d.DevicePath, HostPath: mapper.DevicePath(spec), Permissions: "mrw"}
		if spec.ReadOnly() {
			made.Permissions = "r"
		}
		out = append(out, made)
	}
	return out, nil
}
