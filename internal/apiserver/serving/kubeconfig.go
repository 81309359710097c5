// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// Endpoint is how clients reach a server and know it.
type Endpoint struct {
	URL         string
	Authorities []byte // PEM
	ServerName  string // that clients ask for; empty: the URL's host
	// Others are the HOST:PORT of the other servers of the cluster.
	Others []string
}

// othersExtension is the extension of a cluster in a kubeconfig that names its other servers: package serverset reads it.
const othersExtension = "mortise.dev/servers"

// Kubeconfig is a kubeconfig file (YAML) for the pair's user of a server, with everything embedded.
func Kubeconfig(at Endpoint, user *Pair) ([]byte, error) {
	name := user.Certificate.Subject.CommonName
	c := clientcmdapi.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: "mortise",
		Clusters: []clientcmdapi.NamedCluster{{Name: "mortise", Cluster: clientcmdapi.Cluster{
			Server: at.URL, CertificateAuthorityData: at.Authorities, TLSServerName: at.ServerName,
		}}},
		AuthInfos: []clientcmdapi.NamedAuthInfo{{Name: name, AuthInfo: clientcmdapi.AuthInfo{
			ClientCertificateData: user.CertPEM, ClientKeyData: user.KeyPEM,
		}}},
		Contexts: []clientcmdapi.NamedContext{{Name: "mortise", Context: clientcmdapi.Context{Cluster: "mortise", AuthInfo: name}}},
	}
	if len(at.Others) > 0 {
		raw, err := json.Marshal(map[string]any{"servers": at.Others, "serverName": at.ServerName})
		if err != nil {
			return nil, fmt.Errorf("encode kubeconfig: %w", err)
		}
		c.Clusters[0].Cluster.Extensions = []clientcmdapi.NamedExtension{{
			Name: othersExtension, Extension: runtime.RawExtension{Raw: raw},
		}}
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return b, nil
}
