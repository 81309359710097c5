// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// previousProgram names the binary of the release before, for TestUpgrade:
//
//	MORTISE_TEST_PREVIOUS=$(scripts/release/previous) go test -tags grpcnotrace ./test -run TestUpgrade -v
const previousProgram = "MORTISE_TEST_PREVIOUS"

// upgradeDefinition and upgradeObjects are what runs when the release changes. The container of the pod restarted has failed once.
const (
	upgradeDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boxes.upgrade.example.com}
spec:
  group: upgrade.example.com
  scope: Namespaced
  names: {plural: boxes, kind: Box}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 3}}}}}}
`
	upgradeObjects = `
apiVersion: upgrade.example.com/v1
kind: Box
metadata: {name: box, namespace: default}
spec: {}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: default}
stringData: {password: open sesame}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: IMAGE
        imagePullPolicy: Never
        command: [sh, -c, "mkdir -p /www && hostname > /www/index.html && exec httpd -f -p 8080 -h /www"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: volumes, namespace: default, labels: {purpose: upgrade}}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: init
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "echo kept > /empty/file"]
    volumeMounts: [{name: empty, mountPath: /empty}]
  containers:
  - name: c
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "echo running; trap 'exit 0' TERM; while :; do sleep 1; done"]
    resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {memory: 64Mi}}
    volumeMounts:
    - {name: empty, mountPath: /empty}
    - {name: memory, mountPath: /memory}
    - {name: settings, mountPath: /settings}
    - {name: password, mountPath: /password}
    - {name: labels, mountPath: /labels}
  volumes:
  - {name: empty, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: settings, configMap: {name: settings}}
  - {name: password, secret: {secretName: password}}
  - {name: labels, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: restarted, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "[ -e /empty/once ] || { touch /empty/once; exit 3; }; trap 'exit 0' TERM; while :; do sleep 1; done"]
    volumeMounts: [{name: empty, mountPath: /empty}]
  volumes:
  - {name: empty, emptyDir: {}}
`
	// upgradeResources are the resources whose objects stay as they are.
	upgradeResources = "pods,services,endpointslices,configmaps,secrets,serviceaccounts,deployments,replicasets,namespaces," +
		"customresourcedefinitions,boxes.upgrade.example.com"
)

// TestUpgrade kills a server and its node of the release before while pods run, and starts this release on the same data directory: the
// objects are the same, the same containers go on, and the volumes, the Service and the controllers work.
func TestUpgrade(t *testing.T) {
	previous := os.Getenv(previousProgram)
	if previous == "" {
		t.Skip("SKIPPED: " + previousProgram + " does not name the binary of the release before")
	}
	if !alone(t) {
		return
	}
	n := startNodeFrom(t, previous, "--listen", nodeAddress+":16443") // the service kubernetes names the port
	for i, manifest := range []string{upgradeDefinition, upgradeObjects} {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i, ".yaml"))
		n.write(t, file, strings.ReplaceAll(manifest, "IMAGE", images.Busybox))
		n.kubectl("apply", "-f", file)
		if i == 0 {
			n.kubectl("wait", "--for=condition=Established", "crd/boxes.upgrade.example.com", "--timeout=60s")
		}
	}
	n.kubectl("rollout", "status", "deployment/web", "--timeout=100s")
	n.ready(t, "volumes")
	n.pod(t, "restarted", func(p *corev1.Pod) bool { return ready(*p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	n.inside(t, "volumes", "echo memory > /memory/file")
	address := n.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	pages := n.inside(t, "volumes", "wget -q -O - http://"+address)
	if !strings.HasPrefix(pages, "web-") {
		t.Errorf("before the upgrade, the service answers %q", pages)
	}
	before, containers := n.objects(t), n.ctr(t, "containers", "ls", "-q")
	n.program.kill()

	n.path = built(t)
	n.up(t)
	// The node has taken the pod over once the pod's volume shows a change.
	n.kubectl("patch", "configmap", "settings", "--type=merge", "-p", `{"data":{"color":"green"}}`)
	n.inside(t, "volumes", "while [ \"$(cat /settings/color)\" != green ]; do sleep 0.1; done")
	n.kubectl("patch", "configmap", "settings", "--type=merge", "-p", `{"data":{"color":"blue"}}`)
	after := n.objects(t)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			t.Errorf("%s was\n%s\nand is after the upgrade\n%s", name, before[name], after[name])
		}
		delete(after, name)
	}
	for name, object := range after {
		t.Errorf("the upgrade made %s\n%s", name, object)
	}
	if now := n.ctr(t, "containers", "ls", "-q"); now != containers {
		t.Errorf("the containers were\n%s\nand are after the upgrade\n%s", containers, now)
	}
	if got := n.inside(t, "volumes", "cat /empty/file /memory/file /password/password; grep -c upgrade /labels/labels"); got !=
		"kept\nmemory\nopen sesame1\n" {
		t.Errorf("after the upgrade, the volumes hold %q", got)
	}
	if page := n.inside(t, "volumes", "wget -q -O - http://"+address); !strings.HasPrefix(page, "web-") {
		t.Errorf("after the upgrade, the service answers %q", page)
	}
	if log := n.kubectl("logs", "volumes", "-c", "c"); log != "running\n" {
		t.Errorf("after the upgrade, the log is %q", log)
	}
	n.kubectl("scale", "deployment/web", "--replicas=3")
	n.kubectl("rollout", "status", "deployment/web", "--timeout=100s")
	n.kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=100s")
	n.deleteAll(t)
	if left := strings.TrimSpace(n.ctr(t, "containers", "ls", "-q")); left != "" {
		t.Errorf("after the pods were deleted, there are the containers\n%s", left)
	}
	n.stop()
}

// objects are the stored objects that an upgrade does not change, without the parts that every write changes.
func (n *realNode) objects(t *testing.T) map[string]string {
	t.Helper()
	var list unstructured.UnstructuredList
	if err := json.Unmarshal([]byte(n.kubectl("get", upgradeResources, "-A", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string, len(list.Items))
	for _, o := range list.Items {
		name := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		all[name] = text(o.Object)
	}
	return all
}
