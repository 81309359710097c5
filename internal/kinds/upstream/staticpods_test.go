// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const staticWeb = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n"

func TestStaticPods(t *testing.T) {
	pods, err := StaticPods([]byte(staticWeb), "/etc/web.yaml", true, "node1")
	if err != nil || len(pods) != 1 {
		t.Fatalf("%v, %v", pods, err)
	}
	p := pods[0]
	if p.Name != "web-node1" || p.Namespace != "default" || p.Spec.NodeName != "node1" || len(p.UID) != 32 ||
		p.Annotations["kubernetes.io/config.hash"] != string(p.UID) ||
		p.Status.Phase != corev1.PodPending || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || len(p.Spec.Tolerations) != 1 {
		t.Errorf("pod: %+v", p)
	}
	same, err := StaticPods([]byte(staticWeb), "/etc/web.yaml", true, "node1")
	if err != nil || same[0].UID != p.UID {
		t.Errorf("the same manifest has another UID: %v", err)
	}
	for _, c := range []struct {
		text, source string
		file         bool
		node         string
	}{
		{staticWeb, "/etc/other.yaml", true, "node1"}, {staticWeb, "/etc/web.yaml", false, "node1"}, {staticWeb, "/etc/web.yaml", true, "node2"},
		{strings.Replace(staticWeb, "image: i", "image: j", 1), "/etc/web.yaml", true, "node1"},
	} {
		other, err := StaticPods([]byte(c.text), c.source, c.file, c.node)
		if err != nil || other[0].UID == p.UID {
			t.Errorf("%+v has the same UID: %v", c, err)
		}
	}
	list := "apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}, {metadata: {name: b}, spec: {containers: [{name: c, image: i}]}}]\n"
	if pods, err := StaticPods([]byte(list), "http://x", false, "n"); err != nil || len(pods) != 2 || pods[1].Name != "b-n" ||
		len(pods[1].Spec.Tolerations) != 0 {
		t.Errorf("list: %v, %v", pods, err)
	}
}

func TestBadManifests(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no YAML":       {"{", "unexpected end of JSON input"},
		"empty":         {"", "couldn't parse as pod"},
		"other kind":    {"apiVersion: v1\nkind: Service\nmetadata: {name: s}\n", "invalid pod"},
		"no name":       {"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: i}]}\n", "name is needed for the pod"},
		"no containers": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "spec.containers: Required value"},
		"service account": {strings.Replace(staticWeb, "spec: {", "spec: {serviceAccountName: a, ", 1),
			"static pods may not reference serviceaccounts"},
		"secret": {strings.Replace(staticWeb, "image: i", "image: i, envFrom: [{secretRef: {name: s}}]", 1),
			"static pods may not reference secrets"},
		"claim": {strings.Replace(staticWeb, "spec: {", "spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: p}}], ", 1),
			"static pods may not reference persistentvolumeclaims"},
		"list in a file": {"apiVersion: v1\nkind: PodList\nitems: []\n", "a file holds one pod"},
	} {
		if _, err := StaticPods([]byte(c.text), "/f", true, "n"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A manifest may come from a URL. What it says of names and addresses becomes lines of files that the node writes: of the hosts file, of
// resolv.conf. Nothing in it may begin another line.
func TestAliasIsNoOption(t *testing.T) {
	for name, c := range map[string]struct{ spec, want string }{
		"a line in an alias":    {`hostAliases: [{ip: 10.0.0.1, hostnames: ["x\n10.0.0.2\tapi"]}]`, "spec.hostAliases[0].hostnames"},
		"a space in an alias":   {`hostAliases: [{ip: 10.0.0.1, hostnames: ["x y"]}]`, "spec.hostAliases[0].hostnames"},
		"a line in an address":  {`hostAliases: [{ip: "10.0.0.1\tapi\n10.0.0.2", hostnames: [x]}]`, "spec.hostAliases[0].ip"},
		"a line in the name":    {`hostname: "h\n10.0.0.2"`, "spec.hostname"},
		"a line in the domain":  {`subdomain: "h\n10.0.0.2"`, "spec.subdomain"},
		"a line in a server":    {`dnsConfig: {nameservers: ["10.0.0.1\noptions x"]}`, "spec.dnsConfig.nameservers"},
		"a line in the domains": {`dnsConfig: {searches: ["x\nnameserver 10.0.0.1"]}`, "spec.dnsConfig.searches"},
	} {
		text := strings.Replace(staticWeb, "spec: {", "spec: {"+c.spec+", ", 1)
		if _, err := StaticPods([]byte(text), "http://x", false, "n"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzStaticPods(f *testing.F) {
	f.Add([]byte(staticWeb))
	f.Add([]byte(`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, file := range []bool{true, false} {
			pods, err := StaticPods(data, "source", file, "n")
			for _, p := range pods {
				if err != nil || !strings.HasSuffix(p.Name, "-n") || p.UID == "" {
					t.Errorf("pod %q, %v", p.Name, err)
				}
			}
		}
	})
}
