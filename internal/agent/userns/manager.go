// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package userns

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/program"
	"github.com/mortise-dev/mortise/internal/durable"
)

// idsOwner is the user whose subordinate IDs pods use, if the user exists and getsubids reports them; otherwise pods use all IDs of the
// machine except those of its own users.
const idsOwner = "kubelet"

// Dirs locates the pods' directories.
type Dirs interface {
	PodDir(pod types.UID) string
}

// Handlers returns the runtime handlers as last reported.
type Handlers interface {
	RuntimeHandlers() []*runtimeapi.RuntimeHandler
}

// Options configure a Manager. All are required.
type Options struct {
	Dirs     Dirs
	Handlers Handlers
	Kubelet  *configv1beta1.KubeletConfiguration
	RootDir  string
	MaxPods  int64
}

// Manager allocates ranges of user IDs to pods, and stores them on disk.
type Manager struct {
	Options
	table *Table
}

// NewManager makes the manager with the ranges of existing pods.
func NewManager(ctx context.Context, o Options) (*Manager, error) {
	m := &Manager{Options: o}
	return m, m.adopt(ctx)
}

func (m *Manager) adopt(ctx context.Context) error {
	each := uint32(Unit)
	if u := m.Kubelet.UserNamespaces; u != nil && u.IDsPerPod != nil {
		each = cmp.Or(uint32(*u.IDsPerPod), each) // validated before
	}
	first, count, err := subordinateIDs(ctx, each)
	if err != nil {
		return err
	}
	if m.table, err = New(first, count, each, m.MaxPods); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(m.RootDir, "pods"))
	if err != nil {
		return fmt.Errorf("list pod directories: %w", err)
	}
	for _, e := range entries {
		pod := types.UID(e.Name())
		text, err := m.written(pod)
		if err == nil && len(text) > 0 {
			_, err = m.table.Adopt(pod, text)
		}
		if err != nil {
			return fmt.Errorf("record pod mappings for existing pod %q: %w", pod, err) // upstream's words
		}
	}
	return nil
}

// subordinateIDs returns the IDs for pods.
func subordinateIDs(ctx context.Context, each uint32) (first, count uint32, err error) {
	all, whole := All(each)
	getsubids, missing := exec.LookPath("getsubids")
	if _, err := user.Lookup(idsOwner); errors.As(err, new(user.UnknownUserError)) || missing != nil {
		return all, whole, nil
	} else if err != nil {
		return 0, 0, fmt.Errorf("look for user %s: %w", idsOwner, err)
	}
	users, err := program.Command{Name: getsubids, Args: []string{idsOwner}}.Run(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("error retrieving additional uids for user %q: %w", idsOwner, err) // upstream's words
	}
	groups, err := program.Command{Name: getsubids, Args: []string{"-g", idsOwner}}.Run(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("error retrieving additional gids for user %q: %w", idsOwner, err) // upstream's words
	}
	if !bytes.Equal(users, groups) {
		return 0, 0, fmt.Errorf("mismatched subuids and subgids for user %q", idsOwner) // upstream's words
	}
	return Subordinate(string(users))
}

// written returns the stored ranges of a pod; empty: there are none.
func (m *Manager) written(pod types.UID) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(m.Dirs.PodDir(pod), FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read users of pod %s: %w", pod, err)
	}
	return text, nil
}

func ownUsers(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// Give allocates a pod's range before its sandbox is created. It returns the host's IDs for pods without a user namespace.
func (m *Manager) Give(pod *corev1.Pod, handler string) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(pod) {
		return Host(), nil
	}
	if err := Supported(m.Handlers.RuntimeHandlers(), handler); err != nil {
		return nil, err
	}
	r, fresh, err := m.table.Take(pod.UID)
	if err != nil {
		return nil, err
	}
	if fresh {
		if err := m.write(pod.UID, r); err != nil {
			m.table.Release(pod.UID)
			return nil, fmt.Errorf("create user namespace: %w", err) // upstream's words
		}
	}
	return r.Option(), nil
}

// Of returns the range that the sandbox was created with.
func (m *Manager) Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(pod) {
		return Host(), nil
	}
	r, ok := m.table.Of(pod.UID)
	if !ok {
		return nil, errors.New("find users of the pod: no recorded range")
	}
	return r.Option(), nil
}

// write stores a range on disk before the pod uses it.
func (m *Manager) write(pod types.UID, r Range) error {
	dir := m.Dirs.PodDir(pod)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make pod directory: %w", err)
	}
	if err := durable.Write(filepath.Join(dir, FileName), 0o600, r.Encode()); err != nil {
		return fmt.Errorf("write users: %w", err)
	}
	return nil
}

// Release frees a pod's range, after the pod's directory with the stored range was removed.
func (m *Manager) Release(_ context.Context, pod types.UID) error {
	if text, err := m.written(pod); err != nil || len(text) > 0 {
		return err
	}
	m.table.Release(pod)
	return nil
}
