// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The annotations of a Node by which the cluster's provisioner has volumes deleted. Each has one writer, and a list of IDs with commas.
const (
	// DeleteAnnotation has the volumes that shall go. The provisioner writes it.
	DeleteAnnotation = "storage.mortise.dev/delete"
	// DeletedAnnotation has those of them that are gone. The node writes it.
	DeletedAnnotation = "storage.mortise.dev/deleted"
)

// IDs reads an annotation.
func IDs(text string) []string {
	var out []string
	for id := range strings.SplitSeq(text, ",") {
		if id != "" {
			out = append(out, id)
		}
	}
	return out
}

// Deleter deletes the volumes that annotations of the Node name.
type Deleter struct {
	Driver *Driver
	Client kubernetes.Interface
	seen   chan *corev1.Node
}

// NewDeleter makes a deleter.
func NewDeleter(d *Driver, client kubernetes.Interface) *Deleter {
	return &Deleter{Driver: d, Client: client, seen: make(chan *corev1.Node, 1)}
}

// Saw takes a newer Node. It does not block: an older one that was not looked at is dropped.
func (d *Deleter) Saw(node *corev1.Node) {
	for {
		select {
		case d.seen <- node:
			return
		default:
		}
		select {
		case <-d.seen:
		default:
		}
	}
}

// AwaitNode waits until there is a Node, and reports whether that came before the end of ctx.
func (d *Deleter) AwaitNode(ctx context.Context) bool {
	select {
	case node := <-d.seen:
		select {
		case d.seen <- node: // for Run
		default: // a newer one is there
		}
		return true
	case <-ctx.Done():
		return false
	}
}

// Run deletes volumes until ctx ends.
func (d *Deleter) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case node := <-d.seen:
			if err := d.sync(ctx, node); err != nil && ctx.Err() == nil {
				d.Driver.Logger.Warn("Could not report deleted volumes, retrying with the next change of the Node", "node", node.Name, "err", err)
			}
		}
	}
}

// sync deletes what shall go, and reports what is gone.
func (d *Deleter) sync(ctx context.Context, node *corev1.Node) error {
	wanted, told := IDs(node.Annotations[DeleteAnnotation]), IDs(node.Annotations[DeletedAnnotation])
	var gone []string
	if len(wanted) > 0 {
		gone = d.Driver.Remove(wanted)
	}
	slices.Sort(told)
	if slices.Equal(gone, told) {
		return nil
	}
	value := any(strings.Join(gone, ","))
	if len(gone) == 0 {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{DeletedAnnotation: value}}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	_, err = d.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
