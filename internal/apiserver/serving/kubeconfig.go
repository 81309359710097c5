// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"fmt"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// Kubeconfig returns a kubeconfig file (YAML) for the user's certificate at the server's address, with everything
// embedded.
func Kubeconfig(server string, ca *Pair, user *Pair) ([]byte, error) {
	name := user.Certificate.Subject.CommonName
	c := clientcmdapi.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: "mortise",
		Clusters: []clientcmdapi.NamedCluster{{Name: "mortise", Cluster: clientcmdapi.Cluster{
			Server: server, CertificateAuthorityData: ca.CertPEM,
		}}},
		AuthInfos: []clientcmdapi.NamedAuthInfo{{Name: name, AuthInfo: clientcmdapi.AuthInfo{
			ClientCertificateData: user.CertPEM, ClientKeyData: user.KeyPEM,
		}}},
		Contexts: []clientcmdapi.NamedContext{{Name: "mortise", Context: clientcmdapi.Context{Cluster: "mortise", AuthInfo: name}}},
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return b, nil
}
