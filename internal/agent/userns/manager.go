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

// idsOwner is the user whose subordinate IDs pods have, where it is there and getsubids tells of it; else pods have all that the
// machine has beside its own users'.
const idsOwner = "kubelet"

// Dirs are where pods have their directories.
type Dirs interface {
	PodDir(pod types.UID) string
}

// Handlers are the handlers of the runtime, as it last said.
type Handlers interface {
	RuntimeHandlers() []*runtimeapi.RuntimeHandler
}

// Options are what a Manager is made from. All are required.
type Options struct {
	Dirs     Dirs
	Handlers Handlers
	Kubelet  *configv1beta1.KubeletConfiguration
	RootDir  string
	MaxPods  int64
}

// Manager gives pods their users, and writes down on disk which they have.
type Manager struct {
	Options
	table *Table
}

// NewManager makes the manager, with the users of pods that are there already.
func NewManager(ctx context.Context, o Options) (*Manager, error) {
	m := &Manager{Options: o}
	return m, m.adopt(ctx)
}

func (m *Manager) adopt(ctx context.Context) error {
	each := uint32(Unit)
	if u := m.Kubelet.UserNamespaces; u != nil && u.IDsPerPod != nil {
		each = cmp.Or(uint32(*u.IDsPerPod), each) // it is valid
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

// subordinateIDs are those that pods may have.
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

// written is what is written down of a pod's users; empty: nothing.
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

// Give gives a pod its users before its sandbox is made: the machine's, or a range of its own where the runtime's handler can.
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

// Of are the users that the sandbox was made with.
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

// write writes a range down, on disk before anything has it.
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

// Release takes a pod's range back, once what was written down of it has gone with its directory.
func (m *Manager) Release(_ context.Context, pod types.UID) error {
	if text, err := m.written(pod); err != nil || len(text) > 0 {
		return err
	}
	m.table.Release(pod)
	return nil
}
