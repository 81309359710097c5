// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

func backoffKey(uid types.UID, c *corev1.Container) string {
	return fmt.Sprintf("%s/%s/%x", uid, c.Name, podstate.Hash(c))
}

// makeSandbox makes the runtime create a sandbox.
func (w *worker) makeSandbox(ctx context.Context, pod *corev1.Pod, attempt uint32) time.Duration {
	m := w.m
	if ok, why := m.NodeStatus.NetworkReady(); !ok && !pod.Spec.HostNetwork {
		m.Events.Event(pod, corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+why)
		m.NodeStatus.Resync()
		return retrySoon
	}
	handler, err := m.runtimeHandler(ctx, pod)
	if err != nil {
		return w.failed(ctx, pod, createSandbox, err)
	}
	users, err := m.Users.Give(pod, handler)
	if err != nil {
		return w.failed(ctx, pod, createSandbox, err)
	}
	config, err := m.RunConfig.Sandbox(pod, attempt, users)
	if err != nil {
		return w.failed(ctx, pod, createSandbox, err)
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return w.failed(ctx, pod, createSandbox, err)
	}
	_, err = m.Runtime.Runtime.RunPodSandbox(cri.Quiet(ctx), config, handler)
	m.Starts.sandbox(pod, err)
	if err != nil {
		return w.failed(ctx, pod, createSandbox, err)
	}
	w.succeeded(createSandbox)
	if m.RunConfig.LacksClusterDNS(pod) {
		const text = `kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. ` +
			`Falling back to "Default" policy.`
		m.Events.Event(m.Node, corev1.EventTypeWarning, "MissingClusterDNS", text)
		m.Events.Event(pod, corev1.EventTypeWarning, "MissingClusterDNS", fmt.Sprintf("pod: %q. %s", podspec.Describe(pod), text))
	}
	w.resizer.Started(pod)
	return again
}

// startContainers starts the given containers. It returns whether it started any, and when to retry the others.
func (w *worker) startContainers(ctx context.Context, pod *corev1.Pod, act decide.Action) (started bool, retry time.Duration) {
	var todo []*corev1.Container
	for _, e := range act.Ephemeral {
		todo = append(todo, podspec.Container(pod, e.Name))
	}
	todo = append(todo, act.Start...)
	for _, c := range todo {
		if ctx.Err() != nil {
			return started, retrySoon
		}
		wait, failure := w.start(ctx, pod, c)
		w.m.Starts.container(pod, c.Name, reasonOf(failure))
		if failure == nil {
			delete(w.waiting, c.Name)
			started = true
			continue
		}
		if ctx.Err() != nil {
			return started, retrySoon
		}
		w.waiting[c.Name] = *failure
		if retry == 0 || wait < retry {
			retry = wait
		}
	}
	return started, retry
}

// reasonOf returns why a container has not started; empty: it has.
func reasonOf(failure *corev1.ContainerStateWaiting) string {
	if failure == nil {
		return ""
	}
	return failure.Reason
}

// noteWaiting records why containers in back-off wait, and drops outdated reasons.
func (w *worker) noteWaiting(pod *corev1.Pod, act decide.Action) {
	for _, held := range act.Waiting {
		c := podspec.Container(pod, held.Name)
		message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", held.For, held.Name, podspec.Describe(pod))
		if was := w.waiting[held.Name]; was.Reason != "CrashLoopBackOff" || was.Message != message {
			event := fmt.Sprintf("Back-off restarting failed container %s in pod %s", held.Name, podspec.Describe(pod))
			w.m.containerEvent(pod, c, corev1.EventTypeWarning, "BackOff", event)
		}
		w.waiting[held.Name] = corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: message}
	}
	for name, why := range w.waiting {
		if c := w.state.Newest(name); c != nil && c.State == podstate.Running && why.Reason != "PostStartHookError" {
			delete(w.waiting, name)
		}
	}
}

// start brings one container from its image to its postStart hook.
func (w *worker) start(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (time.Duration, *corev1.ContainerStateWaiting) {
	m := w.m
	fail := func(wait time.Duration, reason, message string) (time.Duration, *corev1.ContainerStateWaiting) {
		if ctx.Err() == nil {
			m.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", "Error: "+message)
		}
		return wait, &corev1.ContainerStateWaiting{Reason: reason, Message: message}
	}
	last := w.state.NewestExited(c.Name)
	asked := m.Clock.Now()
	images, wait, failure := m.Images.EnsureVolumes(ctx, pod, c)
	var image *runtimeapi.Image
	if failure == nil {
		image, wait, failure = m.Images.Ensure(ctx, pod, c)
	}
	if failure != nil {
		if ctx.Err() == nil {
			m.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", "Error: "+failure.Reason)
		}
		return wait, failure
	}
	w.written.times.pulled += m.Clock.Since(asked)
	restarts := restartCount(w.state, c.Name, m.RunConfig.PodLogDir(pod))
	users, err := m.Users.Of(pod)
	if err != nil {
		return fail(retryLate, "CreateContainerConfigError", err.Error())
	}
	given, err := m.NodeResources.Options(ctx, pod, c)
	if hold := (*containermanager.Hold)(nil); errors.As(err, &hold) {
		w.hold = hold
		return max(hold.Until.Sub(m.Clock.Now()), retrySoon), &corev1.ContainerStateWaiting{Reason: "WaitingForPlugin", Message: hold.Message}
	}
	if err != nil {
		return fail(retryLate, "CreateContainerConfigError", err.Error())
	}
	config, err := m.containerConfig(ctx, starting{
		pod: pod, container: c, state: w.state, image: image, volumes: images, users: users, restarts: restarts, given: given,
	})
	if err != nil {
		return fail(retryLate, "CreateContainerConfigError", err.Error())
	}
	sandbox := w.state.ReadySandbox()
	sandboxConfig, err := m.RunConfig.Sandbox(pod, sandbox.Attempt, users)
	if err != nil {
		return fail(retryLate, "CreateContainerConfigError", err.Error())
	}
	if last != nil {
		m.Backoff.Next(backoffKey(w.uid, c), last.Finished)
	}
	id, err := m.Runtime.Runtime.CreateContainer(cri.Quiet(ctx), sandbox.ID, config, sandboxConfig)
	if err != nil {
		return fail(retryLate, "CreateContainerError", cri.Message(err))
	}
	w.resizer.Given(pod, id, c)
	m.containerEvent(pod, c, corev1.EventTypeNormal, "Created", "Container created")
	if err := m.Runtime.Runtime.StartContainer(cri.Quiet(ctx), id); err != nil {
		return fail(retryLate, "RunContainerError", cri.Message(err))
	}
	m.containerEvent(pod, c, corev1.EventTypeNormal, "Started", "Container started")
	if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
		if err := m.Lifecycle.Run(ctx, c, id, podstatus.PodIPs(pod, w.state, m.Addresses.Texts()), c.Lifecycle.PostStart); err != nil {
			if ctx.Err() == nil {
				m.containerEvent(pod, c, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
			}
			m.containerEvent(pod, c, corev1.EventTypeNormal, "Killing", "FailedPostStartHook")
			if err := m.Killer.StopContainer(ctx, pod, c, id, podspec.Grace(pod)); err != nil && ctx.Err() == nil {
				m.Logger.Warn("Could not stop a container whose postStart hook failed", "pod", podspec.Describe(pod), "container", c.Name, "err", err)
			}
			return retrySoon, &corev1.ContainerStateWaiting{Reason: "PostStartHookError", Message: err.Error()}
		}
	}
	return 0, nil
}

var logName = regexp.MustCompile(`^(\d+)\.log(\..*)?$`)

// restartCount returns how often the container was restarted: from its newest instance, or from its log directory if the runtime has
// removed the instances.
func restartCount(state *podstate.Pod, container, logs string) int32 {
	if newest := state.Newest(container); newest != nil {
		return newest.Note.RestartCount + 1
	}
	entries, err := os.ReadDir(filepath.Join(logs, container))
	if err != nil {
		return 0
	}
	count := 0
	for _, e := range entries {
		if m := logName.FindStringSubmatch(e.Name()); m != nil && !e.IsDir() {
			if i, err := strconv.Atoi(m[1]); err == nil {
				count = max(count, i+1)
			}
		}
	}
	return int32(count)
}

// starting is a container that is about to be created.
type starting struct {
	pod       *corev1.Pod
	container *corev1.Container
	state     *podstate.Pod
	image     *runtimeapi.Image
	volumes   map[string]*runtimeapi.ImageSpec // the image volumes that it mounts, by the volume's name
	users     *runtimeapi.UserNamespace
	restarts  int32
	given     *containermanager.Options
}

// containerConfig makes the container's environment, mounts and files, and from these its runtime configuration.
func (m *Manager) containerConfig(ctx context.Context, s starting) (*runtimeapi.ContainerConfig, error) {
	pod, c := s.pod, s.container
	ips := podstatus.PodIPs(pod, s.state, m.Addresses.Texts())
	services, err := m.Services.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	env, err := environ.Make(environ.Input{
		Pod: pod, Container: c, PodIPs: ips, HostIPs: m.Addresses.Texts(), Allocatable: m.Resources.Allocatable(), Services: services,
		ConfigMap: func(name string) (*corev1.ConfigMap, error) { return m.Objects.ConfigMap(ctx, pod.Namespace, name) },
		Secret:    func(name string) (*corev1.Secret, error) { return m.Objects.Secret(ctx, pod.Namespace, name) },
	})
	if err != nil {
		return nil, err
	}
	env = withGiven(env, s.given)
	mounts, err := m.Mounts.Mounts(ctx, pod, c, env, s.volumes)
	if err != nil {
		return nil, err
	}
	if !runconfig.HasMount(c, "/etc/hosts") && len(ips) > 0 {
		path, err := m.writeHosts(pod, ips)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: "/etc/hosts"})
	}
	if c.TerminationMessagePath != "" {
		path, err := m.messageFile(pod, c)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: c.TerminationMessagePath})
	}
	if err := os.MkdirAll(filepath.Join(m.RunConfig.PodLogDir(pod), c.Name), 0o755); err != nil {
		return nil, fmt.Errorf("create container log directory for container %s failed: %w", c.Name, err)
	}
	in := runconfig.ContainerInput{
		Pod: pod, Container: c, ImageRef: s.image.Id, RestartCount: s.restarts, Env: env, Mounts: mounts,
		ImageName: s.image.Username, Users: s.users,
	}
	if s.image.Uid != nil {
		in.ImageUser = &s.image.Uid.Value
	}
	for _, e := range pod.Spec.EphemeralContainers {
		if e.Name != c.Name || e.TargetContainerName == "" {
			continue
		}
		target := s.state.Newest(e.TargetContainerName)
		if target == nil || target.State != podstate.Running {
			return nil, fmt.Errorf("unable to find target container %s", e.TargetContainerName)
		}
		in.TargetID = target.ID
	}
	config, err := m.RunConfig.Container(in)
	if err != nil {
		return nil, err
	}
	devices, err := m.Mounts.Devices(ctx, pod, c)
	if err != nil {
		return nil, err
	}
	config.Devices = append(config.Devices, devices...)
	s.given.Apply(config)
	return config, nil
}

// withGiven puts the variables of the container's devices before its own, which win.
func withGiven(own []environ.Var, given *containermanager.Options) []environ.Var {
	names := given.Variables()
	if len(names) == 0 {
		return own
	}
	out := make([]environ.Var, 0, len(names)+len(own))
	for _, name := range names {
		if !slices.ContainsFunc(own, func(v environ.Var) bool { return v.Name == name }) {
			out = append(out, environ.Var{Name: name, Value: given.Envs[name]})
		}
	}
	return append(out, own...)
}

// writeHosts writes the pod's /etc/hosts.
func (m *Manager) writeHosts(pod *corev1.Pod, ips []string) (string, error) {
	hostFile := ""
	if pod.Spec.HostNetwork {
		text, err := os.ReadFile("/etc/hosts")
		if err != nil {
			return "", fmt.Errorf("read node's hosts: %w", err)
		}
		hostFile = string(text)
	}
	path := filepath.Join(m.Mounts.PodDir(pod.UID), "etc-hosts")
	text := m.RunConfig.Hosts(pod, ips, hostFile)
	// Containers may write to the file, so a longer file is a different one.
	if old, err := safepath.ReadRegular(path, int64(len(text))+1); err == nil && string(old) == text {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", fmt.Errorf("make pod directory: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("write pod's hosts: %w", err)
	}
	return path, os.Chmod(path, 0o644)
}

// containerEvent records an event for one container of the pod.
func (m *Manager) containerEvent(pod *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	m.Events.Event(podspec.ContainerReference(pod, c), kind, reason, message)
}

// runtimeHandler returns the handler of the pod's runtime class.
func (m *Manager) runtimeHandler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	class, err := m.Client.NodeV1().RuntimeClasses().Get(ctx, *pod.Spec.RuntimeClassName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("Failed to create sandbox for pod %q: %w", podspec.Describe(pod), err) // upstream's words
	}
	return class.Handler, nil
}
