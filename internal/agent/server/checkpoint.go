// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// checkpoint writes a checkpoint of a container to the node's disk, and answers with its place. The texts are upstream's.
func checkpoint(node nodeapi.Node, to nodeapi.Checkpointer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
		pods := node.Pods()
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Namespace == namespace && p.Name == name })
		if i < 0 {
			http.Error(w, "pod does not exist", http.StatusNotFound)
			return
		}
		if podspec.Container(pods[i], container) == nil {
			http.Error(w, fmt.Sprintf("container %v does not exist", container), http.StatusNotFound)
			return
		}
		var seconds int64
		if given := r.URL.Query()["timeout"]; len(given) > 0 {
			var err error
			if seconds, err = strconv.ParseInt(given[len(given)-1], 10, 64); err != nil {
				http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
				return
			}
		}
		path, err := to.Checkpoint(r.Context(), podspec.Target{Namespace: namespace, Pod: name, Container: container}, seconds)
		if err != nil {
			http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", namespace, name, container, err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string][]string{"items": {path}}) // the client may have left
	}
}
