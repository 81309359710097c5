// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
)

// SharedPath serves what all servers of a cluster have in common, to users with the right to get it.
const SharedPath = "/server/bootstrap"

// SharedEncryption is the name, in what servers share, of the EncryptionConfiguration.
const SharedEncryption = "encryption-provider-config.yaml"

// SharedFiles returns the names of the files in the directory of certificates that all servers of a cluster have in common.
func SharedFiles() []string {
	return []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key"}
}

// ReadShared reads what a server shares with others, by the names of the files: from its directory of certificates, and its
// EncryptionConfiguration; empty: it has none.
func ReadShared(dir, encryption string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, name := range SharedFiles() {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("this server has no %s in its data directory: its keys are files that flags name; copy them instead", name)
		}
		if err != nil {
			return nil, err
		}
		all[name] = text
	}
	if encryption != "" {
		text, err := os.ReadFile(encryption)
		if err != nil {
			return nil, err
		}
		all[SharedEncryption] = text
	}
	return all, nil
}

// ServeShared answers with what [ReadShared] reads.
func ServeShared(dir, encryption string, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "want GET", http.StatusMethodNotAllowed)
			return
		}
		all, err := ReadShared(dir, encryption)
		if err != nil {
			log.Error("A server cannot join", "error", err)
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		text, err := json.Marshal(all)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(text) // the client sees that it is not whole
	})
}
