// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
)

// AddOptions calls PreStartContainer of the plug-ins that want it, and adds what they have answered to Allocate. A container that has no
// devices yet, because the checkpoint was lost, gets some. Before it returns, the container's devices are in the checkpoint on disk.
func (m *Manager) AddOptions(ctx context.Context, pod *corev1.Pod, c *corev1.Container, to *containermanager.Options) error {
	given := false
	for _, name := range m.asked(pod, c) {
		r := m.known(name)
		if r == nil {
			continue
		}
		given = true
		if err := m.await(pod, c, name, r); err != nil {
			return err
		}
		if m.has(pod, c, name) == nil {
			if err := m.allocateOne(ctx, containermanager.Request{Operation: containermanager.Add, Pod: pod, Container: c}, name); err != nil {
				return err
			}
		}
		a := m.has(pod, c, name)
		if a == nil {
			return fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", pod.UID, c.Name, name) // upstream's words
		}
		if err := m.preStart(extension.For(ctx, pod.Namespace, pod.Name), name, r, a); err != nil {
			return err
		}
		m.merge(name, a.response, to)
	}
	if !given {
		return nil
	}
	return keeper{m}.save()
}

func (m *Manager) has(pod *corev1.Pod, c *corev1.Container, name string) *allocation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[pod.UID][c.Name][name]
}

// await holds a container whose devices a former process allocated until the plug-in is back: before, a machine that has restarted may not
// have the devices yet.
func (m *Manager) await(pod *corev1.Pod, c *corev1.Container, name string, r *resource) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.pods[pod.UID][c.Name][name]
	if a == nil || !a.former {
		return nil
	}
	if until, held := m.heldUntil(r); held {
		return m.hold(pod.UID, name, until)
	}
	a.former = !r.ready()
	return nil
}

// preStart has a plug-in prepare devices for the start of a container, if it wants that.
func (m *Manager) preStart(ctx context.Context, name string, r *resource, a *allocation) error {
	m.mu.Lock()
	p := r.newest()
	m.mu.Unlock()
	if p == nil || !p.options.GetPreStartRequired() {
		return nil
	}
	return p.call(ctx, "PreStartContainer", preStartTimeout, func(ctx context.Context) error {
		_, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: a.ids})
		return err
	})
}

// merge adds a plug-in's answer to the options. What an earlier resource has set stays.
func (m *Manager) merge(name string, answer *pluginapi.ContainerAllocateResponse, to *containermanager.Options) {
	add := func(what string, have *map[string]string, more map[string]string) {
		for _, key := range slices.SortedFunc(maps.Keys(more), strings.Compare) {
			value := more[key]
			if old, taken := (*have)[key]; taken {
				if old != value {
					m.Logger.Warn("Two device plug-ins set the same to different values, the first wins", "what", what, "name", key,
						"resource", name)
				}
				continue
			}
			if *have == nil {
				*have = map[string]string{}
			}
			(*have)[key] = value
		}
	}
	add("environment variable", &to.Envs, answer.GetEnvs())
	add("annotation", &to.Annotations, answer.GetAnnotations())
	for _, d := range answer.GetDevices() {
		if !slices.ContainsFunc(to.Devices, func(o *runtimeapi.Device) bool { return o.ContainerPath == d.GetContainerPath() }) {
			to.Devices = append(to.Devices, &runtimeapi.Device{
				HostPath: d.GetHostPath(), ContainerPath: d.GetContainerPath(), Permissions: d.GetPermissions(),
			})
		}
	}
	for _, mount := range answer.GetMounts() {
		if !slices.ContainsFunc(to.Mounts, func(o *runtimeapi.Mount) bool { return o.ContainerPath == mount.GetContainerPath() }) {
			to.Mounts = append(to.Mounts, &runtimeapi.Mount{
				HostPath: mount.GetHostPath(), ContainerPath: mount.GetContainerPath(), Readonly: mount.GetReadOnly(),
			})
		}
	}
	for _, d := range answer.GetCdiDevices() {
		if !slices.ContainsFunc(to.CDIDevices, func(o *runtimeapi.CDIDevice) bool { return o.Name == d.GetName() }) {
			to.CDIDevices = append(to.CDIDevices, &runtimeapi.CDIDevice{Name: d.GetName()})
		}
	}
}
