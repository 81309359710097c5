// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

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

	"github.com/mortise-dev/mortise/internal/agent/program"
	"github.com/mortise-dev/mortise/internal/agent/userns"
	"github.com/mortise-dev/mortise/internal/durable"
)

// idsOwner is the user whose subordinate IDs pods have, where it is there and getsubids tells of it; else pods have all that the
// machine has beside its own users'.
const idsOwner = "kubelet"

// adoptUsers makes the table of pods' users, with those of pods that are there already.
func (n *node) adoptUsers(ctx context.Context) error {
	each := uint32(userns.Unit)
	if u := n.Kubelet.UserNamespaces; u != nil && u.IDsPerPod != nil {
		each = cmp.Or(uint32(*u.IDsPerPod), each) // it is valid
	}
	first, count, err := subordinateIDs(ctx, each)
	if err != nil {
		return err
	}
	if n.users, err = userns.New(first, count, each, n.resources.MaxPods); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(n.RootDir, "pods"))
	if err != nil {
		return fmt.Errorf("list pod directories: %w", err)
	}
	for _, e := range entries {
		pod := types.UID(e.Name())
		text, err := n.writtenUsers(pod)
		if err == nil && len(text) > 0 {
			_, err = n.users.Adopt(pod, text)
		}
		if err != nil {
			return fmt.Errorf("record pod mappings for existing pod %q: %w", pod, err) // upstream's words
		}
	}
	return nil
}

// subordinateIDs are those that pods may have.
func subordinateIDs(ctx context.Context, each uint32) (first, count uint32, err error) {
	all, whole := userns.All(each)
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
	return userns.Subordinate(string(users))
}

// writtenUsers is what is written down of a pod's users; empty: nothing.
func (n *node) writtenUsers(pod types.UID) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(n.volumes.PodDir(pod), userns.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read users of pod %s: %w", pod, err)
	}
	return text, nil
}

func ownUsers(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// giveUsers gives a pod its users before its sandbox is made: the machine's, or a range of its own where the runtime's handler can.
func (n *node) giveUsers(pod *corev1.Pod, handler string) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(pod) {
		return userns.Host(), nil
	}
	if err := userns.Supported(n.nodeStatus.RuntimeHandlers(), handler); err != nil {
		return nil, err
	}
	r, fresh, err := n.users.Take(pod.UID)
	if err != nil {
		return nil, err
	}
	if fresh {
		if err := n.writeUsers(pod.UID, r); err != nil {
			n.users.Release(pod.UID)
			return nil, fmt.Errorf("create user namespace: %w", err) // upstream's words
		}
	}
	return r.Option(), nil
}

// usersOf are the users that the sandbox was made with.
func (n *node) usersOf(pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(pod) {
		return userns.Host(), nil
	}
	r, ok := n.users.Of(pod.UID)
	if !ok {
		return nil, errors.New("find users of the pod: nothing is written down of its range")
	}
	return r.Option(), nil
}

// writeUsers writes a range down, on disk before anything has it.
func (n *node) writeUsers(pod types.UID, r userns.Range) error {
	dir := n.volumes.PodDir(pod)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make pod directory: %w", err)
	}
	if err := durable.Write(filepath.Join(dir, userns.FileName), 0o600, r.Encode()); err != nil {
		return fmt.Errorf("write users: %w", err)
	}
	return nil
}

// releaseUsers takes a pod's range back, once what was written down of it has gone with its directory.
func (n *node) releaseUsers(_ context.Context, pod types.UID) error {
	if text, err := n.writtenUsers(pod); err != nil || len(text) > 0 {
		return err
	}
	n.users.Release(pod)
	return nil
}
