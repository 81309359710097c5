// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os/exec"
	"testing"
)

// Access returns the address of a kubeconfig's server, and the TLS configuration of its user, as kubectl reads them.
func Access(t testing.TB, kubeconfig string) (url string, config *tls.Config) {
	t.Helper()
	text, err := exec.Command(Path(Mortise.Name), "kubectl", "config", "view", "--raw", "-o", "json", "--kubeconfig", kubeconfig).Output()
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &content); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(content.Users[0].User.Cert, content.Users[0].User.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(content.Clusters[0].Cluster.CA)
	return content.Clusters[0].Cluster.Server, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}
